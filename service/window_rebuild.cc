// SPDX-License-Identifier: Apache-2.0

#include "service/window_rebuild.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/microseconds.h"
#include "base/status.h"
#include "service/convert.h"

namespace torpor::service {
namespace {

using SteadyClock = std::chrono::steady_clock;

// The store's rows as replay wants them.
class StoredRows final : public replay::CompactKvReader {
 public:
  StoredRows(std::shared_ptr<store::SessionLease> lease,
             std::shared_ptr<const RegisteredModel> model)
      : lease_(std::move(lease)), model_(std::move(model)) {}

  absl::Status ReadRows(uint32_t slot, replay::Rows rows,
                        std::span<uint8_t> out) override {
    return ReadStoredRows(lease_.get(), *model_, slot, rows, out);
  }

 private:
  const std::shared_ptr<store::SessionLease> lease_;
  const std::shared_ptr<const RegisteredModel> model_;
};

// One rebuild as it climbs.
class Climber {
 public:
  Climber(const RebuildInputs& inputs, ReplayExecutor* executor,
          const std::function<bool()>& cancelled, Rebuilt* out)
      : in_(inputs), executor_(executor), cancelled_(cancelled), out_(*out) {}

  absl::Status Run() {
    TORPOR_ASSIGN_OR_RETURN(const std::optional<replay::Witness> witness,
                            ReadWitness(in_));
    for (;;) {
      out_.report = {};
      out_.window = {};
      if (out_.plan.mode == replay::ReplayMode::kCold) return absl::OkStatus();
      TORPOR_ASSIGN_OR_RETURN(out_.window, WholeWindow());
      if (!witness.has_value() || out_.window.slots.empty()) {
        return absl::OkStatus();
      }
      TORPOR_ASSIGN_OR_RETURN(const bool served, Judge(*witness));
      if (served) return absl::OkStatus();
    }
  }

 private:
  // What was replayed, and the rest from the snapshot: in mode snapshot all of
  // it, else what no replay brings back.
  absl::StatusOr<replay::WindowState> WholeWindow() {
    const replay::ModelLayout& layout = in_.model->layout;
    replay::WindowState window;
    if (out_.plan.mode != replay::ReplayMode::kSnapshot) {
      TORPOR_ASSIGN_OR_RETURN(window, Replay());
      if (layout.SnapshotSlots() == layout.ReplaySlots()) return window;
    }
    window.resume_at = out_.plan.resume_at;
    std::vector<replay::SlotRows> replayed = std::exchange(
        window.slots, replay::WindowRowsAt(layout, out_.plan.resume_at));
    auto next = replayed.begin();
    for (replay::SlotRows& rows : window.slots) {
      if (next != replayed.end() && next->slot == rows.slot) {
        rows = std::move(*next++);
      } else {
        TORPOR_RETURN_IF_ERROR(ReadSnapshot(&rows));
      }
    }
    return window;
  }

  // Fills in the bytes of rows that the snapshot holds.
  absl::Status ReadSnapshot(replay::SlotRows* rows) {
    const SteadyClock::time_point begin = SteadyClock::now();
    rows->bytes.resize((rows->end - rows->first) *
                       in_.model->layout.slots[rows->slot].row_bytes);
    if (rows->bytes.empty()) return absl::OkStatus();
    TORPOR_RETURN_IF_ERROR(in_.stored->ReadSnapshot(
        rows->slot, {rows->first, rows->end}, rows->bytes));
    out_.bytes_read += rows->bytes.size();
    out_.read_us += MicrosecondsSince(begin);
    return absl::OkStatus();
  }

  absl::StatusOr<replay::WindowState> Replay() {
    if (out_.plan.replay_tokens() == 0) {
      replay::WindowState window;
      window.resume_at = out_.plan.resume_at;
      return window;
    }
    TORPOR_ASSIGN_OR_RETURN(
        ReplayOutcome outcome,
        executor_->Run(
            {.model = in_.model,
             .plan = out_.plan,
             .ids = in_.ids,
             .spans = in_.spans,
             .reader = std::make_shared<StoredRows>(in_.stored, in_.model),
             .want_logits = in_.header.want_logits()},
            cancelled_));
    out_.queue_us += outcome.queue_us;
    out_.read_us += outcome.result.times.read_us;
    out_.replay_us += outcome.result.times.replay_us;
    out_.bytes_read += outcome.result.times.bytes_read;
    out_.token_layers += out_.plan.token_layers;
    out_.numerics_id = std::move(outcome.result.numerics_id);
    out_.fallback_reason = std::move(outcome.result.fallback_reason);
    return std::move(outcome.result.window);
  }

  // True when the window may be served; false when a further rung is planned.
  absl::StatusOr<bool> Judge(const replay::Witness& witness) {
    const SteadyClock::time_point begin = SteadyClock::now();
    TORPOR_ASSIGN_OR_RETURN(
        out_.report,
        replay::CompareWithWitness(in_.model->layout, out_.window, witness));
    out_.verify_us += MicrosecondsSince(begin);
    if (out_.report.verdict == replay::Verdict::kExact) return true;
    const bool bits_promised =
        out_.plan.mode == replay::ReplayMode::kSnapshot ||
        (out_.plan.exact && !out_.numerics_id.empty() &&
         witness.numerics_id == out_.numerics_id);
    if (bits_promised) {
      return absl::DataLossError(absl::StrFormat(
          "session '%s' at %d: the rebuilt window differs from its witness "
          "under the same numerics '%s' (largest relative error %.3g)",
          in_.header.session(), in_.cut, witness.numerics_id,
          out_.report.max_error()));
    }
    const double limit = in_.header.limits().max_error();
    const double error = out_.report.max_error();
    if (limit == 0 || error <= limit) return true;
    TORPOR_ASSIGN_OR_RETURN(const bool climbed, Climb());
    if (!climbed) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "session '%s' at %d: the largest relative error is %.3g, max_error "
          "is %.3g, and no further rung is allowed",
          in_.header.session(), in_.cut, error, limit));
    }
    return false;
  }

  // The next rung after a window that missed `max_error`; false at the top.
  absl::StatusOr<bool> Climb() {
    const uint64_t exact =
        replay::FiguresOf(in_.model->layout, in_.cut).exact_tokens;
    if (!out_.plan.exact) {
      // Twice as far, and then all the way.
      const uint64_t further = 2 * out_.plan.replay_tokens();
      TORPOR_ASSIGN_OR_RETURN(
          out_.plan, further < exact && out_.rung == 0
                         ? PlanCut(in_, replay::ReplayMode::kBounded, further)
                         : PlanCut(in_, replay::ReplayMode::kExact, 0));
    } else if (in_.header.limits().allow_cold()) {
      TORPOR_ASSIGN_OR_RETURN(out_.plan,
                              PlanCut(in_, replay::ReplayMode::kCold, 0));
    } else {
      return false;
    }
    ++out_.rung;
    return true;
  }

  const RebuildInputs& in_;
  ReplayExecutor* const executor_;
  const std::function<bool()>& cancelled_;
  Rebuilt& out_;
};

}  // namespace

absl::StatusOr<replay::ReplayPlan> PlanCut(const RebuildInputs& inputs,
                                           replay::ReplayMode mode,
                                           uint64_t replay_tokens) {
  return replay::PlanReplay(inputs.model->layout,
                            {.resume_at = inputs.cut,
                             .mode = mode,
                             .replay_tokens = replay_tokens,
                             .floors = inputs.floors,
                             .spans = inputs.spans,
                             .want_logits = inputs.header.want_logits()});
}

absl::Status ReadStoredRows(store::SessionLease* stored,
                            const RegisteredModel& model, uint32_t slot,
                            replay::Rows rows, std::span<uint8_t> out) {
  const auto it = model.compact_index.find(slot);
  if (it == model.compact_index.end()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("slot %d: its rows are not stored", slot));
  }
  return stored->ReadRows(it->second, {rows.begin, rows.end}, out);
}

absl::StatusOr<std::optional<replay::Witness>> ReadWitness(
    const RebuildInputs& inputs) {
  const store::SessionInfo& info = inputs.stored->info();
  // A witness speaks of the suspended tip alone.
  if (!info.has_witness() || inputs.cut != info.kv_len) return std::nullopt;
  TORPOR_ASSIGN_OR_RETURN(
      const auto sections,
      inputs.stored->ReadAttachment(store::AttachmentKind::kWitness));
  v1::Witness stored;
  if (sections.empty() ||
      !stored.ParseFromArray(sections[0].bytes.data(),
                             static_cast<int>(sections[0].bytes.size()))) {
    return absl::DataLossError(absl::StrFormat(
        "session '%s': its witness does not parse", inputs.header.session()));
  }
  TORPOR_ASSIGN_OR_RETURN(replay::Witness witness,
                          FromProto(stored, inputs.cut));
  return witness;
}

Rebuilt RebuildWindow(const RebuildInputs& inputs, replay::ReplayPlan plan,
                      ReplayExecutor* executor,
                      const std::function<bool()>& cancelled) {
  Rebuilt out;
  out.plan = std::move(plan);
  out.status = Climber(inputs, executor, cancelled, &out).Run();
  return out;
}

}  // namespace torpor::service
