// SPDX-License-Identifier: Apache-2.0
//
// Two shapes with one order of k. Few rows (up to 4 a block): each of eight
// warps takes every eighth split of k of 32 columns, a lane a column, and reads
// its weights straight from memory. Many rows: tiles of 64 x 128 through shared
// memory, 8 x 8 elements a thread.
//
// Wide: GemmFewRowsKernel loads
// Wide: GemmTileKernel loads stores
// Wide: PackMatrixKernel stores

#include "kernels/gemm_cuda.h"
#include "kernels/gemm_tile_cuda.h"

namespace torpor::kernels {
namespace {

using device::Quad;

// Eight would spill; more rows are more blocks, whose weights L2 still has.
constexpr int kFewRows = 4;
constexpr int kFewThreads = 256;
constexpr int kFewWarps = kFewThreads / 32;
// Units of weights in flight a lane.
constexpr int kFewAhead = 4;

constexpr int kTileThreads = 128;
constexpr int kTileRows = 64;
constexpr int kTileColumns = 128;
constexpr int kTileK = 16;
// Elements of c a thread, in each direction.
constexpr int kPerThread = 8;
static_assert(kTileRows * kTileColumns ==
              kTileThreads * kPerThread * kPerThread);
static_assert(kGemmSplit % kTileK == 0);

// One unit of a column, k elements from the start, times R rows.
template <typename A, typename B, int R>
TORPOR_DEVICE_ONLY TORPOR_INLINE void AddUnit(const GemmArgs& args,
                                              const A* const (&rows)[R],
                                              const uint4& packed, int64_t k,
                                              float (&part)[R]) {
  constexpr int kU = kUnit<B>;
  float weights[kU];
  UnpackUnit(packed, weights);
  TORPOR_UNROLL
  for (int r = 0; r < R; ++r) {
    float a[kU];
    LoadUnitOfA<kU>(rows[r] + k, args.b.k - k, args.a_aligned, a);
    for (int j = 0; j < kU; ++j) part[r] = fmaf(a[j], weights[j], part[r]);
  }
}

// Units [begin, end) of one column times R rows, ascending.
template <typename A, typename B, int R>
TORPOR_DEVICE_ONLY TORPOR_INLINE void AddUnits(const GemmArgs& args,
                                               const A* const (&rows)[R],
                                               const uint4* column,
                                               int64_t begin, int64_t end,
                                               float (&part)[R]) {
  constexpr int kU = kUnit<B>;
  int64_t unit = begin;
  for (; unit + kFewAhead <= end; unit += kFewAhead) {
    uint4 packed[kFewAhead];
    TORPOR_UNROLL
    for (int i = 0; i < kFewAhead; ++i) {
      packed[i] = column[(unit + i) * kDeviceMatrixColumns];
    }
    TORPOR_UNROLL
    for (int i = 0; i < kFewAhead; ++i) {
      AddUnit<A, B, R>(args, rows, packed[i], (unit + i) * kU, part);
    }
  }
  for (; unit < end; ++unit) {
    AddUnit<A, B, R>(args, rows, column[unit * kDeviceMatrixColumns], unit * kU,
                     part);
  }
}

// `rows.n_rows` of at most R rows; `parts` is [kFewWarps][R][32].
template <typename A, typename B, int R>
TORPOR_DEVICE_ONLY TORPOR_INLINE void FewRows(const GemmArgs& args,
                                              const GemmRows& rows,
                                              float* parts) {
  constexpr int64_t kUnitsPerSplit = kGemmSplit / kUnit<B>;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t n_units = args.b.n_units();
  const uint4* column =
      rows.b + blockIdx.x * n_units * kDeviceMatrixColumns + lane;
  const A* a[R];
  TORPOR_UNROLL
  for (int r = 0; r < R; ++r) {
    const int known = r < rows.n_rows ? r : rows.n_rows - 1;
    a[r] = GemmRowOfA<A>(args, rows.entry + known);
  }
  // This thread's element of c: row `warp`, column `lane`.
  float total = 0.0f;
  const int64_t n_splits = (n_units + kUnitsPerSplit - 1) / kUnitsPerSplit;
  for (int64_t first = 0; first < n_splits; first += kFewWarps) {
    const int64_t begin = (first + warp) * kUnitsPerSplit;
    const int64_t end = min(begin + kUnitsPerSplit, n_units);
    float part[R] = {};
    AddUnits<A, B, R>(args, a, column, begin, end, part);
    for (int r = 0; r < R; ++r) parts[(warp * R + r) * 32 + lane] = part[r];
    __syncthreads();
    const int64_t left = min(n_splits - first, static_cast<int64_t>(kFewWarps));
    if (warp < R) {
      for (int s = 0; s < left; ++s) total += parts[(s * R + warp) * 32 + lane];
    }
    __syncthreads();
  }
  const int64_t n = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  if (warp >= rows.n_rows || n >= args.b.n) return;
  if (args.bias != nullptr) total += args.bias[n];
  args.c[(rows.entry + warp) * args.b.n + n] = total;
}

template <typename A, typename B>
TORPOR_KERNEL(kFewThreads)
void GemmFewRowsKernel(GemmArgs args) {
  TORPOR_SHARED(float, parts, kFewWarps* kFewRows * 32);
  const GemmRows rows = FindGemmRows(args, kFewRows, blockIdx.y);
  if (rows.n_rows > 2) {
    FewRows<A, B, 4>(args, rows, parts);
  } else if (rows.n_rows > 1) {
    FewRows<A, B, 2>(args, rows, parts);
  } else if (rows.n_rows > 0) {
    FewRows<A, B, 1>(args, rows, parts);
  }
}

// One step of kTileK of k on its way from memory to shared memory.
template <typename A, typename B>
struct TileStep {
  static constexpr int kU = kUnit<B>;
  static constexpr int kUnits = kTileK / kU;
  static constexpr int kUnitsOfA = kTileRows * kUnits / kTileThreads;
  static constexpr int kUnitsOfB = kTileColumns * kUnits / kTileThreads;

  float a[kUnitsOfA][kU];
  uint4 b[kUnitsOfB];

  TORPOR_DEVICE_ONLY void Fetch(const GemmArgs& args, const GemmRows& rows,
                                int64_t k) {
    const auto thread = static_cast<int>(threadIdx.x);
    for (int i = 0; i < kUnitsOfA; ++i) {
      const int at = thread + i * kTileThreads;
      const int64_t at_k = k + at / kTileRows * kU;
      const int row = at % kTileRows;
      const int64_t left = row < rows.n_rows ? args.b.k - at_k : 0;
      const auto* from = static_cast<const A*>(args.a);
      if (left > 0) from = GemmRowOfA<A>(args, rows.entry + row) + at_k;
      LoadUnitOfA<kU>(from, left, args.a_aligned, a[i]);
    }
    const int64_t n_units = args.b.n_units();
    for (int i = 0; i < kUnitsOfB; ++i) {
      const int at = thread + i * kTileThreads;
      const int64_t unit = k / kU + at / kTileColumns;
      const int64_t n =
          static_cast<int64_t>(blockIdx.x) * kTileColumns + at % kTileColumns;
      const int64_t group = n / kDeviceMatrixColumns;
      b[i] = make_uint4(0, 0, 0, 0);
      if (unit < n_units && group < args.b.n_groups()) {
        b[i] = rows.b[(group * n_units + unit) * kDeviceMatrixColumns +
                      n % kDeviceMatrixColumns];
      }
    }
  }

  // As [kTileK][kTileRows] and [kTileK][kTileColumns].
  TORPOR_DEVICE_ONLY void Store(float* a_tile, float* b_tile) const {
    const auto thread = static_cast<int>(threadIdx.x);
    for (int i = 0; i < kUnitsOfA; ++i) {
      const int at = thread + i * kTileThreads;
      for (int j = 0; j < kU; ++j) {
        a_tile[(at / kTileRows * kU + j) * kTileRows + at % kTileRows] =
            a[i][j];
      }
    }
    for (int i = 0; i < kUnitsOfB; ++i) {
      const int at = thread + i * kTileThreads;
      float weights[kU];
      UnpackUnit(b[i], weights);
      for (int j = 0; j < kU; ++j) {
        b_tile[(at / kTileColumns * kU + j) * kTileColumns +
               at % kTileColumns] = weights[j];
      }
    }
  }
};

TORPOR_DEVICE_ONLY inline void LoadFour(const float* p, float* out) {
  const Quad q = device::LoadQuad(p, 4, true);
  for (int i = 0; i < 4; ++i) out[i] = q.v[i];
}

// Rows of a thread: 8 from thread / 16 * 8 on. Columns: two quads, 64 apart.
TORPOR_DEVICE_ONLY inline void MultiplyStep(
    const float* a_tile, const float* b_tile,
    float (&part)[kPerThread][kPerThread]) {
  const int row = static_cast<int>(threadIdx.x) / 16 * kPerThread;
  const int column = static_cast<int>(threadIdx.x) % 16 * 4;
  for (int k = 0; k < kTileK; ++k) {
    float a[kPerThread];
    float b[kPerThread];
    LoadFour(a_tile + k * kTileRows + row, a);
    LoadFour(a_tile + k * kTileRows + row + 4, a + 4);
    LoadFour(b_tile + k * kTileColumns + column, b);
    LoadFour(b_tile + k * kTileColumns + column + 64, b + 4);
    for (int i = 0; i < kPerThread; ++i) {
      for (int j = 0; j < kPerThread; ++j) {
        part[i][j] = fmaf(a[i], b[j], part[i][j]);
      }
    }
  }
}

TORPOR_DEVICE_ONLY inline void StoreTile(
    const GemmArgs& args, const GemmRows& rows,
    const float (&total)[kPerThread][kPerThread]) {
  const int row = static_cast<int>(threadIdx.x) / 16 * kPerThread;
  for (int half = 0; half < 2; ++half) {
    const int64_t n = static_cast<int64_t>(blockIdx.x) * kTileColumns +
                      threadIdx.x % 16 * 4 + half * 64;
    if (n >= args.b.n) continue;
    Quad bias = {};
    if (args.bias != nullptr) {
      bias = device::LoadQuad(args.bias + n, args.b.n - n, false);
    }
    for (int i = 0; i < kPerThread; ++i) {
      if (row + i >= rows.n_rows) break;
      Quad c;
      for (int j = 0; j < 4; ++j) {
        c.v[j] = total[i][half * 4 + j];
        if (args.bias != nullptr) c.v[j] += bias.v[j];
      }
      device::StoreQuad(c, args.c + (rows.entry + row + i) * args.b.n + n,
                        args.b.n - n, args.c_aligned);
    }
  }
}

template <typename A, typename B>
TORPOR_KERNEL(kTileThreads)
void GemmTileKernel(GemmArgs args) {
  TORPOR_SHARED(float4, a_quads, kTileK * kTileRows / 4);
  TORPOR_SHARED(float4, b_quads, kTileK * kTileColumns / 4);
  auto* a_tile = reinterpret_cast<float*>(a_quads);
  auto* b_tile = reinterpret_cast<float*>(b_quads);
  const GemmRows rows = FindGemmRows(args, kTileRows, blockIdx.y);
  if (rows.n_rows <= 0) return;
  float part[kPerThread][kPerThread] = {};
  float total[kPerThread][kPerThread] = {};
  TileStep<A, B> step;
  step.Fetch(args, rows, 0);
  for (int64_t k = 0; k < args.b.k; k += kTileK) {
    step.Store(a_tile, b_tile);
    __syncthreads();
    if (k + kTileK < args.b.k) step.Fetch(args, rows, k + kTileK);
    MultiplyStep(a_tile, b_tile, part);
    __syncthreads();
    if ((k + kTileK) % kGemmSplit != 0 && k + kTileK < args.b.k) continue;
    for (int i = 0; i < kPerThread; ++i) {
      for (int j = 0; j < kPerThread; ++j) {
        total[i][j] += part[i][j];
        part[i][j] = 0.0f;
      }
    }
  }
  StoreTile(args, rows, total);
}

template <typename A, typename B>
int LaunchSimt(const GemmArgs& args, CudaStream stream) {
  // A group's rows decide which shape is quicker; the host knows their mean.
  const bool few = args.n_entries <= 3 * kFewRows * args.n_groups;
  const int rows = few ? kFewRows : kTileRows;
  const int columns = few ? kDeviceMatrixColumns : kTileColumns;
  const dim3 grid(static_cast<unsigned>((args.b.n + columns - 1) / columns),
                  static_cast<unsigned>(device::TilesAtMost(
                      args.n_entries, args.n_groups, rows)));
  return few ? TORPOR_LAUNCH((GemmFewRowsKernel<A, B>), grid, kFewThreads, 0,
                             stream, args)
             : TORPOR_LAUNCH((GemmTileKernel<A, B>), grid, kTileThreads, 0,
                             stream, args);
}

// Whether a unit of kUnit<B> elements of a can be loaded whole everywhere.
bool RowsOfAAligned(const GemmArgs& args, DType a_dtype) {
  const auto bytes = static_cast<int64_t>(DTypeBytes(a_dtype)) * args.b.unit();
  const int64_t access = bytes < 16 ? bytes : 16;
  return reinterpret_cast<uintptr_t>(args.a) % static_cast<uintptr_t>(access) ==
             0 &&
         args.b.k * static_cast<int64_t>(DTypeBytes(a_dtype)) % access == 0;
}

int Launch(GemmArgs args, DType a_dtype, GemmPath path, CudaStream stream) {
  if (args.n_entries == 0 || args.b.n == 0 || args.n_groups == 0) return 0;
  args.a_aligned = RowsOfAAligned(args, a_dtype);
  args.c_aligned = device::QuadsAligned(args.c, args.b.n);
  if (path == GemmPath::kTensorCores) {
    return LaunchGemmMma(args, a_dtype, stream);
  }
  const bool b16 = args.b.dtype == DType::kBf16;
  if (a_dtype == DType::kBf16) {
    return b16 ? LaunchSimt<Bf16, Bf16>(args, stream) : kCudaInvalidValue;
  }
  return b16 ? LaunchSimt<float, Bf16>(args, stream)
             : LaunchSimt<float, float>(args, stream);
}

// One thread a unit of the packed matrix.
template <typename Source>
TORPOR_KERNEL(device::kQuadThreads)
void PackMatrixKernel(PackMatrixParams p, int64_t end_column) {
  const DeviceMatrix& m = p.matrix;
  const int64_t columns = end_column - p.first;
  const int64_t step = static_cast<int64_t>(gridDim.x) * device::kQuadThreads;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * device::kQuadThreads +
                    threadIdx.x;
       at < columns * m.n_units(); at += step) {
    // Neighbouring threads read neighbouring units of one row.
    const int64_t column = at / m.n_units();
    const int64_t k = at % m.n_units() * m.unit();
    const int64_t left = column < p.n_columns ? m.k - k : 0;
    const auto* from =
        static_cast<const Source*>(p.source) + column * p.source_stride + k;
    float v[8];
    LoadUnitOfA<8>(left > 0 ? from : static_cast<const Source*>(p.source),
                   left < m.unit() ? left : m.unit(), false, v);
    uint4 packed;
    if (m.dtype == DType::kBf16) {
      packed = PackUnit(v);
    } else {
      packed = make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]),
                          __float_as_uint(v[2]), __float_as_uint(v[3]));
    }
    static_cast<uint4*>(p.packed)[m.Index(p.first + column, k) / m.unit()] =
        packed;
  }
}

}  // namespace

int PackMatrixCuda(const PackMatrixParams& params, CudaStream stream) {
  const DeviceMatrix& m = params.matrix;
  if (params.n_columns == 0 || m.k == 0) return 0;
  const int64_t end = params.first + params.n_columns;
  const int64_t end_column =
      end == m.n ? m.n_groups() * kDeviceMatrixColumns : end;
  const unsigned blocks = device::BlocksFor(
      (end_column - params.first) * m.n_units(), device::kQuadThreads);
  return params.source_dtype == DType::kBf16
             ? TORPOR_LAUNCH(PackMatrixKernel<Bf16>, blocks,
                             device::kQuadThreads, 0, stream, params,
                             end_column)
             : TORPOR_LAUNCH(PackMatrixKernel<float>, blocks,
                             device::kQuadThreads, 0, stream, params,
                             end_column);
}

int GemmCuda(const GemmCudaParams& params, CudaStream stream) {
  GemmArgs args;
  args.a = params.a;
  args.n_entries = params.n_rows;
  args.b = params.b;
  args.bias = params.bias;
  args.c = params.c;
  return Launch(args, params.a_dtype, params.path, stream);
}

int GroupedGemmCuda(const GroupedGemmCudaParams& params, CudaStream stream) {
  GemmArgs args;
  args.a = params.a;
  args.row_index = params.row_index;
  args.group_begin = params.group_begin;
  args.n_groups = params.n_groups;
  args.n_entries = params.n_entries;
  args.b = params.b;
  args.matrices = params.matrices;
  args.c = params.c;
  return Launch(args, params.a_dtype, params.path, stream);
}

}  // namespace torpor::kernels
