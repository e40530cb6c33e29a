// SPDX-License-Identifier: Apache-2.0
//
// CudaOps: the ops of models whose rows are records.

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/activation_cuda.h"
#include "kernels/engram_gate_cuda.h"
#include "kernels/experts_cuda.h"
#include "kernels/hyper_connection_cuda.h"
#include "kernels/index_score_cuda.h"
#include "kernels/latent_attention_cuda.h"
#include "kernels/latent_keys_cuda.h"
#include "kernels/ops_cuda_impl.h"
#include "kernels/pool_members_cuda.h"
#include "kernels/rope_cuda.h"
#include "kernels/row_codec_cuda.h"
#include "kernels/rows_cuda.h"
#include "kernels/top_k_cuda.h"
#include "kernels/weight_codec_cuda.h"

namespace torpor::kernels {
namespace {

// Keys of the row that has most.
int64_t KeysOf(const LatentSegment& segment) {
  int64_t keys = 0;
  for (int64_t i = 0; i < segment.n_rows; ++i) {
    const KeyRange window = segment.window_keys[i];
    keys = std::max(keys, window.end - window.begin);
  }
  return keys + (segment.picks == nullptr ? 0 : segment.picks_stride);
}

}  // namespace

// ---- rows ------------------------------------------------------------------

void CudaOps::ScatterRows(const ScatterRowsParams& p) {
  ScatterRowsParams params = p;
  params.out = SendList(p.out, p.n_rows);
  Launch("scatter rows", ScatterRowsCuda, params);
}
void CudaOps::RopeTail(const RopeTailParams& p) {
  Launch("rope of tails", RopeTailCuda, p);
}
void CudaOps::GatedSilu(const GatedSiluParams& p) {
  Launch("silu", GatedSiluCuda, p);
}
void CudaOps::RoundBf16(const RoundBf16Params& p) {
  Launch("round in place", RoundBf16Cuda, p);
}
void CudaOps::Scale(const ScaleParams& p) { Launch("scale", ScaleCuda, p); }
void CudaOps::FakeQuantFp8(const FakeQuantFp8Params& p) {
  Launch("fake quantisation", FakeQuantFp8Cuda, p);
}

void CudaOps::EncodeRows(const EncodeRowsParams& p) {
  EncodeRowsParams params = p;
  if (p.rows != nullptr) params.rows = SendList(p.rows, p.n_rows);
  Launch("encode rows", EncodeRowsCuda, params);
}
void CudaOps::DecodeRows(const DecodeRowsParams& p) {
  Launch("decode rows", DecodeRowsCuda, p);
}

void CudaOps::PoolMembers(const PoolMembersParams& p) {
  PoolMembersParams params = p;
  params.members = SendList(p.members, p.n_groups * p.n_members);
  Launch("pool members", PoolMembersCuda, params);
}

void CudaOps::HyperMix(const HyperMixParams& p) {
  Launch("hyper mix", HyperMixCuda, p);
}
void CudaOps::HyperCollapse(const HyperCollapseParams& p) {
  Launch("hyper collapse", HyperCollapseCuda, p);
}
void CudaOps::HyperExpand(const HyperExpandParams& p) {
  Launch("hyper expand", HyperExpandCuda, p);
}
void CudaOps::EngramGate(const EngramGateParams& p) {
  Launch("engram gate", EngramGateCuda, p);
}

// ---- choices ---------------------------------------------------------------

void CudaOps::IndexScore(const IndexScoreParams& p) {
  if (p.n_rows == 0) return;
  const int64_t n_keys = *std::max_element(p.n_visible, p.n_visible + p.n_rows);
  const int64_t n_pages = (n_keys + p.page_rows - 1) / p.page_rows;
  Lists lists = NewLists(Lists::BytesFor<uint8_t*>(n_pages) +
                         Lists::BytesFor<int64_t>(p.n_rows));
  IndexScoreParams params = p;
  params.pages = lists.Add(p.pages, n_pages);
  params.n_visible = lists.Add(p.n_visible, p.n_rows);
  SendLists(lists);
  Launch("index scores", IndexScoreCuda, params);
}

void CudaOps::CandidateBlocks(const CandidateBlocksParams& p) {
  CandidateBlocksParams params = p;
  params.n_scores = SendList(p.n_scores, p.n_rows);
  workspace_.Resize(CandidateBlocksScratchBytes(p));
  Do("candidate blocks", [&] {
    return CandidateBlocksCuda(params, workspace_.data(), compute_->stream());
  });
}
void CudaOps::KeepBlocks(const KeepBlocksParams& p) {
  KeepBlocksParams params = p;
  params.n_scores = SendList(p.n_scores, p.n_rows);
  Launch("keep blocks", KeepBlocksCuda, params);
}
void CudaOps::TopK(const TopKParams& p) {
  TopKParams params = p;
  params.n_scores = SendList(p.n_scores, p.n_rows);
  Launch("top-k", TopKCuda, params);
}

// ---- attention -------------------------------------------------------------

void CudaOps::LatentAttention(const PagedLatentAttentionParams& p) {
  const int64_t n_rows = p.attention.n_rows;
  if (n_rows == 0) return;
  NameLatentKeysParams names{.n_segments = p.n_segments};
  size_t capacity = Lists::BytesFor<LatentSegment>(p.n_segments);
  for (int64_t s = 0; s < p.n_segments; ++s) {
    const LatentSegment& segment = p.segments[s];
    names.n_rows_max = std::max(names.n_rows_max, segment.n_rows);
    names.n_keys_max = std::max(names.n_keys_max, KeysOf(segment));
    capacity += Lists::BytesFor<KeyRange>(segment.n_rows) +
                Lists::BytesFor<uint8_t*>(segment.window.n_pages) +
                Lists::BytesFor<uint8_t*>(segment.entries.n_pages);
  }
  if (names.n_keys_max > kLatentKeysMax ||
      p.attention.head_dim > kLatentDimMax) {
    error_.Set(absl::ResourceExhaustedError(absl::StrFormat(
        "CUDA: latent attention: got %d keys of %d channels a row, shared "
        "memory holds %d of %d",
        names.n_keys_max, p.attention.head_dim, kLatentKeysMax,
        kLatentDimMax)));
    return;
  }
  Lists lists = NewLists(capacity);
  std::vector<LatentSegment> segments(p.segments, p.segments + p.n_segments);
  for (LatentSegment& segment : segments) {
    segment.window_keys = lists.Add(segment.window_keys, segment.n_rows);
    segment.window.pages =
        lists.Add(segment.window.pages, segment.window.n_pages);
    segment.entries.pages =
        lists.Add(segment.entries.pages, segment.entries.n_pages);
  }
  names.segments = lists.Add(segments.data(), p.n_segments);
  SendLists(lists);

  const size_t keys_bytes = static_cast<size_t>(n_rows) * sizeof(LatentKeys);
  workspace_.Resize(keys_bytes + static_cast<size_t>(n_rows) *
                                     static_cast<size_t>(names.n_keys_max) *
                                     sizeof(uint8_t*));
  names.keys = reinterpret_cast<LatentKeys*>(workspace_.data());
  names.lists = reinterpret_cast<const uint8_t**>(names.keys + n_rows);
  Launch("names of latent keys", NameLatentKeysCuda, names);
  LatentAttentionParams params = p.attention;
  params.keys = names.keys;
  Do("latent attention", [&] {
    return LatentAttentionCuda(params, names.n_keys_max, compute_->stream());
  });
}

// ---- experts ---------------------------------------------------------------

bool CudaOps::HoldsExperts(int64_t n_experts) {
  if (n_experts <= kRouteExpertsMax) return true;
  error_.Set(absl::ResourceExhaustedError(absl::StrFormat(
      "CUDA: choose experts: got %d experts, shared memory holds %d", n_experts,
      kRouteExpertsMax)));
  return false;
}
void CudaOps::ChooseExperts(const ChooseExpertsParams& p) {
  if (HoldsExperts(p.n_experts)) Launch("choose experts", ChooseExpertsCuda, p);
}
void CudaOps::ChooseSoftmaxExperts(const ChooseSoftmaxExpertsParams& p) {
  if (!HoldsExperts(p.n_experts)) return;
  Launch("choose experts by softmax", ChooseSoftmaxExpertsCuda, p);
}
void CudaOps::GroupExperts(const GroupExpertsParams& p) {
  Launch("group experts", GroupExpertsCuda, p);
}
void CudaOps::BiasExperts(const BiasExpertsParams& p) {
  Launch("bias experts", BiasExpertsCuda, p);
}
void CudaOps::SumExperts(const SumExpertsParams& p) {
  Launch("sum experts", SumExpertsCuda, p);
}

void CudaOps::GroupedGemm(const GroupedGemmParams& p) {
  std::vector<const void*> matrices;
  for (int64_t g = 0; g < p.n_groups; ++g) {
    matrices.push_back(p.b[g]->data());
  }
  const DeviceMatrix shape = DeviceShape(*p.b[0]);
  Launch(
      "grouped gemm", GroupedGemmCuda,
      GroupedGemmCudaParams{.a = p.a,
                            .a_dtype = shape.dtype,
                            .row_index = p.row_index,
                            .group_begin = p.group_begin,
                            .n_groups = p.n_groups,
                            .n_entries = p.n_entries,
                            .b = shape,
                            .matrices = SendList(matrices.data(), p.n_groups),
                            .c = p.c,
                            .path = PathOf(shape)});
}

}  // namespace torpor::kernels
