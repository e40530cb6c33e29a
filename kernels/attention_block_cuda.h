// SPDX-License-Identifier: Apache-2.0
//
// One block of the kernels behind kernels/attention_cuda.h. Internal.
//
// 128 threads, 8 row lanes x 16 lanes. A row lane has kRowsPerThread query rows
// (positions x query heads of one KV head). Scores: a lane has 4 of a page's 64
// keys. Values: a lane has 4 of each slice of 64 dimensions. K and V pass
// through shared memory in slices of 64 keys x 64 dimensions, as f32.

#ifndef TORPOR_KERNELS_ATTENTION_BLOCK_CUDA_H_
#define TORPOR_KERNELS_ATTENTION_BLOCK_CUDA_H_

#include <cstdint>

#include "kernels/attention_cuda.h"
#include "kernels/device_math.h"
#include "kernels/device_quads.h"
#include "kernels/device_tiles.h"
#include "kernels/kv_page_cuda.h"

namespace torpor::kernels {

inline constexpr int kAttentionThreads = 128;
inline constexpr int kAttentionRowLanes = 8;
inline constexpr int kSlice = 64;
// Floats from row to row of a slice: rows of quads in different banks.
inline constexpr int kSliceStride = kSlice + 4;

struct AttentionArgs {
  AttentionParams p;
  int64_t max_splits = 0;
  int64_t first_tile = 0;
  // A tile's positions, and query heads of its KV head; together at most its
  // rows. A KV head's query heads take `head_tiles` tiles.
  int positions = 0;
  int heads = 0;
  int head_tiles = 0;
  int rows = 0;
  // [tiles of this launch][n_kv_heads * head_tiles][rows][max_splits]
  // [head_dim + 4]: weighted values, then maximum and sum of numerators.
  float* parts = nullptr;
};

// A block's rows: tile row r is position r / n_heads, head r % n_heads.
struct AttentionRows {
  AttentionSegment segment;
  int64_t position = 0;
  int n_positions = 0;
  int64_t kv_head = 0;
  int64_t head = 0;
  int n_heads = 0;

  TORPOR_DEVICE_ONLY int n_rows() const { return n_positions * n_heads; }
  TORPOR_DEVICE_ONLY KeyRange Keys(int r) const {
    return segment.keys[position + r / n_heads];
  }
  // Where row r stands in q and out, in elements.
  TORPOR_DEVICE_ONLY int64_t Offset(const AttentionParams& p, int r) const {
    const int64_t at = segment.row_begin + position + r / n_heads;
    return (at * p.n_heads + head + r % n_heads) * p.shape.head_dim;
  }
};

// n_positions 0 where the grid has a block to spare.
TORPOR_DEVICE_ONLY inline AttentionRows FindAttentionRows(
    const AttentionArgs& args) {
  const AttentionSegment* segments = args.p.segments;
  const device::RowTile tile = device::FindTile(
      args.p.n_segments, args.positions, args.first_tile + blockIdx.x,
      [segments](int64_t s) -> int64_t { return segments[s].n_rows; });
  AttentionRows rows;
  if (tile.group < 0) return rows;
  rows.segment = segments[tile.group];
  rows.position = tile.row;
  rows.n_positions = tile.n_rows;
  const int64_t group = args.p.n_heads / args.p.shape.n_kv_heads;
  const int first = static_cast<int>(blockIdx.y) % args.head_tiles * args.heads;
  rows.kv_head = blockIdx.y / args.head_tiles;
  rows.head = rows.kv_head * group + first;
  rows.n_heads = min(args.heads, static_cast<int>(group) - first);
  return rows;
}

TORPOR_DEVICE_ONLY inline float* PartOf(const AttentionArgs& args, int row,
                                        int64_t slot) {
  const int64_t tile =
      static_cast<int64_t>(blockIdx.x) * gridDim.y + blockIdx.y;
  return args.parts + ((tile * args.rows + row) * args.max_splits + slot) *
                          (args.p.shape.head_dim + 4);
}

TORPOR_DEVICE_ONLY inline float RoundTo(float v, float) { return v; }
TORPOR_DEVICE_ONLY inline float RoundTo(float v, Bf16) {
  return RoundToBf16(v);
}

TORPOR_DEVICE_ONLY inline float4 LoadFloat4(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}

// Floats of shared memory of a block.
inline int64_t AttentionSharedFloats(int64_t rows, int64_t head_dim) {
  return rows * (head_dim + 4) + kPageTokens * kSliceStride +
         rows * kSliceStride + 3 * rows;
}

template <typename T, int kSlices, int kRowsPerThread>
class AttentionBlock {
 public:
  static constexpr int kRows = kAttentionRowLanes * kRowsPerThread;

  TORPOR_DEVICE_ONLY AttentionBlock(const AttentionArgs& args,
                                    const AttentionRows& rows, float* shared)
      : args_(args),
        rows_(rows),
        head_dim_(static_cast<int>(args.p.shape.head_dim)),
        q_(shared),
        slice_(q_ + kRows * (head_dim_ + 4)),
        scores_(slice_ + kPageTokens * kSliceStride),
        factors_(scores_ + kRows * kSliceStride),
        begin_(reinterpret_cast<int*>(factors_ + kRows)),
        end_(begin_ + kRows) {}

  // Query rows into shared memory; rows beyond the tile are zeros.
  TORPOR_DEVICE_ONLY void LoadQueries() {
    const int quads = head_dim_ / 4;
    const bool aligned = reinterpret_cast<uintptr_t>(args_.p.q) % 16 == 0;
    for (int at = Thread(); at < kRows * quads; at += kAttentionThreads) {
      const int r = at / quads;
      const int d = at % quads * 4;
      device::Quad q = {};
      if (r < rows_.n_rows()) {
        q = device::LoadQuad(args_.p.q + rows_.Offset(args_.p, r) + d, 4,
                             aligned);
      }
      for (float& v : q.v) v = RoundTo(v, T());
      device::StoreQuad(q, q_ + r * (head_dim_ + 4) + d, 4, true);
    }
  }

  // Splits that any row's keys touch: [first, last].
  TORPOR_DEVICE_ONLY void Splits(int64_t* first, int64_t* last) const {
    KeyRange all = rows_.Keys(0);
    for (int i = 1; i < rows_.n_positions; ++i) {
      const KeyRange keys = rows_.Keys(i * rows_.n_heads);
      all.begin = min(all.begin, keys.begin);
      all.end = max(all.end, keys.end);
    }
    *first = all.begin / kSplitTokens;
    *last = (all.end - 1) / kSplitTokens;
  }

  // The rows' keys inside one split, into their parts.
  TORPOR_DEVICE_ONLY void RunSplit(int64_t split) {
    // Whoever still reads what the last split left.
    __syncthreads();
    ClipKeys(split);
    __syncthreads();
    max_ = -INFINITY;
    sum_ = 0.0f;
    float acc[kSlices][kRowsPerThread][4] = {};
    int begin = static_cast<int>(kSplitTokens);
    int end = 0;
    for (int r = 0; r < rows_.n_rows(); r += rows_.n_heads) {
      if (begin_[r] >= end_[r]) continue;
      begin = min(begin, begin_[r]);
      end = max(end, end_[r]);
    }
    for (int token = begin / kPage * kPage; token < end; token += kPage) {
      const auto* page = reinterpret_cast<const T*>(
          rows_.segment.kv.page((split * kSplitTokens + token) / kPageTokens));
      const Visible seen{max(begin - token, 0), min(end - token, kPage)};
      Scores(page + DeviceKvIndex(args_.p.shape, false, rows_.kv_head, 0),
             seen);
      __syncthreads();
      Softmax(token);
      Values(page + DeviceKvIndex(args_.p.shape, true, rows_.kv_head, 0), seen,
             token, acc);
    }
    StoreParts(split, acc);
  }

 private:
  static constexpr int kPage = static_cast<int>(kPageTokens);
  static constexpr int kWarps = kAttentionThreads / 32;

  // Tokens of a page.
  struct Visible {
    int begin;
    int end;
  };

  TORPOR_DEVICE_ONLY static int Thread() {
    return static_cast<int>(threadIdx.x);
  }
  TORPOR_DEVICE_ONLY static int FirstRow() {
    return Thread() / 16 * kRowsPerThread;
  }
  TORPOR_DEVICE_ONLY static int Lane() { return Thread() % 16; }

  // Each row's keys inside the split, counted from its start.
  TORPOR_DEVICE_ONLY void ClipKeys(int64_t split) {
    const int r = Thread();
    if (r >= kRows) return;
    begin_[r] = 0;
    end_[r] = 0;
    factors_[r] = 1.0f;
    if (r >= rows_.n_rows()) return;
    const KeyRange keys = rows_.Keys(r);
    const int64_t start = split * kSplitTokens;
    const int64_t begin = max(keys.begin - start, static_cast<int64_t>(0));
    const int64_t end = min(keys.end - start, kSplitTokens);
    if (begin >= end) return;
    begin_[r] = static_cast<int>(begin);
    end_[r] = static_cast<int>(end);
  }

  TORPOR_DEVICE_ONLY Visible VisibleOf(int r, int token) const {
    return {max(begin_[r] - token, 0), min(end_[r] - token, kPage)};
  }

  // Dimensions [64 s, 64 s + 64) of the page's tokens `seen` into the slice,
  // zeros for the others: what nobody sees may hold anything.
  TORPOR_DEVICE_ONLY void LoadSlice(const T* rows, int s, Visible seen) {
    constexpr int kPer = 16 / static_cast<int>(sizeof(T));
    constexpr int kPerRow = kSlice / kPer;
    constexpr int kStep = kAttentionThreads / kPerRow;
    constexpr int kLoads = kPage / kStep;
    const int first = Thread() / kPerRow;
    const int column = Thread() % kPerRow * kPer;
    const bool inside = s * kSlice + column < head_dim_;
    const T* from = rows + first * head_dim_ + s * kSlice + column;
    uint4 x[kLoads];
    TORPOR_UNROLL
    for (int i = 0; i < kLoads; ++i) {
      const int token = first + i * kStep;
      x[i] = make_uint4(0, 0, 0, 0);
      if (token >= seen.begin && token < seen.end && inside) {
        x[i] = *reinterpret_cast<const uint4*>(from);
      }
      from += kStep * head_dim_;
    }
    // Whoever still reads the slice before.
    __syncthreads();
    float* to = slice_ + first * kSliceStride + column;
    TORPOR_UNROLL
    for (int i = 0; i < kLoads; ++i)
      Unpack(x[i], to + i * kStep * kSliceStride);
    __syncthreads();
  }

  TORPOR_DEVICE_ONLY static void Unpack(const uint4& x, float* out) {
    auto* quads = reinterpret_cast<float4*>(out);
    if constexpr (sizeof(T) == 4) {
      quads[0] = make_float4(__uint_as_float(x.x), __uint_as_float(x.y),
                             __uint_as_float(x.z), __uint_as_float(x.w));
    } else {
      quads[0] = make_float4(device::LowBf16(x.x), device::HighBf16(x.x),
                             device::LowBf16(x.y), device::HighBf16(x.y));
      quads[1] = make_float4(device::LowBf16(x.z), device::HighBf16(x.z),
                             device::LowBf16(x.w), device::HighBf16(x.w));
    }
  }

  // scores_[row][token] of the whole page; those of hidden tokens are unused.
  TORPOR_DEVICE_ONLY void Scores(const T* k, Visible seen) {
    float dots[kRowsPerThread][4] = {};
    for (int s = 0; s * kSlice < head_dim_; ++s) {
      LoadSlice(k, s, seen);
      const float* q = q_ + FirstRow() * (head_dim_ + 4) + s * kSlice;
      const int width = min(kSlice, head_dim_ - s * kSlice);
      TORPOR_UNROLL_BY(1)
      for (int d = 0; d < width; d += 4) AddDots(q + d, d, dots);
    }
    TORPOR_UNROLL
    for (int i = 0; i < kRowsPerThread; ++i) {
      TORPOR_UNROLL
      for (int j = 0; j < 4; ++j) {
        float score = dots[i][j] * args_.p.scale;
        if (args_.p.softcap != 0.0f) {
          score = args_.p.softcap * device::Tanh(score / args_.p.softcap);
        }
        scores_[(FirstRow() + i) * kSliceStride + Lane() + 16 * j] = score;
      }
    }
  }

  // Four dimensions of this thread's rows and keys, ascending.
  TORPOR_DEVICE_ONLY TORPOR_INLINE void AddDots(
      const float* q, int d, float (&dots)[kRowsPerThread][4]) const {
    float4 keys[4];
    TORPOR_UNROLL
    for (int j = 0; j < 4; ++j) {
      keys[j] = LoadFloat4(slice_ + (Lane() + 16 * j) * kSliceStride + d);
    }
    TORPOR_UNROLL
    for (int i = 0; i < kRowsPerThread; ++i) {
      const float4 query = LoadFloat4(q + i * (head_dim_ + 4));
      TORPOR_UNROLL
      for (int j = 0; j < 4; ++j) {
        float dot = fmaf(query.x, keys[j].x, dots[i][j]);
        dot = fmaf(query.y, keys[j].y, dot);
        dot = fmaf(query.z, keys[j].z, dot);
        dots[i][j] = fmaf(query.w, keys[j].w, dot);
      }
    }
  }

  // Turns scores into numerators in place. Row r belongs to warp r % 4, and its
  // maximum and sum to lane r / 4 of it.
  TORPOR_DEVICE_ONLY void Softmax(int token) {
    const int warp = Thread() / 32;
    const int lane = Thread() % 32;
    for (int r = warp; r < rows_.n_rows(); r += kWarps) {
      const Visible seen = VisibleOf(r, token);
      float* row = scores_ + r * kSliceStride;
      const int owner = r / kWarps;
      const float old_max = __shfl_sync(device::kAllLanes, max_, owner);
      const bool low = lane >= seen.begin && lane < seen.end;
      const bool high = lane + 32 >= seen.begin && lane + 32 < seen.end;
      float new_max = old_max;
      if (low) new_max = fmaxf(new_max, row[lane]);
      if (high) new_max = fmaxf(new_max, row[lane + 32]);
      for (int step = 16; step > 0; step /= 2) {
        new_max =
            fmaxf(new_max, __shfl_xor_sync(device::kAllLanes, new_max, step));
      }
      const float first = low ? device::Exp(row[lane] - new_max) : 0.0f;
      const float second = high ? device::Exp(row[lane + 32] - new_max) : 0.0f;
      float sum = first + second;
      for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(device::kAllLanes, sum, step);
      }
      if (low) row[lane] = RoundTo(first, T());
      if (high) row[lane + 32] = RoundTo(second, T());
      // A row that sees nothing of this page stays as it is.
      if (seen.begin >= seen.end) {
        if (lane == owner) factors_[r] = 1.0f;
      } else if (lane == owner) {
        factors_[r] = device::Exp(old_max - new_max);
        max_ = new_max;
        sum_ = sum_ * factors_[r] + sum;
      }
    }
  }

  // acc = acc * factor + sum over visible tokens of numerator * value.
  TORPOR_DEVICE_ONLY TORPOR_INLINE void Values(
      const T* v, Visible seen, int token,
      float (&acc)[kSlices][kRowsPerThread][4]) {
    TORPOR_UNROLL
    for (int s = 0; s < kSlices; ++s) {
      if (s * kSlice >= head_dim_) break;
      // Its barriers also part the softmax from the reading of its results.
      LoadSlice(v, s, seen);
      if (s * kSlice + Lane() * 4 >= head_dim_) continue;
      bool whole = true;
      TORPOR_UNROLL
      for (int i = 0; i < kRowsPerThread; ++i) {
        const float factor = factors_[FirstRow() + i];
        TORPOR_UNROLL
        for (int j = 0; j < 4; ++j) acc[s][i][j] *= factor;
        const Visible mine = VisibleOf(FirstRow() + i, token);
        whole = whole && mine.begin == 0 && mine.end == kPage;
      }
      whole ? AddValues<true>(token, acc[s]) : AddValues<false>(token, acc[s]);
    }
  }

  template <bool kWhole>
  TORPOR_DEVICE_ONLY TORPOR_INLINE void AddValues(
      int token, float (&acc)[kRowsPerThread][4]) const {
    const float* values = slice_ + Lane() * 4;
    TORPOR_UNROLL_BY(2)
    for (int t = 0; t < kPage; ++t) {
      const float4 v = LoadFloat4(values + t * kSliceStride);
      TORPOR_UNROLL
      for (int i = 0; i < kRowsPerThread; ++i) {
        const int r = FirstRow() + i;
        if constexpr (!kWhole) {
          const Visible mine = VisibleOf(r, token);
          if (t < mine.begin || t >= mine.end) continue;
        }
        const float weight = scores_[r * kSliceStride + t];
        acc[i][0] = fmaf(weight, v.x, acc[i][0]);
        acc[i][1] = fmaf(weight, v.y, acc[i][1]);
        acc[i][2] = fmaf(weight, v.z, acc[i][2]);
        acc[i][3] = fmaf(weight, v.w, acc[i][3]);
      }
    }
  }

  TORPOR_DEVICE_ONLY int64_t SlotOf(int r, int64_t split) const {
    return split - rows_.Keys(r).begin / kSplitTokens;
  }

  TORPOR_DEVICE_ONLY TORPOR_INLINE void StoreParts(
      int64_t split, const float (&acc)[kSlices][kRowsPerThread][4]) const {
    TORPOR_UNROLL
    for (int i = 0; i < kRowsPerThread; ++i) {
      const int r = FirstRow() + i;
      if (r >= rows_.n_rows() || begin_[r] >= end_[r]) continue;
      float* part = PartOf(args_, r, SlotOf(r, split)) + Lane() * 4;
      TORPOR_UNROLL
      for (int s = 0; s < kSlices; ++s) {
        if (s * kSlice + Lane() * 4 >= head_dim_) break;
        *reinterpret_cast<float4*>(part + s * kSlice) =
            make_float4(acc[s][i][0], acc[s][i][1], acc[s][i][2], acc[s][i][3]);
      }
    }
    const int r = Thread() % 32 * kWarps + Thread() / 32;
    if (r >= rows_.n_rows() || begin_[r] >= end_[r]) return;
    float* part = PartOf(args_, r, SlotOf(r, split)) + head_dim_;
    part[0] = max_;
    part[1] = sum_;
  }

  const AttentionArgs& args_;
  const AttentionRows& rows_;
  const int head_dim_;
  float* const q_;        // [kRows][head_dim + 4]
  float* const slice_;    // [64 tokens][kSliceStride]
  float* const scores_;   // [kRows][kSliceStride]
  float* const factors_;  // [kRows]
  int* const begin_;      // [kRows], tokens from the split's start
  int* const end_;        // [kRows]
  // Of row (thread % 32) * 4 + thread / 32.
  float max_ = 0.0f;
  float sum_ = 0.0f;
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ATTENTION_BLOCK_CUDA_H_
