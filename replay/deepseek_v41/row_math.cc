// SPDX-License-Identifier: Apache-2.0

#include "replay/deepseek_v41/row_math.h"

namespace torpor::replay::deepseek_v41 {

using kernels::DType;

FloatRows RowMath::Upload(std::span<const float> values, int64_t dim) {
  FloatRows rows = New(values.size() / static_cast<size_t>(dim), dim);
  ops_.Upload(rows.data(), values.data(), values.size_bytes());
  return rows;
}

FloatRows RowMath::Gather(std::span<const RowBlock> blocks,
                          const FloatRows& from) {
  if (blocks.size() == 1) return from.Slice(blocks[0].first, blocks[0].n);
  uint64_t n_rows = 0;
  for (const RowBlock& block : blocks) n_rows += block.n;
  FloatRows out = New(n_rows, from.dim());
  uint64_t at = 0;
  for (const RowBlock& block : blocks) {
    ops_.CopyRows({.x = from.row(block.first),
                   .x_stride = from.dim(),
                   .n_rows = static_cast<int64_t>(block.n),
                   .dim = from.dim(),
                   .out = out.row(at),
                   .out_stride = from.dim()});
    at += block.n;
  }
  return out;
}

void RowMath::Scatter(std::span<const RowBlock> blocks, const FloatRows& rows,
                      FloatRows* to) {
  uint64_t at = 0;
  for (const RowBlock& block : blocks) {
    // A slice stands where it belongs.
    if (rows.row(at) != to->row(block.first)) {
      ops_.CopyRows({.x = rows.row(at),
                     .x_stride = rows.dim(),
                     .n_rows = static_cast<int64_t>(block.n),
                     .dim = rows.dim(),
                     .out = to->row(block.first),
                     .out_stride = rows.dim()});
    }
    at += block.n;
  }
}

void RowMath::SetColumns(int64_t at, const FloatRows& part, FloatRows* to) {
  ops_.CopyRows({.x = part.data(),
                 .x_stride = part.dim(),
                 .n_rows = static_cast<int64_t>(part.n_rows()),
                 .dim = part.dim(),
                 .out = to->data() + at,
                 .out_stride = to->dim()});
}

const void* RowMath::Input(const Linear& linear, const FloatRows& x) {
  const float* in = x.data();
  if (linear.quantised_input) {
    const auto n_rows = static_cast<int64_t>(x.n_rows());
    quantised_ = {};
    quantised_ = New(x.n_rows(), x.dim());
    ops_.CopyRows({.x = in,
                   .x_stride = x.dim(),
                   .n_rows = n_rows,
                   .dim = x.dim(),
                   .out = quantised_.data(),
                   .out_stride = x.dim()});
    ops_.FakeQuantFp8({.x = quantised_.data(),
                       .n_rows = n_rows,
                       .dim = x.dim(),
                       .x_stride = x.dim()});
    in = quantised_.data();
  }
  if (linear.w.dtype() != DType::kBf16) return in;
  bf16_.Resize(static_cast<size_t>(x.size()));
  ops_.ToBf16({.x = in, .n = x.size(), .out = bf16_.data()});
  return bf16_.data();
}

FloatRows RowMath::Multiply(const Linear& w, const FloatRows& x) {
  FloatRows out = New(x.n_rows(), w.w.n());
  if (x.n_rows() == 0) return out;
  ops_.Gemm({.a = Input(w, x),
             .n_rows = static_cast<int64_t>(x.n_rows()),
             .b = &w.w,
             .c = out.data()});
  return out;
}

FloatRows RowMath::Project(const Linear& w, const FloatRows& x) {
  return Round(Multiply(w, x));
}

FloatRows RowMath::Norm(const FloatRows& x, const Floats& weight) {
  FloatRows out = New(x.n_rows(), x.dim());
  ops_.RmsNorm({.x = x.data(),
                .n_rows = static_cast<int64_t>(x.n_rows()),
                .dim = x.dim(),
                .x_stride = x.dim(),
                .weight = weight.data(),
                .eps = norm_eps_,
                .out = out.data(),
                .out_stride = x.dim()});
  return Round(std::move(out));
}

FloatRows RowMath::Round(FloatRows x) {
  if (is_bf16()) ops_.RoundBf16({.x = x.data(), .n = x.size()});
  return x;
}

void RowMath::Show(std::string_view name, uint32_t layer,
                   std::span<const RowRun> runs, FloatRows* rows) {
  if (tap_ == nullptr) return;
  std::vector<float> host(static_cast<size_t>(rows->size()));
  const size_t bytes = host.size() * sizeof(float);
  ops_.Download(host.data(), rows->data(), bytes);
  tap_->OnRows(name, layer, runs, host);
  ops_.Upload(rows->data(), host.data(), bytes);
}

}  // namespace torpor::replay::deepseek_v41
