// SPDX-License-Identifier: Apache-2.0
//
// The CPU backend: every op of kernels/ on one path and some threads. Results
// depend on the path alone. Not thread-safe: one caller at a time.

#ifndef TORPOR_KERNELS_CPU_OPS_H_
#define TORPOR_KERNELS_CPU_OPS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/gemm.h"
#include "kernels/hyper_connection.h"
#include "kernels/index_score.h"
#include "kernels/isa.h"
#include "kernels/latent_attention.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/row_codec.h"
#include "kernels/weight_codec.h"

namespace torpor::kernels {

class CpuOps {
 public:
  // REQUIRES: AvailableIsas() has `isa`; n_threads >= 1.
  CpuOps(Isa isa, int n_threads);
  ~CpuOps();
  CpuOps(const CpuOps&) = delete;
  CpuOps& operator=(const CpuOps&) = delete;

  [[nodiscard]] Isa isa() const { return isa_; }
  [[nodiscard]] int n_threads() const;

  void Gemm(const GemmParams& params);
  void RmsNorm(const RmsNormParams& params);
  void Rope(const RopeParams& params);
  void RopeTail(const RopeTailParams& params);
  void GatedGelu(const GatedGeluParams& params);
  void GatedSilu(const GatedSiluParams& params);
  void Softcap(const SoftcapParams& params);
  void ToBf16(const ToBf16Params& params);
  void EncodeRows(const EncodeRowsParams& params);
  void DecodeRows(const DecodeRowsParams& params);
  void DecodeWeights(const DecodeWeightsParams& params);
  void FakeQuantFp8(const FakeQuantFp8Params& params);
  void Attention(const AttentionParams& params);
  void LatentAttention(const LatentAttentionParams& params);
  void IndexScore(const IndexScoreParams& params);
  void HyperMix(const HyperMixParams& params);
  void HyperCollapse(const HyperCollapseParams& params);
  void HyperExpand(const HyperExpandParams& params);

 private:
  struct Impl;

  const Isa isa_;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_CPU_OPS_H_
