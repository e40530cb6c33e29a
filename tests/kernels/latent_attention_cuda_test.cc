// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernel of latent_attention.h against its reference.

#include "kernels/latent_attention_cuda.h"

#include <algorithm>

#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// As tests/kernels/latent_attention_test.cc has them, and why.
constexpr double kTolerance = 1e-5;
constexpr double kBf16Tolerance = 4e-3;

class LatentAttentionCudaTest : public CudaTest {
 protected:
  testing::Random random_;
};

struct Case {
  int64_t n_rows;
  int64_t n_heads;
  int64_t head_dim;
  // Row r has r % (n + 1) fewer, but one key in all.
  int64_t n_window;
  int64_t n_entries;
};

// Encoded rows, on the host and on the device; there only those that somebody
// named, so that a read of another is seen.
class Pool {
 public:
  Pool(testing::Random& random, RowFormat format, int64_t n, int64_t dim)
      : format_(format),
        dim_(dim),
        bytes_(RowBytes(format, dim, 0)),
        rows_(static_cast<size_t>(n * bytes_)),
        is_named_(static_cast<size_t>(n)) {
    for (int64_t i = 0; i < n; ++i) {
      const auto x = RandomFloats(random, static_cast<size_t>(dim));
      EncodeRowsRef({.format = format_,
                     .x = x.data(),
                     .n_rows = 1,
                     .dim = dim_,
                     .out = rows_.data() + i * bytes_});
    }
  }

  void Name(int64_t i) { is_named_[static_cast<size_t>(i)] = true; }
  void PutNan(int64_t i) {
    std::fill_n(rows_.begin() + i * bytes_, bytes_, uint8_t{0xff});
  }
  void Upload(const DeviceBuffer<uint8_t>& to) const {
    for (size_t i = 0; i < is_named_.size(); ++i) {
      if (!is_named_[i]) continue;
      const size_t at = i * static_cast<size_t>(bytes_);
      to.Upload(std::span(rows_).subspan(at, static_cast<size_t>(bytes_)), at);
    }
  }
  [[nodiscard]] std::vector<const uint8_t*> Pointers(
      const uint8_t* base, const std::vector<int64_t>& list) const {
    std::vector<const uint8_t*> out;
    for (const int64_t i : list) out.push_back(base + i * bytes_);
    return out;
  }
  [[nodiscard]] const uint8_t* data() const { return rows_.data(); }
  [[nodiscard]] size_t size() const { return rows_.size(); }

 private:
  RowFormat format_;
  int64_t dim_;
  int64_t bytes_;
  std::vector<uint8_t> rows_;
  std::vector<bool> is_named_;
};

class Fixture {
 public:
  Fixture(testing::Random& random, const Case& c, float q_scale = 1.0f,
          RowFormat window_format = RowFormat::kWindowFp8,
          RowFormat entry_format = RowFormat::kMainFp4)
      : case_(c),
        window_format_(window_format),
        entry_format_(entry_format),
        window_(random, window_format, 2 * c.n_window, c.head_dim),
        entries_(random, entry_format, 2 * c.n_entries, c.head_dim),
        lists_(static_cast<size_t>(c.n_rows)),
        q(RandomFloats(random, Size(c.n_rows), q_scale)),
        sinks(RandomFloats(random, static_cast<size_t>(c.n_heads))) {
    for (int64_t r = 0; r < c.n_rows; ++r) FillLists(r);
  }

  std::vector<float> Emulated() const { return Emulated(0, case_.n_rows); }
  // Rows [first, first + n); in_place: the queries become the output.
  std::vector<float> Emulated(int64_t first, int64_t n,
                              bool in_place = false) const {
    const DeviceBuffer<uint8_t> window(window_.size(), "window");
    const DeviceBuffer<uint8_t> entries(entries_.size(), "entries");
    window_.Upload(window);
    entries_.Upload(entries);
    std::vector<const uint8_t*> pointers;
    for (int64_t r = first; r < first + n; ++r) {
      const List& list = lists_[static_cast<size_t>(r)];
      for (const auto& of : {window_.Pointers(window.data(), list.window),
                             entries_.Pointers(entries.data(), list.entries)}) {
        pointers.insert(pointers.end(), of.begin(), of.end());
      }
    }
    const DeviceBuffer<const uint8_t*> lists(pointers, "lists");
    std::vector<LatentKeys> keys;
    const uint8_t* const* at = lists.data();
    for (int64_t r = first; r < first + n; ++r) {
      keys.push_back(KeysOf(r, at));
      at += keys.back().n_window + keys.back().n_entries;
    }
    const DeviceBuffer<LatentKeys> device_keys(keys, "keys");
    const DeviceBuffer<float> queries(
        std::vector<float>(q.begin() + static_cast<ptrdiff_t>(Size(first)),
                           q.begin() + static_cast<ptrdiff_t>(Size(first + n))),
        "q");
    const DeviceBuffer<float> device_sinks(sinks, "sinks");
    const DeviceBuffer<float> out(Size(n), "out");
    const DeviceBuffer<float>& to = in_place ? queries : out;
    EXPECT_EQ(LatentAttentionCuda(Params(n, device_sinks.data(), queries.data(),
                                         device_keys.data(), to.data()),
                                  n_keys_max, nullptr),
              0)
        << Reports();
    return to.Download();
  }

  [[nodiscard]] std::vector<float> Reference() const {
    std::vector<std::vector<const uint8_t*>> pointers;
    std::vector<LatentKeys> keys;
    for (int64_t r = 0; r < case_.n_rows; ++r) {
      const List& list = lists_[static_cast<size_t>(r)];
      pointers.push_back(window_.Pointers(window_.data(), list.window));
      const auto of = entries_.Pointers(entries_.data(), list.entries);
      pointers.back().insert(pointers.back().end(), of.begin(), of.end());
      keys.push_back(KeysOf(r, pointers.back().data()));
    }
    std::vector<float> out(q.size());
    LatentAttentionRef(
        Params(case_.n_rows, sinks.data(), q.data(), keys.data(), out.data()));
    return out;
  }

  // Each row by itself against the reference.
  [[nodiscard]] ::testing::AssertionResult Agrees(double tolerance) const {
    const auto got = Emulated();
    const auto wanted = Reference();
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
  Pool& window() { return window_; }

 private:
  struct List {
    std::vector<int64_t> window;
    std::vector<int64_t> entries;
  };

  // Odd rows of the pools alone, from anywhere, in no order.
  void FillLists(int64_t r) {
    List& list = lists_[static_cast<size_t>(r)];
    int64_t n_window = case_.n_window - r % (case_.n_window + 1);
    int64_t n_entries = case_.n_entries - r % (case_.n_entries + 1);
    if (n_window + n_entries == 0) {
      (case_.n_window > 0 ? n_window : n_entries) = 1;
    }
    for (int64_t i = 0; i < n_window; ++i) {
      list.window.push_back(2 * ((r + i) % case_.n_window) + 1);
      window_.Name(list.window.back());
    }
    for (int64_t i = 0; i < n_entries; ++i) {
      list.entries.push_back(2 * ((r + 7 * i) % case_.n_entries) + 1);
      entries_.Name(list.entries.back());
    }
  }

  LatentKeys KeysOf(int64_t row, const uint8_t* const* at) const {
    const List& list = lists_[static_cast<size_t>(row)];
    const auto n_window = static_cast<int64_t>(list.window.size());
    return {at, n_window, at + n_window,
            static_cast<int64_t>(list.entries.size())};
  }

  LatentAttentionParams Params(int64_t n_rows, const float* sinks_at,
                               const float* q_at, const LatentKeys* keys,
                               float* out) const {
    return {.n_rows = n_rows,
            .n_heads = case_.n_heads,
            .head_dim = case_.head_dim,
            .scale = 1.0f / std::sqrt(static_cast<float>(case_.head_dim)),
            .window_format = window_format_,
            .entry_format = entry_format_,
            .sinks = sinks_at,
            .bf16_numerators = bf16_numerators,
            .q = q_at,
            .keys = keys,
            .out = out};
  }

  const Case case_;
  const RowFormat window_format_;
  const RowFormat entry_format_;
  Pool window_;
  Pool entries_;
  std::vector<List> lists_;

 public:
  std::vector<float> q;
  std::vector<float> sinks;
  bool bf16_numerators = false;
  // Fewer than the 1,039 that sm_80 holds of 512 channels.
  int64_t n_keys_max = 1000;
};

// Not on sm_80, as the header says.
TEST_F(LatentAttentionCudaTest, AsManyKeysAsThereMayBeFit) {
  Fixture fixture(random_, {1, 3, kLatentDimMax, 5, 6});
  const std::vector<float> fewer = fixture.Emulated();
  fixture.n_keys_max = kLatentKeysMax;
  EXPECT_TRUE(SameBits(fixture.Emulated(), fewer));
}

// 48 KiB of dynamic shared memory: all that a GPU gives a block that does not
// ask for more, and this one has arrays beside them.
TEST_F(LatentAttentionCudaTest, KeysThatTakeTheUsualSharedMemoryFit) {
  Fixture fixture(random_, {1, 3, kLatentDimMax, 5, 6});
  const std::vector<float> wanted = fixture.Emulated();
  fixture.n_keys_max = 128;
  EXPECT_TRUE(SameBits(fixture.Emulated(), wanted));
}

TEST_F(LatentAttentionCudaTest, AgreesWithTheReference) {
  for (const Case& c : {Case{1, 1, 32, 1, 0},
                        {1, 1, 32, 0, 1},
                        {3, 2, 64, 1, 1},
                        {2, 64, 32, 3, 0},
                        {1, 33, 96, 8, 6},
                        {5, 4, 64, 8, 6},
                        {2, 16, 160, 11, 13},
                        {2, 17, 512, 20, 45},
                        {1, 64, 512, 128, 137},
                        {2, 7, 288, 0, 127}}) {
    Fixture fixture(random_, c);
    for (const bool bf16 : {false, true}) {
      fixture.bf16_numerators = bf16;
      EXPECT_TRUE(fixture.Agrees(bf16 ? kBf16Tolerance : kTolerance))
          << c.n_heads << " x " << c.head_dim << ", " << c.n_window << " + "
          << c.n_entries << " keys, bf16 " << bf16;
    }
  }
}

TEST_F(LatentAttentionCudaTest, KeysOfEveryFormatAreRead) {
  for (const RowFormat window : {RowFormat::kV4Record, RowFormat::kIndexFp4}) {
    for (const RowFormat entries :
         {RowFormat::kWindowFp8, RowFormat::kV4Record}) {
      const Fixture fixture(random_, {2, 3, 96, 5, 6}, 1.0f, window, entries);
      EXPECT_TRUE(fixture.Agrees(kTolerance));
    }
  }
  // Half of the last 32 channels are none.
  const Fixture fixture(random_, {2, 3, 48, 5, 6}, 1.0f, RowFormat::kV4Record,
                        RowFormat::kMainFp4);
  EXPECT_TRUE(fixture.Agrees(kTolerance));
}

TEST_F(LatentAttentionCudaTest, NoScheduleChangesABit) {
  for (const Case& c : {Case{2, 33, 64, 5, 6}, Case{1, 2, 272, 100, 40}}) {
    const Fixture fixture(random_, c);
    const auto wanted = fixture.Emulated();
    ForEachSchedule([&] { EXPECT_TRUE(SameBits(fixture.Emulated(), wanted)); });
  }
}

TEST_F(LatentAttentionCudaTest, NumeratorsAreRoundedOnlyWhenAsked) {
  Fixture fixture(random_, {1, 16, 64, 5, 0});
  const auto exact = fixture.Emulated();
  fixture.bf16_numerators = true;
  const auto rounded = fixture.Emulated();
  EXPECT_FALSE(Near(rounded, exact, 1e-4));
  EXPECT_TRUE(Near(rounded, exact, 1e-2));
}

TEST_F(LatentAttentionCudaTest, SinksOfAnySizeOnlyDivide) {
  Fixture fixture(random_, {2, 9, 64, 8, 5});
  fixture.sinks = {-kInfinity, -1e30f, -200.0f, -87.5f, 0.0f,
                   20.0f,      60.0f,  1e4f,    1e30f};
  const auto got = fixture.Emulated();
  const auto wanted = fixture.Reference();
  // Head by head, since those of large sinks are small.
  for (size_t at = 0; at < got.size(); at += 64) {
    EXPECT_TRUE(Near(std::span(got).subspan(at, 64),
                     std::span(wanted).subspan(at, 64), kTolerance))
        << "sink " << fixture.sinks[at / 64 % 9];
  }
}

TEST_F(LatentAttentionCudaTest, ExtremeLogitsStayFinite) {
  for (const float scale : {0.0f, 1e-30f, 30.0f, 1000.0f, 1e8f}) {
    const Fixture fixture(random_, {2, 5, 128, 20, 30}, scale);
    // A logit errs by some 1e-6 of its size, which the exponential makes a part
    // of the whole; far apart, one key alone is left.
    EXPECT_TRUE(fixture.Agrees(scale > 1e6f ? 1e-6 : 1e-5 + 1e-5 * scale))
        << scale;
  }
}

// Design D9: a row's bits ignore the rows beside it and their number.
TEST_F(LatentAttentionCudaTest, RowsIgnoreTheirCompany) {
  const Case c{6, 40, 64, 9, 7};
  const Fixture fixture(random_, c);
  const auto all = fixture.Emulated();
  for (const int64_t n : {1, 2, 5}) {
    for (int64_t first = 0; first + n <= c.n_rows; ++first) {
      EXPECT_TRUE(SameBits(
          fixture.Emulated(first, n),
          std::span(all).subspan(fixture.Size(first), fixture.Size(n))))
          << n << " rows from " << first;
    }
  }
}

TEST_F(LatentAttentionCudaTest, OutputMayReplaceTheQueries) {
  const Fixture fixture(random_, {3, 40, 64, 8, 6});
  const auto wanted = fixture.Emulated();
  ForEachSchedule([&] {
    EXPECT_TRUE(SameBits(fixture.Emulated(0, 3, /*in_place=*/true), wanted));
  });
}

TEST_F(LatentAttentionCudaTest, ANanKeyReachesTheRowsThatNameItAndNoOther) {
  // Row r sees the window's keys r, r + 1, ... of 8, r % 9 of them fewer.
  Fixture fixture(random_, {6, 3, 64, 8, 5});
  const auto clean = fixture.Emulated();
  fixture.window().PutNan(2 * 0 + 1);
  const auto got = fixture.Emulated();
  for (int64_t r = 0; r < 6; ++r) {
    const auto row = std::span(got).subspan(fixture.Size(r), fixture.Size(1));
    // Its last key is 7; 0 is never wrapped to, but by row 0.
    if (r == 0) {
      for (const float v : row) EXPECT_TRUE(std::isnan(v));
    } else {
      EXPECT_TRUE(SameBits(
          row, std::span(clean).subspan(fixture.Size(r), fixture.Size(1))))
          << r;
    }
  }
}

TEST_F(LatentAttentionCudaTest, ANanQueryOrSinkReachesItsHeadAndNoOther) {
  for (const bool in_sink : {false, true}) {
    Fixture fixture(random_, {2, 19, 64, 8, 5});
    if (in_sink) {
      fixture.sinks[17] = kNan;
    } else {
      fixture.q[17 * 64 + 3] = kNan;
    }
    const auto got = fixture.Emulated();
    for (size_t i = 0; i < got.size(); ++i) {
      const bool touched = i / 64 % 19 == 17 && (in_sink || i < got.size() / 2);
      EXPECT_EQ(std::isnan(got[i]), touched) << i;
    }
  }
}

TEST_F(LatentAttentionCudaTest, ARowOfMoreKeysThanItSaidIsNan) {
  Fixture fixture(random_, {3, 5, 64, 8, 5});
  const auto all = fixture.Emulated();
  // Of 13, 11 and 9 keys.
  fixture.n_keys_max = 11;
  const auto got = fixture.Emulated();
  for (size_t i = 0; i < fixture.Size(1); ++i) EXPECT_TRUE(std::isnan(got[i]));
  EXPECT_TRUE(SameBits(std::span(got).subspan(fixture.Size(1)),
                       std::span(all).subspan(fixture.Size(1))));
}

TEST_F(LatentAttentionCudaTest, NoRowsAreNoLaunch) {
  EXPECT_EQ(LatentAttentionCuda({.n_heads = 4, .head_dim = 64}, 5, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
