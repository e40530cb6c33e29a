// SPDX-License-Identifier: Apache-2.0
//
// Manifold-constrained hyper-connections (DeepSeek V4.1 section 2.3): a row has
// n_streams residual streams; a sub-layer reads a mix of them and its result is
// spread over them again.
//   u = sum_j mix_j X_j
//   X'_k = post_k y + sum_j comb[j, k] X_j
// mix, post and comb come from a projection of the streams. All f32, a row at a
// time; every result has one order of operations (design D9).
// Floor: each op reads its rows once and writes them once.

#ifndef TORPOR_KERNELS_HYPER_CONNECTION_H_
#define TORPOR_KERNELS_HYPER_CONNECTION_H_

#include <cstdint>

namespace torpor::kernels {

// Streams of a row at most.
inline constexpr int64_t kMaxStreams = 16;

// From m = projection / sqrt(mean(X^2) + norm_eps), whose parts are
// [pre | post | comb]:
//   pre  = sigmoid(m scale[0] + base) + eps
//   post = 2 sigmoid(m scale[1] + base)
//   comb = softmax over the last axis of (m scale[2] + base) as [n, n], + eps;
//          columns divided by their sums (+ eps); then n_iterations - 1 times
//          rows and columns likewise
struct HyperMixParams {
  // [n_rows, n_streams, dim] f32.
  const float* x = nullptr;
  int64_t n_rows = 0;
  int64_t n_streams = 0;
  int64_t dim = 0;
  // [n_rows, n_streams * (2 + n_streams)] f32: the streams, not yet normed,
  // times the weight.
  const float* projection = nullptr;
  const float* base = nullptr;   // [n_streams * (2 + n_streams)]
  const float* scale = nullptr;  // [3]
  float norm_eps = 0.0f;
  float eps = 0.0f;
  int64_t n_iterations = 1;
  float* pre = nullptr;   // [n_rows, n_streams]
  float* post = nullptr;  // [n_rows, n_streams]
  float* comb = nullptr;  // [n_rows, n_streams, n_streams], [j, k] as above
};

struct HyperCollapseParams {
  // [n_rows, n_streams, dim] f32.
  const float* x = nullptr;
  int64_t n_rows = 0;
  int64_t n_streams = 0;
  int64_t dim = 0;
  const float* mix = nullptr;  // [n_rows, n_streams]
  float* out = nullptr;        // [n_rows, dim]
};

struct HyperExpandParams {
  // [n_rows, n_streams, dim] f32, replaced by X'.
  float* x = nullptr;
  int64_t n_rows = 0;
  int64_t n_streams = 0;
  int64_t dim = 0;
  const float* y = nullptr;     // [n_rows, dim]
  const float* post = nullptr;  // [n_rows, n_streams]
  const float* comb = nullptr;  // [n_rows, n_streams, n_streams]
};

// Scalar, double.
void HyperMixRef(const HyperMixParams& params);
void HyperCollapseRef(const HyperCollapseParams& params);
void HyperExpandRef(const HyperExpandParams& params);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_HYPER_CONNECTION_H_
