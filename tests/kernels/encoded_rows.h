// SPDX-License-Identifier: Apache-2.0
//
// Encoded rows for tests of the ops that read them, where a read beyond the
// last row faults.

#ifndef TORPOR_TESTS_KERNELS_ENCODED_ROWS_H_
#define TORPOR_TESTS_KERNELS_ENCODED_ROWS_H_

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/row_codec.h"
#include "tests/kernels/kernel_testing.h"

namespace torpor::kernels {

// Bytes before an unreadable page.
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t n) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t used = (n + page - 1) / page * page;
    mapped_ = used + page;
    void* const at = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(at, MAP_FAILED);
    base_ = static_cast<uint8_t*>(at);
    EXPECT_EQ(mprotect(base_ + used, page, PROT_NONE), 0);
    data_ = base_ + used - n;
  }
  ~GuardedBytes() {
    if (base_ != nullptr) munmap(base_, mapped_);
  }
  GuardedBytes(GuardedBytes&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)),
        mapped_(other.mapped_),
        data_(other.data_) {}
  GuardedBytes& operator=(GuardedBytes&&) = delete;

  [[nodiscard]] uint8_t* data() const { return data_; }

 private:
  uint8_t* base_ = nullptr;
  size_t mapped_ = 0;
  uint8_t* data_ = nullptr;
};

// Rows of one format beside each other.
class EncodedRows {
 public:
  EncodedRows(RowFormat format, int64_t n, int64_t dim)
      : format_(format),
        dim_(dim),
        bytes_(RowBytes(format, dim, 0)),
        rows_(static_cast<size_t>(std::max<int64_t>(1, n * bytes_))) {}

  static EncodedRows Random(testing::Random& random, RowFormat format,
                            int64_t n, int64_t dim, float scale = 1.0f) {
    EncodedRows out(format, n, dim);
    for (int64_t i = 0; i < n; ++i) {
      out.Put(i, RandomFloats(random, static_cast<size_t>(dim), scale));
    }
    return out;
  }

  void Put(int64_t i, const std::vector<float>& x) {
    EncodeRowsRef({.format = format_,
                   .x = x.data(),
                   .n_rows = 1,
                   .dim = dim_,
                   .x_stride = dim_,
                   .out = row(i),
                   .out_stride = bytes_});
  }
  // Every value of the row is NaN: all its codes and scales are.
  void PutNan(int64_t i) {
    std::memset(row(i), 0xff, static_cast<size_t>(bytes_));
  }

  [[nodiscard]] uint8_t* row(int64_t i) const {
    return rows_.data() + i * bytes_;
  }

 private:
  RowFormat format_;
  int64_t dim_;
  int64_t bytes_;
  GuardedBytes rows_;
};

}  // namespace torpor::kernels

#endif  // TORPOR_TESTS_KERNELS_ENCODED_ROWS_H_
