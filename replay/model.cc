// SPDX-License-Identifier: Apache-2.0

#include "replay/model.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::replay {

namespace {

// End of a chunk that begins at `at`: at most `limit` rows, never inside a
// two-way span, whose tokens see each other.
absl::StatusOr<uint64_t> ChunkEnd(const Segment& segment, uint64_t at,
                                  uint64_t end, uint64_t limit) {
  uint64_t stop = std::min(end, at + limit);
  if (stop == end) return stop;
  for (const TwoWaySpan& span : segment.spans) {
    if (span.begin < stop && stop < span.end) stop = span.begin;
  }
  if (stop <= at) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "run tokens: a bidirectional span at %d is longer than the %d rows of "
        "a chunk",
        at, limit));
  }
  return stop;
}

// Ids of the tokens before `at`, `lookback` of them at least; `joined` owns
// them where the segment and its history both hold some.
std::span<const uint32_t> HistoryAt(const Segment& segment, uint64_t at,
                                    uint64_t lookback,
                                    std::vector<uint32_t>* joined) {
  if (at == segment.begin) return segment.history;
  const std::span<const uint32_t> run = segment.ids.first(at - segment.begin);
  if (segment.history.empty() || run.size() >= lookback) return run;
  joined->assign(segment.history.begin(), segment.history.end());
  joined->insert(joined->end(), run.begin(), run.end());
  return *joined;
}

}  // namespace

Segment SegmentOf(Sequence* sequence, std::span<const uint32_t> ids,
                  uint64_t begin, uint64_t end) {
  Segment segment;
  segment.sequence = sequence;
  segment.begin = begin;
  segment.ids = ids.subspan(begin, end - begin);
  segment.history = ids.first(begin);
  segment.logits_begin = end;
  return segment;
}

absl::StatusOr<std::vector<float>> RunTokens(Model* model, Segment segment,
                                             uint64_t chunk,
                                             const ForwardOptions& options) {
  const uint64_t limit =
      chunk == 0 ? model->max_rows() : std::min(chunk, model->max_rows());
  const uint64_t end = segment.begin + segment.ids.size();
  std::vector<float> out;
  std::vector<uint32_t> history;
  for (uint64_t at = segment.begin; at < end;) {
    TORPOR_ASSIGN_OR_RETURN(const uint64_t stop,
                            ChunkEnd(segment, at, end, limit));
    Segment part = segment;
    part.begin = at;
    part.ids = segment.ids.subspan(at - segment.begin, stop - at);
    part.history = HistoryAt(segment, at, model->id_lookback(), &history);
    part.logits_begin = std::clamp(segment.logits_begin, at, stop);
    if (segment.inputs != nullptr) {
      part.inputs =
          segment.inputs + (at - segment.begin) * model->hidden_size();
    }
    std::vector<std::vector<float>> logits;
    TORPOR_RETURN_IF_ERROR(
        model->Forward(std::span(&part, 1), options, &logits));
    out.insert(out.end(), logits[0].begin(), logits[0].end());
    at = stop;
  }
  return out;
}

}  // namespace torpor::replay
