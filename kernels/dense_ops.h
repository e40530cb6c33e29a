// SPDX-License-Identifier: Apache-2.0
//
// A backend without the ops of models whose rows are records: each of them is
// an error that sticks.

#ifndef TORPOR_KERNELS_DENSE_OPS_H_
#define TORPOR_KERNELS_DENSE_OPS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/ops.h"

namespace torpor::kernels {

class DenseOps : public Ops {
 public:
  [[nodiscard]] bool has_record_ops() const final { return false; }
  void ScatterRows(const ScatterRowsParams& /*params*/) final {
    Missing("scatter rows");
  }
  void GroupedGemm(const GroupedGemmParams& /*params*/) final {
    Missing("grouped gemm");
  }
  void RopeTail(const RopeTailParams& /*params*/) final {
    Missing("rope tail");
  }
  void GatedSilu(const GatedSiluParams& /*params*/) final {
    Missing("gated silu");
  }
  void RoundBf16(const RoundBf16Params& /*params*/) final {
    Missing("round to bf16");
  }
  void Scale(const ScaleParams& /*params*/) final { Missing("scale"); }
  void FakeQuantFp8(const FakeQuantFp8Params& /*params*/) final {
    Missing("fake quantisation");
  }
  void EncodeRows(const EncodeRowsParams& /*params*/) final {
    Missing("encode rows");
  }
  void DecodeRows(const DecodeRowsParams& /*params*/) final {
    Missing("decode rows");
  }
  void PoolMembers(const PoolMembersParams& /*params*/) final {
    Missing("pool members");
  }
  void IndexScore(const IndexScoreParams& /*params*/) final {
    Missing("index scores");
  }
  void CandidateBlocks(const CandidateBlocksParams& /*params*/) final {
    Missing("candidate blocks");
  }
  void KeepBlocks(const KeepBlocksParams& /*params*/) final {
    Missing("keep blocks");
  }
  void TopK(const TopKParams& /*params*/) final { Missing("top-k"); }
  void LatentAttention(const PagedLatentAttentionParams& /*params*/) final {
    Missing("latent attention");
  }
  void HyperMix(const HyperMixParams& /*params*/) final {
    Missing("hyper mix");
  }
  void HyperCollapse(const HyperCollapseParams& /*params*/) final {
    Missing("hyper collapse");
  }
  void HyperExpand(const HyperExpandParams& /*params*/) final {
    Missing("hyper expand");
  }
  void EngramGate(const EngramGateParams& /*params*/) final {
    Missing("engram gate");
  }
  void ChooseExperts(const ChooseExpertsParams& /*params*/) final {
    Missing("choose experts");
  }
  void ChooseSoftmaxExperts(
      const ChooseSoftmaxExpertsParams& /*params*/) final {
    Missing("choose experts by softmax");
  }
  void GroupExperts(const GroupExpertsParams& /*params*/) final {
    Missing("group experts");
  }
  void BiasExperts(const BiasExpertsParams& /*params*/) final {
    Missing("bias experts");
  }
  void SumExperts(const SumExpertsParams& /*params*/) final {
    Missing("sum experts");
  }

  absl::Status ImportRecords(const RecordRange& /*to*/,
                             std::span<const uint8_t> /*from*/) final {
    return Refusal("import of records");
  }
  absl::Status ExportRecords(const RecordRange& /*from*/,
                             std::span<uint8_t> /*to*/) final {
    return Refusal("export of records");
  }

 protected:
  // kUnimplemented with the backend's name and `op`.
  [[nodiscard]] absl::Status Refusal(const char* op) const {
    return absl::UnimplementedError(name() + ": has no op '" + op + "'");
  }
  // Keeps the refusal until Finish.
  virtual void Missing(const char* op) = 0;
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_DENSE_OPS_H_
