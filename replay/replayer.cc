// SPDX-License-Identifier: Apache-2.0

#include "replay/replayer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/compact_loader.h"

namespace torpor::replay {
namespace {

// Rows copied from the reader at a time: bounded memory, whole blocks as a
// rule.
constexpr uint64_t kRowsPerRead = 1024;

uint64_t Microseconds(std::chrono::steady_clock::time_point since) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(
          std::chrono::steady_clock::now() - since)
          .count());
}

std::vector<SlotRows> RowsAt(const ModelLayout& layout,
                             const std::vector<uint32_t>& slots, uint64_t cut) {
  std::vector<SlotRows> out;
  for (const uint32_t slot : slots) {
    const Rows rows = RowsHeldAt(layout.slots[slot], cut);
    out.push_back({slot, rows.begin, rows.end, {}});
  }
  return out;
}

absl::StatusOr<WindowState> ExportSlots(const ModelLayout& layout,
                                        const std::vector<uint32_t>& slots,
                                        const Sequence& sequence,
                                        uint64_t cut) {
  WindowState window;
  window.resume_at = cut;
  window.slots = RowsAt(layout, slots, cut);
  for (SlotRows& rows : window.slots) {
    rows.bytes.resize((rows.end - rows.first) *
                      layout.slots[rows.slot].row_bytes);
    TORPOR_RETURN_IF_ERROR(
        sequence.ExportRows(rows.slot, {rows.first, rows.end}, rows.bytes));
  }
  return window;
}

class ModelReplayer final : public Replayer {
 public:
  explicit ModelReplayer(Model* model) : model_(model) {}

  uint64_t MemoryFor(const ReplayPlan& plan) const override {
    return model_->SequenceBytes(plan.resume_at) + model_->WorkBytes();
  }

  absl::StatusOr<std::vector<ReplayResult>> Rebuild(
      std::span<const ReplayJob> jobs,
      const std::function<bool()>& cancelled) override {
    TORPOR_RETURN_IF_ERROR(model_->Settle());
    std::vector<ReplayResult> results(jobs.size());
    std::vector<std::unique_ptr<Sequence>> sequences;
    for (size_t i = 0; i < jobs.size(); ++i) {
      TORPOR_RETURN_IF_ERROR(CheckJob(jobs[i]));
      sequences.push_back(model_->NewSequence());
    }
    CompactLoader loader(model_->layout(), jobs, sequences, cancelled);
    TORPOR_RETURN_IF_ERROR(Run(jobs, sequences, &loader, cancelled, &results));
    for (size_t i = 0; i < jobs.size(); ++i) {
      std::vector<float> logits = std::move(results[i].window.logits);
      TORPOR_ASSIGN_OR_RETURN(
          results[i].window,
          ExportSlots(model_->layout(), model_->layout().ReplaySlots(),
                      *sequences[i], jobs[i].plan->resume_at));
      results[i].window.logits = std::move(logits);
      results[i].numerics_id = model_->numerics_id();
      results[i].times.bytes_read = loader.bytes(i);
      results[i].times.read_us = loader.microseconds(i);
    }
    return results;
  }

 private:
  static absl::Status CheckJob(const ReplayJob& job) {
    if (job.ids.size() != job.plan->resume_at) {
      return absl::InvalidArgumentError(
          absl::StrFormat("replay: got %d token ids for a cut at %d",
                          job.ids.size(), job.plan->resume_at));
    }
    return absl::OkStatus();
  }

  // Every job's next rows together, as many as a forward takes.
  absl::Status Run(std::span<const ReplayJob> jobs,
                   const std::vector<std::unique_ptr<Sequence>>& sequences,
                   CompactLoader* loader,
                   const std::function<bool()>& cancelled,
                   std::vector<ReplayResult>* results) {
    std::vector<uint64_t> next;
    for (const ReplayJob& job : jobs) next.push_back(job.plan->replay_start);
    for (;;) {
      std::vector<Segment> batch;
      std::vector<size_t> owner;
      uint64_t room = model_->max_rows();
      for (size_t i = 0; i < jobs.size() && room > 0; ++i) {
        const uint64_t end = jobs[i].plan->resume_at;
        if (next[i] == end) continue;
        const uint64_t stop = ChunkEnd(jobs[i], next[i], end, room);
        if (stop == next[i]) continue;
        Segment segment =
            SegmentOf(sequences[i].get(), jobs[i].ids, next[i], stop);
        segment.plan = jobs[i].plan;
        segment.spans = jobs[i].spans;
        if (jobs[i].want_logits && stop == end) segment.logits_begin = end - 1;
        room -= stop - next[i];
        next[i] = stop;
        batch.push_back(segment);
        owner.push_back(i);
      }
      if (batch.empty()) break;
      const auto begin = std::chrono::steady_clock::now();
      std::vector<std::vector<float>> logits;
      TORPOR_RETURN_IF_ERROR(model_->Forward(
          batch,
          {.cancelled = cancelled,
           .before_layer = [&](uint32_t l) { return loader->WaitFor(l); }},
          &logits));
      const uint64_t took = Microseconds(begin);
      for (size_t b = 0; b < batch.size(); ++b) {
        ReplayResult& result = (*results)[owner[b]];
        result.times.replay_us += took;
        if (!logits[b].empty()) result.window.logits = std::move(logits[b]);
      }
    }
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (next[i] != jobs[i].plan->resume_at) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "replay: a bidirectional span at %d is longer than the %d rows of "
            "a forward",
            next[i], model_->max_rows()));
      }
    }
    return absl::OkStatus();
  }

  static uint64_t ChunkEnd(const ReplayJob& job, uint64_t at, uint64_t end,
                           uint64_t room) {
    uint64_t stop = std::min(end, at + room);
    if (stop == end) return stop;
    for (const TwoWaySpan& span : job.spans) {
      if (span.begin < stop && stop < span.end) {
        stop = std::max(at, span.begin);
      }
    }
    return stop;
  }

  Model* const model_;
};

}  // namespace

std::unique_ptr<Replayer> MakeReplayer(Model* model) {
  return std::make_unique<ModelReplayer>(model);
}

std::vector<SlotRows> WindowRowsAt(const ModelLayout& layout, uint64_t cut) {
  return RowsAt(layout, layout.SnapshotSlots(), cut);
}

absl::StatusOr<WindowState> ExportWindow(const ModelLayout& layout,
                                         const Sequence& sequence,
                                         uint64_t cut) {
  return ExportSlots(layout, layout.SnapshotSlots(), sequence, cut);
}

absl::Status ImportWindow(const WindowState& window, Sequence* sequence) {
  for (const SlotRows& rows : window.slots) {
    TORPOR_RETURN_IF_ERROR(
        sequence->ImportRows(rows.slot, rows.first, rows.bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> LoadSlotRows(const ModelLayout& layout, uint32_t index,
                                      uint64_t n_tokens,
                                      CompactKvReader* reader,
                                      Sequence* sequence,
                                      const std::function<bool()>& cancelled) {
  const Slot& slot = layout.slots[index];
  const uint64_t n_rows = RowsOf(slot, 0, n_tokens).size();
  uint64_t bytes = 0;
  std::vector<uint8_t> buffer;
  for (uint64_t row = 0; row < n_rows; row += kRowsPerRead) {
    if (cancelled && cancelled()) {
      return absl::CancelledError("load compact rows: cancelled");
    }
    const uint64_t end = std::min(n_rows, row + kRowsPerRead);
    buffer.resize((end - row) * slot.row_bytes);
    TORPOR_RETURN_IF_ERROR(reader->ReadRows(index, {row, end}, buffer));
    TORPOR_RETURN_IF_ERROR(sequence->ImportRows(index, row, buffer));
    bytes += buffer.size();
  }
  return bytes;
}

absl::StatusOr<uint64_t> LoadCompactRows(
    const ModelLayout& layout, uint64_t n_tokens, CompactKvReader* reader,
    Sequence* sequence, const std::function<bool()>& cancelled) {
  uint64_t bytes = 0;
  for (const uint32_t index : layout.CompactSlots()) {
    TORPOR_ASSIGN_OR_RETURN(
        const uint64_t slot_bytes,
        LoadSlotRows(layout, index, n_tokens, reader, sequence, cancelled));
    bytes += slot_bytes;
  }
  return bytes;
}

}  // namespace torpor::replay
