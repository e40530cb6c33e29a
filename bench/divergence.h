// SPDX-License-Identifier: Apache-2.0
//
// How far two computations of the same thing lie apart: window rows, next-token
// distributions; and what is said of many such figures. Pure functions.

#ifndef TORPOR_BENCH_DIVERGENCE_H_
#define TORPOR_BENCH_DIVERGENCE_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "bench/lab_session.h"
#include "replay/model_layout.h"
#include "replay/replayer.h"

namespace torpor::bench {

struct Estimate {
  uint64_t n = 0;
  double mean = 0;
  // Of the mean; 0 for fewer than two values.
  double standard_error = 0;
  double p50 = 0;
  double p95 = 0;
  double max = 0;
};
// Quantiles are values that were seen.
Estimate EstimateOf(std::vector<double> values);
// Of values that come in groups, each from one draw: quantiles of the values,
// mean and standard error of the groups' means.
Estimate EstimateOfGroups(const std::vector<std::vector<double>>& groups);
nlohmann::json ToJson(const Estimate& estimate);
// "0.0123 +- 0.0004".
std::string MeanText(const Estimate& estimate);

// Elements of a row as floats; its bytes where replay::RowValues does not know
// the format, whose errors then order rows but mean nothing alone.
std::vector<float> RowValues(const std::string& format,
                             std::span<const uint8_t> row);
bool IsKnownFormat(const std::string& format);

// |a - b| / |b|, Euclidean; 0 where both are 0.
double RelativeL2(std::span<const float> a, std::span<const float> b);

// The window of one layer. A row is that of all its window slots, K before V.
struct LayerDistance {
  uint32_t layer = 0;
  // By position, oldest first.
  std::vector<double> row_l2;
  // Largest |a - b| of the whole window over its largest |b|.
  double max_relative = 0;
};
// Layers with windows that one of them reads, ascending. Both are of one cut.
std::vector<LayerDistance> CompareWindows(const replay::ModelLayout& layout,
                                          const replay::WindowState& got,
                                          const replay::WindowState& wanted);
// Mean over layers and rows.
double MeanRowL2(const std::vector<LayerDistance>& layers);

// Mean over compact slots and their rows of tokens [begin, end).
double CompactRowL2(const replay::ModelLayout& layout, const KeptRows& got,
                    const KeptRows& wanted, uint64_t begin, uint64_t end);

// Distributions of next tokens, one a row of logits.
class NextTokens {
 public:
  NextTokens(std::vector<float> logits, size_t vocab);

  [[nodiscard]] size_t size() const { return log_sums_.size(); }
  [[nodiscard]] const std::vector<float>& logits() const { return logits_; }
  // Nats.
  [[nodiscard]] double LogProbability(size_t row, uint32_t id) const;
  [[nodiscard]] uint32_t Likeliest(size_t row) const;
  // KL(this || other) of a row, nats; at least 0.
  [[nodiscard]] double Divergence(size_t row, const NextTokens& other) const;

 private:
  [[nodiscard]] std::span<const float> Row(size_t row) const {
    return std::span(logits_).subspan(row * vocab_, vocab_);
  }
  const std::vector<float> logits_;
  const size_t vocab_;
  std::vector<double> log_sums_;
};

// The least-squares slope of y over x.
double SlopeOf(std::span<const double> x, std::span<const double> y);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_DIVERGENCE_H_
