// SPDX-License-Identifier: Apache-2.0
//
// The window of one resume: replayed or read from its snapshot, held against
// the witness, and climbing from rung to rung where the caller's limits allow.
// Free functions over what a lease has pinned; no locks.

#ifndef TORPOR_SERVICE_WINDOW_REBUILD_H_
#define TORPOR_SERVICE_WINDOW_REBUILD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "replay/planner.h"
#include "replay/replayer.h"
#include "replay/witness.h"
#include "service/model_registry.h"
#include "service/replay_executor.h"
#include "store/session_store.h"
#include "torpor/v1/session_service.pb.h"

namespace torpor::service {

// What a lease has pinned. `header` outlives the call it is passed to.
struct RebuildInputs {
  std::shared_ptr<const RegisteredModel> model;
  // Shared with a replay that may outlive its caller's patience.
  std::shared_ptr<store::SessionLease> stored;
  const v1::BeginResumeHeader& header;
  uint64_t cut = 0;
  // Tokens [0, cut).
  std::shared_ptr<const std::vector<uint32_t>> ids;
  const std::vector<replay::TwoWaySpan>& spans;
  const std::vector<replay::Floor>& floors;
};

// The plan for the cut in another mode.
absl::StatusOr<replay::ReplayPlan> PlanCut(const RebuildInputs& inputs,
                                           replay::ReplayMode mode,
                                           uint64_t replay_tokens);

// Rows of a compact slot (layout index), verified.
absl::Status ReadStoredRows(store::SessionLease* stored,
                            const RegisteredModel& model, uint32_t slot,
                            replay::Rows rows, std::span<uint8_t> out);

// The witness stored for exactly this cut, if there is one.
absl::StatusOr<std::optional<replay::Witness>> ReadWitness(
    const RebuildInputs& inputs);

// What a rebuild came to, and what it took; filled as far as it went when
// `status` is an error.
struct Rebuilt {
  // kDataLoss when bits that were promised are not there;
  // kFailedPrecondition when max_error is missed on the last allowed rung.
  absl::Status status;
  // The plan of the last rung.
  replay::ReplayPlan plan;
  // Empty when the plan is cold.
  replay::WindowState window;
  replay::WitnessReport report;
  // Of the model that replayed last; why it did not where it should have.
  std::string numerics_id;
  std::string fallback_reason;
  uint32_t rung = 0;
  uint64_t bytes_read = 0;
  uint64_t token_layers = 0;
  uint64_t queue_us = 0;
  uint64_t read_us = 0;
  uint64_t verify_us = 0;
  uint64_t replay_us = 0;
};

// Runs `plan` and what it climbs to.
Rebuilt RebuildWindow(const RebuildInputs& inputs, replay::ReplayPlan plan,
                      ReplayExecutor* executor,
                      const std::function<bool()>& cancelled);

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_WINDOW_REBUILD_H_
