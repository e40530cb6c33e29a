// SPDX-License-Identifier: Apache-2.0
//
// CpuOps: codecs of rows and weights, hyper-connections, experts and choices.

#include <algorithm>
#include <cassert>
#include <cstring>

#include "kernels/cpu_ops.h"
#include "kernels/cpu_ops_impl.h"

namespace torpor::kernels {
namespace {

// Rows [begin, end) of an op that goes row by row.
PoolMembersParams Rows(PoolMembersParams p, int64_t begin, int64_t end) {
  p.members += begin * p.n_members;
  p.out += begin * p.dim;
  p.n_groups = end - begin;
  return p;
}

CandidateBlocksParams Rows(CandidateBlocksParams p, int64_t begin,
                           int64_t end) {
  p.scores += begin * p.scores_stride;
  p.n_scores += begin;
  p.blocks += begin * p.n_blocks;
  p.n_chosen += begin;
  p.n_rows = end - begin;
  return p;
}

KeepBlocksParams Rows(KeepBlocksParams p, int64_t begin, int64_t end) {
  p.scores += begin * p.scores_stride;
  p.n_scores += begin;
  p.blocks += begin * p.n_blocks;
  p.n_chosen += begin;
  p.n_rows = end - begin;
  return p;
}

TopKParams Rows(TopKParams p, int64_t begin, int64_t end) {
  p.scores += begin * p.scores_stride;
  p.n_scores += begin;
  p.ids += begin * p.k;
  p.n_ids += begin;
  p.n_rows = end - begin;
  return p;
}

EngramGateParams Rows(EngramGateParams p, int64_t begin, int64_t end) {
  p.x += begin * p.n_streams * p.dim;
  p.kv += begin * (p.n_streams + 1) * p.dim;
  p.n_rows = end - begin;
  return p;
}

ChooseExpertsParams Rows(ChooseExpertsParams p, int64_t begin, int64_t end) {
  p.affinities += begin * p.n_experts;
  p.experts += begin * p.k;
  p.n_rows = end - begin;
  return p;
}

ChooseSoftmaxExpertsParams Rows(ChooseSoftmaxExpertsParams p, int64_t begin,
                                int64_t end) {
  p.affinities += begin * p.n_experts;
  p.experts += begin * p.k;
  p.n_rows = end - begin;
  return p;
}

// Experts [begin, end); entries are counted from the first of all.
BiasExpertsParams Experts(BiasExpertsParams p, int64_t begin, int64_t end) {
  p.first += begin;
  p.bias += begin * p.dim;
  p.n_experts = end - begin;
  return p;
}

SumExpertsParams Rows(SumExpertsParams p, int64_t begin, int64_t end) {
  p.entries += begin * p.k;
  if (p.shared != nullptr) p.shared += begin * p.dim;
  p.out += begin * p.dim;
  p.n_rows = end - begin;
  return p;
}

}  // namespace

void CpuOps::EncodeRows(const EncodeRowsParams& params) {
  const RowShape shape = ShapeOf(params.format, params.dim, params.rope_dim);
  assert(params.dim % 16 == 0 && params.rope_dim % 16 == 0);
  impl_->Ranges(params.n_rows, params.dim, [&](int64_t begin, int64_t end) {
    impl_->kernels.encode_rows(params, shape, begin, end);
  });
}

void CpuOps::DecodeRows(const DecodeRowsParams& params) {
  const RowShape shape = ShapeOf(params.format, params.dim, params.rope_dim);
  assert(params.dim % 16 == 0 && params.rope_dim % 16 == 0);
  impl_->Ranges(params.n_rows, params.dim, [&](int64_t begin, int64_t end) {
    impl_->kernels.decode_rows(params, shape, begin, end);
  });
}

void CpuOps::DecodeWeights(const DecodeWeightsParams& params) {
  assert(params.dim % 16 == 0 && params.block_columns % 16 == 0);
  impl_->Ranges(params.n_rows, params.dim, [&](int64_t begin, int64_t end) {
    impl_->kernels.decode_weights(params, begin, end);
  });
}

void CpuOps::FakeQuantFp8(const FakeQuantFp8Params& params) {
  assert(params.dim % 32 == 0);
  impl_->Ranges(params.n_rows, params.dim, [&](int64_t begin, int64_t end) {
    impl_->kernels.fake_quant_fp8(params, begin, end);
  });
}

void CpuOps::RopeTail(const RopeTailParams& params) {
  impl_->Ranges(params.n_rows, params.n_heads * params.rope_dim,
                [&](int64_t begin, int64_t end) {
                  impl_->kernels.rope_tail(params, begin, end);
                });
}

void CpuOps::GatedSilu(const GatedSiluParams& params) {
  impl_->Ranges(params.n_rows, 4 * params.dim, [&](int64_t begin, int64_t end) {
    impl_->kernels.gated_silu(params, begin, end);
  });
}

void CpuOps::HyperMix(const HyperMixParams& params) {
  impl_->Ranges(params.n_rows, params.n_streams * params.dim,
                [&](int64_t begin, int64_t end) {
                  impl_->kernels.hyper_mix(params, begin, end);
                });
}

void CpuOps::HyperCollapse(const HyperCollapseParams& params) {
  impl_->Ranges(params.n_rows, params.n_streams * params.dim,
                [&](int64_t begin, int64_t end) {
                  impl_->kernels.hyper_collapse(params, begin, end);
                });
}

void CpuOps::HyperExpand(const HyperExpandParams& params) {
  impl_->Ranges(params.n_rows, params.n_streams * params.dim,
                [&](int64_t begin, int64_t end) {
                  impl_->kernels.hyper_expand(params, begin, end);
                });
}

void CpuOps::ScatterRows(const ScatterRowsParams& params) {
  ScatterRowsRef(params);
}

void CpuOps::RoundBf16(const RoundBf16Params& params) {
  impl_->Ranges(params.n, 1, [&](int64_t begin, int64_t end) {
    RoundBf16Ref({params.x + begin, end - begin});
  });
}

void CpuOps::Scale(const ScaleParams& params) { ScaleRef(params); }

void CpuOps::PoolMembers(const PoolMembersParams& params) {
  impl_->Ranges(params.n_groups, 16 * params.n_members * params.dim,
                [&](int64_t begin, int64_t end) {
                  PoolMembersRef(Rows(params, begin, end));
                });
}

void CpuOps::CandidateBlocks(const CandidateBlocksParams& params) {
  impl_->Ranges(params.n_rows, params.scores_stride,
                [&](int64_t begin, int64_t end) {
                  CandidateBlocksRef(Rows(params, begin, end));
                });
}

void CpuOps::KeepBlocks(const KeepBlocksParams& params) {
  impl_->Ranges(params.n_rows, params.scores_stride,
                [&](int64_t begin, int64_t end) {
                  KeepBlocksRef(Rows(params, begin, end));
                });
}

void CpuOps::TopK(const TopKParams& params) {
  impl_->Ranges(
      params.n_rows, 4 * params.scores_stride,
      [&](int64_t begin, int64_t end) { TopKRef(Rows(params, begin, end)); });
}

void CpuOps::EngramGate(const EngramGateParams& params) {
  impl_->Ranges(params.n_rows, 4 * params.n_streams * params.dim,
                [&](int64_t begin, int64_t end) {
                  EngramGateRef(Rows(params, begin, end));
                });
}

void CpuOps::GroupedGemm(const GroupedGemmParams& params) {
  for (int64_t g = 0; g < params.n_groups; ++g) {
    const PackedMatrix& b = *params.b[g];
    const int64_t begin = params.group_begin[g];
    const int64_t n_rows = params.group_begin[g + 1] - begin;
    if (n_rows == 0) continue;
    const size_t row_bytes = static_cast<size_t>(b.k()) * DTypeBytes(b.dtype());
    const auto* a = static_cast<const uint8_t*>(params.a);
    const void* of_group = a + static_cast<size_t>(begin) * row_bytes;
    if (params.row_index != nullptr) {
      auto* rows =
          reinterpret_cast<uint8_t*>(impl_->gathered.AtLeast(n_rows * b.k()));
      for (int64_t i = 0; i < n_rows; ++i) {
        std::memcpy(
            rows + static_cast<size_t>(i) * row_bytes,
            a + static_cast<size_t>(params.row_index[begin + i]) * row_bytes,
            row_bytes);
      }
      of_group = rows;
    }
    Gemm({.a = of_group,
          .n_rows = n_rows,
          .b = &b,
          .c = params.c + begin * b.n()});
  }
}

void CpuOps::ChooseExperts(const ChooseExpertsParams& params) {
  // The affinity's functions take as long as some tens of plain elements.
  impl_->Ranges(params.n_rows, 64 * params.n_experts,
                [&](int64_t begin, int64_t end) {
                  ChooseExpertsRef(Rows(params, begin, end));
                });
}

void CpuOps::ChooseSoftmaxExperts(const ChooseSoftmaxExpertsParams& params) {
  impl_->Ranges(params.n_rows, 32 * params.n_experts,
                [&](int64_t begin, int64_t end) {
                  ChooseSoftmaxExpertsRef(Rows(params, begin, end));
                });
}

void CpuOps::GroupExperts(const GroupExpertsParams& params) {
  GroupExpertsRef(params);
}

void CpuOps::BiasExperts(const BiasExpertsParams& params) {
  impl_->Ranges(params.n_experts,
                params.n_entries * params.dim / params.n_experts,
                [&](int64_t begin, int64_t end) {
                  BiasExpertsRef(Experts(params, begin, end));
                });
}

void CpuOps::SumExperts(const SumExpertsParams& params) {
  impl_->Ranges(params.n_rows, (params.k + 1) * params.dim,
                [&](int64_t begin, int64_t end) {
                  SumExpertsRef(Rows(params, begin, end));
                });
}

}  // namespace torpor::kernels
