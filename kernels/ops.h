// SPDX-License-Identifier: Apache-2.0
//
// A backend: the ops of kernels/ and the memory that they work in. A forward is
// written once against it.
//
// Rows (inputs, outputs, weights, KV pages) stand in the backend's memory, and
// so does what ops chose (picks, experts); what the caller says of them
// (segments, key ranges, page pointers, token ids, counts of scores) stands in
// the host's and may change once the call returns. Ops run in the order of
// their calls, on a device some time after them; Download and Finish wait.
//
// Errors stick: after one, ops do nothing until Finish has told it. One caller
// at a time, but for the calls that say otherwise.

#ifndef TORPOR_KERNELS_OPS_H_
#define TORPOR_KERNELS_OPS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/engram_gate.h"
#include "kernels/experts.h"
#include "kernels/gemm.h"
#include "kernels/hyper_connection.h"
#include "kernels/index_score.h"
#include "kernels/kv_rows.h"
#include "kernels/paged_latent_attention.h"
#include "kernels/pool_members.h"
#include "kernels/record_rows.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/row_codec.h"
#include "kernels/row_moves.h"
#include "kernels/top_k.h"
#include "kernels/weight_codec.h"

namespace torpor::kernels {

class Ops {
 public:
  virtual ~Ops() = default;

  // "cpu/avx2", "cuda/sm_90": what a row's bits depend on.
  [[nodiscard]] virtual const std::string& name() const = 0;
  // The host may read and write this backend's memory.
  [[nodiscard]] virtual bool is_host() const = 0;

  // Aligned to 64 bytes, not initialised; null when there is none left, which
  // is an error that sticks. Any thread.
  virtual void* Allocate(size_t bytes) = 0;
  // REQUIRES: no op that uses it is still to be called. Any thread.
  virtual void Free(void* p) = 0;

  // From and to the host's memory.
  virtual void Upload(void* to, const void* from, size_t bytes) = 0;
  virtual void Download(void* to, const void* from, size_t bytes) = 0;
  // Waits for all that was called, and says what went wrong.
  virtual absl::Status Finish() = 0;

  // Where ops read bytes of the host that outlive the result: there, or a copy.
  virtual std::shared_ptr<const uint8_t> Place(
      std::span<const uint8_t> bytes) = 0;
  // A packed matrix where Gemm reads it; the host's may be gone then.
  virtual PackedMatrix Place(PackedMatrix matrix) = 0;

  virtual void EmbedRows(const EmbedRowsParams& params) = 0;
  virtual void CopyRows(const CopyRowsParams& params) = 0;
  virtual void Gemm(const GemmParams& params) = 0;
  virtual void RmsNorm(const RmsNormParams& params) = 0;
  virtual void Rope(const RopeParams& params) = 0;
  virtual void GatedGelu(const GatedGeluParams& params) = 0;
  virtual void Softcap(const SoftcapParams& params) = 0;
  virtual void ToBf16(const ToBf16Params& params) = 0;
  virtual void Attention(const AttentionParams& params) = 0;

  // Those of models whose rows are records.
  virtual void ScatterRows(const ScatterRowsParams& params) = 0;
  virtual void GroupedGemm(const GroupedGemmParams& params) = 0;
  virtual void RopeTail(const RopeTailParams& params) = 0;
  virtual void GatedSilu(const GatedSiluParams& params) = 0;
  virtual void RoundBf16(const RoundBf16Params& params) = 0;
  virtual void Scale(const ScaleParams& params) = 0;
  virtual void FakeQuantFp8(const FakeQuantFp8Params& params) = 0;
  virtual void EncodeRows(const EncodeRowsParams& params) = 0;
  virtual void DecodeRows(const DecodeRowsParams& params) = 0;
  virtual void PoolMembers(const PoolMembersParams& params) = 0;
  virtual void IndexScore(const IndexScoreParams& params) = 0;
  virtual void CandidateBlocks(const CandidateBlocksParams& params) = 0;
  virtual void KeepBlocks(const KeepBlocksParams& params) = 0;
  virtual void TopK(const TopKParams& params) = 0;
  virtual void LatentAttention(const PagedLatentAttentionParams& params) = 0;
  virtual void HyperMix(const HyperMixParams& params) = 0;
  virtual void HyperCollapse(const HyperCollapseParams& params) = 0;
  virtual void HyperExpand(const HyperExpandParams& params) = 0;
  virtual void EngramGate(const EngramGateParams& params) = 0;
  virtual void ChooseExperts(const ChooseExpertsParams& params) = 0;
  virtual void GroupExperts(const GroupExpertsParams& params) = 0;
  virtual void SumExperts(const SumExpertsParams& params) = 0;

  // A page of this shape holds this many bytes here. Whatever a fresh one
  // holds, rows that were not put are not read for their values.
  [[nodiscard]] virtual size_t PageBytes(const KvShape& shape) const = 0;
  virtual uint8_t* NewPage(const KvShape& shape) = 0;
  // One of records, likewise. Any thread.
  virtual uint8_t* NewPage(size_t bytes) = 0;
  virtual void PutKv(const PutKvParams& params) = 0;
  // Stored rows into pages, and back; done when they return, beside whatever
  // else runs. Any thread.
  virtual absl::Status ImportKv(const KvRowBytes& to,
                                std::span<const uint8_t> from) = 0;
  virtual absl::Status ExportKv(const KvRowBytes& from,
                                std::span<uint8_t> to) = 0;
  // Records likewise.
  virtual absl::Status ImportRecords(const RecordRange& to,
                                     std::span<const uint8_t> from) = 0;
  virtual absl::Status ExportRecords(const RecordRange& from,
                                     std::span<uint8_t> to) = 0;
};

// Elements in a backend's memory; not initialised. Move only.
template <typename T>
class Buffer {
 public:
  explicit Buffer(Ops* ops) : ops_(ops) {}
  Buffer(Ops* ops, std::span<const T> values) : ops_(ops) {
    Resize(values.size());
    ops_->Upload(data_, values.data(), values.size_bytes());
  }
  ~Buffer() { Drop(); }
  Buffer(Buffer&& other) noexcept
      : ops_(other.ops_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(ops_, other.ops_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }

  // What it held is gone when it grows.
  void Resize(size_t n) {
    if (n > capacity_) {
      Drop();
      data_ = static_cast<T*>(ops_->Allocate(n * sizeof(T)));
      capacity_ = data_ == nullptr ? 0 : n;
    }
    size_ = n;
  }
  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] const T* data() const { return data_; }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }

 private:
  void Drop() {
    if (data_ != nullptr) ops_->Free(data_);
    data_ = nullptr;
    capacity_ = 0;
  }

  Ops* ops_;
  T* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_OPS_H_
