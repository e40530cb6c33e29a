// SPDX-License-Identifier: Apache-2.0
//
// Rows times a packed weight matrix: c[m, n] = sum_k a[m, k] * b[n, k] +
// bias[n].
//
// One order of k for every output element, ascending, one accumulator in f32:
// a row's result does not depend on the rows beside it, on threads, or on how
// many rows there are (design D9). Floor: 2*M*N*K operations; K*N elements of b
// and M*K of a read, M*N of c written.

#ifndef TORPOR_KERNELS_GEMM_H_
#define TORPOR_KERNELS_GEMM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "kernels/bf16.h"

namespace torpor::kernels {

// Element types of weights, of the activations that meet them, and of KV rows.
enum class DType : uint8_t { kF32, kBf16 };

constexpr size_t DTypeBytes(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}

// Columns of one group of a packed matrix.
inline constexpr int64_t kGemmGroup = 16;

// b transposed into groups of 16 output columns:
//   bf16: [n_groups][k / 2][16][2]    f32: [n_groups][k][16]
// Columns beyond n are zeros. 64-byte aligned. Immutable once packed; copies
// share it.
class PackedMatrix {
 public:
  // b is [n, k] row-major, `stride` elements from row to row (as Hugging Face
  // stores a linear layer). `Source` is Bf16 or float; values are rounded to
  // `dtype` when that is narrower. REQUIRES: k is even.
  template <typename Source>
  static PackedMatrix Pack(const Source* b, int64_t n, int64_t k, DType dtype);

  // Several matrices of equal k as one: their rows (outputs) in order.
  static PackedMatrix Empty(int64_t n, int64_t k, DType dtype);
  template <typename Source>
  void SetRows(int64_t first_row, const Source* b, int64_t n_rows);

  // The same numbers laid out by a backend for itself, at `data`.
  [[nodiscard]] PackedMatrix At(std::shared_ptr<uint8_t> data) const {
    PackedMatrix m = *this;
    m.data_ = std::move(data);
    return m;
  }

  // Element (row n, column k) in f32. REQUIRES: in the layout above.
  [[nodiscard]] float Value(int64_t n, int64_t k) const;

  [[nodiscard]] int64_t n() const { return n_; }
  [[nodiscard]] int64_t k() const { return k_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] int64_t n_groups() const {
    return (n_ + kGemmGroup - 1) / kGemmGroup;
  }
  [[nodiscard]] const uint8_t* data() const { return data_.get(); }
  [[nodiscard]] size_t bytes() const {
    return static_cast<size_t>(n_groups() * kGemmGroup * k_) *
           DTypeBytes(dtype_);
  }

 private:
  int64_t n_ = 0;
  int64_t k_ = 0;
  DType dtype_ = DType::kF32;
  std::shared_ptr<uint8_t> data_;
};

struct GemmParams {
  // [n_rows, k] of b's dtype, row-major, packed.
  const void* a = nullptr;
  int64_t n_rows = 0;
  const PackedMatrix* b = nullptr;
  // [n] f32, or null.
  const float* bias = nullptr;
  // [n_rows, n] f32, row-major.
  float* c = nullptr;
};

// A matrix for each group of rows (the experts of a layer): entries
// [group_begin[g], group_begin[g + 1]) meet matrix g, in the order of Gemm.
struct GroupedGemmParams {
  // [any, k] of the matrices' dtype, row-major, packed.
  const void* a = nullptr;
  // [n_entries]: the row of a of each entry; null = entry i reads row i.
  const int32_t* row_index = nullptr;
  // [n_groups + 1], ascending from 0 to n_entries.
  const int32_t* group_begin = nullptr;
  int64_t n_groups = 0;
  int64_t n_entries = 0;
  // [n_groups], the host's; of one shape and dtype.
  const PackedMatrix* const* b = nullptr;
  // [n_entries, n] f32, row-major.
  float* c = nullptr;
};

// Scalar, double accumulators: what the fast paths are compared with.
void GemmRef(const GemmParams& params);
void GroupedGemmRef(const GroupedGemmParams& params);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_GEMM_H_
