// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels of record_rows_cuda.h on the emulator: bytes that are
// copied, and pooling against sums in double.

#include "kernels/record_rows_cuda.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

// A few roundings of f32, the exponential's among them.
constexpr double kTolerance = 1e-6;

class RecordRowsCudaTest : public CudaTest {
 protected:
  std::vector<uint8_t> Noise(int64_t n) {
    std::vector<uint8_t> bytes(static_cast<size_t>(n));
    random_.Fill(bytes);
    return bytes;
  }

  testing::Random random_;
};

struct Shape {
  int64_t row_bytes;
  int64_t page_rows;
  int64_t n_pages;
  int64_t n_rows;
  // Bytes between rows of data, and before them.
  int64_t gap;
  int64_t shift;
};
constexpr Shape kShapes[] = {{528, 64, 2, 100, 0, 0},  {288, 16, 3, 7, 0, 0},
                             {68, 64, 1, 64, 0, 0},    {584, 3, 5, 9, 0, 8},
                             {288, 16, 3, 20, 16, 16}, {288, 4, 3, 5, 0, 4},
                             {33, 5, 4, 11, 2, 1},     {1, 1, 1, 1, 0, 0}};

// Pages of noise, on the device each a buffer of its own.
class Pages {
 public:
  Pages(const Shape& s, std::vector<uint8_t> bytes)
      : page_bytes_(static_cast<size_t>(s.page_rows * s.row_bytes)),
        bytes_(std::move(bytes)) {
    std::vector<uint8_t*> pointers;
    for (size_t at = 0; at < bytes_.size(); at += page_bytes_) {
      buffers_.push_back(std::make_unique<DeviceBuffer<uint8_t>>(
          std::span<const uint8_t>(bytes_).subspan(at, page_bytes_), "page"));
      pointers.push_back(buffers_.back()->data());
    }
    pointers_ = std::make_unique<DeviceBuffer<uint8_t*>>(pointers, "pages");
  }

  [[nodiscard]] uint8_t* const* data() const { return pointers_->data(); }
  [[nodiscard]] std::vector<uint8_t> Download() const {
    std::vector<uint8_t> out;
    for (const auto& buffer : buffers_) {
      const auto page = buffer->Download();
      out.insert(out.end(), page.begin(), page.end());
    }
    return out;
  }

 private:
  size_t page_bytes_;
  std::vector<uint8_t> bytes_;
  std::vector<std::unique_ptr<DeviceBuffer<uint8_t>>> buffers_;
  std::unique_ptr<DeviceBuffer<uint8_t*>> pointers_;
};

TEST_F(RecordRowsCudaTest, RowsGoWhereTheirIndicesSayAndBack) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(std::to_string(s.row_bytes) + " bytes");
    std::vector<int64_t> rows(static_cast<size_t>(s.n_pages * s.page_rows));
    std::iota(rows.begin(), rows.end(), 0);
    std::shuffle(rows.begin(), rows.end(), random_.engine());
    rows.resize(static_cast<size_t>(s.n_rows));
    const auto held = Noise(s.n_pages * s.page_rows * s.row_bytes);
    const int64_t stride = s.row_bytes + s.gap;
    const auto data = Noise(s.shift + s.n_rows * stride);

    auto put = held;
    auto got = data;
    for (int64_t i = 0; i < s.n_rows; ++i) {
      const int64_t at = rows[static_cast<size_t>(i)] * s.row_bytes;
      const int64_t from = s.shift + i * stride;
      std::copy_n(data.begin() + from, s.row_bytes, put.begin() + at);
      std::copy_n(held.begin() + at, s.row_bytes, got.begin() + from);
    }
    ForEachSchedule([&] {
      const Pages pages(s, held);
      const DeviceBuffer<int64_t> indices(rows, "rows");
      const DeviceBuffer<uint8_t> bytes(data, "data");
      const RecordRowsParams p{.pages = pages.data(),
                               .page_rows = s.page_rows,
                               .row_bytes = s.row_bytes,
                               .rows = indices.data(),
                               .n_rows = s.n_rows,
                               .data = bytes.data() + s.shift,
                               .data_stride = stride};
      ASSERT_EQ(GetRecordRowsCuda(p, nullptr), 0) << Reports();
      EXPECT_EQ(bytes.Download(), got);
      EXPECT_EQ(pages.Download(), held);
      bytes.Upload(data);
      ASSERT_EQ(PutRecordRowsCuda(p, nullptr), 0) << Reports();
      EXPECT_EQ(pages.Download(), put);
      EXPECT_EQ(bytes.Download(), data);
    });
  }
}

// Groups of members, each [values | gates].
struct Groups {
  Groups(testing::Random& random, int64_t n, int64_t n_of, int64_t dim_of)
      : n_groups(n),
        n_members(n_of),
        dim(dim_of),
        members(RandomFloats(random, static_cast<size_t>(n * n_of * 2 * dim_of),
                             4.0f)) {}

  std::vector<float> Emulated(int64_t first, int64_t n) const {
    const DeviceBuffer<float> floats(members, "members");
    std::vector<const uint8_t*> pointers;
    for (int64_t m = first * n_members; m < (first + n) * n_members; ++m) {
      pointers.push_back(
          reinterpret_cast<const uint8_t*>(floats.data() + m * 2 * dim));
    }
    const DeviceBuffer<const uint8_t*> lists(pointers, "lists");
    const DeviceBuffer<float> out(static_cast<size_t>(n * dim), "out");
    EXPECT_EQ(PoolMembersCuda({.members = lists.data(),
                               .n_groups = n,
                               .n_members = n_members,
                               .dim = dim,
                               .out = out.data()},
                              nullptr),
              0)
        << Reports();
    return out.Download();
  }

  std::vector<float> InDouble() const {
    std::vector<float> out;
    for (int64_t i = 0; i < n_groups * dim; ++i) {
      const float* group = members.data() + i / dim * n_members * 2 * dim;
      double sum = 0;
      double acc = 0;
      for (int64_t t = 0; t < n_members; ++t) {
        const float* member = group + t * 2 * dim + i % dim;
        const double e = std::exp(static_cast<double>(member[dim]));
        sum += e;
        acc += e * member[0];
      }
      out.push_back(static_cast<float>(acc / sum));
    }
    return out;
  }

  int64_t n_groups, n_members, dim;
  std::vector<float> members;
};

TEST_F(RecordRowsCudaTest, GroupsPoolAsTheirSoftmaxSays) {
  for (const auto& [n, n_members, dim] : {std::array<int64_t, 3>{1, 1, 1},
                                          {3, 2, 512},
                                          {2, 2, 37},
                                          {4, 4, 130},
                                          {1, 128, 20}}) {
    const Groups groups(random_, n, n_members, dim);
    const auto all = groups.Emulated(0, n);
    EXPECT_TRUE(Near(all, groups.InDouble(), kTolerance)) << dim;
    // Design D9.
    for (int64_t g = 0; g < n; ++g) {
      EXPECT_TRUE(SameBits(groups.Emulated(g, 1),
                           std::span(all).subspan(static_cast<size_t>(g * dim),
                                                  static_cast<size_t>(dim))));
    }
    ForEachSchedule([&] { EXPECT_TRUE(SameBits(groups.Emulated(0, n), all)); });
  }
}

TEST_F(RecordRowsCudaTest, GatesOfAnySizeStayFiniteAndNanStaysInItsChannel) {
  Groups groups(random_, 1, 2, 8);
  for (size_t i = 0; i < 8; ++i) {
    groups.members[8 + i] = i % 2 == 0 ? 1e30f : -1e30f;
  }
  for (const float v : groups.Emulated(0, 1)) EXPECT_TRUE(std::isfinite(v));
  // A gate of the first member, one of the second, a value.
  for (const size_t at : {8 + 1, 24 + 2, 16 + 3}) groups.members[at] = kNan;
  const auto got = groups.Emulated(0, 1);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(std::isnan(got[i]), i >= 1 && i <= 3) << i;
  }
}

TEST_F(RecordRowsCudaTest, NoRowsAreNoLaunch) {
  EXPECT_EQ(PutRecordRowsCuda({.page_rows = 4}, nullptr), 0);
  EXPECT_EQ(GetRecordRowsCuda({.page_rows = 4}, nullptr), 0);
  EXPECT_EQ(PoolMembersCuda({.n_members = 2, .dim = 8}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
