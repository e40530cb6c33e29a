// SPDX-License-Identifier: Apache-2.0
//
// Rows of K and V through device pages.

#include "kernels/kv_rows_cuda.h"

#include <memory>

#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

// Two sequences, the second one's pages a ring that its rows wrap around.
struct Layout {
  int64_t n_rows;
  int64_t position;
  int64_t n_pages;
};
constexpr Layout kLayouts[] = {{5, 62, 2}, {70, 171, 3}};
constexpr int64_t kAllRows = 75;

// A buffer of bytes of [rows, stride] elements, as values.
std::vector<float> AsFloats(const std::vector<uint8_t>& bytes, DType dtype) {
  std::vector<float> out(bytes.size() / DTypeBytes(dtype));
  for (size_t i = 0; i < out.size(); ++i) {
    if (dtype == DType::kBf16) {
      Bf16 v;
      std::memcpy(&v, bytes.data() + 2 * i, 2);
      out[i] = ToFloat(v);
    } else {
      std::memcpy(&out[i], bytes.data() + 4 * i, 4);
    }
  }
  return out;
}

std::vector<uint8_t> AsBytes(const std::vector<float>& values, DType dtype) {
  std::vector<uint8_t> out(values.size() * DTypeBytes(dtype));
  const auto half = ToBf16s(values);
  std::memcpy(out.data(),
              dtype == DType::kBf16 ? static_cast<const void*>(half.data())
                                    : values.data(),
              out.size());
  return out;
}

class KvRowsCudaTest : public CudaTest {
 protected:
  void MakePages(const KvShape& shape) {
    pages_.clear();
    tables_.clear();
    std::vector<KvRowSegment> segments;
    int64_t row = 0;
    for (const Layout& layout : kLayouts) {
      std::vector<uint8_t*> table;
      for (int64_t i = 0; i < layout.n_pages; ++i) {
        pages_.push_back(std::make_unique<DeviceBuffer<uint8_t>>(
            shape.page_bytes(), "page"));
        table.push_back(pages_.back()->data());
      }
      tables_.push_back(
          std::make_unique<DeviceBuffer<uint8_t*>>(table, "page table"));
      segments.push_back({row, layout.n_rows, layout.position,
                          tables_.back()->data(), layout.n_pages});
      row += layout.n_rows;
    }
    segments_ =
        std::make_unique<DeviceBuffer<KvRowSegment>>(segments, "segments");
  }

  KvRowsParams Params(const KvShape& shape, DType rows_dtype, int64_t stride,
                      uint8_t* rows, int64_t v_at) const {
    return {.shape = shape,
            .k = rows,
            .k_stride = stride,
            .v = rows + v_at * static_cast<int64_t>(DTypeBytes(rows_dtype)),
            .v_stride = stride,
            .rows_dtype = rows_dtype,
            .segments = segments_->data(),
            .n_segments = 2,
            .n_rows = kAllRows};
  }

  // The element of a page that row `r`, element `e` of K or V went to.
  float InPage(const KvShape& shape, int64_t r, int64_t e, bool is_v) const {
    const size_t s = r < kLayouts[0].n_rows ? 0 : 1;
    const Layout& layout = kLayouts[s];
    const int64_t pos = layout.position + r - (s == 0 ? 0 : kLayouts[0].n_rows);
    const int64_t page = pos / 64 % layout.n_pages + (s == 0 ? 0 : 2);
    const auto values =
        AsFloats(pages_[static_cast<size_t>(page)]->Download(), shape.dtype);
    return values[static_cast<size_t>(
        (((is_v ? shape.n_kv_heads : 0) + e / shape.head_dim) * 64 + pos % 64) *
            shape.head_dim +
        e % shape.head_dim)];
  }

  testing::Random random_;
  std::vector<std::unique_ptr<DeviceBuffer<uint8_t>>> pages_;
  std::vector<std::unique_ptr<DeviceBuffer<uint8_t*>>> tables_;
  std::unique_ptr<DeviceBuffer<KvRowSegment>> segments_;
};

TEST_F(KvRowsCudaTest, RowsStandWhereTheLayoutSaysAndComeBack) {
  for (const DType kv : {DType::kF32, DType::kBf16}) {
    for (const DType rows_dtype : {DType::kF32, DType::kBf16}) {
      const KvShape shape{kv, 2, 16};
      // K and V side by side; then apart by an odd stride.
      for (const int64_t stride : {64, 67}) {
        auto values = RandomFloats(random_, kAllRows * stride);
        if (rows_dtype == DType::kBf16) {
          for (float& v : values) v = RoundToBf16(v);
        }
        const DeviceBuffer<uint8_t> in(AsBytes(values, rows_dtype), "rows");
        std::vector<uint8_t> first;
        ForEachSchedule([&] {
          MakePages(shape);
          ASSERT_EQ(
              PutKvRowsCuda(Params(shape, rows_dtype, stride, in.data(), 32),
                            nullptr),
              0);
          for (const int64_t r : {0, 1, 2, 4, 5, 21, 25, 74}) {
            for (const int64_t e : {0, 15, 16, 31}) {
              for (const bool is_v : {false, true}) {
                const float v = values[r * stride + (is_v ? 32 : 0) + e];
                EXPECT_EQ(InPage(shape, r, e, is_v),
                          kv == DType::kBf16 ? RoundToBf16(v) : v);
              }
            }
          }
          const DeviceBuffer<uint8_t> out(kAllRows * stride * DTypeBytes(kv),
                                          "out");
          ASSERT_EQ(
              GetKvRowsCuda(Params(shape, kv, stride, out.data(), 32), nullptr),
              0);
          const auto got = AsFloats(out.Download(), kv);
          for (int64_t i = 0; i < kAllRows * stride; ++i) {
            if (i % stride >= 64) {
              EXPECT_TRUE(std::isnan(got[i])) << "written between rows";
              continue;
            }
            const float v = values[i];
            ASSERT_EQ(got[i], kv == DType::kBf16 ? RoundToBf16(v) : v) << i;
          }
        });
      }
    }
  }
}

// Bits that are no numbers pass unchanged, from addresses of every alignment.
TEST_F(KvRowsCudaTest, RowsOfTheirOwnDtypeMoveBitForBit) {
  for (const DType kv : {DType::kF32, DType::kBf16}) {
    const KvShape shape{kv, 1, 32};
    const size_t bytes = kAllRows * 64 * DTypeBytes(kv);
    for (const size_t skip : {size_t{0}, DTypeBytes(kv)}) {
      std::vector<uint8_t> rows(bytes + skip);
      random_.Fill(rows);
      const DeviceBuffer<uint8_t> in(rows, "rows");
      const DeviceBuffer<uint8_t> out(rows.size(), "out");
      out.Upload(std::span(rows).first(skip));
      MakePages(shape);
      EXPECT_EQ(
          PutKvRowsCuda(Params(shape, kv, 64, in.data() + skip, 32), nullptr),
          0);
      EXPECT_EQ(
          GetKvRowsCuda(Params(shape, kv, 64, out.data() + skip, 32), nullptr),
          0);
      EXPECT_EQ(out.Download(), rows);
    }
  }
}

TEST_F(KvRowsCudaTest, NoRowsAreNoLaunchAndGettingDoesNotConvert) {
  KvRowsParams p{.shape = {DType::kBf16, 1, 16}, .rows_dtype = DType::kBf16};
  EXPECT_EQ(PutKvRowsCuda(p, nullptr), 0);
  EXPECT_EQ(GetKvRowsCuda(p, nullptr), 0);
  p.rows_dtype = DType::kF32;
  EXPECT_EQ(GetKvRowsCuda(p, nullptr), 1);
}

}  // namespace
}  // namespace torpor::kernels
