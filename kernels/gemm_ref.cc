// SPDX-License-Identifier: Apache-2.0

#include "kernels/gemm.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>

namespace torpor::kernels {
namespace {

constexpr std::align_val_t kAlign{64};

float Widened(Bf16 v) { return ToFloat(v); }
float Widened(float v) { return v; }
Bf16 Rounded(Bf16 v) { return v; }
Bf16 Rounded(float v) { return ToBf16(v); }

// Where element (row n, column k) of b stands in a packed matrix.
size_t PackedIndex(int64_t n, int64_t k, int64_t k_total, DType dtype) {
  const int64_t group = n / kGemmGroup;
  const int64_t lane = n % kGemmGroup;
  if (dtype == DType::kBf16) {
    return static_cast<size_t>(
        ((group * (k_total / 2) + k / 2) * kGemmGroup + lane) * 2 + k % 2);
  }
  return static_cast<size_t>((group * k_total + k) * kGemmGroup + lane);
}

}  // namespace

float PackedMatrix::Value(int64_t n, int64_t k) const {
  const size_t i = PackedIndex(n, k, k_, dtype_);
  return dtype_ == DType::kBf16
             ? ToFloat(reinterpret_cast<const Bf16*>(data_.get())[i])
             : reinterpret_cast<const float*>(data_.get())[i];
}

PackedMatrix PackedMatrix::Empty(int64_t n, int64_t k, DType dtype) {
  assert(k % 2 == 0);
  PackedMatrix m;
  m.n_ = n;
  m.k_ = k;
  m.dtype_ = dtype;
  m.data_ = std::shared_ptr<uint8_t>(
      static_cast<uint8_t*>(operator new(m.bytes(), kAlign)),
      [](uint8_t* p) { operator delete(p, kAlign); });
  std::memset(m.data_.get(), 0, m.bytes());
  return m;
}

template <typename Source>
void PackedMatrix::SetRows(int64_t first_row, const Source* b, int64_t n_rows) {
  assert(first_row + n_rows <= n_);
  // The rows of one group together: a step of k is then one cache line.
  for (int64_t n = 0; n < n_rows;) {
    const int64_t group = (first_row + n) / kGemmGroup;
    const int64_t end = std::min(n_rows, (group + 1) * kGemmGroup - first_row);
    for (int64_t k = 0; k < k_; k += 2) {
      for (int64_t row = n; row < end; ++row) {
        const size_t i = PackedIndex(first_row + row, k, k_, dtype_);
        const Source* from = b + row * k_ + k;
        if (dtype_ == DType::kBf16) {
          auto* out = reinterpret_cast<Bf16*>(data_.get()) + i;
          out[0] = Rounded(from[0]);
          out[1] = Rounded(from[1]);
        } else {
          auto* out = reinterpret_cast<float*>(data_.get()) + i;
          out[0] = Widened(from[0]);
          out[kGemmGroup] = Widened(from[1]);
        }
      }
    }
    n = end;
  }
}

template <typename Source>
PackedMatrix PackedMatrix::Pack(const Source* b, int64_t n, int64_t k,
                                DType dtype) {
  PackedMatrix m = Empty(n, k, dtype);
  m.SetRows(0, b, n);
  return m;
}

template void PackedMatrix::SetRows(int64_t, const Bf16*, int64_t);
template void PackedMatrix::SetRows(int64_t, const float*, int64_t);
template PackedMatrix PackedMatrix::Pack(const Bf16*, int64_t, int64_t, DType);
template PackedMatrix PackedMatrix::Pack(const float*, int64_t, int64_t, DType);

void GemmRef(const GemmParams& p) {
  const PackedMatrix& b = *p.b;
  for (int64_t m = 0; m < p.n_rows; ++m) {
    for (int64_t n = 0; n < b.n(); ++n) {
      double sum = 0;
      for (int64_t k = 0; k < b.k(); ++k) {
        const size_t i = static_cast<size_t>(m * b.k() + k);
        const double a = b.dtype() == DType::kBf16
                             ? ToFloat(static_cast<const Bf16*>(p.a)[i])
                             : static_cast<const float*>(p.a)[i];
        sum += a * b.Value(n, k);
      }
      if (p.bias != nullptr) sum += p.bias[n];
      p.c[m * b.n() + n] = static_cast<float>(sum);
    }
  }
}

void GroupedGemmRef(const GroupedGemmParams& p) {
  for (int64_t g = 0; g < p.n_groups; ++g) {
    const PackedMatrix& b = *p.b[g];
    const size_t row_bytes = static_cast<size_t>(b.k()) * DTypeBytes(b.dtype());
    for (int64_t i = p.group_begin[g]; i < p.group_begin[g + 1]; ++i) {
      const int64_t row = p.row_index != nullptr ? p.row_index[i] : i;
      GemmRef({.a = static_cast<const uint8_t*>(p.a) +
                    static_cast<size_t>(row) * row_bytes,
               .n_rows = 1,
               .b = &b,
               .c = p.c + i * b.n()});
    }
  }
}

}  // namespace torpor::kernels
