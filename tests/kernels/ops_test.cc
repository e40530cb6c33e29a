// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include "kernels/cpu_ops.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/testing/status_matchers.h"

namespace torpor::kernels {
namespace {

class OpsTest : public ::testing::TestWithParam<Isa> {
 protected:
  testing::Random random_;
};

INSTANTIATE_TEST_SUITE_P(Paths, OpsTest, ::testing::ValuesIn(AvailableIsas()),
                         IsaParamName);

struct GemmCase {
  int64_t m;
  int64_t n;
  int64_t k;
};

std::vector<float> RunGemm(CpuOps* ops, const void* a, int64_t m,
                           const PackedMatrix& b, const float* bias) {
  std::vector<float> c(static_cast<size_t>(m * b.n()), kNan);
  ops->Gemm({.a = a, .n_rows = m, .b = &b, .bias = bias, .c = c.data()});
  return c;
}

TEST_P(OpsTest, GemmAgreesWithTheReference) {
  CpuOps ops(GetParam(), 2);
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const GemmCase c : {GemmCase{1, 16, 2},
                             {1, 1, 32},
                             {2, 17, 30},
                             {3, 48, 64},
                             {5, 80, 160},
                             {12, 33, 640},
                             {13, 72, 48},
                             {31, 256, 96},
                             {64, 100, 50}}) {
      const auto a = RandomFloats(random_, c.m * c.k);
      const auto b = RandomFloats(random_, c.n * c.k);
      const auto bias = RandomFloats(random_, c.n);
      const auto a16 = ToBf16s(a);
      const PackedMatrix packed = PackedMatrix::Pack(b.data(), c.n, c.k, dtype);
      const void* rows = dtype == DType::kBf16
                             ? static_cast<const void*>(a16.data())
                             : a.data();
      for (const float* with :
           {static_cast<const float*>(nullptr), bias.data()}) {
        const auto got = RunGemm(&ops, rows, c.m, packed, with);
        std::vector<float> wanted(got.size());
        GemmRef({.a = rows,
                 .n_rows = c.m,
                 .b = &packed,
                 .bias = with,
                 .c = wanted.data()});
        EXPECT_TRUE(Near(got, wanted, 1e-5, SumSize(c.k)))
            << c.m << "x" << c.n << "x" << c.k << " dtype "
            << static_cast<int>(dtype);
      }
    }
  }
}

// Design D9: a row's bits ignore the rows beside it, their number, threads.
TEST_P(OpsTest, GemmRowsIgnoreTheirCompany) {
  constexpr int64_t kRows = 512;
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{
             {64, 64}, {320, 640}, {80, 2048}, {16, 4096}}) {
      const auto a = RandomFloats(random_, kRows * k);
      const auto a16 = ToBf16s(a);
      const auto b = RandomFloats(random_, n * k);
      const PackedMatrix packed = PackedMatrix::Pack(b.data(), n, k, dtype);
      const auto at = [&](int64_t row) -> const void* {
        return dtype == DType::kBf16
                   ? static_cast<const void*>(a16.data() + row * k)
                   : a.data() + row * k;
      };
      CpuOps one(GetParam(), 1);
      const auto all = RunGemm(&one, at(0), kRows, packed, nullptr);
      for (const int threads : {1, 2, 5}) {
        CpuOps ops(GetParam(), threads);
        for (const int64_t m : {1, 2, 3, 4, 7, 11, 12, 13, 16, 33, 128, 500}) {
          for (const int64_t first : {int64_t{0}, int64_t{5}}) {
            const auto some = RunGemm(&ops, at(first), m, packed, nullptr);
            ASSERT_TRUE(
                SameBits(some, std::span(all).subspan(first * n, m * n)))
                << m << " rows from " << first << " on " << threads
                << " threads";
          }
        }
      }
    }
  }
}

TEST_P(OpsTest, AGemmRowOfNanStaysAlone) {
  CpuOps ops(GetParam(), 1);
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    auto a = RandomFloats(random_, 9 * 32);
    std::fill_n(a.begin() + 4 * 32, 32, kNan);
    const auto a16 = ToBf16s(a);
    const PackedMatrix b = PackedMatrix::Pack(
        RandomFloats(random_, 48 * 32).data(), 48, 32, dtype);
    const void* rows =
        dtype == DType::kBf16 ? static_cast<const void*>(a16.data()) : a.data();
    const auto c = RunGemm(&ops, rows, 9, b, nullptr);
    for (int64_t i = 0; i < 9 * 48; ++i) {
      EXPECT_EQ(std::isnan(c[i]), i / 48 == 4) << i;
    }
  }
}

TEST_P(OpsTest, RmsNormAgreesWithTheReferenceInEverySink) {
  CpuOps ops(GetParam(), 2);
  for (const int64_t dim : {1, 15, 16, 17, 32, 48, 160, 640}) {
    for (const int64_t rows : {1, 3, 40}) {
      const auto x = RandomFloats(random_, rows * dim, 3.0f);
      const auto weight = RandomFloats(random_, dim);
      const auto base = RandomFloats(random_, rows * dim);
      for (const RowSink sink :
           {RowSink::kStoreF32, RowSink::kStoreBf16, RowSink::kAddF32}) {
        std::vector<float> got = base;
        std::vector<float> wanted = base;
        RmsNormParams p{.x = x.data(),
                        .n_rows = rows,
                        .dim = dim,
                        .x_stride = dim,
                        .weight = weight.data(),
                        .offset = 1.0f,
                        .eps = 1e-6f,
                        .out = got.data(),
                        .out_stride = dim,
                        .sink = sink};
        ops.RmsNorm(p);
        p.out = wanted.data();
        RmsNormRef(p);
        if (sink == RowSink::kStoreBf16) {
          // Compare as values: a rounding may fall to either side.
          const auto* g = reinterpret_cast<const Bf16*>(got.data());
          const auto* w = reinterpret_cast<const Bf16*>(wanted.data());
          std::vector<float> gf;
          std::vector<float> wf;
          for (int64_t i = 0; i < rows * dim; ++i) {
            gf.push_back(ToFloat(g[i]));
            wf.push_back(ToFloat(w[i]));
          }
          EXPECT_TRUE(Near(gf, wf, 1e-2)) << dim;
        } else {
          EXPECT_TRUE(Near(got, wanted, 2e-6)) << dim;
        }
      }
    }
  }
}

TEST_P(OpsTest, RopeAgreesWithTheReference) {
  CpuOps ops(GetParam(), 2);
  for (const int64_t head_dim : {16, 32, 64, 80, 256}) {
    const auto inv_freq = RopeInvFreq(10000.0f, head_dim, 1.0f);
    constexpr int64_t kRows = 5;
    std::vector<float> tables(kRows * head_dim);
    for (int64_t r = 0; r < kRows; ++r) {
      RopeTable(inv_freq, 1000 * r + 3, tables.data() + r * head_dim);
    }
    auto got = RandomFloats(random_, kRows * 3 * head_dim);
    auto wanted = got;
    RopeParams p{got.data(), kRows, 3, head_dim, tables.data()};
    ops.Rope(p);
    p.x = wanted.data();
    RopeRef(p);
    EXPECT_TRUE(Near(got, wanted, 1e-6)) << head_dim;
  }
}

TEST_P(OpsTest, RopeKeepsLengthsAndTurnsByDistance) {
  CpuOps ops(GetParam(), 1);
  constexpr int64_t kDim = 32;
  const auto inv_freq = RopeInvFreq(10000.0f, kDim, 1.0f);
  const auto q = RandomFloats(random_, kDim);
  const auto k = RandomFloats(random_, kDim);
  const auto dot_at = [&](uint64_t i, uint64_t j) {
    std::vector<float> a = q;
    std::vector<float> b = k;
    std::vector<float> table(kDim);
    RopeTable(inv_freq, i, table.data());
    ops.Rope({a.data(), 1, 1, kDim, table.data()});
    RopeTable(inv_freq, j, table.data());
    ops.Rope({b.data(), 1, 1, kDim, table.data()});
    double dot = 0;
    for (int64_t d = 0; d < kDim; ++d) dot += a[d] * b[d];
    return dot;
  };
  EXPECT_NEAR(dot_at(10, 7), dot_at(110, 107), 1e-4);
  EXPECT_GT(std::abs(dot_at(10, 7) - dot_at(10, 3)), 1e-4);
}

TEST_P(OpsTest, RopeTailAgreesWithTheReference) {
  CpuOps ops(GetParam(), 2);
  for (const auto& [head_dim, rope_dim] :
       std::vector<std::pair<int64_t, int64_t>>{
           {2, 2}, {32, 32}, {64, 16}, {33, 10}, {100, 50}, {512, 64}}) {
    const auto inv_freq = RopeInvFreq(10000.0f, rope_dim, 1.0f);
    constexpr int64_t kRows = 5;
    std::vector<float> tables(kRows * rope_dim);
    for (int64_t r = 0; r < kRows; ++r) {
      RopeTable(inv_freq, 1000 * r + 3, tables.data() + r * rope_dim);
    }
    const auto x = RandomFloats(random_, kRows * 3 * head_dim);
    for (const bool inverse : {false, true}) {
      auto got = x;
      auto wanted = x;
      RopeTailParams p{got.data(), kRows,         3,      head_dim,
                       rope_dim,   tables.data(), inverse};
      ops.RopeTail(p);
      p.x = wanted.data();
      RopeTailRef(p);
      EXPECT_TRUE(Near(got, wanted, 1e-6)) << head_dim << ", " << rope_dim;
      for (size_t i = 0; i < x.size(); ++i) {
        if (static_cast<int64_t>(i) % head_dim < head_dim - rope_dim) {
          ASSERT_EQ(got[i], x[i]) << i;
        }
      }
      // The same bits on every path, and back again by the inverse.
      auto portable = x;
      p.x = portable.data();
      CpuOps(Isa::kPortable, 1).RopeTail(p);
      EXPECT_TRUE(SameBits(got, portable)) << head_dim << ", " << rope_dim;
      p.x = got.data();
      p.inverse = !inverse;
      ops.RopeTail(p);
      EXPECT_TRUE(Near(got, x, 1e-6)) << head_dim << ", " << rope_dim;
    }
  }
}

TEST_P(OpsTest, GatedGeluAgreesWithTheReference) {
  CpuOps ops(GetParam(), 2);
  for (const int64_t dim : {1, 16, 31, 96, 384}) {
    auto in = RandomFloats(random_, 7 * 2 * dim, 4.0f);
    in[0] = 60.0f;
    in[dim > 1 ? 1 : 0] = -60.0f;
    std::vector<float> got(7 * dim);
    std::vector<float> wanted(7 * dim);
    ops.GatedGelu({in.data(), 7, dim, got.data(), DType::kF32});
    GatedGeluRef({in.data(), 7, dim, wanted.data(), DType::kF32});
    EXPECT_TRUE(Near(got, wanted, 1e-6)) << dim;
  }
}

TEST_P(OpsTest, GatedSiluAgreesWithTheReference) {
  CpuOps ops(GetParam(), 2);
  for (const int64_t dim : {1, 16, 31, 96, 384}) {
    auto in = RandomFloats(random_, 7 * 2 * dim, 4.0f);
    in[0] = 1e30f;
    in[dim] = -60.0f;
    in[2 * dim] = -1e30f;
    in[4 * dim] = -60.0f;
    in[5 * dim] = 1e30f;
    const auto weights = RandomFloats(random_, 7);
    for (const float limit : {0.0f, 7.5f}) {
      // What is not clamped may overflow, as in the reference.
      for (const float* with :
           {static_cast<const float*>(nullptr), weights.data()}) {
        std::vector<float> got(7 * dim, kNan);
        std::vector<float> wanted(7 * dim);
        GatedSiluParams p{in.data(), 7,          dim,        limit,
                          with,      got.data(), DType::kF32};
        ops.GatedSilu(p);
        p.out = wanted.data();
        GatedSiluRef(p);
        for (int64_t r = 0; r < 7; ++r) {
          EXPECT_TRUE(Near(std::span(got).subspan(r * dim, dim),
                           std::span(wanted).subspan(r * dim, dim), 1e-6))
              << dim << ", limit " << limit << ", row " << r;
        }
      }
    }
  }
}

// The gate of gpt-oss' experts.
TEST_P(OpsTest, GatedSiluTakesASlopeAndAnOffset) {
  CpuOps ops(GetParam(), 2);
  const std::vector<float> gate = {0.0f, 1.0f, -2.0f, 6.0f, 9.0f, kNan};
  const std::vector<float> up = {3.0f, -1.0f, 0.5f, -9.0f, 9.0f, 1.0f};
  std::vector<float> in = gate;
  in.insert(in.end(), up.begin(), up.end());
  std::vector<float> got(6);
  std::vector<float> reference(6);
  GatedSiluParams p{.gate_up = in.data(),
                    .n_rows = 1,
                    .dim = 6,
                    .limit = 7.0f,
                    .out = got.data(),
                    .slope = 1.702f,
                    .up_offset = 1.0f};
  ops.GatedSilu(p);
  p.out = reference.data();
  GatedSiluRef(p);
  for (size_t i = 0; i < 5; ++i) {
    const double g = std::min(7.0, double{gate[i]});
    const double u = std::clamp(double{up[i]}, -7.0, 7.0);
    const double wanted = (u + 1.0) * g / (1.0 + std::exp(-1.702 * g));
    EXPECT_NEAR(got[i], wanted, 1e-5) << i;
    EXPECT_NEAR(reference[i], wanted, 5e-6) << i;
  }
  EXPECT_TRUE(std::isnan(got[5]));
  EXPECT_TRUE(std::isnan(reference[5]));
}

TEST_P(OpsTest, AddAddsInPlace) {
  CpuOps ops(GetParam(), 3);
  const auto x = RandomFloats(random_, 70'001);
  const auto y = RandomFloats(random_, 70'001, 1e3f);
  auto got = x;
  ops.Add({got.data(), y.data(), 70'000});
  for (size_t i = 0; i < 70'000; ++i) ASSERT_EQ(got[i], x[i] + y[i]) << i;
  EXPECT_EQ(got[70'000], x[70'000]);
}

TEST_P(OpsTest, GatedSiluRoundsAndKeepsNan) {
  CpuOps ops(GetParam(), 1);
  auto in = RandomFloats(random_, 3 * 2 * 20);
  in[5] = kNan;
  in[2 * 40 + 20 + 19] = kNan;
  std::vector<float> wide(3 * 20);
  std::vector<Bf16> narrow(3 * 20);
  ops.GatedSilu({in.data(), 3, 20, 2.0f, nullptr, wide.data(), DType::kF32});
  ops.GatedSilu({in.data(), 3, 20, 2.0f, nullptr, narrow.data(), DType::kBf16});
  EXPECT_EQ(narrow, ToBf16s(wide));
  for (size_t i = 0; i < wide.size(); ++i) {
    EXPECT_EQ(std::isnan(wide[i]), i == 5 || i == 59) << i;
  }
}

TEST_P(OpsTest, SoftcapAgreesWithTheReference) {
  CpuOps ops(GetParam(), 2);
  auto got = RandomFloats(random_, 1003, 40.0f);
  auto wanted = got;
  ops.Softcap({got.data(), 1003, 30.0f});
  SoftcapRef({wanted.data(), 1003, 30.0f});
  EXPECT_TRUE(Near(got, wanted, 1e-6));
}

TEST_P(OpsTest, Bf16RoundsToNearestEvenAndKeepsNan) {
  CpuOps ops(GetParam(), 1);
  std::vector<float> x = {0.0f,
                          -0.0f,
                          1.0f,
                          1.00390625f,
                          1.01171875f,
                          kNan,
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          3.4e38f,
                          1e-40f};
  for (int i = 0; i < 1000; ++i) x.push_back(random_.Normal());
  std::vector<Bf16> got(x.size());
  std::vector<Bf16> wanted(x.size());
  ops.ToBf16({x.data(), static_cast<int64_t>(x.size()), got.data()});
  ToBf16Ref({x.data(), static_cast<int64_t>(x.size()), wanted.data()});
  EXPECT_EQ(got, wanted);
  EXPECT_EQ(ToFloat(ToBf16(1.00390625f)), 1.0f);       // tie to even, down
  EXPECT_EQ(ToFloat(ToBf16(1.01171875f)), 1.015625f);  // tie to even, up
}

TEST_P(OpsTest, RowsRoundToBf16AndScaleInPlace) {
  CpuOps ops(GetParam(), 3);
  auto x = RandomFloats(random_, 70'001);
  x[0] = 1.00390625f;
  x[1] = -1.01171875f;
  x[2] = kNan;
  x[70'000] = 3.4e38f;
  auto rounded = x;
  ops.RoundBf16({rounded.data(), 70'001});
  EXPECT_EQ(rounded[0], 1.0f);        // tie to even, down
  EXPECT_EQ(rounded[1], -1.015625f);  // tie to even, up
  EXPECT_TRUE(std::isnan(rounded[2]));
  EXPECT_TRUE(std::isinf(rounded[70'000]));
  auto scaled = x;
  ops.Scale({scaled.data(), 70'001, 0.3f});
  for (size_t i = 3; i < 70'000; ++i) {
    // The nearest of 8 bits, and a float that needs no more.
    ASSERT_LE(std::abs(rounded[i] - x[i]), std::ldexp(std::abs(x[i]), -8));
    ASSERT_EQ(std::bit_cast<uint32_t>(rounded[i]) & 0xffffu, 0u);
    ASSERT_EQ(scaled[i], x[i] * 0.3f);
  }
}

TEST(YarnTest, FastPairsStaySlowOnesStretchOthersLieBetween) {
  const YarnParams yarn{.factor = 16.0,
                        .beta_fast = 32.0,
                        .beta_slow = 1.0,
                        .original_positions = 65536};
  const auto plain = RopeInvFreq(160000.0f, 64, 1.0f);
  const auto got = YarnInvFreq(160000.0, 64, yarn);
  ASSERT_EQ(got.size(), plain.size());
  // Pair j turns 65536 / (2 pi 160000^(2j / 64)) times: 32 times at j = 15.45,
  // once at 24.70, so that pairs up to 15 stay and those from 25 are divided.
  for (size_t j = 0; j < plain.size(); ++j) {
    const float share = got[j] / plain[j];
    if (j <= 15) {
      EXPECT_EQ(share, 1.0f) << j;
    } else if (j >= 25) {
      EXPECT_FLOAT_EQ(share, 1.0f / 16.0f) << j;
    } else {
      const float ramp = (static_cast<float>(j) - 15.0f) / 10.0f;
      EXPECT_FLOAT_EQ(share, 1.0f - ramp + ramp / 16.0f) << j;
    }
  }
}

// Pairs 15.45 to 24.70 of the test above: none of the bounds is rounded.
TEST(YarnTest, TheRangeIsWhatTurnsSayWithoutTruncation) {
  const YarnParams yarn{.factor = 16.0,
                        .beta_fast = 32.0,
                        .beta_slow = 1.0,
                        .original_positions = 65536,
                        .truncate = false};
  const auto plain = RopeInvFreq(160000.0f, 64, 1.0f);
  const auto got = YarnInvFreq(160000.0, 64, yarn);
  const auto pair = [](double turns) {
    return 64.0 * std::log(65536.0 / (turns * 2.0 * M_PI)) /
           (2.0 * std::log(160000.0));
  };
  const double low = pair(32.0);
  const double high = pair(1.0);
  EXPECT_NEAR(low, 15.45, 0.01);
  EXPECT_NEAR(high, 24.70, 0.01);
  for (size_t j = 0; j < plain.size(); ++j) {
    const double ramp =
        std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    EXPECT_NEAR(got[j] / plain[j], 1.0 - ramp + ramp / 16.0, 1e-6) << j;
  }
}

TEST(IsaTest, NamesParseAndUnknownOnesAreRefused) {
  for (const Isa isa : AvailableIsas()) {
    ASSERT_OK_AND_ASSIGN(const Isa parsed, ParseIsa(IsaName(isa)));
    EXPECT_EQ(parsed, isa);
  }
  ASSERT_OK_AND_ASSIGN(const Isa best, ParseIsa("auto"));
  EXPECT_EQ(best, AvailableIsas().back());
  EXPECT_THAT(ParseIsa("sse9"),
              testing::HasStatus(absl::StatusCode::kInvalidArgument, "sse9"));
}

}  // namespace
}  // namespace torpor::kernels
