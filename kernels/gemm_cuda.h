// SPDX-License-Identifier: Apache-2.0
//
// kernels/gemm.h on a device: c[m, n] = sum_k a[m, k] * b[n, k] + bias[n], for
// one matrix, or for a group of rows a matrix (the experts of a layer).
//
// Order of k, the same for every row, number of rows, tile and entry point
// (design D9): within each split of 256 of k, counted from 0, one accumulator
// in f32, ascending, fused; the splits' sums added in ascending order; then the
// bias. Splits are what lets eight warps share a column when there are few
// rows.
//
// Layout of b on a device (DeviceMatrix), 16-byte aligned:
//   [n_groups][n_units][32 columns][unit]
// A unit is 16 bytes of consecutive k of one column: 8 bf16 or 4 f32. A warp
// reads one step of 32 columns as 512 consecutive bytes. Columns beyond n, and
// k beyond the last unit's, are zeros. PackMatrixCuda makes it from rows as
// Hugging Face stores them, uploaded as they are.
//
// Floor: 2*M*N*K operations; K*N elements of b (each expert's that has rows)
// and M*K of a read, M*N f32 of c written. Up to 12 rows of a matrix take the
// shape that b's bytes bound; every further four of them read b again, from L2.
//
// Every pointer is a device pointer. Launchers return 0 or CUDA's error number
// and never synchronise.

#ifndef TORPOR_KERNELS_GEMM_CUDA_H_
#define TORPOR_KERNELS_GEMM_CUDA_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_stream.h"
#include "kernels/device_function.h"
#include "kernels/gemm.h"

namespace torpor::kernels {

inline constexpr int kDeviceMatrixColumns = 32;
inline constexpr int kGemmSplit = 256;

struct DeviceMatrix {
  const void* data = nullptr;
  int64_t n = 0;
  int64_t k = 0;
  DType dtype = DType::kF32;

  // Elements of a unit.
  [[nodiscard]] TORPOR_DEVICE int64_t unit() const {
    return dtype == DType::kBf16 ? 8 : 4;
  }
  [[nodiscard]] TORPOR_DEVICE int64_t n_units() const {
    return (k + unit() - 1) / unit();
  }
  [[nodiscard]] TORPOR_DEVICE int64_t n_groups() const {
    return (n + kDeviceMatrixColumns - 1) / kDeviceMatrixColumns;
  }
  [[nodiscard]] size_t bytes() const {
    return static_cast<size_t>(n_groups() * n_units()) * kDeviceMatrixColumns *
           16;
  }
  // Where element (column `at_n`, `at_k`) stands, in elements.
  [[nodiscard]] TORPOR_DEVICE int64_t Index(int64_t at_n, int64_t at_k) const {
    const int64_t group = at_n / kDeviceMatrixColumns;
    return ((group * n_units() + at_k / unit()) * kDeviceMatrixColumns +
            at_n % kDeviceMatrixColumns) *
               unit() +
           at_k % unit();
  }
};

// Columns [first, first + n_columns) of `matrix`, whose other columns stay as
// they are; the last of its columns also brings the zeros beyond n. Values are
// rounded to the matrix's dtype where that is narrower.
struct PackMatrixParams {
  // [n_columns, matrix.k] of `source_dtype`, `source_stride` elements apart.
  const void* source = nullptr;
  DType source_dtype = DType::kF32;
  int64_t source_stride = 0;
  int64_t first = 0;
  int64_t n_columns = 0;
  DeviceMatrix matrix;
  // matrix.data, to be written.
  void* packed = nullptr;
};
// Floor: the source read once, the columns written once.
int PackMatrixCuda(const PackMatrixParams& params, CudaStream stream);

enum class GemmPath : uint8_t {
  // f32 multiply-adds in the order above. Error 1 (invalid value) for a in
  // bf16 against b in f32.
  kSimt,
  // mma.sync: a in bf16 against a matrix that FitsTensorCores, else error 1.
  // Ascending steps of 16 of k into one f32 accumulator whatever the number of
  // rows, but the order inside a step is the device's: another numerics id.
  // Never yet run on a device.
  kTensorCores,
};

// bf16, k a multiple of 16.
inline bool FitsTensorCores(const DeviceMatrix& b) {
  return b.dtype == DType::kBf16 && b.k % 16 == 0;
}

struct GemmCudaParams {
  // [n_rows, b.k] of `a_dtype`, row-major.
  const void* a = nullptr;
  DType a_dtype = DType::kF32;
  int64_t n_rows = 0;
  DeviceMatrix b;
  // [b.n] f32, or null.
  const float* bias = nullptr;
  // [n_rows, b.n] f32.
  float* c = nullptr;
  GemmPath path = GemmPath::kSimt;
};
int GemmCuda(const GemmCudaParams& params, CudaStream stream);

// Entries [group_begin[g], group_begin[g + 1]) meet matrix g.
struct GroupedGemmCudaParams {
  // [any, b.k] of `a_dtype`, row-major.
  const void* a = nullptr;
  DType a_dtype = DType::kF32;
  // [n_entries]: the row of a of each entry; null = entry i reads row i.
  const int32_t* row_index = nullptr;
  // [n_groups + 1], ascending from 0 to at most n_entries.
  const int32_t* group_begin = nullptr;
  int64_t n_groups = 0;
  // At least group_begin[n_groups]; sizes the grid.
  int64_t n_entries = 0;
  // Shape and dtype of every matrix; `data` is not read.
  DeviceMatrix b;
  // [n_groups] packed matrices; one without entries is not read.
  const void* const* matrices = nullptr;
  // [n_entries, b.n] f32; written where there is an entry.
  float* c = nullptr;
  GemmPath path = GemmPath::kSimt;
};
int GroupedGemmCuda(const GroupedGemmCudaParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_GEMM_CUDA_H_
