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
#include "kernels/isa.h"
#include "kernels/rms_norm.h"
#include "kernels/rms_norm_cpu.h"
#include "kernels/rope.h"
#include "kernels/rope_cpu.h"
#include "kernels/row_codec.h"
#include "kernels/row_codec_cpu.h"
#include "kernels/weight_codec.h"

namespace torpor::kernels {

struct CpuKernels {
  // Column groups per unit of work that keeps the tiles whole.
  int64_t gemm_groups = 1;
  void (*gemm)(const GemmParams&, int64_t group_begin, int64_t group_end);
  void (*rms_norm)(const RmsNormParams&, int64_t row_begin, int64_t row_end);
  void (*rope)(const RopeParams&, int64_t row_begin, int64_t row_end);
  void (*gated_gelu)(const GatedGeluParams&, int64_t row_begin,
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
          .gated_gelu = &GatedGeluCpu<V>,
          .softcap = &SoftcapCpu<V>,
          .to_bf16 = &ToBf16Cpu<V>,
          .encode_rows = &EncodeRowsCpu<V>,
          .decode_rows = &DecodeRowsCpu<V>,
          .decode_weights = &DecodeWeightsCpu<V>,
          .fake_quant_fp8 = &FakeQuantFp8Cpu<V>,
          .attention_split = &AttentionSplitCpu<V>,
          .merge_attention = &MergeAttention<V>,
          .finish_attention = &FinishAttention<V>};
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_CPU_KERNELS_H_
