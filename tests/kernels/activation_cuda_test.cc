// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels of activation.h against their references.

#include "kernels/activation_cuda.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

class ActivationCudaTest : public CudaTest {
 protected:
  testing::Random random_;
};

template <typename Params>
struct GatedOp {
  int (*launch)(const Params&, CudaStream);
  void (*reference)(const Params&);
};

// One row's gate and up beginning `skip` elements into its buffer.
struct GatedRun {
  std::vector<float> gate_up;
  std::vector<float> row_weight;
  int64_t n_rows = 0;
  int64_t dim = 0;
  float limit = 0.0f;
  float slope = 1.0f;
  float up_offset = 0.0f;
  size_t skip = 0;
};

void SetExtras(const GatedRun&, const float*, GatedGeluParams*) {}
void SetExtras(const GatedRun& run, const float* row_weight,
               GatedSiluParams* p) {
  p->limit = run.limit;
  p->slope = run.slope;
  p->up_offset = run.up_offset;
  p->row_weight = run.row_weight.empty() ? nullptr : row_weight;
}

template <typename T, typename Params>
std::vector<T> Emulated(const GatedOp<Params>& op, const GatedRun& run) {
  const DeviceBuffer<float> in(run.gate_up.size() + run.skip, "gate_up");
  in.Upload(run.gate_up, run.skip);
  const DeviceBuffer<float> row_weight(run.row_weight, "row_weight");
  const DeviceBuffer<T> out(static_cast<size_t>(run.n_rows * run.dim), "out");
  Params p;
  p.gate_up = in.data() + run.skip;
  p.n_rows = run.n_rows;
  p.dim = run.dim;
  p.out = out.data();
  p.out_dtype = sizeof(T) == 2 ? DType::kBf16 : DType::kF32;
  SetExtras(run, row_weight.data(), &p);
  EXPECT_EQ(op.launch(p, nullptr), 0);
  return out.Download();
}

template <typename Params>
std::vector<float> Reference(const GatedOp<Params>& op, const GatedRun& run) {
  std::vector<float> out(static_cast<size_t>(run.n_rows * run.dim));
  Params p;
  p.gate_up = run.gate_up.data();
  p.n_rows = run.n_rows;
  p.dim = run.dim;
  p.out = out.data();
  SetExtras(run, run.row_weight.data(), &p);
  op.reference(p);
  return out;
}

double LargestError(std::span<const float> got, std::span<const float> wanted) {
  double largest = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!std::isfinite(got[i])) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::fabs(double{got[i]} - double{wanted[i]}));
  }
  return largest;
}

// Of |gate * (up + its offset)|: a gate far below 0 multiplies the rounding of
// its own exponent, so a result alone is no measure.
double LargestProduct(const GatedRun& run) {
  double largest = 0;
  for (int64_t row = 0; row < run.n_rows; ++row) {
    const float* gate = &run.gate_up[static_cast<size_t>(2 * row * run.dim)];
    for (int64_t i = 0; i < run.dim; ++i) {
      largest = std::max(
          largest, std::fabs(double{gate[i]} *
                             (double{gate[run.dim + i]} + run.up_offset)));
    }
  }
  return largest;
}

template <typename Params>
void CheckGated(const GatedOp<Params>& op, GatedRun run,
                testing::Random& random) {
  for (const auto& [rows, dim] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {3, 7}, {2, 64}, {5, 66}, {2, 1028}}) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(dim));
    run.n_rows = rows;
    run.dim = dim;
    run.gate_up = RandomFloats(random, 2 * rows * dim, 4.0f);
    if (!run.row_weight.empty()) run.row_weight = RandomFloats(random, rows);
    const std::vector<float> wanted = Reference(op, run);
    std::vector<float> bits;
    ForEachSchedule([&] {
      for (const size_t skip : {0, 1}) {
        run.skip = skip;
        const auto got = Emulated<float>(op, run);
        EXPECT_LE(LargestError(got, wanted), 1e-6 * LargestProduct(run));
        // Neither schedule nor alignment changes a bit.
        if (bits.empty()) bits = got;
        EXPECT_TRUE(SameBits(got, bits));
        EXPECT_EQ(Emulated<Bf16>(op, run), ToBf16s(bits));
      }
    });
  }
}

TEST_F(ActivationCudaTest, GatedGeluAgreesWithTheReference) {
  CheckGated<GatedGeluParams>({GatedGeluCuda, GatedGeluRef}, {}, random_);
}

TEST_F(ActivationCudaTest, GatedSiluAgreesWithTheReference) {
  const GatedOp<GatedSiluParams> op{GatedSiluCuda, GatedSiluRef};
  CheckGated(op, {}, random_);
  CheckGated(op, {.row_weight = {1.0f}}, random_);
  CheckGated(op, {.row_weight = {1.0f}, .limit = 3.0f}, random_);
  CheckGated(op, {.limit = 3.0f, .slope = 1.702f, .up_offset = 1.0f}, random_);
}

TEST_F(ActivationCudaTest, GatedSiluClampsAndKeepsNan) {
  const GatedRun run{
      .gate_up = {9, -9, kNan, 1, 1, 1, 9, -9, 1, kNan, INFINITY, -INFINITY},
      .n_rows = 1,
      .dim = 6,
      .limit = 2.0f};
  const GatedOp<GatedSiluParams> op{GatedSiluCuda, GatedSiluRef};
  EXPECT_TRUE(Near(Emulated<float>(op, run), Reference(op, run), 1e-6));
}

TEST_F(ActivationCudaTest, AddAddsInPlace) {
  for (const int64_t n : {1, 3, 4, 1030}) {
    const auto x = RandomFloats(random_, n);
    const auto y = RandomFloats(random_, n, 1e3f);
    std::vector<float> wanted = x;
    AddRef({wanted.data(), y.data(), n});
    ForEachSchedule([&] {
      for (const size_t skip : {0, 1}) {
        const DeviceBuffer<float> sum(x.size() + skip, "x");
        sum.Upload(x, skip);
        const DeviceBuffer<float> more(y, "y");
        EXPECT_EQ(AddCuda({sum.data() + skip, more.data(), n}, nullptr), 0);
        const auto got = sum.Download();
        EXPECT_TRUE(SameBits(std::span(got).subspan(skip), wanted)) << n;
      }
    });
  }
}

TEST_F(ActivationCudaTest, SoftcapAgreesWithTheReference) {
  for (const int64_t n : {1, 3, 4, 1030}) {
    const auto x = RandomFloats(random_, n, 40.0f);
    std::vector<float> wanted = x;
    SoftcapRef({wanted.data(), n, 30.0f});
    ForEachSchedule([&] {
      for (const size_t skip : {0, 1}) {
        const DeviceBuffer<float> in(x.size() + skip, "x");
        in.Upload(x, skip);
        EXPECT_EQ(SoftcapCuda({in.data() + skip, n, 30.0f}, nullptr), 0);
        const auto got = in.Download();
        EXPECT_TRUE(Near(std::span(got).subspan(skip), wanted, 1e-6)) << n;
      }
    });
  }
}

TEST_F(ActivationCudaTest, ToBf16RoundsAsTheReferenceDoes) {
  std::vector<float> x = RandomFloats(random_, 1029);
  x[3] = kNan;
  x[4] = -INFINITY;
  x[5] = 3.4e38f;
  ForEachSchedule([&] {
    const DeviceBuffer<float> in(x, "x");
    for (const size_t skip : {0, 1}) {
      const DeviceBuffer<Bf16> out(x.size() + skip, "out");
      EXPECT_EQ(ToBf16Cuda({in.data(), static_cast<int64_t>(x.size()),
                            out.data() + skip},
                           nullptr),
                0);
      auto got = out.Download();
      got.erase(got.begin(), got.begin() + static_cast<int64_t>(skip));
      EXPECT_EQ(got, ToBf16s(x));
    }
  });
}

TEST_F(ActivationCudaTest, OpsInPlaceAreTheReferences) {
  for (const int64_t n : {1, 3, 4, 1030}) {
    auto x = RandomFloats(random_, static_cast<size_t>(n), 40.0f);
    x[0] = n == 1 ? kNan : 3.4e38f;
    auto rounded = x;
    RoundBf16Ref({rounded.data(), n});
    auto scaled = x;
    ScaleRef({scaled.data(), n, 0.7f});
    ForEachSchedule([&] {
      for (const size_t skip : {0, 1}) {
        const DeviceBuffer<float> in(x.size() + skip, "x");
        in.Upload(x, skip);
        EXPECT_EQ(RoundBf16Cuda({in.data() + skip, n}, nullptr), 0);
        auto got = in.Download();
        EXPECT_TRUE(SameBits(std::span(got).subspan(skip), rounded));
        in.Upload(x, skip);
        EXPECT_EQ(ScaleCuda({in.data() + skip, n, 0.7f}, nullptr), 0);
        got = in.Download();
        EXPECT_TRUE(SameBits(std::span(got).subspan(skip), scaled));
      }
    });
  }
}

TEST_F(ActivationCudaTest, NothingIsNoLaunch) {
  EXPECT_EQ(GatedGeluCuda({.dim = 4}, nullptr), 0);
  EXPECT_EQ(GatedSiluCuda({.dim = 4}, nullptr), 0);
  EXPECT_EQ(AddCuda({}, nullptr), 0);
  EXPECT_EQ(SoftcapCuda({}, nullptr), 0);
  EXPECT_EQ(ToBf16Cuda({}, nullptr), 0);
  EXPECT_EQ(RoundBf16Cuda({}, nullptr), 0);
  EXPECT_EQ(ScaleCuda({}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
