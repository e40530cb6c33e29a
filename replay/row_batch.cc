// SPDX-License-Identifier: Apache-2.0

#include "replay/row_batch.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::replay {

namespace {

// Ids that a row's n-grams are looked up by; those that only name an embedding
// are the family's to check.
absl::Status CheckIds(std::span<const uint32_t> ids, uint64_t begin,
                      uint32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "token at position %d: got id %d, the vocabulary has %d", begin + i,
        ids[i], vocab_size));
  }
  return absl::OkStatus();
}

absl::Status CheckSegment(const Segment& segment, uint64_t id_lookback,
                          uint32_t vocab_size) {
  const uint64_t end = segment.begin + segment.ids.size();
  if (segment.ids.empty() || segment.logits_begin < segment.begin ||
      segment.logits_begin > end) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "segment: rows [%d, %d) with logits from %d, wanted some rows and "
        "logits inside them",
        segment.begin, end, segment.logits_begin));
  }
  const uint64_t wanted = std::min(id_lookback, segment.begin);
  if (segment.history.size() < wanted) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "segment at %d: got the ids of %d tokens before it, the model looks at "
        "%d",
        segment.begin, segment.history.size(), wanted));
  }
  if (id_lookback == 0) return absl::OkStatus();
  TORPOR_RETURN_IF_ERROR(CheckIds(segment.history.last(wanted),
                                  segment.begin - wanted, vocab_size));
  return CheckIds(segment.ids, segment.begin, vocab_size);
}

void AddBlock(RowBlock block, std::vector<RowBlock>* blocks) {
  if (!blocks->empty() &&
      blocks->back().first + blocks->back().n == block.first) {
    blocks->back().n += block.n;
  } else {
    blocks->push_back(block);
  }
}

}  // namespace

absl::StatusOr<RowBatch> RowBatch::Make(std::span<const Segment> segments,
                                        const ModelLayout& layout,
                                        uint64_t max_rows,
                                        uint64_t id_lookback) {
  RowBatch batch;
  batch.segments_ = segments;
  for (const Segment& segment : segments) {
    TORPOR_RETURN_IF_ERROR(
        CheckSegment(segment, id_lookback, layout.vocab_size));
    const uint64_t begin = segment.begin;
    const uint64_t end = begin + segment.ids.size();
    const ReplayPlan* plan = segment.plan;
    batch.first_row_.push_back(batch.n_rows_);
    batch.n_rows_ += segment.ids.size();
    std::vector<LayerBegin> begins(layout.n_layers);
    for (uint32_t l = 0; l < layout.n_layers; ++l) {
      if (plan != nullptr) {
        begins[l] = {std::clamp(plan->layers[l].input_begin, begin, end),
                     std::clamp(plan->layers[l].run_begin, begin, end)};
        continue;
      }
      // The last layer feeds nothing but the logits.
      begins[l] = {begin,
                   l + 1 == layout.n_layers ? segment.logits_begin : begin};
    }
    std::vector<uint64_t> writes(layout.slots.size(), begin);
    if (plan != nullptr) {
      for (size_t slot = 0; slot < writes.size(); ++slot) {
        writes[slot] = std::clamp(plan->write_begin[slot], begin, end);
      }
    }
    batch.begins_.push_back(std::move(begins));
    batch.writes_.push_back(std::move(writes));
  }
  if (batch.n_rows_ == 0 || batch.n_rows_ > max_rows) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "forward: got %d rows, wanted 1 to %d", batch.n_rows_, max_rows));
  }
  return batch;
}

uint64_t CountRows(std::span<const RowRun> runs) {
  uint64_t n = 0;
  for (const RowRun& run : runs) n += run.n;
  return n;
}

std::vector<RowBlock> BlocksOf(std::span<const RowRun> runs) {
  std::vector<RowBlock> blocks;
  for (const RowRun& run : runs) AddBlock({run.row, run.n}, &blocks);
  return blocks;
}

std::vector<RowBlock> BlocksIn(std::span<const RowRun> runs,
                               std::span<const RowRun> from) {
  std::vector<RowBlock> blocks;
  size_t next = 0;
  uint64_t end = 0;
  for (const RowRun& run : runs) {
    do {
      end += from[next].n;
    } while (from[next++].segment != run.segment);
    AddBlock({end - run.n, run.n}, &blocks);
  }
  return blocks;
}

RowRun RowBatch::From(size_t s, uint64_t begin) const {
  const Segment& segment = segments_[s];
  const uint64_t skip = begin - segment.begin;
  return {s, first_row_[s] + skip, begin, segment.ids.size() - skip};
}

RowRun RowBatch::All(size_t s) const { return From(s, segments_[s].begin); }

RowRun RowBatch::Input(uint32_t layer, size_t s) const {
  return From(s, begins_[s][layer].input);
}

std::vector<RowRun> RowBatch::Entering(uint32_t layer) const {
  std::vector<RowRun> runs;
  for (size_t s = 0; s < segments_.size(); ++s) {
    const RowRun run = Input(layer, s);
    if (run.n > 0) runs.push_back(run);
  }
  return runs;
}

std::vector<RowRun> RowBatch::Written(uint32_t slot) const {
  std::vector<RowRun> runs;
  for (size_t s = 0; s < segments_.size(); ++s) {
    const RowRun run = From(s, writes_[s][slot]);
    if (run.n > 0) runs.push_back(run);
  }
  return runs;
}

std::vector<RowRun> RowBatch::Running(uint32_t layer) const {
  std::vector<RowRun> runs;
  for (size_t s = 0; s < segments_.size(); ++s) {
    const RowRun run = From(s, begins_[s][layer].run);
    if (run.n > 0) runs.push_back(run);
  }
  return runs;
}

RowRun RowBatch::Logits(size_t s) const {
  return From(s, segments_[s].logits_begin);
}

std::vector<kernels::KeyRange> RowBatch::Keys(const RowRun& run, uint32_t layer,
                                              uint64_t window) const {
  const Segment& segment = segments_[run.segment];
  std::vector<kernels::KeyRange> keys;
  keys.reserve(run.n);
  for (uint64_t i = 0; i < run.n; ++i) {
    const uint64_t pos = run.position + i;
    uint64_t begin = window == 0 || pos + 1 < window ? 0 : pos + 1 - window;
    uint64_t end = pos + 1;
    for (const TwoWaySpan& span : segment.spans) {
      if (span.begin <= pos && pos < span.end) {
        begin = std::min(begin, span.begin);
        end = std::max(end, span.end);
      }
    }
    if (segment.plan != nullptr && window != 0) {
      for (const FloorRange& floor : segment.plan->floors) {
        if (layer >= floor.layer_begin && floor.row_begin <= pos &&
            pos < floor.row_end) {
          begin = std::max(begin, floor.floor);
        }
      }
    }
    keys.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(end)});
  }
  return keys;
}

}  // namespace torpor::replay
