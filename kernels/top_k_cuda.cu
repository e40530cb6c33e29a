// SPDX-License-Identifier: Apache-2.0
//
// Wide: TopKKernel loads
// Wide: BlockBestsKernel loads
// Wide: KeepBlocksKernel stores

#include <cassert>
#include <limits>

#include "kernels/cuda_simt.h"
#include "kernels/device_block_scan.h"
#include "kernels/device_float4.h"
#include "kernels/device_score_order.h"
#include "kernels/top_k_cuda.h"

namespace torpor::kernels {
namespace {

using device::kOrderOfNever;
using device::LoadFloat4;
using device::OrderOf;
using device::StoreFloat4;
using device::SumBefore;

constexpr int kThreads = 512;
constexpr int kBins = 2048;
constexpr int kBinsOfThread = kBins / kThreads;
// Scores of the block at a time.
constexpr int kStep = 4 * kThreads;
static_assert(kStep < 1 << 16, "two counts of them fit a word");

constexpr float kNever = -std::numeric_limits<float>::infinity();
// Of scores [at, at + 4) of n.
TORPOR_DEVICE_ONLY void LoadOrders(const float* scores, int64_t n, int64_t at,
                                   uint32_t (&orders)[4]) {
  if (at + 4 <= n) {
    const float4 v = LoadFloat4(scores + at);
    orders[0] = OrderOf(v.x);
    orders[1] = OrderOf(v.y);
    orders[2] = OrderOf(v.z);
    orders[3] = OrderOf(v.w);
    return;
  }
  for (int i = 0; i < 4; ++i) {
    orders[i] = at + i < n ? OrderOf(scores[at + i]) : kOrderOfNever;
  }
}

// Chosen are the orders above `least`, and of those equal to it the first
// `n_least`.
struct Choice {
  uint32_t least;
  uint32_t n_least;
};

struct Shared {
  uint32_t counts[kBins];
  uint32_t sums[kThreads / 32];
  Choice choice;
};

// Among scores whose order agrees with choice.least in the bits of `known`,
// the digit at `shift` that the n_least-th best has: it enters choice.least,
// and n_least then counts within that digit. Where there are fewer, all are
// chosen and the result is true.
TORPOR_DEVICE_ONLY bool NextDigit(const float* scores, int64_t n, int shift,
                                  uint32_t known, Shared* shared) {
  const Choice choice = shared->choice;
  for (int i = 0; i < kBinsOfThread; ++i) {
    shared->counts[threadIdx.x + i * kThreads] = 0;
  }
  __syncthreads();
  for (int64_t at = 4 * int64_t{threadIdx.x}; at < n; at += kStep) {
    uint32_t orders[4];
    LoadOrders(scores, n, at, orders);
    for (const uint32_t order : orders) {
      if (order <= kOrderOfNever || (order & known) != choice.least) continue;
      atomicAdd(&shared->counts[(order & ~known) >> shift], 1u);
    }
  }
  __syncthreads();
  // Threads have the bins from the highest down.
  const int top = kBins - 1 - kBinsOfThread * static_cast<int>(threadIdx.x);
  uint32_t own = 0;
  for (int i = 0; i < kBinsOfThread; ++i) own += shared->counts[top - i];
  uint32_t total;
  uint32_t better = SumBefore<kThreads>(own, shared->sums, &total);
  if (total < choice.n_least) {
    if (threadIdx.x == 0) shared->choice = {kOrderOfNever, 0};
    __syncthreads();
    return true;
  }
  if (better < choice.n_least && choice.n_least <= better + own) {
    int bin = top;
    for (; better + shared->counts[bin] < choice.n_least; --bin) {
      better += shared->counts[bin];
    }
    shared->choice = {choice.least | static_cast<uint32_t>(bin) << shift,
                      choice.n_least - better};
  }
  __syncthreads();
  return false;
}

TORPOR_DEVICE_ONLY void Choose(const float* scores, int64_t n, int64_t k,
                               Shared* shared) {
  const bool all = n <= k;
  if (threadIdx.x == 0) {
    shared->choice = {all ? kOrderOfNever : 0,
                      all ? 0 : static_cast<uint32_t>(k)};
  }
  __syncthreads();
  if (all || NextDigit(scores, n, 21, 0, shared)) return;
  NextDigit(scores, n, 10, ~0u << 21, shared);
  NextDigit(scores, n, 0, ~0u << 10, shared);
}

// Ids of the chosen, ascending; gives how many.
TORPOR_DEVICE_ONLY uint32_t WriteIds(const float* scores, int64_t n,
                                     const Choice& choice, uint32_t* sums,
                                     int32_t* ids) {
  uint32_t above = 0;
  uint32_t equal = 0;
  for (int64_t first = 0; first < n; first += kStep) {
    const int64_t at = first + 4 * int64_t{threadIdx.x};
    uint32_t orders[4];
    LoadOrders(scores, n, at, orders);
    uint32_t own = 0;
    for (const uint32_t order : orders) {
      own += order > choice.least ? 1u << 16 : order == choice.least ? 1u : 0u;
    }
    uint32_t total;
    const uint32_t before = SumBefore<kThreads>(own, sums, &total);
    uint32_t n_above = above + (before >> 16);
    uint32_t n_equal = equal + (before & 0xffffu);
    for (int i = 0; i < 4; ++i) {
      const auto id = static_cast<int32_t>(at + i);
      if (orders[i] > choice.least) {
        ids[n_above++ + min(n_equal, choice.n_least)] = id;
      } else if (orders[i] == choice.least) {
        if (n_equal < choice.n_least) ids[n_above + n_equal] = id;
        ++n_equal;
      }
    }
    above += total >> 16;
    equal += total & 0xffffu;
  }
  return above + min(equal, choice.n_least);
}

TORPOR_KERNEL(kThreads)
void TopKKernel(TopKParams p) {
  TORPOR_SHARED(Shared, shared, 1);
  const int64_t row = blockIdx.x;
  const float* scores = p.scores + row * p.scores_stride;
  const int64_t n = p.n_scores[row];
  Choose(scores, n, p.k, shared);
  const uint32_t n_ids =
      WriteIds(scores, n, shared->choice, shared->sums, p.ids + row * p.k);
  if (threadIdx.x == 0) p.n_ids[row] = static_cast<int32_t>(n_ids);
}

// ---- blocks of scores ------------------------------------------------------

constexpr int kBlockThreads = 256;

// Strictly better, NaN first.
TORPOR_DEVICE_ONLY float BetterOf(float best, float score) {
  return OrderOf(score) > OrderOf(best) ? score : best;
}

TORPOR_DEVICE_ONLY float BestOf(const float* scores, int64_t n) {
  float best = kNever;
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const float4 v = LoadFloat4(scores + i);
    best = BetterOf(BetterOf(best, v.x), v.y);
    best = BetterOf(BetterOf(best, v.z), v.w);
  }
  for (; i < n; ++i) best = BetterOf(best, scores[i]);
  return best;
}

// The block of scores that a thread has, of a row in blockIdx.x.
TORPOR_DEVICE_ONLY int64_t BlockOfThread() {
  return int64_t{blockIdx.y} * kBlockThreads + threadIdx.x;
}

int64_t BlocksOfRow(int64_t scores_stride, int64_t block_size) {
  return (scores_stride + block_size - 1) / block_size;
}

// Of each row its number of blocks, and the best score of each.
struct Bests {
  int64_t* n_best = nullptr;  // [n_rows]
  float* best = nullptr;      // [n_rows, stride]
  int64_t stride = 0;
};

Bests BestsIn(void* scratch, const CandidateBlocksParams& p) {
  auto* n_best = static_cast<int64_t*>(scratch);
  return {.n_best = n_best,
          .best = reinterpret_cast<float*>(n_best + p.n_rows),
          .stride = BlocksOfRow(p.scores_stride, p.block_size)};
}

TORPOR_KERNEL(kBlockThreads)
void BlockBestsKernel(CandidateBlocksParams p, Bests bests) {
  const int64_t row = blockIdx.x;
  const int64_t n = p.n_scores[row];
  const int64_t n_blocks = (n + p.block_size - 1) / p.block_size;
  const int64_t block = BlockOfThread();
  if (block == 0) bests.n_best[row] = n_blocks;
  if (block >= n_blocks) return;
  const int64_t at = block * p.block_size;
  const int64_t left = n - at;
  // The newest block goes before all others.
  bests.best[row * bests.stride + block] =
      block == n_blocks - 1 ? std::numeric_limits<float>::quiet_NaN()
                            : BestOf(p.scores + row * p.scores_stride + at,
                                     left < p.block_size ? left : p.block_size);
}

// The newest block is the last of the list, before a NaN too, whose lower id
// would win.
TORPOR_KERNEL(kBlockThreads)
void KeepNewestKernel(CandidateBlocksParams p, const int64_t* n_best) {
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (row >= p.n_rows || n_best[row] == 0) return;
  p.blocks[row * p.n_blocks + p.n_chosen[row] - 1] =
      static_cast<int32_t>(n_best[row] - 1);
}

// Whether the ascending list has it.
TORPOR_DEVICE_ONLY bool Has(const int32_t* list, int32_t n, int64_t id) {
  int32_t begin = 0;
  int32_t end = n;
  while (begin < end) {
    const int32_t middle = begin + (end - begin) / 2;
    if (list[middle] < id) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin < n && list[begin] == id;
}

TORPOR_KERNEL(kBlockThreads)
void KeepBlocksKernel(KeepBlocksParams p) {
  const int64_t row = blockIdx.x;
  const int64_t n = p.n_scores[row];
  const int64_t block = BlockOfThread();
  const int64_t begin = block * p.block_size;
  if (begin >= n) return;
  if (Has(p.blocks + row * p.n_blocks, p.n_chosen[row], block)) return;
  const int64_t end = begin + p.block_size < n ? begin + p.block_size : n;
  float* scores = p.scores + row * p.scores_stride;
  int64_t i = begin;
  const float4 never = make_float4(kNever, kNever, kNever, kNever);
  for (; i + 4 <= end; i += 4) StoreFloat4(scores + i, never);
  for (; i < end; ++i) scores[i] = kNever;
}

dim3 GridOf(int64_t n_rows, int64_t n_blocks) {
  return {
      static_cast<unsigned>(n_rows),
      static_cast<unsigned>((n_blocks + kBlockThreads - 1) / kBlockThreads)};
}

}  // namespace

int TopKCuda(const TopKParams& p, CudaStream stream) {
  assert(p.k >= 1);
  if (p.n_rows == 0) return 0;
  return TORPOR_LAUNCH(TopKKernel, static_cast<unsigned>(p.n_rows), kThreads, 0,
                       stream, p);
}

size_t CandidateBlocksScratchBytes(const CandidateBlocksParams& p) {
  const int64_t stride = BlocksOfRow(p.scores_stride, p.block_size);
  return static_cast<size_t>(p.n_rows) *
         (sizeof(int64_t) + static_cast<size_t>(stride) * sizeof(float));
}

int CandidateBlocksCuda(const CandidateBlocksParams& p, void* scratch,
                        CudaStream stream) {
  assert(p.block_size >= 1 && p.n_blocks >= 1);
  if (p.n_rows == 0) return 0;
  const Bests bests = BestsIn(scratch, p);
  // A row without scores has its count written too.
  const dim3 grid = GridOf(p.n_rows, bests.stride == 0 ? 1 : bests.stride);
  const int error =
      TORPOR_LAUNCH(BlockBestsKernel, grid, kBlockThreads, 0, stream, p, bests);
  if (error != 0) return error;
  const int chosen = TopKCuda({.scores = bests.best,
                               .n_rows = p.n_rows,
                               .scores_stride = bests.stride,
                               .n_scores = bests.n_best,
                               .k = p.n_blocks,
                               .ids = p.blocks,
                               .n_ids = p.n_chosen},
                              stream);
  if (chosen != 0) return chosen;
  const auto blocks =
      static_cast<unsigned>((p.n_rows + kBlockThreads - 1) / kBlockThreads);
  return TORPOR_LAUNCH(KeepNewestKernel, blocks, kBlockThreads, 0, stream, p,
                       bests.n_best);
}

int KeepBlocksCuda(const KeepBlocksParams& p, CudaStream stream) {
  assert(p.block_size >= 1);
  if (p.n_rows == 0 || p.scores_stride == 0) return 0;
  return TORPOR_LAUNCH(
      KeepBlocksKernel,
      GridOf(p.n_rows, BlocksOfRow(p.scores_stride, p.block_size)),
      kBlockThreads, 0, stream, p);
}

}  // namespace torpor::kernels
