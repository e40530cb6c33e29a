// SPDX-License-Identifier: Apache-2.0
//
// The steps that the equations of model.h are written in: rows of floats in,
// rows of floats out, [rows, dim]. Round() stands where the model rounds to
// bf16; in f32 it does nothing. Not thread-safe.

#ifndef TORPOR_REPLAY_DEEPSEEK_V41_ROW_MATH_H_
#define TORPOR_REPLAY_DEEPSEEK_V41_ROW_MATH_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/cpu_ops.h"
#include "replay/deepseek_v41/model.h"
#include "replay/deepseek_v41/weights.h"

namespace torpor::replay::deepseek_v41 {

using FloatRows = std::vector<float>;

class RowMath {
 public:
  // `ops` outlives it. `compute` is the dtype of rows between two ops.
  RowMath(kernels::CpuOps* ops, kernels::DType compute, float norm_eps)
      : ops_(*ops), compute_(compute), norm_eps_(norm_eps) {}

  kernels::CpuOps& ops() { return ops_; }
  [[nodiscard]] bool is_bf16() const {
    return compute_ == kernels::DType::kBf16;
  }

  // W x in f32, x rounded as the layer wants its input.
  FloatRows Multiply(const Linear& w, std::span<const float> x);
  // Round(Multiply).
  FloatRows Project(const Linear& w, std::span<const float> x);
  // Round(x / rms(x) * weight), a row being as long as the weight.
  FloatRows Norm(std::span<const float> x, std::span<const float> weight);
  FloatRows Round(FloatRows x) const;

  void set_tap(Tap* tap) { tap_ = tap; }
  [[nodiscard]] Tap* tap() const { return tap_; }
  // Shows rows to the tap, if there is one.
  void Show(std::string_view name, uint32_t layer, std::span<const RowRun> runs,
            std::span<float> rows) const {
    if (tap_ != nullptr) tap_->OnRows(name, layer, runs, rows);
  }

 private:
  kernels::CpuOps& ops_;
  const kernels::DType compute_;
  const float norm_eps_;
  Tap* tap_ = nullptr;
  // Inputs of a GEMM, kept between calls.
  FloatRows quantised_;
  std::vector<kernels::Bf16> bf16_;
};

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_REPLAY_DEEPSEEK_V41_ROW_MATH_H_
