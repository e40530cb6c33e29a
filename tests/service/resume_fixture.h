// SPDX-License-Identifier: Apache-2.0
//
// A store and a registry as Lease::Begin joins them, and the judge of every
// resume: cut, plan, rows, receipt. No gRPC, no weights.

#ifndef TORPOR_TESTS_SERVICE_RESUME_FIXTURE_H_
#define TORPOR_TESTS_SERVICE_RESUME_FIXTURE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "service/lease.h"
#include "service/model_registry.h"
#include "store/lmdb_session_store.h"
#include "tests/service/resume_oracle.h"
#include "tests/service/stored_session.h"
#include "tests/testing/temp_dir.h"

namespace torpor::service {

// Longer than a store remembers a deleted session.
inline constexpr int64_t kTwoDaysUs = int64_t{48} * 3600 * 1'000'000;

struct Asked {
  v1::BeginResumeHeader header;
  std::optional<store::TokenRun> prompt;
};

// The plan's mode and rows, or the code with which it is refused.
struct Expected {
  absl::StatusCode code = absl::StatusCode::kOk;
  uint64_t prompt_tokens = 0;
  uint64_t cut = 0;
  replay::ReplayMode mode = replay::ReplayMode::kExact;
  ExpectedPlan plan;
};

class ResumeTest : public ::testing::Test {
 protected:
  void SetUp() override;

  std::shared_ptr<const RegisteredModel> Register(
      const replay::ModelLayout& layout, uint32_t block_size);

  // Resumes as asked and judges all of it; the plan when there is one.
  std::optional<replay::ReplayPlan> Resume(const StoredSession& session,
                                           const Asked& asked);
  void JudgePlan(const StoredSession& session, const Asked& asked,
                 const Expected& want, const replay::ReplayPlan& plan);
  void JudgeRows(const StoredSession& session, uint64_t cut, Lease* lease);
  void JudgeReceipt(const Expected& want, Lease* lease);

  const testing::TempDir dir_;
  std::atomic<int64_t> now_us_ = 1'000'000;
  std::unique_ptr<store::LmdbSessionStore> store_;
  std::unique_ptr<ModelRegistry> models_;
  uint64_t n_models_ = 0;
  // What the cases were worth.
  uint64_t n_resumes_ = 0;
  uint64_t n_refused_ = 0;
  uint64_t n_inexact_ = 0;
  uint64_t n_floored_ = 0;
  uint64_t n_uniform_ = 0;
  uint64_t n_copied_ = 0;
};

}  // namespace torpor::service

#endif  // TORPOR_TESTS_SERVICE_RESUME_FIXTURE_H_
