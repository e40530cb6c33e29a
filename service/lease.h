// SPDX-License-Identifier: Apache-2.0
//
// One resume: what is pinned, the plan, the rebuilt window and its verdict, and
// the account of every token. Made by BeginResume, ended by Release or by
// nobody asking for it any longer.

#ifndef TORPOR_SERVICE_LEASE_H_
#define TORPOR_SERVICE_LEASE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "replay/planner.h"
#include "replay/replayer.h"
#include "replay/witness.h"
#include "service/data_plane.h"
#include "service/model_registry.h"
#include "service/prefetcher.h"
#include "service/replay_executor.h"
#include "service/window_rebuild.h"
#include "store/session_store.h"
#include "torpor/v1/session_service.pb.h"

namespace torpor::service {

class Lease {
 public:
  // Opens the session (or finds the longest stored prefix of `prompt`), takes a
  // legal cut and plans. `prompt` is null when the client sent no tokens.
  static absl::StatusOr<std::unique_ptr<Lease>> Begin(
      store::SessionStore* store, const ModelRegistry& models, uint32_t tenant,
      const v1::BeginResumeHeader& header, const store::TokenRun* prompt);

  const std::shared_ptr<const RegisteredModel>& model() const { return model_; }
  store::SessionLease& stored() { return *stored_; }
  // The plan as it stands; Window may climb to another.
  replay::ReplayPlan plan() {
    MutexLock lock(&mu_);
    return plan_;
  }
  const v1::BeginResumeHeader& header() const { return header_; }
  // Shared-memory segments that the client holds for this lease.
  PlaneSet& planes() { return planes_; }

  // Everything of the answer but lease id and plane.
  absl::StatusOr<v1::BeginResumeResponse> Response();

  // Rows of a compact slot (layout index), verified; counted in the receipt.
  // Returns their XXH3-64.
  absl::StatusOr<uint64_t> ReadRows(uint32_t slot, replay::Rows rows,
                                    std::span<uint8_t> out);

  // kFailedPrecondition when the plan wants a replay that this daemon cannot
  // run.
  [[nodiscard]] absl::Status CheckReplayable();

  // Rebuilds the window once and keeps it: replay or snapshot, verified against
  // the witness, climbing where `limits` allow; one that `prefetcher` holds is
  // taken instead. kDataLoss when bits that were promised are not there.
  absl::StatusOr<const replay::WindowState*> Window(
      ReplayExecutor* executor, Prefetcher* prefetcher,
      const std::function<bool()>& cancelled);
  // The window for another lease: which one it is, and itself.
  PlannedWindow Planned();
  Rebuilt RebuildApart(ReplayExecutor* executor,
                       const std::function<bool()>& cancelled);
  v1::WindowHeader WindowHeader();

  // What the engine says it ran, for the receipt. kInvalidArgument when this
  // lease is not an engine's, or the witness cannot be of its window.
  absl::Status AddEngineReplay(const v1::EngineReplay& replay);
  void AddSent(uint64_t bytes, uint64_t transfer_us);
  v1::ResumeReceipt Receipt();

 private:
  Lease() = default;

  absl::Status TakeSession(store::SessionStore* store,
                           const ModelRegistry& models, uint32_t tenant,
                           const store::TokenRun* prompt);
  absl::Status TakePrefix(store::SessionStore* store,
                          const ModelRegistry& models, uint32_t tenant,
                          const store::TokenRun& prompt);
  // Shortens the cut to what the prompt shares with the stored tokens.
  absl::Status CompareWithPrompt(const store::TokenRun& prompt);
  absl::Status TakeCut();
  absl::Status MakePlan();
  // What the prefetcher holds; what it took to rebuild is not this resume's.
  std::optional<Rebuilt> TakePrefetched(Prefetcher* prefetcher,
                                        const std::function<bool()>& cancelled);
  // kFailedPrecondition when a wake that is not cold would lack rows that a
  // snapshot alone brings back.
  absl::Status CheckSnapshotSlots(bool has_snapshot) const;
  [[nodiscard]] RebuildInputs Inputs() const;
  void AddReason(uint64_t tokens, std::string reason);

  v1::BeginResumeHeader header_;
  std::shared_ptr<const RegisteredModel> model_;
  // Shared with a replay that may outlive its caller's patience.
  std::shared_ptr<store::SessionLease> stored_;
  replay::ReplayMode mode_asked_ = replay::ReplayMode::kAuto;
  uint64_t prompt_tokens_ = 0;
  uint64_t cut_ = 0;
  // Tokens [0, cut_).
  std::shared_ptr<std::vector<uint32_t>> ids_;
  std::vector<replay::TwoWaySpan> spans_;
  std::vector<replay::Floor> floors_;
  std::optional<v1::Divergence> divergence_;
  PlaneSet planes_;
  uint64_t index_us_ = 0;

  Mutex mu_;
  CondVar rebuilt_changed_;
  replay::ReplayPlan plan_ ABSL_GUARDED_BY(mu_);
  bool rebuilding_ ABSL_GUARDED_BY(mu_) = false;
  // Then `window_` stays as it is.
  bool rebuilt_ ABSL_GUARDED_BY(mu_) = false;
  replay::WindowState window_ ABSL_GUARDED_BY(mu_);
  replay::WitnessReport report_ ABSL_GUARDED_BY(mu_);
  uint32_t rung_ ABSL_GUARDED_BY(mu_) = 0;
  bool prefetched_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t bytes_read_ ABSL_GUARDED_BY(mu_) = 0;
  std::string replay_numerics_ ABSL_GUARDED_BY(mu_);
  std::string fallback_reason_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_sent_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t queue_us_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t read_us_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t verify_us_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t transfer_us_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t replay_us_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t token_layers_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<v1::TokenReason> reasons_ ABSL_GUARDED_BY(mu_);
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_LEASE_H_
