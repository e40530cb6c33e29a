// SPDX-License-Identifier: Apache-2.0

#include "kernels/ops_cuda.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "base/status.h"
#include "kernels/activation_cuda.h"
#include "kernels/attention_cuda.h"
#include "kernels/dense_ops.h"
#include "kernels/gemm_cuda.h"
#include "kernels/kv_rows_cuda.h"
#include "kernels/kv_transfer_cuda.h"
#include "kernels/lane_cuda.h"
#include "kernels/lists_cuda.h"
#include "kernels/memory_cuda.h"
#include "kernels/rms_norm_cuda.h"
#include "kernels/rope_cuda.h"
#include "kernels/rows_cuda.h"
#include "kernels/runtime_cuda.h"

namespace torpor::kernels {
namespace {

// Partial results of attention that stand in memory at once.
constexpr size_t kWorkspaceBytes = size_t{64} << 20;
// Weights that travel as rows at a time, in floats.
constexpr int64_t kWeightFloats = int64_t{1} << 22;

size_t FloatBytes(int64_t n) { return static_cast<size_t>(n) * sizeof(float); }

// What went wrong first, until it is taken. Thread-safe.
class StickyError {
 public:
  [[nodiscard]] bool ok() const { return Peek().ok(); }
  [[nodiscard]] absl::Status Peek() const {
    MutexLock lock(&mu_);
    return status_;
  }
  void Set(const absl::Status& status) {
    MutexLock lock(&mu_);
    status_.Update(status);
  }
  // A device that failed once stays lost.
  absl::Status Take() {
    MutexLock lock(&mu_);
    if (absl::IsUnavailable(status_)) return status_;
    return std::exchange(status_, absl::OkStatus());
  }

 private:
  mutable Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

DeviceMatrix DeviceShape(const PackedMatrix& m) {
  return {.data = m.data(), .n = m.n(), .k = m.k(), .dtype = m.dtype()};
}

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

class CudaOps final : public DenseOps {
 public:
  CudaOps(const CudaOpsOptions& options, std::unique_ptr<Lane> compute,
          std::unique_ptr<Lane> transfer)
      : options_(options),
        heap_(options.device, options.memory_bytes, options.keep_memory),
        compute_(std::move(compute)),
        transfer_(options.device, std::move(transfer), compute_.get(), &heap_) {
  }
  ~CudaOps() override { compute_->Wait(); }

  const std::string& name() const override { return options_.name; }
  bool is_host() const override { return false; }

  // ---- memory --------------------------------------------------------------

  void* Allocate(size_t bytes) override {
    const absl::StatusOr<void*> p = heap_.Allocate(bytes);
    if (p.ok()) return *p;
    error_.Set(p.status());
    return nullptr;
  }
  void Free(void* p) override { heap_.Free(p); }

  void Upload(void* to, const void* from, size_t bytes) override {
    Do("upload", [&] { return compute_->Upload(to, from, bytes); });
  }
  void Download(void* to, const void* from, size_t bytes) override {
    Do("download", [&] { return compute_->Download(to, from, bytes); });
    // Also after an error: nothing writes to `to` once this returns.
    Wait();
  }
  absl::Status Finish() override {
    Wait();
    heap_.Recycle();
    return error_.Take();
  }

  std::shared_ptr<const uint8_t> Place(
      std::span<const uint8_t> bytes) override {
    auto* p = static_cast<uint8_t*>(Allocate(bytes.size()));
    Upload(p, bytes.data(), bytes.size());
    return {p, [this](uint8_t* q) { Free(q); }};
  }

  PackedMatrix Place(PackedMatrix matrix) override {
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

  // ---- ops -----------------------------------------------------------------

  void EmbedRows(const EmbedRowsParams& p) override {
    const auto bytes = static_cast<size_t>(p.n_rows) * sizeof(uint32_t);
    lists_.Resize(bytes);
    Upload(lists_.data(), p.ids, bytes);
    EmbedRowsParams params = p;
    params.ids = reinterpret_cast<const uint32_t*>(lists_.data());
    Do("embed rows", [&] { return EmbedRowsCuda(params, compute_->stream()); });
  }
  void CopyRows(const CopyRowsParams& p) override {
    if (p.n_rows == 0) return;
    Do("copy rows", [&] {
      return cudaMemcpy2DAsync(p.out, FloatBytes(p.out_stride), p.x,
                               FloatBytes(p.x_stride), FloatBytes(p.dim),
                               static_cast<size_t>(p.n_rows),
                               cudaMemcpyDeviceToDevice, compute_->stream());
    });
  }
  void Gemm(const GemmParams& p) override {
    Do("gemm", [&] {
      return GemmCuda({.a = p.a,
                       .a_dtype = p.b->dtype(),
                       .n_rows = p.n_rows,
                       .b = DeviceShape(*p.b),
                       .bias = p.bias,
                       .c = p.c},
                      compute_->stream());
    });
  }
  void RmsNorm(const RmsNormParams& p) override {
    Do("norm", [&] { return RmsNormCuda(p, compute_->stream()); });
  }
  void Rope(const RopeParams& p) override {
    Do("rope", [&] { return RopeCuda(p, compute_->stream()); });
  }
  void GatedGelu(const GatedGeluParams& p) override {
    Do("gelu", [&] { return GatedGeluCuda(p, compute_->stream()); });
  }
  void Add(const AddParams& p) override {
    Do("add", [&] { return AddCuda(p, compute_->stream()); });
  }
  void Softcap(const SoftcapParams& p) override {
    Do("softcap", [&] { return SoftcapCuda(p, compute_->stream()); });
  }
  void ToBf16(const ToBf16Params& p) override {
    Do("round", [&] { return ToBf16Cuda(p, compute_->stream()); });
  }

  void Attention(const AttentionParams& p) override {
    AttentionCudaParams params{.attention = p};
    size_t capacity = Lists::BytesFor<AttentionSegment>(p.n_segments);
    for (int64_t s = 0; s < p.n_segments; ++s) {
      const AttentionSegment& segment = p.segments[s];
      params.n_rows += segment.n_rows;
      capacity += Lists::BytesFor<KeyRange>(segment.n_rows) +
                  Lists::BytesFor<uint8_t*>(segment.kv.n_pages);
    }
    if (params.n_rows == 0) return;
    lists_.Resize(capacity);
    Lists lists(lists_.data(), capacity);
    std::vector<AttentionSegment> segments(p.segments,
                                           p.segments + p.n_segments);
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

  // ---- pages ---------------------------------------------------------------

  size_t PageBytes(const KvShape& shape) const override {
    return shape.page_bytes();
  }
  uint8_t* NewPage(const KvShape& shape) override {
    return NewPage(shape.page_bytes());
  }
  uint8_t* NewPage(size_t bytes) override {
    return static_cast<uint8_t*>(Allocate(bytes));
  }

  void PutKv(const PutKvParams& p) override {
    if (p.n_rows == 0) return;
    const size_t capacity =
        Lists::BytesFor<uint8_t*>(p.n_pages) + Lists::BytesFor<KvRowSegment>(1);
    lists_.Resize(capacity);
    Lists lists(lists_.data(), capacity);
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
  absl::Status ImportKv(const KvRowBytes& to,
                        std::span<const uint8_t> from) override {
    TORPOR_RETURN_IF_ERROR(error_.Peek());
    return transfer_.Import(to, from);
  }
  absl::Status ExportKv(const KvRowBytes& from,
                        std::span<uint8_t> to) override {
    TORPOR_RETURN_IF_ERROR(error_.Peek());
    return transfer_.Export(from, to);
  }

 private:
  void Missing(const char* op) override { error_.Set(Refusal(op)); }
  // Calls the device unless something went wrong before.
  template <typename Call>
  void Do(const char* what, const Call& call) {
    if (!error_.ok()) return;
    // Each thread has a device of its own.
    cudaSetDevice(options_.device);
    error_.Set(CudaStatus(static_cast<int>(call()), what));
  }
  void Wait() {
    error_.Set(CudaStatus(compute_->Wait(), "work on the device"));
  }
  void SendLists(const Lists& lists) {
    Upload(lists_.data(), lists.bytes().data(), lists.bytes().size());
  }

  const CudaOpsOptions options_;
  StickyError error_;
  DeviceHeap heap_;
  const std::unique_ptr<Lane> compute_;
  KvTransfer transfer_;
  // Of the op that runs: the next one in the stream waits for it.
  Buffer<uint8_t> lists_{this};
  Buffer<uint8_t> workspace_{this};
};

}  // namespace

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(
    const CudaOpsOptions& options) {
  TORPOR_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(options.device), "device"));
  TORPOR_ASSIGN_OR_RETURN(
      std::unique_ptr<Lane> compute,
      Lane::Make(options.staging_bytes, options.staging_pieces));
  TORPOR_ASSIGN_OR_RETURN(
      std::unique_ptr<Lane> transfer,
      Lane::Make(options.staging_bytes, options.staging_pieces));
  return std::unique_ptr<Ops>(std::make_unique<CudaOps>(
      options, std::move(compute), std::move(transfer)));
}

}  // namespace torpor::kernels
