// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend as its files share it. Internal to kernels/.

#ifndef TORPOR_KERNELS_OPS_CUDA_IMPL_H_
#define TORPOR_KERNELS_OPS_CUDA_IMPL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "base/status.h"
#include "kernels/gemm_cuda.h"
#include "kernels/lane_cuda.h"
#include "kernels/lists_cuda.h"
#include "kernels/memory_cuda.h"
#include "kernels/ops_cuda.h"
#include "kernels/row_transfer_cuda.h"
#include "kernels/runtime_cuda.h"

namespace torpor::kernels {

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

inline DeviceMatrix DeviceShape(const PackedMatrix& m) {
  return {.data = m.data(), .n = m.n(), .k = m.k(), .dtype = m.dtype()};
}

class CudaOps final : public Ops {
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
  void* Allocate(size_t bytes) override;
  void Free(void* p) override { heap_.Free(p); }
  void Upload(void* to, const void* from, size_t bytes) override;
  void Download(void* to, const void* from, size_t bytes) override;
  absl::Status Finish() override;
  std::shared_ptr<const uint8_t> Place(std::span<const uint8_t> bytes) override;
  PackedMatrix Place(PackedMatrix matrix) override;

  void EmbedRows(const EmbedRowsParams& params) override;
  void CopyRows(const CopyRowsParams& params) override;
  void Gemm(const GemmParams& params) override;
  void RmsNorm(const RmsNormParams& params) override;
  void Rope(const RopeParams& params) override;
  void GatedGelu(const GatedGeluParams& params) override;
  void Add(const AddParams& params) override;
  void Softcap(const SoftcapParams& params) override;
  void ToBf16(const ToBf16Params& params) override;
  void Attention(const AttentionParams& params) override;

  // In ops_cuda_records.cc.
  void ScatterRows(const ScatterRowsParams& params) override;
  void GroupedGemm(const GroupedGemmParams& params) override;
  void RopeTail(const RopeTailParams& params) override;
  void GatedSilu(const GatedSiluParams& params) override;
  void RoundBf16(const RoundBf16Params& params) override;
  void Scale(const ScaleParams& params) override;
  void FakeQuantFp8(const FakeQuantFp8Params& params) override;
  void EncodeRows(const EncodeRowsParams& params) override;
  void DecodeRows(const DecodeRowsParams& params) override;
  void PoolMembers(const PoolMembersParams& params) override;
  void IndexScore(const IndexScoreParams& params) override;
  void CandidateBlocks(const CandidateBlocksParams& params) override;
  void KeepBlocks(const KeepBlocksParams& params) override;
  void TopK(const TopKParams& params) override;
  void LatentAttention(const PagedLatentAttentionParams& params) override;
  void HyperMix(const HyperMixParams& params) override;
  void HyperCollapse(const HyperCollapseParams& params) override;
  void HyperExpand(const HyperExpandParams& params) override;
  void EngramGate(const EngramGateParams& params) override;
  void ChooseExperts(const ChooseExpertsParams& params) override;
  void ChooseSoftmaxExperts(const ChooseSoftmaxExpertsParams& params) override;
  void GroupExperts(const GroupExpertsParams& params) override;
  void BiasExperts(const BiasExpertsParams& params) override;
  void SumExperts(const SumExpertsParams& params) override;

  size_t PageBytes(const KvShape& shape) const override {
    return shape.page_bytes();
  }
  uint8_t* NewPage(const KvShape& shape) override {
    return NewPage(shape.page_bytes());
  }
  uint8_t* NewPage(size_t bytes) override {
    return static_cast<uint8_t*>(Allocate(bytes));
  }
  void PutKv(const PutKvParams& params) override;
  absl::Status ImportKv(const KvRowBytes& to,
                        std::span<const uint8_t> from) override {
    return Import(to, from);
  }
  absl::Status ExportKv(const KvRowBytes& from,
                        std::span<uint8_t> to) override {
    return Export(from, to);
  }
  absl::Status ImportRecords(const RecordRange& to,
                             std::span<const uint8_t> from) override {
    return Import(to, from);
  }
  absl::Status ExportRecords(const RecordRange& from,
                             std::span<uint8_t> to) override {
    return Export(from, to);
  }

 private:
  template <typename Range>
  absl::Status Import(const Range& to, std::span<const uint8_t> from) {
    TORPOR_RETURN_IF_ERROR(error_.Peek());
    return transfer_.Import(to, from);
  }
  template <typename Range>
  absl::Status Export(const Range& from, std::span<uint8_t> to) {
    TORPOR_RETURN_IF_ERROR(error_.Peek());
    return transfer_.Export(from, to);
  }

  // Calls the device unless something went wrong before.
  template <typename Call>
  void Do(const char* what, const Call& call) {
    if (!error_.ok()) return;
    // Each thread has a device of its own.
    cudaSetDevice(options_.device);
    error_.Set(CudaStatus(static_cast<int>(call()), what));
  }
  // The same of an op whose kernel takes its parameters as they are.
  template <typename Params>
  void Launch(const char* what, int (*launch)(const Params&, CudaStream),
              const Params& params) {
    Do(what, [&] { return launch(params, compute_->stream()); });
  }
  void Wait();
  // By the matrix alone: a row's bits ignore how many there are (design D9).
  [[nodiscard]] GemmPath PathOf(const DeviceMatrix& b) const {
    return options_.tensor_cores && FitsTensorCores(b) ? GemmPath::kTensorCores
                                                       : GemmPath::kSimt;
  }
  // False, with an error, beyond what shared memory holds.
  bool HoldsExperts(int64_t n_experts);
  // Lists of an op, to be built at the memory that the device will read.
  Lists NewLists(size_t capacity);
  void SendLists(const Lists& lists);
  // One list alone.
  template <typename T>
  const T* SendList(const T* values, int64_t n) {
    const size_t bytes = static_cast<size_t>(n) * sizeof(T);
    lists_.Resize(bytes);
    Upload(lists_.data(), values, bytes);
    return reinterpret_cast<const T*>(lists_.data());
  }

  const CudaOpsOptions options_;
  StickyError error_;
  DeviceHeap heap_;
  const std::unique_ptr<Lane> compute_;
  RowTransfer transfer_;
  // Of the op that runs: the next one in the stream waits for it.
  Buffer<uint8_t> lists_{this};
  Buffer<uint8_t> workspace_{this};
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_OPS_CUDA_IMPL_H_
