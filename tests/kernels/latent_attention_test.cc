// SPDX-License-Identifier: Apache-2.0

#include "kernels/latent_attention.h"

#include <gtest/gtest.h>

#include "kernels/cpu_ops.h"
#include "tests/kernels/encoded_rows.h"
#include "tests/kernels/kernel_testing.h"

namespace torpor::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Of a row's largest output. A product of 512 terms and a sum of some hundred
// keys in f32 err by a few 1e-7 of their terms' sizes, logits here are a few
// units, and an error of a logit is one of its numerator.
constexpr double kTolerance = 1e-5;
// A numerator that f32 puts on the other side of a tie is off by 2^-8.
constexpr double kBf16Tolerance = 4e-3;

class LatentAttentionTest : public ::testing::TestWithParam<Isa> {
 protected:
  testing::Random random_;
};

INSTANTIATE_TEST_SUITE_P(Paths, LatentAttentionTest,
                         ::testing::ValuesIn(AvailableIsas()), IsaParamName);

struct Case {
  int64_t n_rows;
  int64_t n_heads;
  int64_t head_dim;
  // Row r has r % (n + 1) fewer, but one key in all.
  int64_t n_window;
  int64_t n_entries;
};

// Rows of queries over two pools of keys, every other of which is NaN and in no
// row's list.
class Fixture {
 public:
  Fixture(testing::Random& random, const Case& c, float q_scale = 1.0f)
      : case_(c),
        window_(EncodedRows::Random(random, RowFormat::kWindowFp8,
                                    Pool(c.n_window), c.head_dim)),
        entries_(EncodedRows::Random(random, RowFormat::kMainFp4,
                                     Pool(c.n_entries), c.head_dim)),
        q(RandomFloats(random, Size(c.n_rows), q_scale)),
        sinks(RandomFloats(random, static_cast<size_t>(c.n_heads))) {
    for (int64_t i = 0; i < Pool(c.n_window); i += 2) window_.PutNan(i);
    for (int64_t i = 0; i < Pool(c.n_entries); i += 2) entries_.PutNan(i);
    lists_.resize(static_cast<size_t>(c.n_rows));
    for (int64_t r = 0; r < c.n_rows; ++r) {
      List& list = lists_[static_cast<size_t>(r)];
      int64_t n_window = c.n_window - r % (c.n_window + 1);
      const int64_t n_entries = c.n_entries - r % (c.n_entries + 1);
      if (n_window + n_entries == 0) n_window = c.n_window == 0 ? 0 : 1;
      for (int64_t i = 0; i < n_window; ++i) {
        list.window.push_back(window_.row(2 * ((r + i) % c.n_window) + 1));
      }
      // Picks in no order, from anywhere.
      for (int64_t i = 0; i < n_entries; ++i) {
        list.entries.push_back(
            entries_.row(2 * ((r + 7 * i) % c.n_entries) + 1));
      }
      if (n_window + n_entries == 0) list.entries.push_back(entries_.row(1));
    }
  }

  // Rows [first, first + n), on `ops` or by the reference.
  std::vector<float> Run(CpuOps* ops, int64_t first, int64_t n) const {
    std::vector<float> out(Size(n), kNan);
    Run(ops, first, n, q.data() + Size(first), out.data());
    return out;
  }
  void Run(CpuOps* ops, int64_t first, int64_t n, const float* from,
           float* out) const {
    std::vector<LatentKeys> keys;
    for (int64_t r = first; r < first + n; ++r) {
      const List& list = lists_[static_cast<size_t>(r)];
      keys.push_back(
          {list.window.data(), static_cast<int64_t>(list.window.size()),
           list.entries.data(), static_cast<int64_t>(list.entries.size())});
    }
    const LatentAttentionParams p{
        .n_rows = n,
        .n_heads = case_.n_heads,
        .head_dim = case_.head_dim,
        .scale = 1.0f / std::sqrt(static_cast<float>(case_.head_dim)),
        .sinks = sinks.data(),
        .bf16_numerators = bf16_numerators,
        .q = from,
        .keys = keys.data(),
        .out = out};
    ops != nullptr ? ops->LatentAttention(p) : LatentAttentionRef(p);
  }

  // Each row by itself against the reference.
  ::testing::AssertionResult Agrees(CpuOps* ops, double tolerance) const {
    const auto got = Run(ops, 0, case_.n_rows);
    const auto wanted = Run(nullptr, 0, case_.n_rows);
    for (int64_t r = 0; r < case_.n_rows; ++r) {
      auto near = Near(std::span(got).subspan(Size(r), Size(1)),
                       std::span(wanted).subspan(Size(r), Size(1)), tolerance);
      if (!near) return near << ", row " << r;
    }
    return ::testing::AssertionSuccess();
  }

  [[nodiscard]] size_t Size(int64_t rows) const {
    return static_cast<size_t>(rows * case_.n_heads * case_.head_dim);
  }
  EncodedRows& window() { return window_; }

 private:
  struct List {
    std::vector<const uint8_t*> window;
    std::vector<const uint8_t*> entries;
  };
  static int64_t Pool(int64_t n) { return 2 * n; }

  const Case case_;
  EncodedRows window_;
  EncodedRows entries_;
  std::vector<List> lists_;

 public:
  std::vector<float> q;
  std::vector<float> sinks;
  bool bf16_numerators = false;
};

TEST_P(LatentAttentionTest, AgreesWithTheReference) {
  CpuOps ops(GetParam(), 2);
  for (const Case& c : {Case{1, 1, 32, 1, 0},
                        {1, 1, 32, 0, 1},
                        {3, 2, 64, 1, 1},
                        {2, 64, 32, 3, 0},
                        {1, 33, 96, 8, 6},
                        {5, 4, 64, 8, 6},
                        {2, 16, 160, 11, 13},
                        {2, 17, 512, 64, 65},
                        {1, 64, 512, 128, 257},
                        {2, 7, 288, 0, 127}}) {
    for (const bool bf16 : {false, true}) {
      Fixture fixture(random_, c);
      fixture.bf16_numerators = bf16;
      EXPECT_TRUE(fixture.Agrees(&ops, bf16 ? kBf16Tolerance : kTolerance))
          << c.n_heads << " x " << c.head_dim << ", " << c.n_window << " + "
          << c.n_entries << " keys, bf16 " << bf16;
    }
  }
}

TEST_P(LatentAttentionTest, NumeratorsAreRoundedOnlyWhenAsked) {
  CpuOps ops(GetParam(), 1);
  Fixture fixture(random_, {1, 16, 64, 5, 0});
  const auto exact = fixture.Run(&ops, 0, 1);
  fixture.bf16_numerators = true;
  const auto rounded = fixture.Run(&ops, 0, 1);
  EXPECT_FALSE(Near(rounded, exact, 1e-4));
  EXPECT_TRUE(Near(rounded, exact, 1e-2));
}

TEST_P(LatentAttentionTest, SinksOfAnySizeOnlyDivide) {
  CpuOps ops(GetParam(), 2);
  Fixture fixture(random_, {4, 9, 64, 8, 5});
  fixture.sinks = {-kInfinity, -1e30f, -200.0f, -87.5f, 0.0f,
                   20.0f,      60.0f,  1e4f,    1e30f};
  EXPECT_TRUE(fixture.Agrees(&ops, kTolerance));
  // Head by head, since those of large sinks are small.
  const auto got = fixture.Run(&ops, 0, 4);
  const auto wanted = fixture.Run(nullptr, 0, 4);
  for (size_t at = 0; at < got.size(); at += 64) {
    EXPECT_TRUE(Near(std::span(got).subspan(at, 64),
                     std::span(wanted).subspan(at, 64), kTolerance))
        << "sink " << fixture.sinks[at / 64 % 9];
  }
}

TEST_P(LatentAttentionTest, ExtremeLogitsStayFinite) {
  CpuOps ops(GetParam(), 1);
  for (const float scale : {0.0f, 1e-30f, 30.0f, 1000.0f, 1e8f}) {
    Fixture fixture(random_, {3, 5, 128, 20, 30}, scale);
    // A logit errs by some 1e-6 of its size, which the exponential makes a part
    // of the whole; far apart, one key alone is left.
    const double tolerance = scale > 1e6f ? 1e-6 : 1e-5 + 1e-5 * scale;
    EXPECT_TRUE(fixture.Agrees(&ops, tolerance)) << scale;
  }
}

// Design D9: a row's bits ignore the rows beside it, their number, threads.
TEST_P(LatentAttentionTest, RowsIgnoreTheirCompany) {
  for (const Case& c : {Case{40, 4, 64, 8, 6}, Case{12, 40, 96, 70, 70}}) {
    Fixture fixture(random_, c);
    CpuOps one(GetParam(), 1);
    const auto all = fixture.Run(&one, 0, c.n_rows);
    for (const int threads : {1, 2, 5}) {
      CpuOps ops(GetParam(), threads);
      for (const int64_t n : {1, 2, 3, 5, 9}) {
        for (const int64_t first : {0, 1, 3}) {
          const auto some = fixture.Run(&ops, first, n);
          ASSERT_TRUE(SameBits(some, std::span(all).subspan(fixture.Size(first),
                                                            fixture.Size(n))))
              << n << " rows from " << first << " on " << threads << " threads";
        }
      }
    }
  }
}

TEST_P(LatentAttentionTest, OutputMayReplaceTheQueries) {
  for (const int threads : {1, 3}) {
    CpuOps ops(GetParam(), threads);
    for (const int64_t rows : {2, 7}) {
      Fixture fixture(random_, {rows, 20, 64, 8, 6});
      const auto wanted = fixture.Run(&ops, 0, rows);
      std::vector<float> q = fixture.q;
      fixture.Run(&ops, 0, rows, q.data(), q.data());
      EXPECT_TRUE(SameBits(q, wanted));
    }
  }
}

TEST_P(LatentAttentionTest, ANanKeyReachesTheRowsThatNameItAndNoOther) {
  CpuOps ops(GetParam(), 2);
  // Row r sees the window's keys r, r + 1, ... of 8, r % 9 of them fewer.
  Fixture fixture(random_, {6, 3, 64, 8, 5});
  const auto clean = fixture.Run(&ops, 0, 6);
  fixture.window().PutNan(2 * 0 + 1);
  const auto got = fixture.Run(&ops, 0, 6);
  for (int64_t r = 0; r < 6; ++r) {
    // Its last key is 7; 0 is never wrapped to, but by row 0.
    const auto row = std::span(got).subspan(fixture.Size(r), fixture.Size(1));
    if (r == 0) {
      for (const float v : row) EXPECT_TRUE(std::isnan(v));
    } else {
      EXPECT_TRUE(SameBits(
          row, std::span(clean).subspan(fixture.Size(r), fixture.Size(1))))
          << r;
    }
  }
}

TEST_P(LatentAttentionTest, ANanQueryOrSinkReachesItsHeadAndNoOther) {
  CpuOps ops(GetParam(), 2);
  for (const bool in_sink : {false, true}) {
    Fixture fixture(random_, {2, 19, 64, 8, 5});
    if (in_sink) {
      fixture.sinks[17] = kNan;
    } else {
      fixture.q[17 * 64 + 3] = kNan;
    }
    const auto got = fixture.Run(&ops, 0, 2);
    for (size_t i = 0; i < got.size(); ++i) {
      const bool touched = i / 64 % 19 == 17 && (in_sink || i < got.size() / 2);
      EXPECT_EQ(std::isnan(got[i]), touched) << i;
    }
  }
}

// Windows in a ring that has wrapped and picks by number are the rows that
// lists of pointers would name; all others are NaN.
TEST_P(LatentAttentionTest, KeysInPagesAreThoseOfTheirLists) {
  constexpr int64_t kDim = 64;
  constexpr int64_t kHeads = 3;
  constexpr int64_t kPageRows = 4;
  constexpr int64_t kRing = 10;
  constexpr int64_t kStride = 6;
  struct Rows {
    std::vector<KeyRange> windows;
    std::vector<std::vector<int32_t>> picks;
  };
  const Rows sequences[] = {
      {{{3, 8}, {4, 9}, {17, 23}}, {{0, 11}, {}, {5, 6, 7, 8, 9, 10}}},
      {{{95, 105}}, {{2}}}};
  // Pages of one sequence: rows at their places, as docs say of a ring.
  struct Pages {
    std::vector<uint8_t> bytes;
    std::vector<uint8_t*> pages;
  };
  const auto paged = [&](const EncodedRows& rows, int64_t n,
                         int64_t row_bytes) {
    Pages out;
    out.bytes.assign(static_cast<size_t>(3 * kPageRows * row_bytes), 0xff);
    for (int64_t i = 0; i < n; ++i) {
      std::copy_n(rows.row(i), row_bytes, &out.bytes[i * row_bytes]);
    }
    for (int i = 0; i < 3; ++i) {
      out.pages.push_back(&out.bytes[i * kPageRows * row_bytes]);
    }
    return out;
  };
  const int64_t window_bytes = RowBytes(RowFormat::kWindowFp8, kDim, 0);
  const int64_t entry_bytes = RowBytes(RowFormat::kMainFp4, kDim, 0);
  const auto window =
      EncodedRows::Random(random_, RowFormat::kWindowFp8, kRing, kDim);
  const auto entries =
      EncodedRows::Random(random_, RowFormat::kMainFp4, 12, kDim);
  Pages window_pages = paged(window, kRing, window_bytes);
  Pages entry_pages = paged(entries, 12, entry_bytes);

  std::vector<LatentSegment> segments;
  std::vector<LatentKeys> keys;
  std::vector<std::vector<const uint8_t*>> lists;
  std::vector<std::vector<int32_t>> picks;
  std::vector<std::vector<int32_t>> n_picks;
  int64_t n_rows = 0;
  for (const Rows& of : sequences) {
    const auto n = static_cast<int64_t>(of.windows.size());
    picks.emplace_back(static_cast<size_t>(n * kStride), 1'000'000);
    n_picks.emplace_back();
    for (int64_t i = 0; i < n; ++i) {
      const auto& chosen = of.picks[static_cast<size_t>(i)];
      std::copy(chosen.begin(), chosen.end(),
                picks.back().begin() + i * kStride);
      n_picks.back().push_back(static_cast<int32_t>(chosen.size()));
      lists.emplace_back();
      const KeyRange range = of.windows[static_cast<size_t>(i)];
      for (int64_t row = range.begin; row < range.end; ++row) {
        lists.back().push_back(window.row(row % kRing));
      }
      for (const int32_t pick : chosen) {
        lists.back().push_back(entries.row(pick));
      }
      keys.push_back({.n_window = range.end - range.begin,
                      .n_entries = n_picks.back().back()});
    }
    segments.push_back({.row_begin = n_rows,
                        .n_rows = n,
                        .window = {.pages = window_pages.pages.data(),
                                   .n_pages = 3,
                                   .page_rows = kPageRows,
                                   .ring_rows = kRing,
                                   .row_bytes = window_bytes},
                        .window_keys = of.windows.data(),
                        .entries = {.pages = entry_pages.pages.data(),
                                    .n_pages = 3,
                                    .page_rows = kPageRows,
                                    .row_bytes = entry_bytes},
                        .picks_stride = kStride});
    n_rows += n;
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    segments[i].picks = picks[i].data();
    segments[i].n_picks = n_picks[i].data();
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i].window = lists[i].data();
    keys[i].entries = lists[i].data() + keys[i].n_window;
  }
  const auto size = static_cast<size_t>(n_rows * kHeads * kDim);
  const auto q = RandomFloats(random_, size);
  const auto sinks = RandomFloats(random_, kHeads);
  LatentAttentionParams p{.n_rows = n_rows,
                          .n_heads = kHeads,
                          .head_dim = kDim,
                          .scale = 0.2f,
                          .sinks = sinks.data(),
                          .q = q.data()};
  for (const int threads : {1, 8}) {
    CpuOps ops(GetParam(), threads);
    std::vector<float> got(size, kNan);
    p.out = got.data();
    p.keys = nullptr;
    ops.LatentAttention(PagedLatentAttentionParams{
        .attention = p,
        .segments = segments.data(),
        .n_segments = static_cast<int64_t>(segments.size())});
    std::vector<float> wanted(size);
    p.out = wanted.data();
    p.keys = keys.data();
    ops.LatentAttention(p);
    EXPECT_TRUE(SameBits(got, wanted)) << threads << " threads";
    for (const float v : got) ASSERT_TRUE(std::isfinite(v));
  }
}

}  // namespace
}  // namespace torpor::kernels
