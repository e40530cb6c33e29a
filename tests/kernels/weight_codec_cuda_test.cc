// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels of weight_codec.h: the reference's bits.

#include "kernels/weight_codec_cuda.h"

#include "tests/kernels/codec_values.h"
#include "tests/kernels/cuda_testing.h"
#include "tests/kernels/row_codec_paths.h"

namespace torpor::kernels {
namespace {

class WeightCodecCudaTest : public CudaTest {
 protected:
  std::vector<uint8_t> Noise(int64_t n) {
    std::vector<uint8_t> bytes(static_cast<size_t>(n));
    random_.Fill(bytes);
    return bytes;
  }

  testing::Random random_;
  CodecValues values_;
};

struct Case {
  WeightFormat format;
  int64_t block_rows;
  int64_t block_columns;
  int64_t n_rows;
  int64_t dim;
  // Bytes between rows of codes and of scales, elements between rows of
  // values.
  int64_t gap;
};
constexpr Case kCases[] = {{WeightFormat::kFp8, 32, 32, 70, 96, 0},
                           {WeightFormat::kFp8, 1, 32, 9, 640, 3},
                           {WeightFormat::kFp8, 128, 128, 130, 272, 0},
                           {WeightFormat::kFp8, 32, 32, 33, 48, 5},
                           {WeightFormat::kFp4, 1, 32, 11, 544, 0},
                           {WeightFormat::kFp4, 1, 32, 3, 16, 1},
                           {WeightFormat::kFp4, 2, 64, 5, 1040, 8}};

// Weights of noise, decoded on the device and by the reference.
class Weights {
 public:
  Weights(const Case& c, std::vector<uint8_t> codes,
          std::vector<uint8_t> scales, std::vector<uint8_t> out)
      : case_(c),
        codes_(std::move(codes)),
        scales_(std::move(scales)),
        out_(std::move(out)) {}

  static int64_t CodesStride(const Case& c) {
    return c.dim / (c.format == WeightFormat::kFp4 ? 2 : 1) + c.gap;
  }
  static int64_t ScalesStride(const Case& c) {
    return (c.dim - 1) / c.block_columns + 1 + c.gap;
  }
  static int64_t ScaleRows(const Case& c) {
    return (c.n_rows - 1) / c.block_rows + 1;
  }

  std::vector<uint8_t> Emulated(DType dtype) const {
    const DeviceBuffer<uint8_t> codes(codes_, "codes");
    const DeviceBuffer<uint8_t> scales(scales_, "scales");
    const DeviceBuffer<uint8_t> out(out_, "out");
    EXPECT_EQ(
        DecodeWeightsCuda(
            Params(dtype, codes.data(), scales.data(), out.data()), nullptr),
        0)
        << Reports();
    return out.Download();
  }
  std::vector<uint8_t> Reference(DType dtype) const {
    std::vector<uint8_t> out = out_;
    DecodeWeightsRef(Params(dtype, codes_.data(), scales_.data(), out.data()));
    return out;
  }

 private:
  DecodeWeightsParams Params(DType dtype, const uint8_t* codes,
                             const uint8_t* scales, void* out) const {
    return {.format = case_.format,
            .codes = codes,
            .codes_stride = CodesStride(case_),
            .scales = scales,
            .scales_stride = ScalesStride(case_),
            .block_rows = case_.block_rows,
            .block_columns = case_.block_columns,
            .n_rows = case_.n_rows,
            .dim = case_.dim,
            .out = out,
            .out_stride = case_.dim + case_.gap,
            .out_dtype = dtype};
  }

  const Case case_;
  const std::vector<uint8_t> codes_;
  const std::vector<uint8_t> scales_;
  const std::vector<uint8_t> out_;
};

TEST_F(WeightCodecCudaTest, WeightsDecodeAsTheReferenceDoes) {
  for (const Case& c : kCases) {
    const Weights weights(
        c, Noise(c.n_rows * Weights::CodesStride(c)),
        Noise(Weights::ScaleRows(c) * Weights::ScalesStride(c)),
        Noise(4 * c.n_rows * (c.dim + c.gap)));
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      EXPECT_TRUE(SameValues(weights.Emulated(dtype), weights.Reference(dtype)))
          << c.n_rows << " x " << c.dim;
    }
  }
}

TEST_F(WeightCodecCudaTest, NoScheduleChangesAWeight) {
  const Case c = {WeightFormat::kFp4, 1, 32, 11, 544, 0};
  const Weights weights(c, Noise(c.n_rows * Weights::CodesStride(c)),
                        Noise(Weights::ScaleRows(c) * Weights::ScalesStride(c)),
                        Noise(4 * c.n_rows * c.dim));
  const auto wanted = weights.Reference(DType::kBf16);
  ForEachSchedule(
      [&] { EXPECT_TRUE(SameValues(weights.Emulated(DType::kBf16), wanted)); });
}

TEST_F(WeightCodecCudaTest, FakeQuantGivesTheReferencesBits) {
  struct Shape {
    int64_t n_rows, dim, gap;
  };
  for (const Shape& s :
       {Shape{1, 32, 0}, {3, 128, 0}, {5, 160, 1}, {2, 1056, 4}}) {
    for (int round = 0; round < 8; ++round) {
      const int64_t stride = s.dim + s.gap;
      const auto x = values_.Draw(random_, s.n_rows * stride);
      auto wanted = x;
      FakeQuantFp8Ref({.x = wanted.data(),
                       .n_rows = s.n_rows,
                       .dim = s.dim,
                       .x_stride = stride});
      ForEachSchedule([&] {
        const DeviceBuffer<float> rows(x, "x");
        ASSERT_EQ(FakeQuantFp8Cuda({.x = rows.data(),
                                    .n_rows = s.n_rows,
                                    .dim = s.dim,
                                    .x_stride = stride},
                                   nullptr),
                  0)
            << Reports();
        EXPECT_TRUE(SameBits(rows.Download(), wanted)) << s.dim;
      });
    }
  }
}

TEST_F(WeightCodecCudaTest, NoRowsAreNoLaunch) {
  EXPECT_EQ(DecodeWeightsCuda({.dim = 32}, nullptr), 0);
  EXPECT_EQ(FakeQuantFp8Cuda({.dim = 32}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
