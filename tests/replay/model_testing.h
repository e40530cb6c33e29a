// SPDX-License-Identifier: Apache-2.0
//
// Shared by tests of models: sessions that remember what they ran, sleep (only
// compact rows are kept) and wake by a plan.

#ifndef TORPOR_TESTS_REPLAY_MODEL_TESTING_H_
#define TORPOR_TESTS_REPLAY_MODEL_TESTING_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "replay/families.h"
#include "replay/model.h"
#include "replay/planner.h"
#include "replay/replayer.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"

namespace torpor::replay {

// Compact rows of one session, kept like a store keeps them.
class MemoryRows final : public CompactKvReader {
 public:
  absl::Status ReadRows(uint32_t slot, Rows rows,
                        std::span<uint8_t> out) override {
    ++reads;
    log.emplace_back(slot, rows);
    const std::vector<uint8_t>& bytes = slots.at(slot);
    const size_t row_bytes = out.size() / rows.size();
    if (rows.end * row_bytes > bytes.size()) {
      return absl::OutOfRangeError("rows that were not stored");
    }
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(rows.begin * row_bytes),
                out.size(), out.begin());
    return absl::OkStatus();
  }

  std::map<uint32_t, std::vector<uint8_t>> slots;
  int reads = 0;
  // What was read, in order.
  std::vector<std::pair<uint32_t, Rows>> log;
};

// The compact rows of the first `n_tokens` tokens, as a suspend stores them.
inline absl::StatusOr<MemoryRows> CompactRowsOf(const ModelLayout& layout,
                                                const Sequence& sequence,
                                                uint64_t n_tokens) {
  MemoryRows rows;
  for (const uint32_t index : layout.CompactSlots()) {
    const Slot& slot = layout.slots[index];
    const uint64_t n = n_tokens / slot.tokens_per_row;
    std::vector<uint8_t>& bytes = rows.slots[index];
    bytes.resize(n * slot.row_bytes);
    TORPOR_RETURN_IF_ERROR(sequence.ExportRows(index, {0, n}, bytes));
  }
  return rows;
}

// A session on one sequence of a model.
class TestSession {
 public:
  explicit TestSession(Model* model)
      : model_(model), sequence_(model->NewSequence()) {}

  // Runs tokens after those there are; logits of the last `n_logits`.
  absl::StatusOr<std::vector<float>> Run(std::span<const uint32_t> ids,
                                         uint64_t n_logits, uint64_t chunk = 0,
                                         const ForwardOptions& options = {}) {
    const uint64_t begin = ids_.size();
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    Segment segment = SegmentOf(sequence_.get(), ids_, begin, ids_.size());
    segment.logits_begin = ids_.size() - n_logits;
    return RunTokens(model_, segment, chunk, options);
  }

  // What a suspend would store: compact rows of every token.
  absl::StatusOr<MemoryRows> Compact() const {
    return CompactRowsOf(model_->layout(), *sequence_, ids_.size());
  }

  absl::StatusOr<WindowState> Window() const {
    return ExportWindow(model_->layout(), *sequence_, ids_.size());
  }

  // A session of the first `cut` tokens, rebuilt by `plan` from stored rows.
  static absl::StatusOr<TestSession> Wake(Model* model,
                                          std::span<const uint32_t> ids,
                                          const ReplayPlan& plan,
                                          MemoryRows* rows) {
    const std::unique_ptr<Replayer> replayer = MakeReplayer(model);
    const ReplayJob job{
        .plan = &plan, .ids = ids.first(plan.resume_at), .reader = rows};
    TORPOR_ASSIGN_OR_RETURN(const auto results,
                            replayer->Rebuild(std::span(&job, 1), nullptr));
    TestSession session(model);
    session.ids_.assign(ids.begin(),
                        ids.begin() + static_cast<ptrdiff_t>(plan.resume_at));
    TORPOR_RETURN_IF_ERROR(LoadCompactRows(model->layout(), plan.resume_at,
                                           rows, session.sequence_.get(),
                                           nullptr)
                               .status());
    TORPOR_RETURN_IF_ERROR(
        ImportWindow(results[0].window, session.sequence_.get()));
    return session;
  }

  Sequence* sequence() { return sequence_.get(); }
  const std::vector<uint32_t>& ids() const { return ids_; }

 private:
  Model* model_;
  std::unique_ptr<Sequence> sequence_;
  std::vector<uint32_t> ids_;
};

inline std::vector<uint32_t> RandomIds(testing::Random& random, size_t n,
                                       uint32_t vocab) {
  std::vector<uint32_t> ids(n);
  for (uint32_t& id : ids) {
    id = static_cast<uint32_t>(random.Between(0, vocab - 1));
  }
  return ids;
}

inline absl::StatusOr<ReplayPlan> Plan(const Model& model, uint64_t cut,
                                       ReplayMode mode,
                                       uint64_t replay_tokens = 0,
                                       std::vector<Floor> floors = {}) {
  return PlanReplay(model.layout(), {.resume_at = cut,
                                     .mode = mode,
                                     .replay_tokens = replay_tokens,
                                     .floors = std::move(floors)});
}

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_MODEL_TESTING_H_
