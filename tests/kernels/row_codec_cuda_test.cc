// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels of row_codec.h: the reference's bytes, row
// by row, so that rows beside one another cannot matter.

#include "kernels/row_codec_cuda.h"

#include <numeric>

#include "tests/kernels/codec_values.h"
#include "tests/kernels/cuda_testing.h"
#include "tests/kernels/row_codec_paths.h"

namespace torpor::kernels {
namespace {

// Rows `gap` elements further apart than they are long, `shift` elements from
// where memory is aligned.
struct Layout {
  int64_t n_rows;
  int64_t gap;
  int64_t shift;
};
constexpr Layout kLayouts[] = {{1, 0, 0}, {5, 0, 0}, {9, 1, 1},
                               {4, 4, 4}, {6, 7, 2}, {3, 8, 8}};

class RowCodecCudaTest : public CudaTest {
 protected:
  std::vector<float> Values(int64_t n) { return values_.Draw(random_, n); }
  std::vector<uint8_t> Noise(int64_t n) {
    std::vector<uint8_t> bytes(static_cast<size_t>(n));
    random_.Fill(bytes);
    return bytes;
  }

  // Where nothing is written the noise stays.
  void ExpectEncodesAsTheReference(const CodecCase& c, const Layout& layout,
                                   const std::vector<float>& x) {
    const int64_t stride = RowBytes(c.format, c.dim, c.rope_dim) + layout.gap;
    std::vector<uint8_t> wanted = Noise(layout.n_rows * stride + layout.shift);
    const DeviceBuffer<float> from(x, "x");
    const DeviceBuffer<uint8_t> to(wanted, "out");
    EncodeRowsParams p{.format = c.format,
                       .x = from.data() + layout.shift,
                       .n_rows = layout.n_rows,
                       .dim = c.dim,
                       .rope_dim = c.rope_dim,
                       .x_stride = c.dim + layout.gap,
                       .out = to.data() + layout.shift,
                       .out_stride = stride};
    ASSERT_EQ(EncodeRowsCuda(p, nullptr), 0) << Reports();
    p.x = x.data() + layout.shift;
    p.out = wanted.data() + layout.shift;
    EncodeRowsRef(p);
    EXPECT_TRUE(SameValues(to.Download(), wanted))
        << FormatName(c.format) << " " << c.dim << ", gap " << layout.gap;
  }

  void ExpectDecodesAsTheReference(const CodecCase& c, const Layout& layout,
                                   DType dtype,
                                   const std::vector<uint8_t>& rows) {
    const int64_t stride = c.dim + layout.gap;
    const auto bytes = static_cast<int64_t>(DTypeBytes(dtype));
    std::vector<uint8_t> wanted =
        Noise((layout.n_rows * stride + layout.shift) * bytes);
    const DeviceBuffer<uint8_t> from(rows, "rows");
    const DeviceBuffer<uint8_t> to(wanted, "out");
    DecodeRowsParams p{
        .format = c.format,
        .in = from.data() + layout.shift,
        .n_rows = layout.n_rows,
        .dim = c.dim,
        .rope_dim = c.rope_dim,
        .in_stride = RowBytes(c.format, c.dim, c.rope_dim) + layout.gap,
        .out = to.data() + layout.shift * bytes,
        .out_stride = stride,
        .out_dtype = dtype};
    ASSERT_EQ(DecodeRowsCuda(p, nullptr), 0) << Reports();
    p.in = rows.data() + layout.shift;
    p.out = wanted.data() + layout.shift * bytes;
    DecodeRowsRef(p);
    EXPECT_TRUE(SameValues(to.Download(), wanted))
        << FormatName(c.format) << " " << c.dim << ", gap " << layout.gap
        << ", " << bytes << " bytes a value";
  }

  testing::Random random_;
  CodecValues values_;
};

TEST_F(RowCodecCudaTest, RowsEncodeAsTheReferenceDoes) {
  for (const CodecCase& c : kCodecCases) {
    for (const Layout& layout : kLayouts) {
      for (int round = 0; round < 8; ++round) {
        ExpectEncodesAsTheReference(
            c, layout,
            Values(layout.n_rows * (c.dim + layout.gap) + layout.shift));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(RowCodecCudaTest, EncodedRowsGoWhereTheirPointersSay) {
  constexpr int64_t kRows = 9;
  for (const CodecCase& c : kCodecCases) {
    const int64_t row_bytes = RowBytes(c.format, c.dim, c.rope_dim);
    const auto x = Values(kRows * c.dim);
    const auto noise = Noise(kRows * (row_bytes + 3));
    EncodeRowsParams p{.format = c.format,
                       .x = x.data(),
                       .n_rows = kRows,
                       .dim = c.dim,
                       .rope_dim = c.rope_dim,
                       .x_stride = c.dim};
    const auto places_in = [&](uint8_t* out) {
      std::vector<uint8_t*> places;
      for (int64_t i = 0; i < kRows; ++i) {
        places.push_back(out + i * 4 % kRows * (row_bytes + 3));
      }
      return places;
    };
    auto wanted = noise;
    const auto on_host = places_in(wanted.data());
    p.rows = on_host.data();
    EncodeRowsRef(p);
    const DeviceBuffer<float> from(x, "x");
    const DeviceBuffer<uint8_t> to(noise, "out");
    const DeviceBuffer<uint8_t*> places(places_in(to.data()), "places");
    p.x = from.data();
    p.rows = places.data();
    ASSERT_EQ(EncodeRowsCuda(p, nullptr), 0) << Reports();
    EXPECT_TRUE(SameValues(to.Download(), wanted)) << FormatName(c.format);
  }
}

// Ties between neighbours, the largest and the least of every type, and what is
// not a number, in blocks of ordinary values and alone.
TEST_F(RowCodecCudaTest, SpecialValuesEncodeAsTheReferenceDoes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> specials = {
      0.0f,      -0.0f,           kNan,        -kNan,
      kInfinity, -kInfinity,      0x1p-149f,   0x1p-126f,
      0x1p-127f, 0x1p-133f,       6 * 0x1p-9f, 0x1p-9f,
      1e-4f,     448.0f,          464.0f,      465.0f,
      2688.0f,   2700.0f,         0.25f,       0.75f,
      1.25f,     1.75f,           2.5f,        3.5f,
      5.0f,      0x1.fffffep127f, 0x1p127f,    1.5f * 0x1p-9f,
      -7.0f,     -240.0f};
  for (const CodecCase& c : kCodecCases) {
    const auto n_rows = static_cast<int64_t>(specials.size());
    for (const float ordinary : {0.0f, 6.0f, 448.0f, 3.0f * 0x1p-100f}) {
      std::vector<float> x(static_cast<size_t>(n_rows * c.dim), ordinary);
      for (int64_t row = 0; row < n_rows; ++row) {
        for (int64_t i = row % 16; i < c.dim; i += 16) {
          x[static_cast<size_t>(row * c.dim + i)] =
              specials[static_cast<size_t>((row + i / 64) % n_rows)];
        }
      }
      ExpectEncodesAsTheReference(c, {n_rows, 0, 0}, x);
    }
  }
}

TEST_F(RowCodecCudaTest, NoiseDecodesAsTheReferenceDoes) {
  for (const CodecCase& c : kCodecCases) {
    const int64_t bytes = RowBytes(c.format, c.dim, c.rope_dim);
    for (const Layout& layout : kLayouts) {
      for (const DType dtype : {DType::kF32, DType::kBf16}) {
        ExpectDecodesAsTheReference(
            c, layout, dtype,
            Noise(layout.n_rows * (bytes + layout.gap) + layout.shift));
        if (HasFailure()) return;
      }
    }
  }
}

// A row for each byte that a scale may be, with every byte of codes.
TEST_F(RowCodecCudaTest, EveryCodeUnderEveryScaleDecodesAsTheReferenceDoes) {
  for (const RowFormat format : kRowFormats) {
    const CodecCase c{format, IsFp4(format) ? 512 : 256, 0};
    const RowShape shape = ShapeOf(format, c.dim, 0);
    std::vector<uint8_t> rows;
    for (int scale = 0; scale < 256; ++scale) {
      std::vector<uint8_t> row(static_cast<size_t>(shape.bytes));
      std::iota(row.begin(), row.begin() + shape.scales_at, uint8_t{0});
      std::fill(row.begin() + shape.scales_at, row.end(),
                static_cast<uint8_t>(scale));
      rows.insert(rows.end(), row.begin(), row.end());
    }
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      ExpectDecodesAsTheReference(c, {256, 0, 0}, dtype, rows);
    }
  }
}

TEST_F(RowCodecCudaTest, NoScheduleChangesARow) {
  for (const CodecCase& c : kCodecCases) {
    const Layout layout{9, 0, 0};
    const auto x = Values(layout.n_rows * c.dim);
    const auto rows =
        Noise(layout.n_rows * RowBytes(c.format, c.dim, c.rope_dim));
    ForEachSchedule([&] {
      ExpectEncodesAsTheReference(c, layout, x);
      ExpectDecodesAsTheReference(c, layout, DType::kF32, rows);
      ExpectDecodesAsTheReference(c, layout, DType::kBf16, rows);
    });
  }
}

TEST_F(RowCodecCudaTest, NoRowsAreNoLaunch) {
  for (const CodecCase& c : kCodecCases) {
    EXPECT_EQ(EncodeRowsCuda(
                  {.format = c.format, .dim = c.dim, .rope_dim = c.rope_dim},
                  nullptr),
              0);
    EXPECT_EQ(DecodeRowsCuda(
                  {.format = c.format, .dim = c.dim, .rope_dim = c.rope_dim},
                  nullptr),
              0);
  }
}

}  // namespace
}  // namespace torpor::kernels
