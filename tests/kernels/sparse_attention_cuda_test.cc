// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek V4.1's sparse attention from f32 rows to outputs:
// encode, put into pages, score, choose blocks and picks, name keys, attend.
// Each kernel takes what the one before it left on the device; the references
// do the same on the host.

#include <algorithm>

#include "kernels/index_score_cuda.h"
#include "kernels/latent_attention_cuda.h"
#include "kernels/latent_keys_cuda.h"
#include "kernels/record_rows_cuda.h"
#include "kernels/row_codec_cuda.h"
#include "kernels/top_k_cuda.h"
#include "tests/kernels/choices.h"
#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

// A small model of ratio 1.
constexpr int64_t kTokens = 150;
constexpr int64_t kWindow = 9;
constexpr int64_t kRingRows = 40;
constexpr int64_t kPageRows = 16;
constexpr int64_t kHeads = 5;
constexpr int64_t kHeadDim = 64;
constexpr int64_t kIndexHeads = 3;
constexpr int64_t kIndexDim = 32;
constexpr int64_t kBlockSize = 4;
constexpr int64_t kBlocks = 12;
constexpr int64_t kTopK = 20;
constexpr float kScale = 0.125f;
const std::vector<int64_t>& Positions() {
  static const auto* const positions =
      new std::vector<int64_t>{3, 40, 120, 148, 149};
  return *positions;
}
constexpr int64_t kRows = 5;
constexpr int64_t kKeysMax = kWindow + kTopK;

// Scores closer than this might be chosen otherwise.
constexpr float kMargin = 1e-4f;

size_t Size(int64_t a, int64_t b, int64_t c = 1) {
  return static_cast<size_t>(a * b * c);
}

bool HasMargin(std::vector<float> scores, int64_t k) {
  std::sort(scores.begin(), scores.end(), std::greater<>());
  const auto at = static_cast<size_t>(k);
  return scores.size() <= at || scores[at - 1] - scores[at] > kMargin;
}

// Rows of one slot: as floats, and as the reference encodes them.
struct Records {
  Records(testing::Random& random, RowFormat format_of, int64_t dim_of)
      : format(format_of),
        dim(dim_of),
        bytes(RowBytes(format, dim, 0)),
        x(RandomFloats(random, Size(kTokens, dim))),
        encoded(Size(kTokens, bytes)) {
    EncodeRowsRef({.format = format,
                   .x = x.data(),
                   .n_rows = kTokens,
                   .dim = dim,
                   .x_stride = dim,
                   .out = encoded.data(),
                   .out_stride = bytes});
  }
  [[nodiscard]] const uint8_t* row(int64_t i) const {
    return encoded.data() + i * bytes;
  }

  RowFormat format;
  int64_t dim;
  int64_t bytes;
  std::vector<float> x;
  std::vector<uint8_t> encoded;
};

// Pages on the device, filled by EncodeRowsCuda and ImportRecordsCuda.
class DevicePages {
 public:
  // Rows [first, kTokens), row i at i % ring_rows; ring_rows 0: at i.
  DevicePages(const Records& records, int64_t first, int64_t ring_rows) {
    const int64_t held = ring_rows == 0 ? kTokens : ring_rows;
    std::vector<uint8_t*> pointers;
    for (int64_t at = 0; at < held; at += kPageRows) {
      memory_.push_back(std::make_unique<DeviceBuffer<uint8_t>>(
          Size(kPageRows, records.bytes), "page"));
      pointers.push_back(memory_.back()->data());
    }
    pages_ = std::make_unique<DeviceBuffer<uint8_t*>>(pointers, "pages");
    const DeviceBuffer<float> x(records.x, "x");
    const DeviceBuffer<uint8_t> encoded(Size(kTokens, records.bytes),
                                        "encoded");
    EXPECT_EQ(EncodeRowsCuda({.format = records.format,
                              .x = x.data(),
                              .n_rows = kTokens,
                              .dim = records.dim,
                              .x_stride = records.dim,
                              .out = encoded.data(),
                              .out_stride = records.bytes},
                             nullptr),
              0)
        << Reports();
    of_ = {.pages = pages_->data(),
           .n_pages = static_cast<int64_t>(pointers.size()),
           .page_rows = kPageRows,
           .ring_rows = ring_rows,
           .row_bytes = records.bytes};
    EXPECT_EQ(
        ImportRecordsCuda({of_, first, kTokens - first},
                          encoded.data() + first * records.bytes, nullptr),
        0)
        << Reports();
  }
  [[nodiscard]] const uint8_t* const* data() const { return pages_->data(); }
  [[nodiscard]] const RecordPages& of() const { return of_; }

 private:
  RecordPages of_;
  std::vector<std::unique_ptr<DeviceBuffer<uint8_t>>> memory_;
  std::unique_ptr<DeviceBuffer<uint8_t*>> pages_;
};

struct Result {
  std::vector<std::vector<int32_t>> picks;
  std::vector<float> out;
};

class SparseAttention {
 public:
  explicit SparseAttention(testing::Random& random)
      : window_(random, RowFormat::kWindowFp8, kHeadDim),
        main_(random, RowFormat::kMainFp4, kHeadDim),
        index_(random, RowFormat::kIndexFp4, kIndexDim),
        q_(RandomFloats(random, Size(kRows, kHeads, kHeadDim))),
        sinks_(RandomFloats(random, Size(kHeads, 1))) {
    do {
      index_q_ = RandomFloats(random, Size(kRows, kIndexHeads, kIndexDim));
      weights_ = RandomFloats(random, Size(kRows, kIndexHeads));
    } while (!ChoicesHaveMargins());
  }

  [[nodiscard]] Result Reference() const {
    Result result;
    std::vector<LatentKeys> keys;
    std::vector<std::vector<const uint8_t*>> lists;
    for (size_t r = 0; r < Positions().size(); ++r) {
      result.picks.push_back(TopK(ScoresOf(r, /*of_kept_blocks=*/true), kTopK));
      std::vector<const uint8_t*> list;
      const KeyRange window = WindowOf(Positions()[r]);
      for (int64_t p = window.begin; p < window.end; ++p) {
        list.push_back(window_.row(p));
      }
      for (const int32_t pick : result.picks.back()) {
        list.push_back(main_.row(pick));
      }
      const int64_t n_window = window.end - window.begin;
      lists.push_back(std::move(list));
      keys.push_back({lists.back().data(), n_window,
                      lists.back().data() + n_window,
                      static_cast<int64_t>(result.picks.back().size())});
    }
    result.out.resize(q_.size());
    LatentAttentionRef(
        Attention(sinks_.data(), q_.data(), keys.data(), result.out.data()));
    return result;
  }

  [[nodiscard]] Result Emulated() const {
    const DeviceBuffer<int64_t> n_visible(Visible(), "n_visible");
    const DeviceBuffer<float> scores(Size(kRows, kTokens), "scores");
    Score(n_visible, scores);
    KeepBest(n_visible, scores);
    const DeviceBuffer<int32_t> picks(Size(kRows, kTopK), "picks");
    const DeviceBuffer<int32_t> n_picks(kRows, "n_picks");
    EXPECT_EQ(TopKCuda({.scores = scores.data(),
                        .n_rows = kRows,
                        .scores_stride = kTokens,
                        .n_scores = n_visible.data(),
                        .k = kTopK,
                        .ids = picks.data(),
                        .n_ids = n_picks.data()},
                       nullptr),
              0)
        << Reports();
    Result result;
    result.out = Attend(picks, n_picks);
    const auto ids = picks.Download();
    const auto counts = n_picks.Download();
    for (size_t r = 0; r < counts.size(); ++r) {
      const auto at = ids.begin() + static_cast<ptrdiff_t>(r) * kTopK;
      result.picks.emplace_back(at, at + counts[r]);
    }
    return result;
  }

 private:
  static std::vector<int64_t> Visible() {
    std::vector<int64_t> out;
    for (const int64_t position : Positions()) out.push_back(position + 1);
    return out;
  }
  static KeyRange WindowOf(int64_t position) {
    return {std::max<int64_t>(0, position - kWindow + 1), position + 1};
  }

  IndexScoreParams Index(int64_t n_rows, const float* q, const float* weights,
                         const uint8_t* const* pages, const int64_t* n_visible,
                         float* scores) const {
    return {.n_rows = n_rows,
            .n_heads = kIndexHeads,
            .dim = kIndexDim,
            .scale = kScale,
            .q = q,
            .weights = weights,
            .pages = pages,
            .page_rows = kPageRows,
            .n_visible = n_visible,
            .scores = scores,
            .scores_stride = kTokens};
  }
  static LatentAttentionParams Attention(const float* sinks, const float* q,
                                         const LatentKeys* keys, float* out) {
    return {.n_rows = kRows,
            .n_heads = kHeads,
            .head_dim = kHeadDim,
            .scale = kScale,
            .sinks = sinks,
            .q = q,
            .keys = keys,
            .out = out};
  }

  // Of row r by the references.
  std::vector<float> ScoresOf(size_t r, bool of_kept_blocks) const {
    std::vector<const uint8_t*> pages;
    for (int64_t at = 0; at < kTokens; at += kPageRows) {
      pages.push_back(index_.row(at));
    }
    const int64_t visible = Positions()[r] + 1;
    std::vector<float> scores(static_cast<size_t>(visible));
    IndexScoreRef(Index(1, &index_q_[r * Size(kIndexHeads, kIndexDim)],
                        &weights_[r * Size(kIndexHeads, 1)], pages.data(),
                        &visible, scores.data()));
    if (of_kept_blocks) {
      KeepBlocks(CandidateBlocks(scores, kBlockSize, kBlocks), kBlockSize,
                 scores);
    }
    return scores;
  }

  bool ChoicesHaveMargins() const {
    for (size_t r = 0; r < Positions().size(); ++r) {
      const auto scores = ScoresOf(r, /*of_kept_blocks=*/false);
      // Of all blocks but the last, which is in anyway.
      std::vector<float> best;
      for (size_t i = 0; i + 1 < scores.size(); i += kBlockSize) {
        const size_t end = std::min(scores.size(), i + kBlockSize);
        best.push_back(
            *std::max_element(scores.begin() + static_cast<ptrdiff_t>(i),
                              scores.begin() + static_cast<ptrdiff_t>(end)));
      }
      if (!best.empty()) best.pop_back();
      if (!HasMargin(best, kBlocks - 1)) return false;
      if (!HasMargin(ScoresOf(r, /*of_kept_blocks=*/true), kTopK)) return false;
    }
    return true;
  }

  void Score(const DeviceBuffer<int64_t>& n_visible,
             const DeviceBuffer<float>& scores) const {
    const DevicePages keys(index_, 0, 0);
    const DeviceBuffer<float> q(index_q_, "index_q");
    const DeviceBuffer<float> weights(weights_, "weights");
    EXPECT_EQ(IndexScoreCuda(Index(kRows, q.data(), weights.data(), keys.data(),
                                   n_visible.data(), scores.data()),
                             nullptr),
              0)
        << Reports();
  }

  static void KeepBest(const DeviceBuffer<int64_t>& n_visible,
                       const DeviceBuffer<float>& scores) {
    const DeviceBuffer<int32_t> blocks(Size(kRows, kBlocks), "blocks");
    const DeviceBuffer<int32_t> n_chosen(kRows, "n_chosen");
    const CandidateBlocksParams candidates{.scores = scores.data(),
                                           .n_rows = kRows,
                                           .scores_stride = kTokens,
                                           .n_scores = n_visible.data(),
                                           .block_size = kBlockSize,
                                           .n_blocks = kBlocks,
                                           .blocks = blocks.data(),
                                           .n_chosen = n_chosen.data()};
    const DeviceBuffer<uint8_t> scratch(CandidateBlocksScratchBytes(candidates),
                                        "scratch");
    EXPECT_EQ(CandidateBlocksCuda(candidates, scratch.data(), nullptr), 0)
        << Reports();
    EXPECT_EQ(KeepBlocksCuda({.scores = scores.data(),
                              .n_rows = kRows,
                              .scores_stride = kTokens,
                              .n_scores = n_visible.data(),
                              .block_size = kBlockSize,
                              .blocks = blocks.data(),
                              .n_blocks = kBlocks,
                              .n_chosen = n_chosen.data()},
                             nullptr),
              0)
        << Reports();
  }

  std::vector<float> Attend(const DeviceBuffer<int32_t>& picks,
                            const DeviceBuffer<int32_t>& n_picks) const {
    // The ring holds the last window rows alone; rows that see earlier ones
    // read a sequence that keeps them all.
    const DevicePages ring(window_, kTokens - kRingRows, kRingRows);
    const DevicePages all(window_, 0, 0);
    const DevicePages main(main_, 0, 0);
    std::vector<KeyRange> ranges;
    int64_t n_of_all = 0;
    for (const int64_t position : Positions()) {
      ranges.push_back(WindowOf(position));
      if (ranges.back().begin < kTokens - kRingRows) ++n_of_all;
    }
    const DeviceBuffer<KeyRange> windows(ranges, "windows");
    const auto segment = [&](int64_t begin, int64_t end,
                             const RecordPages& window) {
      return LatentSegment{.row_begin = begin,
                           .n_rows = end - begin,
                           .window = window,
                           .window_keys = windows.data() + begin,
                           .entries = main.of(),
                           .picks = picks.data() + begin * kTopK,
                           .n_picks = n_picks.data() + begin,
                           .picks_stride = kTopK};
    };
    const DeviceBuffer<LatentSegment> segments(
        std::vector<LatentSegment>{segment(0, n_of_all, all.of()),
                                   segment(n_of_all, kRows, ring.of())},
        "segments");
    const DeviceBuffer<const uint8_t*> lists(Size(kRows, kKeysMax), "lists");
    const DeviceBuffer<LatentKeys> keys(kRows, "keys");
    EXPECT_EQ(NameLatentKeysCuda({.segments = segments.data(),
                                  .n_segments = 2,
                                  .n_rows_max = kRows,
                                  .lists = lists.data(),
                                  .n_keys_max = kKeysMax,
                                  .keys = keys.data()},
                                 nullptr),
              0)
        << Reports();
    const DeviceBuffer<float> q(q_, "q");
    const DeviceBuffer<float> sinks(sinks_, "sinks");
    EXPECT_EQ(LatentAttentionCuda(
                  Attention(sinks.data(), q.data(), keys.data(), q.data()),
                  kKeysMax, nullptr),
              0)
        << Reports();
    return q.Download();
  }

  Records window_;
  Records main_;
  Records index_;
  std::vector<float> q_;
  std::vector<float> sinks_;
  std::vector<float> index_q_;
  std::vector<float> weights_;
};

class SparseAttentionCudaTest : public CudaTest {};

TEST_F(SparseAttentionCudaTest, AStepIsTheReferencesUnderEverySchedule) {
  testing::Random random;
  const SparseAttention step(random);
  const Result wanted = step.Reference();
  std::vector<float> first;
  ForEachSchedule([&] {
    const Result got = step.Emulated();
    EXPECT_EQ(got.picks, wanted.picks);
    EXPECT_TRUE(Near(got.out, wanted.out, 1e-5));
    if (first.empty()) first = got.out;
    EXPECT_TRUE(SameBits(got.out, first));
  });
}

}  // namespace
}  // namespace torpor::kernels
