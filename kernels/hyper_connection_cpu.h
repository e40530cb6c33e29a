// SPDX-License-Identifier: Apache-2.0
//
// kernels/hyper_connection.h over sixteen lanes. Mixes: lanes are rows, each
// lane by itself. Collapse and expand: lanes are channels.

#ifndef TORPOR_KERNELS_HYPER_CONNECTION_CPU_H_
#define TORPOR_KERNELS_HYPER_CONNECTION_CPU_H_

#include <cstdint>

#include "kernels/hyper_connection.h"
#include "kernels/rms_norm_cpu.h"
#include "kernels/simd_math.h"

namespace torpor::kernels {

// The mixes of sixteen rows, or fewer: the other lanes are spare.
template <class V>
class HyperMixRows {
 public:
  HyperMixRows(const HyperMixParams& params, int64_t row_begin, int64_t row_end)
      : p_(params),
        row_(row_begin),
        n_rows_(row_end - row_begin < 16 ? row_end - row_begin : 16),
        n_(params.n_streams),
        width_(params.n_streams * (2 + params.n_streams)) {}

  void Run() {
    float inverse[16];
    for (int64_t lane = 0; lane < n_rows_; ++lane) {
      inverse[lane] = InverseNorm(p_.x + (row_ + lane) * n_ * p_.dim);
    }
    inverse_ = LoadSome<V>(inverse, n_rows_);
    const auto eps = V::Set(p_.eps);
    for (int64_t j = 0; j < n_; ++j) {
      StoreColumn(V::Add(Sigmoid<V>(Mix(j, 0)), eps), p_.pre + j, n_);
      StoreColumn(V::Mul(V::Set(2.0f), Sigmoid<V>(Mix(n_ + j, 1))), p_.post + j,
                  n_);
    }
    for (int64_t i = 0; i < n_ * n_; ++i) c_[i] = Mix(2 * n_ + i, 2);
    for (int64_t j = 0; j < n_; ++j) Softmax(c_ + j * n_);
    DivideBySums(1, n_);
    for (int64_t i = 1; i < p_.n_iterations; ++i) {
      DivideBySums(n_, 1);
      DivideBySums(1, n_);
    }
    for (int64_t i = 0; i < n_ * n_; ++i) {
      StoreColumn(c_[i], p_.comb + i, n_ * n_);
    }
  }

 private:
  using F32 = typename V::F32;

  // Four sums of every fourth sixteen, then their sum: one would wait for each
  // of its additions.
  float InverseNorm(const float* x) const {
    const int64_t size = n_ * p_.dim;
    F32 squares[4] = {V::Zero(), V::Zero(), V::Zero(), V::Zero()};
    int64_t i = 0;
    for (; i + 64 <= size; i += 64) {
      for (int k = 0; k < 4; ++k) {
        const auto v = V::Load(x + i + k * 16);
        squares[k] = V::Fma(v, v, squares[k]);
      }
    }
    for (int k = 0; i < size; i += 16, ++k) {
      const auto v = LoadSome<V>(x + i, size - i < 16 ? size - i : 16);
      squares[k] = V::Fma(v, v, squares[k]);
    }
    const float sum = V::Sum(
        V::Add(V::Add(squares[0], squares[1]), V::Add(squares[2], squares[3])));
    const float mean = sum / static_cast<float>(size);
    return 1.0f / __builtin_sqrtf(mean + p_.norm_eps);
  }

  F32 Mix(int64_t i, int part) const {
    float values[16];
    for (int64_t lane = 0; lane < 16; ++lane) {
      const int64_t row = lane < n_rows_ ? lane : n_rows_ - 1;
      values[lane] = p_.projection[(row_ + row) * width_ + i];
    }
    return V::Fma(V::Mul(V::Load(values), inverse_), V::Set(p_.scale[part]),
                  V::Set(p_.base[i]));
  }

  // Row r's value to out[r * stride].
  void StoreColumn(F32 value, float* out, int64_t stride) const {
    float values[16];
    V::Store(value, values);
    for (int64_t lane = 0; lane < n_rows_; ++lane) {
      out[(row_ + lane) * stride] = values[lane];
    }
  }

  void Softmax(F32* row) const {
    F32 max = row[0];
    for (int64_t k = 1; k < n_; ++k) max = V::Max(max, row[k]);
    F32 sum = V::Zero();
    for (int64_t k = 0; k < n_; ++k) {
      row[k] = Exp<V>(V::Sub(row[k], max));
      sum = V::Add(sum, row[k]);
    }
    const auto inverse = V::Div(V::Set(1.0f), sum);
    for (int64_t k = 0; k < n_; ++k) {
      row[k] = V::Fma(row[k], inverse, V::Set(p_.eps));
    }
  }

  // Lines whose elements are `step` apart, and which begin `next` apart.
  void DivideBySums(int64_t next, int64_t step) {
    for (int64_t a = 0; a < n_; ++a) {
      F32* line = c_ + a * next;
      F32 sum = V::Set(p_.eps);
      for (int64_t b = 0; b < n_; ++b) sum = V::Add(sum, line[b * step]);
      const auto inverse = V::Div(V::Set(1.0f), sum);
      for (int64_t b = 0; b < n_; ++b) {
        line[b * step] = V::Mul(line[b * step], inverse);
      }
    }
  }

  const HyperMixParams& p_;
  const int64_t row_;
  const int64_t n_rows_;
  const int64_t n_;
  const int64_t width_;
  F32 inverse_;
  F32 c_[kMaxStreams * kMaxStreams];
};

template <class V>
void HyperMixCpu(const HyperMixParams& p, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; row += 16) {
    HyperMixRows<V>(p, row, row_end).Run();
  }
}

// mix_0 X_0, then the others added in ascending order.
template <class V>
void HyperCollapseCpu(const HyperCollapseParams& p, int64_t row_begin,
                      int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* x = p.x + row * p.n_streams * p.dim;
    const float* mix = p.mix + row * p.n_streams;
    for (int64_t i = 0; i < p.dim; i += 16) {
      const int64_t n = p.dim - i < 16 ? p.dim - i : 16;
      const auto load = [&](int64_t j) {
        const float* from = x + j * p.dim + i;
        return n == 16 ? V::Load(from) : LoadSome<V>(from, n);
      };
      auto sum = V::Mul(V::Set(mix[0]), load(0));
      for (int64_t j = 1; j < p.n_streams; ++j) {
        sum = V::Fma(V::Set(mix[j]), load(j), sum);
      }
      if (n == 16) {
        V::Store(sum, p.out + row * p.dim + i);
      } else {
        StoreSome<V>(sum, n, row * p.dim + i, p.out, RowSink::kStoreF32);
      }
    }
  }
}

// Sixteen channels of a row, or n < 16. Streams are all read before one is
// written; kStreams 0: as many as there are.
template <class V, int kStreams>
void HyperExpandLanes(const HyperExpandParams& p, int64_t row, int64_t i,
                      int64_t n) {
  const int64_t streams = kStreams == 0 ? p.n_streams : kStreams;
  const float* comb = p.comb + row * streams * streams;
  const auto load = [&](const float* from) {
    return n == 16 ? V::Load(from) : LoadSome<V>(from, n);
  };
  typename V::F32 x[kStreams == 0 ? kMaxStreams : kStreams];
  for (int64_t j = 0; j < streams; ++j) {
    x[j] = load(p.x + (row * streams + j) * p.dim + i);
  }
  const auto y = load(p.y + row * p.dim + i);
  for (int64_t k = 0; k < streams; ++k) {
    auto sum = V::Mul(V::Set(p.post[row * streams + k]), y);
    for (int64_t j = 0; j < streams; ++j) {
      sum = V::Fma(V::Set(comb[j * streams + k]), x[j], sum);
    }
    const int64_t at = (row * streams + k) * p.dim + i;
    if (n == 16) {
      V::Store(sum, p.x + at);
    } else {
      StoreSome<V>(sum, n, at, p.x, RowSink::kStoreF32);
    }
  }
}

// post_k y, then the streams in ascending order.
template <class V>
void HyperExpandCpu(const HyperExpandParams& p, int64_t row_begin,
                    int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t i = 0; i < p.dim; i += 16) {
      const int64_t n = p.dim - i < 16 ? p.dim - i : 16;
      if (p.n_streams == 4) {
        HyperExpandLanes<V, 4>(p, row, i, n);
      } else {
        HyperExpandLanes<V, 0>(p, row, i, n);
      }
    }
  }
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_HYPER_CONNECTION_CPU_H_
