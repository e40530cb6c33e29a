// SPDX-License-Identifier: Apache-2.0
//
// A block has eight rows of one segment; a thread moves a few neighbouring
// elements of one head of K or V at a time: 16 bytes where dtypes agree, a quad
// otherwise.
//
// Wide: KvRowsKernel<float, float, true> loads stores
// Wide: KvRowsKernel<float, float, false> loads stores
// Wide: KvRowsKernel<Bf16, Bf16, true> loads stores
// Wide: KvRowsKernel<Bf16, Bf16, false> loads stores
// Wide: KvRowsKernel<float, Bf16, true> loads
// Wide: KvRowsKernel<Bf16, float, true> stores

#include "kernels/cuda_errors.h"
#include "kernels/device_quads.h"
#include "kernels/device_tiles.h"
#include "kernels/kv_rows_cuda.h"

namespace torpor::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 8;

// Elements that a thread moves at once.
template <typename Row, typename Kv>
constexpr int kStep = sizeof(Row) == sizeof(Kv)
                          ? 16 / static_cast<int>(sizeof(Kv))
                          : 4;

// kStep elements of one dtype, as they are.
template <typename T>
TORPOR_DEVICE_ONLY inline void Copy(const T* from, bool from_aligned, T* to,
                                    bool to_aligned) {
  constexpr int kN = kStep<T, T>;
  if (from_aligned && to_aligned) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    return;
  }
  for (int i = 0; i < kN; ++i) to[i] = from[i];
}

template <typename Row, typename Kv>
TORPOR_DEVICE_ONLY inline void Put(const Row* row, bool aligned, Kv* kv) {
  if constexpr (sizeof(Row) == sizeof(Kv)) {
    Copy(row, aligned, kv, true);
  } else {
    device::StoreQuad(device::LoadQuad(row, 4, aligned), kv, 4, true);
  }
}

// Where one row of K or V has its head and step in a page.
template <typename Kv>
TORPOR_DEVICE_ONLY inline Kv* InPage(const KvRowsParams& p,
                                     const KvRowSegment& segment, int64_t row,
                                     bool is_v, int64_t at) {
  const int64_t position = segment.position + row;
  uint8_t* page = segment.pages[position / kPageTokens % segment.n_pages];
  return reinterpret_cast<Kv*>(page) +
         DeviceKvIndex(p.shape, is_v, at / p.shape.head_dim,
                       position % kPageTokens) +
         at % p.shape.head_dim;
}

// `aligned` of both arrays: whole steps may be loaded and stored.
template <typename Row, typename Kv, bool kPut>
TORPOR_KERNEL(kThreads)
void KvRowsKernel(KvRowsParams p, bool aligned) {
  constexpr int kN = kStep<Row, Kv>;
  const KvRowSegment* segments = p.segments;
  const device::RowTile tile = device::FindTile(
      p.n_segments, kRows, blockIdx.x,
      [segments](int64_t s) -> int64_t { return segments[s].n_rows; });
  if (tile.group < 0) return;
  const KvRowSegment segment = segments[tile.group];
  const int64_t steps = p.shape.row_elements() / kN;
  const int planes = p.k != nullptr && p.v != nullptr ? 2 : 1;
  for (int64_t i = threadIdx.x; i < tile.n_rows * planes * steps;
       i += kThreads) {
    const int64_t row = tile.row + i / (planes * steps);
    const bool is_v = planes == 2 ? i / steps % 2 == 1 : p.k == nullptr;
    const int64_t at = i % steps * kN;
    Row* outside =
        static_cast<Row*>(is_v ? p.v : p.k) +
        (segment.row_begin + row) * (is_v ? p.v_stride : p.k_stride) + at;
    Kv* inside = InPage<Kv>(p, segment, row, is_v, at);
    if constexpr (kPut) {
      Put(outside, aligned, inside);
    } else {
      Copy(inside, true, outside, aligned);
    }
  }
}

template <typename Row, typename Kv, bool kPut>
int Launch(const KvRowsParams& p, CudaStream stream) {
  if (p.n_rows == 0) return 0;
  constexpr uintptr_t kBytes = sizeof(Row) * kStep<Row, Kv>;
  constexpr auto kElements = static_cast<int64_t>(kBytes / sizeof(Row));
  const bool aligned = reinterpret_cast<uintptr_t>(p.k) % kBytes == 0 &&
                       reinterpret_cast<uintptr_t>(p.v) % kBytes == 0 &&
                       p.k_stride % kElements == 0 &&
                       p.v_stride % kElements == 0;
  const auto blocks =
      static_cast<unsigned>(device::TilesAtMost(p.n_rows, p.n_segments, kRows));
  return TORPOR_LAUNCH((KvRowsKernel<Row, Kv, kPut>), blocks, kThreads, 0,
                       stream, p, aligned);
}

}  // namespace

int PutKvRowsCuda(const KvRowsParams& params, CudaStream stream) {
  const bool rows16 = params.rows_dtype == DType::kBf16;
  if (params.shape.dtype == DType::kBf16) {
    return rows16 ? Launch<Bf16, Bf16, true>(params, stream)
                  : Launch<float, Bf16, true>(params, stream);
  }
  return rows16 ? Launch<Bf16, float, true>(params, stream)
                : Launch<float, float, true>(params, stream);
}

int GetKvRowsCuda(const KvRowsParams& params, CudaStream stream) {
  if (params.rows_dtype != params.shape.dtype) return kCudaInvalidValue;
  return params.shape.dtype == DType::kBf16
             ? Launch<Bf16, Bf16, false>(params, stream)
             : Launch<float, float, false>(params, stream);
}

}  // namespace torpor::kernels
