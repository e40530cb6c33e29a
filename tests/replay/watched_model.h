// SPDX-License-Identifier: Apache-2.0
//
// A model that watches what is asked of another and meddles with it where a
// test says so: replays run through it as they run in the service.

#ifndef TORPOR_TESTS_REPLAY_WATCHED_MODEL_H_
#define TORPOR_TESTS_REPLAY_WATCHED_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "replay/model.h"

namespace torpor::replay {

// The input row of one layer, replaced by `value` in every element.
struct Poison {
  uint32_t layer = 0;
  uint64_t position = 0;
  float value = 0;
};

class WatchedModel final : public Model {
 public:
  explicit WatchedModel(Model* inner) : inner_(inner) {}

  // Rows that a forward takes, at most those of the model; 0 = as many.
  uint64_t rows_max = 0;
  std::function<void(Sequence* sequence)> on_new_sequence;
  std::function<void(std::span<const Segment> segments)> after_forward;
  std::optional<Poison> poison;
  // Forwards that ran, and rows that met `poison`.
  int n_forwards = 0;
  int n_poisoned = 0;

  const ModelLayout& layout() const override { return inner_->layout(); }
  const Fingerprint& fingerprint() const override {
    return inner_->fingerprint();
  }
  const std::string& numerics_id() const override {
    return inner_->numerics_id();
  }
  uint32_t vocab_size() const override { return inner_->vocab_size(); }
  uint32_t hidden_size() const override { return inner_->hidden_size(); }
  uint64_t max_rows() const override {
    return rows_max == 0 ? inner_->max_rows()
                         : std::min(rows_max, inner_->max_rows());
  }
  uint64_t SequenceBytes(uint64_t n_tokens) const override {
    return inner_->SequenceBytes(n_tokens);
  }
  uint64_t WorkBytes() const override { return inner_->WorkBytes(); }

  std::unique_ptr<Sequence> NewSequence() override {
    std::unique_ptr<Sequence> sequence = inner_->NewSequence();
    if (on_new_sequence) on_new_sequence(sequence.get());
    return sequence;
  }

  absl::Status Forward(std::span<const Segment> segments,
                       const ForwardOptions& options,
                       std::vector<std::vector<float>>* logits) override {
    ForwardOptions watched = options;
    if (poison.has_value()) {
      watched.on_layer_input = [&](uint32_t layer, size_t s, uint64_t begin,
                                   std::span<float> rows) {
        const Segment& segment = segments[s];
        MeetPoison(layer, begin, segment.begin + segment.ids.size(), rows);
        if (options.on_layer_input) {
          options.on_layer_input(layer, s, begin, rows);
        }
      };
    }
    const absl::Status status = inner_->Forward(segments, watched, logits);
    if (!status.ok()) return status;
    ++n_forwards;
    if (after_forward) after_forward(segments);
    return status;
  }

 private:
  void MeetPoison(uint32_t layer, uint64_t begin, uint64_t end,
                  std::span<float> rows) {
    const uint64_t at = poison->position;
    if (layer != poison->layer || at < begin || at >= end) return;
    const size_t width = rows.size() / (end - begin);
    std::fill_n(rows.begin() + static_cast<ptrdiff_t>((at - begin) * width),
                width, poison->value);
    ++n_poisoned;
  }

  Model* const inner_;
};

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_WATCHED_MODEL_H_
