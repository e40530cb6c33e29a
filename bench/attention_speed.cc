// SPDX-License-Identifier: Apache-2.0

#include "bench/attention_speed.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/cpu_ops.h"

namespace torpor::bench {
namespace {

using kernels::CpuOps;
using kernels::DType;
using kernels::Isa;
using kernels::RowFormat;

std::vector<float> Normals(std::mt19937_64* engine, int64_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(n));
  for (float& v : out) v = normal(*engine);
  return out;
}

std::vector<uint8_t> Encoded(std::mt19937_64* engine, RowFormat format,
                             int64_t n, int64_t dim) {
  const std::vector<float> x = Normals(engine, n * dim);
  const int64_t bytes = RowBytes(format, dim, 0);
  std::vector<uint8_t> out(static_cast<size_t>(n * bytes));
  kernels::EncodeRowsRef({.format = format,
                          .x = x.data(),
                          .n_rows = n,
                          .dim = dim,
                          .x_stride = dim,
                          .out = out.data(),
                          .out_stride = bytes});
  return out;
}

// An op in one shape: its operations, and itself on `ops` or by the reference.
class Op {
 public:
  virtual ~Op() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual int64_t n_rows() const = 0;
  [[nodiscard]] virtual double flops() const = 0;
  virtual void Run(CpuOps* ops, int64_t n_rows) = 0;
  // Of the last run's first row.
  [[nodiscard]] virtual std::vector<float> FirstRow() const = 0;
};

class LatentOp final : public Op {
 public:
  explicit LatentOp(std::mt19937_64* engine)
      : window_(Encoded(engine, RowFormat::kWindowFp8, kRows + kWindow, kDim)),
        entries_(Encoded(engine, RowFormat::kMainFp4, kPool, kDim)),
        q_(Normals(engine, kRows * kHeads * kDim)),
        sinks_(Normals(engine, kHeads)),
        out_(q_.size()),
        lists_(kRows) {
    std::uniform_int_distribution<int64_t> any(0, kPool - 1);
    for (int64_t r = 0; r < kRows; ++r) {
      std::vector<const uint8_t*>& list = lists_[static_cast<size_t>(r)];
      for (int64_t i = 0; i < kWindow; ++i) {
        list.push_back(window_.data() +
                       (r + i) * RowBytes(RowFormat::kWindowFp8, kDim, 0));
      }
      for (int64_t i = 0; i < kEntries; ++i) {
        list.push_back(entries_.data() +
                       any(*engine) * RowBytes(RowFormat::kMainFp4, kDim, 0));
      }
      keys_.push_back({list.data(), kWindow, list.data() + kWindow, kEntries});
    }
  }

  [[nodiscard]] std::string name() const override {
    return absl::StrFormat("latent attention, %d heads x %d + %d keys", kHeads,
                           kWindow, kEntries);
  }
  [[nodiscard]] int64_t n_rows() const override { return kRows; }
  [[nodiscard]] double flops() const override {
    return 4.0 * kRows * kHeads * kDim * (kWindow + kEntries);
  }
  void Run(CpuOps* ops, int64_t n_rows) override {
    const kernels::LatentAttentionParams p{
        .n_rows = n_rows,
        .n_heads = kHeads,
        .head_dim = kDim,
        .scale = 1.0f / std::sqrt(static_cast<float>(kDim)),
        .sinks = sinks_.data(),
        .q = q_.data(),
        .keys = keys_.data(),
        .out = out_.data()};
    ops == nullptr ? LatentAttentionRef(p) : ops->LatentAttention(p);
  }
  [[nodiscard]] std::vector<float> FirstRow() const override {
    return {out_.begin(), out_.begin() + kHeads * kDim};
  }

 private:
  // V4.1-Flash's; entries are picked from so many.
  static constexpr int64_t kHeads = 64;
  static constexpr int64_t kDim = 512;
  static constexpr int64_t kWindow = 128;
  static constexpr int64_t kEntries = 512;
  static constexpr int64_t kPool = 16 * 1024;
  static constexpr int64_t kRows = 8;

  std::vector<uint8_t> window_;
  std::vector<uint8_t> entries_;
  std::vector<float> q_;
  std::vector<float> sinks_;
  std::vector<float> out_;
  std::vector<std::vector<const uint8_t*>> lists_;
  std::vector<kernels::LatentKeys> keys_;
};

class IndexOp final : public Op {
 public:
  IndexOp(std::mt19937_64* engine, int64_t n_rows)
      : n_rows_(n_rows),
        encoded_(Encoded(engine, RowFormat::kIndexFp4, kKeys, kDim)),
        q_(Normals(engine, n_rows * kHeads * kDim)),
        weights_(Normals(engine, n_rows * kHeads)),
        n_visible_(static_cast<size_t>(n_rows), kKeys),
        scores_(static_cast<size_t>(n_rows * kKeys)) {
    for (int64_t i = 0; i < kKeys; i += kPageRows) {
      pages_.push_back(encoded_.data() +
                       i * RowBytes(RowFormat::kIndexFp4, kDim, 0));
    }
  }

  [[nodiscard]] std::string name() const override {
    return absl::StrFormat("index scores, %d %s x %d heads x %d keys", n_rows_,
                           n_rows_ == 1 ? "row" : "rows", kHeads, kKeys);
  }
  [[nodiscard]] int64_t n_rows() const override { return n_rows_; }
  [[nodiscard]] double flops() const override {
    return 2.0 * static_cast<double>(n_rows_) * kHeads * kDim * kKeys;
  }
  void Run(CpuOps* ops, int64_t n_rows) override {
    const kernels::IndexScoreParams p{.n_rows = n_rows,
                                      .n_heads = kHeads,
                                      .dim = kDim,
                                      .scale = 0.1f,
                                      .q = q_.data(),
                                      .weights = weights_.data(),
                                      .pages = pages_.data(),
                                      .page_rows = kPageRows,
                                      .n_visible = n_visible_.data(),
                                      .scores = scores_.data(),
                                      .scores_stride = kKeys};
    ops == nullptr ? IndexScoreRef(p) : ops->IndexScore(p);
  }
  [[nodiscard]] std::vector<float> FirstRow() const override {
    return {scores_.begin(), scores_.begin() + kKeys};
  }

 private:
  // V4.1-Flash's, and as many keys as its candidates.
  static constexpr int64_t kHeads = 32;
  static constexpr int64_t kDim = 128;
  static constexpr int64_t kKeys = 16 * 1024;
  static constexpr int64_t kPageRows = 64;

  const int64_t n_rows_;
  std::vector<uint8_t> encoded_;
  std::vector<float> q_;
  std::vector<float> weights_;
  std::vector<int64_t> n_visible_;
  std::vector<float> scores_;
  std::vector<const uint8_t*> pages_;
};

class Gemm {
 public:
  explicit Gemm(std::mt19937_64* engine)
      : a_(Normals(engine, kRows * kSize)),
        b_(kernels::PackedMatrix::Pack(Normals(engine, kSize * kSize).data(),
                                       kSize, kSize, DType::kF32)),
        c_(a_.size()) {}

  void Run(CpuOps* ops) {
    ops->Gemm({.a = a_.data(), .n_rows = kRows, .b = &b_, .c = c_.data()});
  }
  static constexpr double Flops() { return 2.0 * kRows * kSize * kSize; }

 private:
  static constexpr int64_t kRows = 512;
  static constexpr int64_t kSize = 1024;

  std::vector<float> a_;
  kernels::PackedMatrix b_;
  std::vector<float> c_;
};

// Of the largest of the reference's first row.
absl::Status Verify(CpuOps* ops, Op* op) {
  constexpr double kTolerance = 1e-5;
  op->Run(nullptr, 1);
  const std::vector<float> wanted = op->FirstRow();
  op->Run(ops, op->n_rows());
  const std::vector<float> got = op->FirstRow();
  double largest = 0;
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - wanted[i]));
  }
  if (worst <= kTolerance * largest) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "%s on %s: off by %.3g of a largest value %.3g, wanted %.3g of it",
      op->name(), std::string(IsaName(ops->isa())), worst, largest,
      kTolerance));
}

AttentionSpeed Measure(CpuOps* ops, Op* op, Gemm* gemm, int rounds) {
  std::vector<double> seconds;
  std::vector<double> of_gemm;
  for (int round = 0; round < rounds; ++round) {
    of_gemm.push_back(SecondsOf([&] { gemm->Run(ops); }));
    seconds.push_back(SecondsOf([&] { op->Run(ops, op->n_rows()); }));
  }
  AttentionSpeed out;
  out.row.what =
      absl::StrFormat("%s, %s", std::string(IsaName(ops->isa())), op->name());
  out.row.measured = op->flops() / Median(seconds) / 1e9;
  out.row.limit = Gemm::Flops() / Median(of_gemm) / 1e9;
  out.row.unit = "GFLOP/s";
  out.row.limit_name = "the f32 GEMM";
  out.tokens_per_second = static_cast<double>(op->n_rows()) / Median(seconds);
  return out;
}

}  // namespace

absl::StatusOr<std::vector<AttentionSpeed>> MeasureAttention(
    const AttentionSpeedOptions& options) {
  std::mt19937_64 engine(options.seed);
  Gemm gemm(&engine);
  LatentOp latent(&engine);
  IndexOp one_row(&engine, 1);
  IndexOp many_rows(&engine, 16);
  std::vector<AttentionSpeed> out;
  for (const Isa isa : kernels::AvailableIsas()) {
    // Tiles do nothing for f32: it is the path before.
    if (isa == Isa::kAmx) continue;
    CpuOps ops(isa, 1);
    for (Op* op : {static_cast<Op*>(&latent), static_cast<Op*>(&one_row),
                   static_cast<Op*>(&many_rows)}) {
      TORPOR_RETURN_IF_ERROR(Verify(&ops, op));
      gemm.Run(&ops);
      out.push_back(Measure(&ops, op, &gemm, options.rounds));
    }
  }
  return out;
}

}  // namespace torpor::bench
