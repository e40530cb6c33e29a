// SPDX-License-Identifier: Apache-2.0
//
// The CPU backend: every op of kernels/ on one path and some threads. Results
// depend on the path alone. Its memory is the host's; nothing fails.

#ifndef TORPOR_KERNELS_CPU_OPS_H_
#define TORPOR_KERNELS_CPU_OPS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/isa.h"
#include "kernels/ops.h"

namespace torpor::kernels {

class CpuOps final : public Ops {
 public:
  // REQUIRES: AvailableIsas() has `isa`; n_threads >= 1.
  CpuOps(Isa isa, int n_threads);
  ~CpuOps() override;
  CpuOps(const CpuOps&) = delete;
  CpuOps& operator=(const CpuOps&) = delete;

  [[nodiscard]] Isa isa() const { return isa_; }
  [[nodiscard]] int n_threads() const;

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] bool is_host() const override { return true; }
  void* Allocate(size_t bytes) override;
  void Free(void* p) override;
  void Upload(void* to, const void* from, size_t bytes) override;
  void Download(void* to, const void* from, size_t bytes) override;
  absl::Status Finish() override { return absl::OkStatus(); }
  std::shared_ptr<const uint8_t> Place(std::span<const uint8_t> bytes) override;
  PackedMatrix Place(PackedMatrix matrix) override { return matrix; }

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
  // Of keys that are listed.
  void LatentAttention(const LatentAttentionParams& params);
  void HyperMix(const HyperMixParams& params) override;
  void HyperCollapse(const HyperCollapseParams& params) override;
  void HyperExpand(const HyperExpandParams& params) override;
  void EngramGate(const EngramGateParams& params) override;
  void ChooseExperts(const ChooseExpertsParams& params) override;
  void ChooseSoftmaxExperts(const ChooseSoftmaxExpertsParams& params) override;
  void GroupExperts(const GroupExpertsParams& params) override;
  void BiasExperts(const BiasExpertsParams& params) override;
  void SumExperts(const SumExpertsParams& params) override;

  [[nodiscard]] size_t PageBytes(const KvShape& shape) const override;
  uint8_t* NewPage(const KvShape& shape) override;
  uint8_t* NewPage(size_t bytes) override;
  void PutKv(const PutKvParams& params) override;
  absl::Status ImportKv(const KvRowBytes& to,
                        std::span<const uint8_t> from) override;
  absl::Status ExportKv(const KvRowBytes& from, std::span<uint8_t> to) override;
  absl::Status ImportRecords(const RecordRange& to,
                             std::span<const uint8_t> from) override;
  absl::Status ExportRecords(const RecordRange& from,
                             std::span<uint8_t> to) override;

  // For the host's own work: weights while they are loaded, rows of tables.
  void DecodeWeights(const DecodeWeightsParams& params);

 private:
  struct Impl;

  const Isa isa_;
  const std::string name_;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_CPU_OPS_H_
