// SPDX-License-Identifier: Apache-2.0
//
// The steps that the equations of model.h are written in: rows of floats in,
// rows of floats out, [rows, dim], in a backend's memory. Round() stands where
// the model rounds to bf16; in f32 it does nothing. Not thread-safe.

#ifndef TORPOR_REPLAY_DEEPSEEK_V41_ROW_MATH_H_
#define TORPOR_REPLAY_DEEPSEEK_V41_ROW_MATH_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/ops.h"
#include "replay/deepseek_v41/float_rows.h"
#include "replay/deepseek_v41/model.h"
#include "replay/deepseek_v41/weights.h"

namespace torpor::replay::deepseek_v41 {

class RowMath {
 public:
  // `ops` outlives it. `compute` is the dtype of rows between two ops.
  RowMath(kernels::Ops* ops, kernels::DType compute, float norm_eps,
          uint64_t max_rows)
      : ops_(*ops),
        compute_(compute),
        norm_eps_(norm_eps),
        pool_(ops, max_rows),
        bf16_(ops) {}

  kernels::Ops& ops() { return ops_; }
  [[nodiscard]] bool is_bf16() const {
    return compute_ == kernels::DType::kBf16;
  }

  // Not initialised.
  FloatRows New(uint64_t n_rows, int64_t dim) { return pool_.New(n_rows, dim); }
  // The host's values.
  FloatRows Upload(std::span<const float> values, int64_t dim);
  // Rows of `blocks`, one after the other: a slice where they follow each
  // other already.
  FloatRows Gather(std::span<const RowBlock> blocks, const FloatRows& from);
  // The other way.
  void Scatter(std::span<const RowBlock> blocks, const FloatRows& rows,
               FloatRows* to);

  // Puts `part` into columns [at, at + its dim) of rows as many.
  void SetColumns(int64_t at, const FloatRows& part, FloatRows* to);

  // W x in f32, x rounded as the layer wants its input.
  FloatRows Multiply(const Linear& w, const FloatRows& x);
  // Round(Multiply).
  FloatRows Project(const Linear& w, const FloatRows& x);
  // Round(x / rms(x) * weight).
  FloatRows Norm(const FloatRows& x, const Floats& weight);
  // In place.
  FloatRows Round(FloatRows x);

  // x as a GEMM with `w` wants it; valid until the next call or `x` is gone.
  const void* Input(const Linear& w, const FloatRows& x);

  void set_tap(Tap* tap) { tap_ = tap; }
  [[nodiscard]] Tap* tap() const { return tap_; }
  // Shows rows to the tap, if there is one.
  void Show(std::string_view name, uint32_t layer, std::span<const RowRun> runs,
            FloatRows* rows);

 private:
  kernels::Ops& ops_;
  const kernels::DType compute_;
  const float norm_eps_;
  Tap* tap_ = nullptr;
  RowPool pool_;
  // Inputs of a GEMM, kept between calls.
  FloatRows quantised_;
  kernels::Buffer<kernels::Bf16> bf16_;
};

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_REPLAY_DEEPSEEK_V41_ROW_MATH_H_
