// SPDX-License-Identifier: Apache-2.0
//
// Rows of a batch between two ops of a forward. Plain values.

#ifndef TORPOR_REPLAY_GEMMA3_ACTIVATIONS_H_
#define TORPOR_REPLAY_GEMMA3_ACTIVATIONS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/gemm.h"

namespace torpor::replay::gemma3 {

// [rows, dim] of a GEMM's input dtype, row-major.
struct Activations {
  std::vector<uint8_t> bytes;
  kernels::DType dtype = kernels::DType::kF32;
  int64_t dim = 0;

  void Resize(uint64_t rows, int64_t row_dim, kernels::DType row_dtype) {
    dtype = row_dtype;
    dim = row_dim;
    bytes.resize(rows * Stride());
  }
  [[nodiscard]] size_t Stride() const {
    return static_cast<size_t>(dim) * kernels::DTypeBytes(dtype);
  }
  [[nodiscard]] uint8_t* Row(uint64_t row) {
    return bytes.data() + row * Stride();
  }
};

}  // namespace torpor::replay::gemma3

#endif  // TORPOR_REPLAY_GEMMA3_ACTIVATIONS_H_
