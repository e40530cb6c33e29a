// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernel of rms_norm.h against its reference.

#include "kernels/rms_norm_cuda.h"

#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

struct Shape {
  int64_t n_rows, dim, x_stride, out_stride;
};

class RmsNormCudaTest : public CudaTest {
 protected:
  // Rows of a shape, with the last row ending where its buffer does.
  void Make(const Shape& shape, RowSink sink) {
    testing::Random random(static_cast<uint64_t>(shape.dim));
    x_ = RandomFloats(random, Size(shape, shape.x_stride));
    weight_ = RandomFloats(random, static_cast<size_t>(shape.dim));
    out_ = RandomFloats(random, Size(shape, shape.out_stride));
    params_ = {.n_rows = shape.n_rows,
               .dim = shape.dim,
               .x_stride = shape.x_stride,
               .offset = 1.0f,
               .eps = 1e-6f,
               .out_stride = shape.out_stride,
               .sink = sink};
  }

  static size_t Size(const Shape& shape, int64_t stride) {
    return static_cast<size_t>((shape.n_rows - 1) * stride + shape.dim);
  }

  // What `out_` becomes; bf16 widened.
  template <typename T>
  std::vector<float> Reference(std::vector<T> out) const {
    RmsNormParams p = params_;
    p.x = x_.data();
    p.weight = weight_.data();
    p.out = out.data();
    RmsNormRef(p);
    return Rows(out);
  }

  template <typename T>
  std::vector<float> Emulated(const std::vector<T>& out) const {
    const DeviceBuffer<float> x(x_, "x");
    const DeviceBuffer<float> weight(weight_, "weight");
    const DeviceBuffer<T> result(out.size(), "out");
    // Only a sum may read what is there.
    if (params_.sink == RowSink::kAddF32) result.Upload(out);
    RmsNormParams p = params_;
    p.x = x.data();
    p.weight = weight.data();
    p.out = result.data();
    EXPECT_EQ(RmsNormCuda(p, nullptr), 0) << Reports();
    return Rows(result.Download());
  }

  // Without what lies between rows.
  template <typename T>
  std::vector<float> Rows(const std::vector<T>& out) const {
    std::vector<float> rows;
    for (int64_t row = 0; row < params_.n_rows; ++row) {
      for (int64_t i = 0; i < params_.dim; ++i) {
        rows.push_back(
            AsFloat(out[static_cast<size_t>(row * params_.out_stride + i)]));
      }
    }
    return rows;
  }
  static float AsFloat(float v) { return v; }
  static float AsFloat(Bf16 v) { return ToFloat(v); }

  std::vector<float> x_, weight_, out_;
  RmsNormParams params_;
};

constexpr Shape kShapes[] = {{1, 1, 1, 1},         {19, 130, 130, 132},
                             {3, 7, 7, 7},         {2, 64, 64, 64},
                             {5, 640, 640, 640},   {2, 1030, 1031, 1033},
                             {3, 2052, 2052, 2056}};

TEST_F(RmsNormCudaTest, F32RowsAgreeWithTheReferenceUnderEverySchedule) {
  for (const RowSink sink : {RowSink::kStoreF32, RowSink::kAddF32}) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE("dim " + std::to_string(shape.dim));
      Make(shape, sink);
      const std::vector<float> wanted = Reference(out_);
      ForEachSchedule([&] { EXPECT_TRUE(Near(Emulated(out_), wanted, 1e-6)); });
    }
  }
}

TEST_F(RmsNormCudaTest, Bf16RowsAreRoundedOnce) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE("dim " + std::to_string(shape.dim));
    Make(shape, RowSink::kStoreBf16);
    const std::vector<float> wanted = Reference(ToBf16s(out_));
    ForEachSchedule(
        [&] { EXPECT_TRUE(Near(Emulated(ToBf16s(out_)), wanted, 0x1p-8)); });
  }
}

// A row alone and unaligned has the bits that it has among others.
TEST_F(RmsNormCudaTest, ARowsBitsDoNotDependOnOthersNorOnAlignment) {
  for (const int64_t dim : {130, 1030}) {
    Make({12, dim, dim + 1, dim + 3}, RowSink::kStoreF32);
    const std::vector<float> all = Emulated(out_);
    const std::vector<float> last(all.end() - dim, all.end());
    x_.erase(x_.begin(), x_.end() - dim);
    out_.resize(static_cast<size_t>(dim));
    params_.n_rows = 1;
    EXPECT_TRUE(SameBits(Emulated(out_), last)) << dim;
  }
}

TEST_F(RmsNormCudaTest, RowsMayBeNormedInPlace) {
  for (const int64_t dim : {130, 1030}) {
    Make({3, dim, dim, dim}, RowSink::kStoreF32);
    const std::vector<float> wanted = Emulated(out_);
    ForEachSchedule([&] {
      const DeviceBuffer<float> x(x_, "x");
      const DeviceBuffer<float> weight(weight_, "weight");
      RmsNormParams p = params_;
      p.x = x.data();
      p.weight = weight.data();
      p.out = x.data();
      EXPECT_EQ(RmsNormCuda(p, nullptr), 0);
      EXPECT_TRUE(SameBits(x.Download(), wanted)) << dim;
    });
  }
}

TEST_F(RmsNormCudaTest, NoRowsAreNoLaunch) {
  EXPECT_EQ(RmsNormCuda({}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
