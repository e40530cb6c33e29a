// SPDX-License-Identifier: Apache-2.0

#include "kernels/ops_cuda.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/activation_cuda.h"
#include "kernels/attention_cuda.h"
#include "kernels/kv_rows_cuda.h"
#include "kernels/ops_cuda_impl.h"
#include "kernels/rms_norm_cuda.h"
#include "kernels/rope_cuda.h"
#include "kernels/rows_cuda.h"

namespace torpor::kernels {
namespace {

// Partial results of attention that stand in memory at once.
constexpr size_t kWorkspaceBytes = size_t{64} << 20;
// Weights that travel as rows at a time, in floats.
constexpr int64_t kWeightFloats = int64_t{1} << 22;

size_t FloatBytes(int64_t n) { return static_cast<size_t>(n) * sizeof(float); }

// Rows [first, first + n) of a matrix in the host's layout.
std::vector<float> RowsOf(const PackedMatrix& m, int64_t first, int64_t n) {
  std::vector<float> rows(static_cast<size_t>(n * m.k()));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < m.k(); ++k) {
      rows[static_cast<size_t>(i * m.k() + k)] = m.Value(first + i, k);
    }
  }
  return rows;
}

// Splits that the keys of any row touch.
int64_t MaxSplits(const AttentionParams& p) {
  int64_t splits = 1;
  for (int64_t s = 0; s < p.n_segments; ++s) {
    const AttentionSegment& segment = p.segments[s];
    for (int64_t row = 0; row < segment.n_rows; ++row) {
      const KeyRange keys = segment.keys[row];
      splits = std::max(splits, (keys.end - 1) / kSplitTokens -
                                    keys.begin / kSplitTokens + 1);
    }
  }
  return splits;
}

}  // namespace

// ---- memory ----------------------------------------------------------------

void* CudaOps::Allocate(size_t bytes) {
  const absl::StatusOr<void*> p = heap_.Allocate(bytes);
  if (p.ok()) return *p;
  error_.Set(p.status());
  return nullptr;
}

void CudaOps::Upload(void* to, const void* from, size_t bytes) {
  Do("upload", [&] { return compute_->Upload(to, from, bytes); });
}

void CudaOps::Download(void* to, const void* from, size_t bytes) {
  Do("download", [&] { return compute_->Download(to, from, bytes); });
  // Also after an error: nothing writes to `to` once this returns.
  Wait();
}

absl::Status CudaOps::Finish() {
  Wait();
  heap_.Recycle();
  return error_.Take();
}

void CudaOps::Wait() {
  error_.Set(CudaStatus(compute_->Wait(), "work on the device"));
}

Lists CudaOps::NewLists(size_t capacity) {
  lists_.Resize(capacity);
  return {lists_.data(), capacity};
}

void CudaOps::SendLists(const Lists& lists) {
  Upload(lists_.data(), lists.bytes().data(), lists.bytes().size());
}

std::shared_ptr<const uint8_t> CudaOps::Place(std::span<const uint8_t> bytes) {
  auto* p = static_cast<uint8_t*>(Allocate(bytes.size()));
  Upload(p, bytes.data(), bytes.size());
  return {p, [this](uint8_t* q) { Free(q); }};
}

PackedMatrix CudaOps::Place(PackedMatrix matrix) {
  const DeviceMatrix shape = DeviceShape(matrix);
  auto* data = static_cast<uint8_t*>(Allocate(shape.bytes()));
  const int64_t groups = kWeightFloats / (matrix.k() * kDeviceMatrixColumns);
  const int64_t band = kDeviceMatrixColumns * std::max<int64_t>(1, groups);
  Buffer<float> rows(this);
  for (int64_t first = 0; first < matrix.n(); first += band) {
    const int64_t n = std::min(band, matrix.n() - first);
    const std::vector<float> host = RowsOf(matrix, first, n);
    rows.Resize(host.size());
    Upload(rows.data(), host.data(), host.size() * sizeof(float));
    Do("packing of weights", [&] {
      return PackMatrixCuda({.source = rows.data(),
                             .source_dtype = DType::kF32,
                             .source_stride = matrix.k(),
                             .first = first,
                             .n_columns = n,
                             .matrix = shape,
                             .packed = data},
                            compute_->stream());
    });
  }
  return matrix.At({data, [this](uint8_t* p) { Free(p); }});
}

// ---- ops -------------------------------------------------------------------

void CudaOps::EmbedRows(const EmbedRowsParams& p) {
  EmbedRowsParams params = p;
  params.ids = SendList(p.ids, p.n_rows);
  Launch("embed rows", EmbedRowsCuda, params);
}

void CudaOps::CopyRows(const CopyRowsParams& p) {
  if (p.n_rows == 0) return;
  Do("copy rows", [&] {
    return cudaMemcpy2DAsync(p.out, FloatBytes(p.out_stride), p.x,
                             FloatBytes(p.x_stride), FloatBytes(p.dim),
                             static_cast<size_t>(p.n_rows),
                             cudaMemcpyDeviceToDevice, compute_->stream());
  });
}

void CudaOps::Gemm(const GemmParams& p) {
  const DeviceMatrix b = DeviceShape(*p.b);
  Do("gemm", [&] {
    return GemmCuda({.a = p.a,
                     .a_dtype = b.dtype,
                     .n_rows = p.n_rows,
                     .b = b,
                     .bias = p.bias,
                     .c = p.c,
                     .path = PathOf(b)},
                    compute_->stream());
  });
}

void CudaOps::RmsNorm(const RmsNormParams& p) {
  Launch("norm", RmsNormCuda, p);
}
void CudaOps::Rope(const RopeParams& p) { Launch("rope", RopeCuda, p); }
void CudaOps::GatedGelu(const GatedGeluParams& p) {
  Launch("gelu", GatedGeluCuda, p);
}
void CudaOps::Add(const AddParams& p) { Launch("add", AddCuda, p); }
void CudaOps::Softcap(const SoftcapParams& p) {
  Launch("softcap", SoftcapCuda, p);
}
void CudaOps::ToBf16(const ToBf16Params& p) { Launch("round", ToBf16Cuda, p); }

void CudaOps::Attention(const AttentionParams& p) {
  AttentionCudaParams params{.attention = p};
  size_t capacity = Lists::BytesFor<AttentionSegment>(p.n_segments);
  for (int64_t s = 0; s < p.n_segments; ++s) {
    const AttentionSegment& segment = p.segments[s];
    params.n_rows += segment.n_rows;
    capacity += Lists::BytesFor<KeyRange>(segment.n_rows) +
                Lists::BytesFor<uint8_t*>(segment.kv.n_pages);
  }
  if (params.n_rows == 0) return;
  Lists lists = NewLists(capacity);
  std::vector<AttentionSegment> segments(p.segments, p.segments + p.n_segments);
  for (AttentionSegment& segment : segments) {
    segment.keys = lists.Add(segment.keys, segment.n_rows);
    segment.kv.pages = lists.Add(segment.kv.pages, segment.kv.n_pages);
  }
  params.attention.segments = lists.Add(segments.data(), p.n_segments);
  SendLists(lists);
  params.max_splits = MaxSplits(p);
  const AttentionWorkspace need = AttentionWorkspaceOf(params);
  params.workspace_bytes =
      std::max(need.bytes_min, std::min(need.bytes_max, kWorkspaceBytes));
  workspace_.Resize(params.workspace_bytes);
  params.workspace = workspace_.data();
  Do("attention", [&] { return AttentionCuda(params, compute_->stream()); });
}

// ---- pages -----------------------------------------------------------------

void CudaOps::PutKv(const PutKvParams& p) {
  if (p.n_rows == 0) return;
  const size_t capacity =
      Lists::BytesFor<uint8_t*>(p.n_pages) + Lists::BytesFor<KvRowSegment>(1);
  Lists lists = NewLists(capacity);
  const KvRowSegment segment{.n_rows = p.n_rows,
                             .position = p.position,
                             .pages = lists.Add(p.pages, p.n_pages),
                             .n_pages = p.n_pages};
  // It reads rows here; the same parameters take them back elsewhere.
  const KvRowsParams params{.shape = p.shape,
                            .k = const_cast<float*>(p.k),
                            .k_stride = p.k_stride,
                            .v = const_cast<float*>(p.v),
                            .v_stride = p.v_stride,
                            .rows_dtype = DType::kF32,
                            .segments = lists.Add(&segment, 1),
                            .n_segments = 1,
                            .n_rows = p.n_rows};
  SendLists(lists);
  Do("put rows", [&] { return PutKvRowsCuda(params, compute_->stream()); });
}

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(
    const CudaOpsOptions& options) {
  TORPOR_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(options.device), "device"));
  TORPOR_ASSIGN_OR_RETURN(
      std::unique_ptr<Lane> compute,
      Lane::Make(options.staging_bytes, options.staging_pieces));
  TORPOR_ASSIGN_OR_RETURN(
      std::unique_ptr<Lane> transfer,
      Lane::Make(options.staging_bytes, options.staging_pieces));
  CudaOpsOptions named = options;
  if (named.tensor_cores) named.name += "/tensor";
  return std::unique_ptr<Ops>(std::make_unique<CudaOps>(
      named, std::move(compute), std::move(transfer)));
}

}  // namespace torpor::kernels
