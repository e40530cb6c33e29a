// SPDX-License-Identifier: Apache-2.0
//
// One path's kernels as a table of functions, each over a range of independent
// work. Internal to kernels/: kernels/cpu_ops.h is what others call.

#ifndef TORPOR_KERNELS_CPU_KERNELS_H_
#define TORPOR_KERNELS_CPU_KERNELS_H_

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/activation_cpu.h"
#include "kernels/attention.h"
#include "kernels/attention_cpu.h"
#include "kernels/gemm.h"
#include "kernels/gemm_cpu.h"
#include "kernels/hyper_connection.h"
#include "kernels/hyper_connection_cpu.h"
#include "kernels/index_score.h"
#include "kernels/index_score_cpu.h"
#include "kernels/isa.h"
#include "kernels/latent_attention.h"
#include "kernels/latent_attention_cpu.h"
#include "kernels/rms_norm.h"
#include "kernels/rms_norm_cpu.h"
#include "kernels/rope.h"
#include "kernels/rope_cpu.h"
#include "kernels/row_codec.h"
#include "kernels/row_decode_cpu.h"
#include "kernels/row_encode_cpu.h"
#include "kernels/weight_codec.h"

namespace torpor::kernels {

struct CpuKernels {
  // Column groups per unit of work that keeps the tiles whole.
  int64_t gemm_groups = 1;
  void (*gemm)(const GemmParams&, int64_t group_begin, int64_t group_end);
  void (*rms_norm)(const RmsNormParams&, int64_t row_begin, int64_t row_end);
  void (*rope)(const RopeParams&, int64_t row_begin, int64_t row_end);
  void (*rope_tail)(const RopeTailParams&, int64_t row_begin, int64_t row_end);
  void (*gated_gelu)(const GatedGeluParams&, int64_t row_begin,
                     int64_t row_end);
  void (*gated_silu)(const GatedSiluParams&, int64_t row_begin,
                     int64_t row_end);
  void (*softcap)(const SoftcapParams&, int64_t begin, int64_t end);
  void (*to_bf16)(const ToBf16Params&, int64_t begin, int64_t end);
  void (*encode_rows)(const EncodeRowsParams&, const RowShape&,
                      int64_t row_begin, int64_t row_end);
  void (*decode_rows)(const DecodeRowsParams&, const RowShape&,
                      int64_t row_begin, int64_t row_end);
  void (*decode_weights)(const DecodeWeightsParams&, int64_t row_begin,
                         int64_t row_end);
  void (*fake_quant_fp8)(const FakeQuantFp8Params&, int64_t row_begin,
                         int64_t row_end);
  bool (*attention_split)(const AttentionParams&, const AttentionTile&,
                          int64_t split, const AttentionScratch&,
                          const AttentionPartial&);
  void (*merge_attention)(int64_t rows, int64_t head_dim,
                          const AttentionPartial& part,
                          const AttentionPartial& total);
  void (*finish_attention)(const AttentionParams&, const AttentionTile&,
                           const AttentionPartial&);
  // Heads of a tile that keep the lanes of the path whole.
  int64_t latent_heads = 16;
  void (*latent_decode)(const LatentAttentionParams&, const LatentShapes&,
                        const LatentKeys&, int64_t key_begin, int64_t key_end,
                        float* out);
  void (*latent_attend)(const LatentAttentionParams&, const LatentTile&);
  void (*index_score)(const IndexScoreParams&, const RowShape&,
                      const IndexTile&);
  void (*hyper_mix)(const HyperMixParams&, int64_t row_begin, int64_t row_end);
  void (*hyper_collapse)(const HyperCollapseParams&, int64_t row_begin,
                         int64_t row_end);
  void (*hyper_expand)(const HyperExpandParams&, int64_t row_begin,
                       int64_t row_end);
};

const CpuKernels& PortableKernels();
const CpuKernels& Avx2Kernels();
const CpuKernels& Avx512Bf16Kernels();
const CpuKernels& AmxKernels();

// REQUIRES: AvailableIsas() has it.
const CpuKernels& KernelsOf(Isa isa);

// The table of one path; instantiated once per path, in a file compiled for it.
template <class V>
constexpr CpuKernels MakeKernels() {
  return {.gemm_groups = 4 * V::kGemmGroups,
          .gemm = &GemmCpu<V>,
          .rms_norm = &RmsNormCpu<V>,
          .rope = &RopeCpu<V>,
          .rope_tail = &RopeTailCpu<V>,
          .gated_gelu = &GatedGeluCpu<V>,
          .gated_silu = &GatedSiluCpu<V>,
          .softcap = &SoftcapCpu<V>,
          .to_bf16 = &ToBf16Cpu<V>,
          .encode_rows = &EncodeRowsCpu<V>,
          .decode_rows = &DecodeRowsCpu<V>,
          .decode_weights = &DecodeWeightsCpu<V>,
          .fake_quant_fp8 = &FakeQuantFp8Cpu<V>,
          .attention_split = &AttentionSplitCpu<V>,
          .merge_attention = &MergeAttention<V>,
          .finish_attention = &FinishAttention<V>,
          .latent_heads = 16 * V::kGemmGroups,
          .latent_decode = &LatentDecodeCpu<V>,
          .latent_attend = &LatentAttendCpu<V>,
          .index_score = &IndexScoreCpu<V>,
          .hyper_mix = &HyperMixCpu<V>,
          .hyper_collapse = &HyperCollapseCpu<V>,
          .hyper_expand = &HyperExpandCpu<V>};
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_CPU_KERNELS_H_
