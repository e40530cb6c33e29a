// SPDX-License-Identifier: Apache-2.0
//
// kernels/attention.h over sixteen lanes. A tile is a few rows of one segment
// times the query heads of one KV head; its rows share the loads of K and V.
// Scores: lanes are keys. Values: lanes are dimensions.

#ifndef TORPOR_KERNELS_ATTENTION_CPU_H_
#define TORPOR_KERNELS_ATTENTION_CPU_H_

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/rms_norm_cpu.h"
#include "kernels/simd_math.h"

namespace torpor::kernels {

// Query rows (positions x heads of a group) of a tile, at most.
inline constexpr int64_t kTileRows = 32;

// One tile's partial result over one split: of each row the running maximum,
// the sum of numerators, and their weighted values.
struct AttentionPartial {
  float* max = nullptr;  // [kTileRows]
  float* sum = nullptr;  // [kTileRows]
  float* acc = nullptr;  // [kTileRows, head_dim]
};

// Memory of one running tile.
struct AttentionScratch {
  void* q = nullptr;        // [kTileRows, head_dim] in the KV dtype
  float* scores = nullptr;  // [kTileRows, kPageTokens]
  void* weights = nullptr;  // [kTileRows, kPageTokens] in the KV dtype
};

struct AttentionTile {
  const AttentionSegment* segment = nullptr;
  int64_t kv_head = 0;
  // Query heads [head, head + n_heads), all of that KV head.
  int64_t head = 0;
  int64_t n_heads = 0;
  // Rows [row, row + n_positions) of the segment.
  int64_t row = 0;
  int64_t n_positions = 0;

  int64_t n_rows() const { return n_positions * n_heads; }
  // Where tile row r stands in q and out.
  int64_t Offset(const AttentionParams& p, int64_t r) const {
    const int64_t at = segment->row_begin + row + r / n_heads;
    return (at * p.n_heads + head + r % n_heads) * p.shape.head_dim;
  }
};

template <class V>
struct AttentionStepBf16 {
  using Element = uint16_t;
  using Pair = uint32_t;
  // Tokens (of V) or dimensions (of K) of one step.
  static constexpr int64_t kPerStep = 2;
  using Vec = typename V::U32;
  static Vec Load(const Pair* p) { return V::LoadU32(p); }
  static Vec Broadcast(Pair p) { return V::SetU32(p); }
  static typename V::F32 Accumulate(Vec a, Vec b, typename V::F32 acc) {
    return V::DotBf16(acc, a, b);
  }
  static void Store(typename V::F32 x, Element* p) { V::StoreBf16(x, p); }
  // Which halves of a pair are visible: both, or the first or second token.
  static Vec Mask(Vec v, bool first, bool second) {
    const uint32_t mask =
        (first ? 0x0000ffffu : 0u) | (second ? 0xffff0000u : 0u);
    return V::And(v, V::SetU32(mask));
  }
};

template <class V>
struct AttentionStepF32 {
  using Element = float;
  using Pair = float;
  static constexpr int64_t kPerStep = 1;
  using Vec = typename V::F32;
  static Vec Load(const Pair* p) { return V::Load(p); }
  static Vec Broadcast(Pair p) { return V::Set(p); }
  static typename V::F32 Accumulate(Vec a, Vec b, typename V::F32 acc) {
    return V::Fma(a, b, acc);
  }
  static void Store(typename V::F32 x, Element* p) { V::Store(x, p); }
  static Vec Mask(Vec v, bool, bool) { return v; }
};

template <class V>
float ExpOf(float x) {
  float lanes[16];
  V::Store(Exp<V>(V::Set(x)), lanes);
  return lanes[0];
}

template <class V, class Step>
class AttentionTileRunner {
 public:
  AttentionTileRunner(const AttentionParams& params, const AttentionTile& tile,
                      const AttentionScratch& scratch)
      : p_(params), tile_(tile), scratch_(scratch) {
    rows_ = tile_.n_rows();
    LoadQueries();
  }

  // The rows' keys inside split `split`, into `out`. False when no row has any.
  bool RunSplit(int64_t split, const AttentionPartial& out) {
    const int64_t split_begin = split * kSplitTokens;
    const int64_t split_end = split_begin + kSplitTokens;
    int64_t begin = split_end;
    int64_t end = split_begin;
    for (int64_t i = 0; i < tile_.n_positions; ++i) {
      const KeyRange keys = Keys(i);
      begin = keys.begin < begin ? keys.begin : begin;
      end = keys.end > end ? keys.end : end;
    }
    if (begin < split_begin) begin = split_begin;
    if (end > split_end) end = split_end;
    for (int64_t r = 0; r < rows_; ++r) {
      out.max[r] = -__builtin_inff();
      out.sum[r] = 0.0f;
    }
    const int64_t hd = p_.shape.head_dim;
    for (int64_t i = 0; i < rows_ * hd; ++i) out.acc[i] = 0.0f;
    for (int64_t page = begin / kPageTokens; page * kPageTokens < end; ++page) {
      RunPage(page, split_begin, split_end, out);
    }
    return begin < end;
  }

 private:
  using Element = typename Step::Element;
  using Pair = typename Step::Pair;

  // Rows whose scores, or whose values, share one pass of loads.
  static constexpr int kScoreRows = V::kScoreRows;
  static constexpr int kValueRows = V::kValueRows;
  // Registers of one row's values in a pass: 16 dimensions each.
  static constexpr int kValueVecs = V::kValueVecs;

  // Visible tokens of a page.
  struct Visible {
    int64_t begin;
    int64_t end;
  };

  KeyRange Keys(int64_t position) const {
    return tile_.segment->keys[tile_.row + position];
  }

  void LoadQueries() {
    const int64_t hd = p_.shape.head_dim;
    auto* q = static_cast<Element*>(scratch_.q);
    for (int64_t r = 0; r < rows_; ++r) {
      const float* from = p_.q + tile_.Offset(p_, r);
      for (int64_t d = 0; d < hd; d += 16) {
        Step::Store(V::Load(from + d), q + r * hd + d);
      }
    }
  }

  Visible VisibleIn(int64_t page, int64_t r, int64_t split_begin,
                    int64_t split_end) const {
    const KeyRange keys = Keys(r / tile_.n_heads);
    int64_t begin = keys.begin > split_begin ? keys.begin : split_begin;
    int64_t end = keys.end < split_end ? keys.end : split_end;
    begin -= page * kPageTokens;
    end -= page * kPageTokens;
    if (begin < 0) begin = 0;
    if (end > kPageTokens) end = kPageTokens;
    return {begin, end};
  }

  void RunPage(int64_t page_index, int64_t split_begin, int64_t split_end,
               const AttentionPartial& out) {
    const uint8_t* page = tile_.segment->kv.page(page_index);
    const uint8_t* k =
        page + 2 * p_.shape.head_bytes() * static_cast<size_t>(tile_.kv_head);
    const uint8_t* v = k + p_.shape.head_bytes();
    Visible visible[kTileRows];
    for (int64_t r = 0; r < rows_; ++r) {
      visible[r] = VisibleIn(page_index, r, split_begin, split_end);
    }
    int64_t r = 0;
    for (; r + kScoreRows <= rows_; r += kScoreRows) {
      Scores<kScoreRows>(k, r, visible);
    }
    for (; r < rows_; ++r) Scores<1>(k, r, visible);
    for (r = 0; r < rows_; ++r) Softmax(r, visible[r], out);
    for (r = 0; r + kValueRows <= rows_; r += kValueRows) {
      Values<kValueRows>(v, r, visible, out);
    }
    for (; r < rows_; ++r) Values<1>(v, r, visible, out);
  }

  // scores[r][key] of the 16-key groups that any of the R rows sees.
  template <int R>
  void Scores(const uint8_t* k, int64_t first, const Visible* visible) {
    const int64_t steps = p_.shape.head_dim / Step::kPerStep;
    const auto* q = static_cast<const Pair*>(scratch_.q);
    int64_t begin = kPageTokens;
    int64_t end = 0;
    for (int64_t r = first; r < first + R; ++r) {
      if (visible[r].begin >= visible[r].end) continue;
      begin = visible[r].begin < begin ? visible[r].begin : begin;
      end = visible[r].end > end ? visible[r].end : end;
    }
    for (int64_t g = begin / 16; g * 16 < end; ++g) {
      const auto* keys = reinterpret_cast<const Pair*>(k) + g * steps * 16;
      typename V::F32 acc[R];
      for (int i = 0; i < R; ++i) acc[i] = V::Zero();
      for (int64_t s = 0; s < steps; ++s) {
        const auto key = Step::Load(keys + s * 16);
        for (int i = 0; i < R; ++i) {
          const auto query = Step::Broadcast(q[(first + i) * steps + s]);
          acc[i] = Step::Accumulate(query, key, acc[i]);
        }
      }
      for (int i = 0; i < R; ++i) {
        auto score = V::Mul(acc[i], V::Set(p_.scale));
        if (p_.softcap != 0.0f) {
          const auto cap = V::Set(p_.softcap);
          score = V::Mul(cap, Tanh<V>(V::Div(score, cap)));
        }
        V::Store(score, scratch_.scores + (first + i) * kPageTokens + g * 16);
      }
    }
  }

  // Turns a row's scores into numerators, and rescales what it has so far.
  void Softmax(int64_t r, Visible visible, const AttentionPartial& out) {
    if (visible.begin >= visible.end) return;
    const float* scores = scratch_.scores + r * kPageTokens;
    auto* weights = static_cast<Element*>(scratch_.weights) + r * kPageTokens;
    const auto lowest = V::Set(-__builtin_inff());
    const int64_t first = visible.begin / 16;
    const int64_t last = (visible.end + 15) / 16;
    auto max = lowest;
    for (int64_t g = first; g < last; ++g) {
      max = V::Max(max, Inside(V::Load(scores + g * 16), lowest, g, visible));
    }
    const float page_max = V::MaxLane(max);
    const float old_max = out.max[r];
    const float new_max = old_max > page_max ? old_max : page_max;
    auto sum = V::Zero();
    for (int64_t g = first; g < last; ++g) {
      const auto e = Exp<V>(V::Sub(V::Load(scores + g * 16), V::Set(new_max)));
      const auto w = Inside(e, V::Zero(), g, visible);
      sum = V::Add(sum, w);
      Step::Store(w, weights + g * 16);
    }
    const float rescale = ExpOf<V>(old_max - new_max);
    out.max[r] = new_max;
    out.sum[r] = out.sum[r] * rescale + V::Sum(sum);
    if (new_max == old_max) return;  // the factor is exactly 1
    float* acc = out.acc + r * p_.shape.head_dim;
    const auto factor = V::Set(rescale);
    for (int64_t d = 0; d < p_.shape.head_dim; d += 16) {
      V::Store(V::Mul(V::Load(acc + d), factor), acc + d);
    }
  }

  static typename V::F32 Inside(typename V::F32 in, typename V::F32 outside,
                                int64_t g, Visible visible) {
    int64_t begin = visible.begin - g * 16;
    int64_t end = visible.end - g * 16;
    if (begin <= 0 && end >= 16) return in;
    begin = begin < 0 ? 0 : (begin > 16 ? 16 : begin);
    end = end < 0 ? 0 : (end > 16 ? 16 : end);
    return V::Select(static_cast<int>(begin), static_cast<int>(end), in,
                     outside);
  }

  // acc[r] += sum over visible tokens, ascending, of weight x value. Steps that
  // all R rows see in full are shared; each row does its own edges.
  template <int R>
  void Values(const uint8_t* v, int64_t first, const Visible* visible,
              const AttentionPartial& out) {
    constexpr int64_t kPer = Step::kPerStep;
    int64_t common_begin = 0;
    int64_t common_end = kPageTokens / kPer;
    for (int64_t r = first; r < first + R; ++r) {
      const int64_t begin = (visible[r].begin + kPer - 1) / kPer;
      const int64_t end =
          visible[r].end <= visible[r].begin ? 0 : visible[r].end / kPer;
      common_begin = begin > common_begin ? begin : common_begin;
      common_end = end < common_end ? end : common_end;
    }
    const bool shared = common_begin < common_end;
    for (int64_t r = first; r < first + R; ++r) {
      const int64_t stop = shared ? common_begin * kPer : visible[r].end;
      Edge(v, r, {visible[r].begin, stop}, out);
    }
    if (!shared) return;
    for (int64_t d = 0; d < p_.shape.head_dim; d += 16 * kValueVecs) {
      const int64_t vecs = (p_.shape.head_dim - d) / 16;
      if (vecs >= kValueVecs) {
        Shared<R, kValueVecs>(v, first, d, common_begin, common_end, out);
      } else {
        for (int64_t i = 0; i < vecs; ++i) {
          Shared<R, 1>(v, first, d + i * 16, common_begin, common_end, out);
        }
      }
    }
    for (int64_t r = first; r < first + R; ++r) {
      Edge(v, r, {common_end * kPer, visible[r].end}, out);
    }
  }

  template <int R, int N>
  void Shared(const uint8_t* v, int64_t first, int64_t d, int64_t begin,
              int64_t end, const AttentionPartial& out) {
    const int64_t hd = p_.shape.head_dim;
    const auto* values = reinterpret_cast<const Pair*>(v);
    const auto* weights = static_cast<const Pair*>(scratch_.weights);
    constexpr int64_t kSteps = kPageTokens / Step::kPerStep;
    typename V::F32 acc[R][N];
    for (int i = 0; i < R; ++i) {
      for (int n = 0; n < N; ++n) {
        acc[i][n] = V::Load(out.acc + (first + i) * hd + d + n * 16);
      }
    }
    for (int64_t s = begin; s < end; ++s) {
      typename Step::Vec value[N];
      for (int n = 0; n < N; ++n) {
        value[n] = Step::Load(values + s * hd + d + n * 16);
      }
      for (int i = 0; i < R; ++i) {
        const auto weight = Step::Broadcast(weights[(first + i) * kSteps + s]);
        for (int n = 0; n < N; ++n) {
          acc[i][n] = Step::Accumulate(weight, value[n], acc[i][n]);
        }
      }
    }
    for (int i = 0; i < R; ++i) {
      for (int n = 0; n < N; ++n) {
        V::Store(acc[i][n], out.acc + (first + i) * hd + d + n * 16);
      }
    }
  }

  // One row's tokens [begin, end), a half-visible step masked: its other half
  // may hold anything.
  void Edge(const uint8_t* v, int64_t r, Visible tokens,
            const AttentionPartial& out) {
    constexpr int64_t kPer = Step::kPerStep;
    constexpr int64_t kSteps = kPageTokens / kPer;
    const int64_t hd = p_.shape.head_dim;
    const auto* values = reinterpret_cast<const Pair*>(v);
    const auto* weights = static_cast<const Pair*>(scratch_.weights);
    for (int64_t s = tokens.begin / kPer; s * kPer < tokens.end; ++s) {
      const bool first_seen = s * kPer >= tokens.begin;
      const bool second_seen = s * kPer + kPer - 1 < tokens.end;
      const auto weight = Step::Broadcast(weights[r * kSteps + s]);
      float* acc = out.acc + r * hd;
      for (int64_t d = 0; d < hd; d += 16) {
        const auto value = Step::Mask(Step::Load(values + s * hd + d),
                                      first_seen, second_seen);
        V::Store(Step::Accumulate(weight, value, V::Load(acc + d)), acc + d);
      }
    }
  }

  const AttentionParams& p_;
  const AttentionTile& tile_;
  const AttentionScratch& scratch_;
  int64_t rows_ = 0;
};

// part into total, both over the same rows. Ascending splits only.
template <class V>
void MergeAttention(int64_t rows, int64_t head_dim,
                    const AttentionPartial& part,
                    const AttentionPartial& total) {
  for (int64_t r = 0; r < rows; ++r) {
    // A row without keys in this split (sum 0) leaves the total as it is.
    if (part.sum[r] == 0.0f) continue;
    float* acc = total.acc + r * head_dim;
    const float* more = part.acc + r * head_dim;
    if (total.sum[r] == 0.0f) {
      for (int64_t d = 0; d < head_dim; ++d) acc[d] = more[d];
      total.max[r] = part.max[r];
      total.sum[r] = part.sum[r];
      continue;
    }
    const float max = total.max[r] > part.max[r] ? total.max[r] : part.max[r];
    const float a = ExpOf<V>(total.max[r] - max);
    const float b = ExpOf<V>(part.max[r] - max);
    for (int64_t d = 0; d < head_dim; d += 16) {
      const auto kept = V::Mul(V::Load(acc + d), V::Set(a));
      V::Store(V::Fma(V::Load(more + d), V::Set(b), kept), acc + d);
    }
    total.max[r] = max;
    total.sum[r] = total.sum[r] * a + part.sum[r] * b;
  }
}

// 1 / sum of a row's numerators, or with the sink of its head among them.
template <class V>
float InverseSum(const AttentionParams& p, const AttentionTile& tile, int64_t r,
                 float row_max, float row_sum) {
  if (p.sinks == nullptr) return 1.0f / row_sum;
  const float sink = p.sinks[tile.head + r % tile.n_heads];
  const float max = row_max > sink ? row_max : sink;
  const float kept = ExpOf<V>(row_max - max);
  return kept / (row_sum * kept + ExpOf<V>(sink - max));
}

// total / sum into the tile's place in out.
template <class V>
void FinishAttention(const AttentionParams& p, const AttentionTile& tile,
                     const AttentionPartial& total) {
  const int64_t hd = p.shape.head_dim;
  const RowSink sink =
      p.out_dtype == DType::kBf16 ? RowSink::kStoreBf16 : RowSink::kStoreF32;
  for (int64_t r = 0; r < tile.n_rows(); ++r) {
    const int64_t at = tile.Offset(p, r);
    const auto inverse =
        V::Set(InverseSum<V>(p, tile, r, total.max[r], total.sum[r]));
    for (int64_t d = 0; d < hd; d += 16) {
      StoreLanes<V>(V::Mul(V::Load(total.acc + r * hd + d), inverse), at + d,
                    p.out, sink);
    }
  }
}

template <class V>
bool AttentionSplitCpu(const AttentionParams& p, const AttentionTile& tile,
                       int64_t split, const AttentionScratch& scratch,
                       const AttentionPartial& out) {
  if (p.shape.dtype == DType::kBf16) {
    return AttentionTileRunner<V, AttentionStepBf16<V>>(p, tile, scratch)
        .RunSplit(split, out);
  }
  return AttentionTileRunner<V, AttentionStepF32<V>>(p, tile, scratch)
      .RunSplit(split, out);
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ATTENTION_CPU_H_
