// SPDX-License-Identifier: Apache-2.0
//
// What an Engram's values add to the streams of a row (DeepSeek V4.1 section
// 2.11):
//   t_j = <X_j qk_j, key_j> / rms(X_j) / rms(key_j) / sqrt(dim)
//   X_j += sigmoid(copysign(sqrt(max(|t_j|, 1e-6)), t_j)) value
// with rms(v) = sqrt(mean(v^2) + eps). In f32, each sum in sixteen partial sums
// (term i in partial i % 16) that are folded in halves; the sigmoid in double,
// rounded once. A NaN stays one.
// Floor: streams, keys and value read once, streams written once.

#ifndef TORPOR_KERNELS_ENGRAM_GATE_H_
#define TORPOR_KERNELS_ENGRAM_GATE_H_

#include <cstdint>

namespace torpor::kernels {

struct EngramGateParams {
  float* x = nullptr;  // [n_rows, n_streams, dim] f32, added to in place
  int64_t n_rows = 0;
  int64_t n_streams = 0;
  int64_t dim = 0;
  // [n_rows, n_streams + 1, dim] f32: a key a stream, then the value.
  const float* kv = nullptr;
  const float* qk = nullptr;  // [n_streams, dim] f32
  float eps = 0.0f;
};

void EngramGateRef(const EngramGateParams& params);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ENGRAM_GATE_H_
