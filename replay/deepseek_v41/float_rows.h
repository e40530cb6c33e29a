// SPDX-License-Identifier: Apache-2.0
//
// Rows of floats between two ops, in a backend's memory. A handle shares its
// rows with its copies and slices; the last one gives the memory back to the
// pool, where the next rows of that size find it. Not thread-safe.

#ifndef TORPOR_REPLAY_DEEPSEEK_V41_FLOAT_ROWS_H_
#define TORPOR_REPLAY_DEEPSEEK_V41_FLOAT_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/ops.h"

namespace torpor::replay::deepseek_v41 {

// [n_rows, dim] f32, row-major.
class FloatRows {
 public:
  FloatRows() = default;
  FloatRows(std::shared_ptr<float> data, uint64_t n_rows, int64_t dim)
      : data_(std::move(data)), n_rows_(n_rows), dim_(dim) {}

  [[nodiscard]] float* data() { return data_.get(); }
  [[nodiscard]] const float* data() const { return data_.get(); }
  [[nodiscard]] float* row(uint64_t i) { return data() + Offset(i); }
  [[nodiscard]] const float* row(uint64_t i) const {
    return data() + Offset(i);
  }
  [[nodiscard]] uint64_t n_rows() const { return n_rows_; }
  [[nodiscard]] int64_t dim() const { return dim_; }
  // Floats in all.
  [[nodiscard]] int64_t size() const {
    return static_cast<int64_t>(n_rows_) * dim_;
  }

  // Rows [first, first + n), shared.
  [[nodiscard]] FloatRows Slice(uint64_t first, uint64_t n) const {
    return {{data_, data_.get() + Offset(first)}, n, dim_};
  }

 private:
  [[nodiscard]] size_t Offset(uint64_t row) const {
    return row * static_cast<size_t>(dim_);
  }

  std::shared_ptr<float> data_;
  uint64_t n_rows_ = 0;
  int64_t dim_ = 0;
};

class RowPool {
 public:
  // `ops` outlives the pool, the pool its rows.
  RowPool(kernels::Ops* ops, uint64_t max_rows)
      : ops_(*ops), max_rows_(max_rows) {}
  RowPool(const RowPool&) = delete;
  RowPool& operator=(const RowPool&) = delete;

  // Not initialised. At most max_rows rows.
  FloatRows New(uint64_t n_rows, int64_t dim);

 private:
  using Floats = kernels::Buffer<float>;

  // The smallest free one of at least n floats; null when there is none.
  std::unique_ptr<Floats> Take(size_t n);

  kernels::Ops& ops_;
  const uint64_t max_rows_;
  std::vector<std::unique_ptr<Floats>> free_;
};

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_REPLAY_DEEPSEEK_V41_FLOAT_ROWS_H_
