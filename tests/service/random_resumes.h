// SPDX-License-Identifier: Apache-2.0
//
// Random layouts, histories and questions at the size of real windows; lengths
// and cuts stand at edges more often than not.

#ifndef TORPOR_TESTS_SERVICE_RANDOM_RESUMES_H_
#define TORPOR_TESTS_SERVICE_RANDOM_RESUMES_H_

#include <cstdint>
#include <vector>

#include "replay/model_layout.h"
#include "tests/service/resume_fixture.h"
#include "tests/service/stored_session.h"
#include "tests/testing/random.h"

namespace torpor::service {

// Tokens past kv_len, at most.
inline constexpr uint64_t kMaxLookahead = 8;

// One window for all sliding layers, each reading its own: where the exact
// length has a formula.
replay::ModelLayout UniformLayout(testing::Random& random);
// Full, sliding, chunked, pooled and draft slots, some shared between layers.
replay::ModelLayout MixedLayout(testing::Random& random);
// Legal for the layout.
uint32_t RandomBlock(testing::Random& random,
                     const replay::ModelLayout& layout);

// Keys on some of the tokens [begin, end), none of the spans around `kv_len`.
std::vector<store::ExtraKeySpan> RandomSpans(testing::Random& random,
                                             uint64_t begin, uint64_t end,
                                             uint64_t kv_len);
// A suspend that appends, or writes a tail anew, up to about `max` tokens.
StoredSession::Step RandomStep(testing::Random& random,
                               const StoredSession& session, uint64_t max);

// By session, session and prompt, or prompt alone; any mode. Some must be
// refused.
Asked RandomQuestion(testing::Random& random, const StoredSession& session);
// As most engines wake: the tip, or a little before it, through few rows.
Asked BoundedWake(testing::Random& random, const StoredSession& session);

}  // namespace torpor::service

#endif  // TORPOR_TESTS_SERVICE_RANDOM_RESUMES_H_
