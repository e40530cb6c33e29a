// SPDX-License-Identifier: Apache-2.0
//
// Rows of a batch between two ops of a forward.

#ifndef TORPOR_REPLAY_ACTIVATIONS_H_
#define TORPOR_REPLAY_ACTIVATIONS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/gemm.h"
#include "kernels/ops.h"

namespace torpor::replay {

using Floats = kernels::Buffer<float>;

// [rows, dim] of a GEMM's input dtype, row-major, in a backend's memory.
class Activations {
 public:
  explicit Activations(kernels::Ops* ops) : bytes_(ops) {}

  void Resize(uint64_t rows, int64_t dim, kernels::DType dtype) {
    stride_ = static_cast<size_t>(dim) * kernels::DTypeBytes(dtype);
    bytes_.Resize(rows * stride_);
  }
  [[nodiscard]] uint8_t* data() { return bytes_.data(); }
  [[nodiscard]] uint8_t* Row(uint64_t row) {
    return bytes_.data() + row * stride_;
  }

 private:
  kernels::Buffer<uint8_t> bytes_;
  size_t stride_ = 0;
};

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_ACTIVATIONS_H_
