// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels of record_rows.h on the emulator against the reference.

#include "kernels/record_rows_cuda.h"

#include <algorithm>

#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

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
  int64_t ring_rows;
  int64_t row;
  int64_t n_rows;
  // Bytes before the rows outside of pages.
  int64_t shift;
};
// Whole pages, rings that wrap, rows of any length and alignment.
constexpr Shape kShapes[] = {
    {528, 64, 2, 0, 0, 100, 0},    {288, 16, 3, 0, 39, 7, 0},
    {68, 64, 1, 0, 0, 64, 0},      {584, 3, 5, 13, 9, 9, 8},
    {288, 16, 3, 45, 1000, 45, 0}, {288, 4, 3, 10, 7, 5, 4},
    {33, 5, 4, 0, 6, 11, 1},       {1, 1, 1, 1, 77, 1, 0}};

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

TEST_F(RecordRowsCudaTest, RowsGoWhereTheReferencePutsThemAndBack) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(std::to_string(s.row_bytes) + " bytes");
    const auto held = Noise(s.n_pages * s.page_rows * s.row_bytes);
    const auto data = Noise(s.shift + s.n_rows * s.row_bytes);
    RecordRange range{.of = {.n_pages = s.n_pages,
                             .page_rows = s.page_rows,
                             .ring_rows = s.ring_rows,
                             .row_bytes = s.row_bytes},
                      .row = s.row,
                      .n_rows = s.n_rows};
    auto put = held;
    auto held_on_host = held;
    auto got = data;
    std::vector<uint8_t*> host_pages;
    for (auto* bytes : {&put, &held_on_host}) {
      host_pages.clear();
      for (int64_t i = 0; i < s.n_pages; ++i) {
        host_pages.push_back(bytes->data() + i * s.page_rows * s.row_bytes);
      }
      range.of.pages = host_pages.data();
      if (bytes == &put) {
        ImportRecordsRef(range, data.data() + s.shift);
      } else {
        ExportRecordsRef(range, got.data() + s.shift);
      }
    }
    ForEachSchedule([&] {
      const Pages pages(s, held);
      const DeviceBuffer<uint8_t> bytes(data, "data");
      range.of.pages = pages.data();
      ASSERT_EQ(ExportRecordsCuda(range, bytes.data() + s.shift, nullptr), 0)
          << Reports();
      EXPECT_EQ(bytes.Download(), got);
      EXPECT_EQ(pages.Download(), held);
      bytes.Upload(data);
      ASSERT_EQ(ImportRecordsCuda(range, bytes.data() + s.shift, nullptr), 0)
          << Reports();
      EXPECT_EQ(pages.Download(), put);
      EXPECT_EQ(bytes.Download(), data);
    });
  }
}

TEST_F(RecordRowsCudaTest, NoRowsAreNoLaunch) {
  EXPECT_EQ(ImportRecordsCuda({}, nullptr, nullptr), 0);
  EXPECT_EQ(ExportRecordsCuda({}, nullptr, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
