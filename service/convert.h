// SPDX-License-Identifier: Apache-2.0
//
// Between the wire's messages and the values of store/ and replay/. proto types
// stop here. kInvalidArgument names the field that cannot be.

#ifndef TORPOR_SERVICE_CONVERT_H_
#define TORPOR_SERVICE_CONVERT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "replay/fingerprint.h"
#include "replay/model_layout.h"
#include "replay/planner.h"
#include "replay/witness.h"
#include "store/session_store.h"
#include "torpor/v1/model_service.pb.h"
#include "torpor/v1/session_service.pb.h"
#include "torpor/v1/types.pb.h"

namespace torpor::service {

// ---- models
v1::ModelLayout ToProto(const replay::ModelLayout& layout);
absl::StatusOr<replay::ModelLayout> FromProto(const v1::ModelLayout& layout);
v1::Fingerprint ToProto(const replay::Fingerprint& fingerprint);
replay::Fingerprint FromProto(const v1::Fingerprint& fingerprint);
// "field: got, wanted" of the first field that `asked` sets and `held` differs
// in; fields that `asked` leaves empty are not compared.
std::optional<std::string> FirstContradiction(const v1::Fingerprint& asked,
                                              const replay::Fingerprint& held);

// ---- plans
v1::ReplayPlan ToProto(const replay::ReplayPlan& plan);
absl::StatusOr<replay::ReplayMode> FromProto(v1::ReplayMode mode);
v1::ReplayMode ToProto(replay::ReplayMode mode);

// ---- tokens and floors
// Of a stream whose first message alone is one.
absl::Status SecondHeader(std::string_view verb);
// Appends a chunk whose first id stands at `position`. kInvalidArgument for too
// many ids, one outside the vocabulary (0 = unknown), or an extra key that
// cannot be.
absl::Status AppendTokens(const v1::TokenChunk& chunk, uint64_t position,
                          uint32_t vocab_size, store::TokenRun* run);
// kInvalidArgument when an extra key of a whole prompt goes past its tokens.
absl::Status CheckSpansEnd(const store::TokenRun& run);
v1::TokenChunk ToProto(const store::TokenRun& run, size_t begin, size_t end,
                       uint64_t position);
std::vector<replay::TwoWaySpan> TwoWaySpans(
    const std::vector<store::ExtraKeySpan>& spans);
std::vector<replay::Floor> ToReplay(const std::vector<store::Floor>& floors);
v1::Floor ToProto(const replay::Floor& floor);

// ---- witness
v1::Witness ToProto(const replay::Witness& witness);
// kInvalidArgument when a digest is not 16 bytes, or layers and rows are not
// those of the layout's windows at `resume_at`: nothing could be compared with
// it later.
absl::Status CheckWitness(const v1::Witness& witness,
                          const replay::ModelLayout& layout,
                          uint64_t resume_at);
// kInvalidArgument when a digest is not 16 bytes.
absl::StatusOr<replay::Witness> FromProto(const v1::Witness& witness,
                                          uint64_t resume_at);

// ---- sessions
// A time from now: nullopt for 0 (keep), 0 for -1 (clear). kInvalidArgument
// below -1 and above a hundred years.
absl::StatusOr<std::optional<int64_t>> SecondsFromProto(std::string_view field,
                                                        int64_t seconds);
v1::SuspendReceipt ToProto(const std::string& session,
                           const store::SuspendReceipt& receipt);
v1::SessionState ToProto(const store::SessionInfo& info);
absl::StatusOr<std::optional<store::SessionClass>> FromProto(
    v1::SessionClass session_class);

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_CONVERT_H_
