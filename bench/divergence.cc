// SPDX-License-Identifier: Apache-2.0

#include "bench/divergence.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "replay/row_values.h"

namespace torpor::bench {
namespace {

// Slots of a layer's window in layout order, in both windows.
using SlotPair = std::pair<const replay::SlotRows*, const replay::SlotRows*>;

void AppendRow(const replay::ModelLayout& layout, const replay::SlotRows& rows,
               uint64_t position, std::vector<float>* out) {
  if (position < rows.first || position >= rows.end) return;
  const replay::Slot& slot = layout.slots[rows.slot];
  const std::vector<float> values = RowValues(
      slot.format,
      std::span(rows.bytes)
          .subspan((position - rows.first) * slot.row_bytes, slot.row_bytes));
  out->insert(out->end(), values.begin(), values.end());
}

LayerDistance CompareLayer(const replay::ModelLayout& layout, uint32_t layer,
                           const std::vector<SlotPair>& slots) {
  LayerDistance out;
  out.layer = layer;
  uint64_t first = UINT64_MAX;
  uint64_t end = 0;
  for (const SlotPair& slot : slots) {
    first = std::min(first, slot.second->first);
    end = std::max(end, slot.second->end);
  }
  double error = 0;
  double largest = 0;
  std::vector<float> a;
  std::vector<float> b;
  for (uint64_t pos = first; pos < end; ++pos) {
    a.clear();
    b.clear();
    for (const SlotPair& slot : slots) {
      AppendRow(layout, *slot.first, pos, &a);
      AppendRow(layout, *slot.second, pos, &b);
    }
    for (size_t i = 0; i < b.size() && i < a.size(); ++i) {
      error = std::max(error, std::abs(double{a[i]} - double{b[i]}));
      largest = std::max(largest, std::abs(double{b[i]}));
    }
    out.row_l2.push_back(RelativeL2(a, b));
  }
  out.max_relative = error == 0 ? 0 : error / largest;
  return out;
}

}  // namespace

Estimate EstimateOf(std::vector<double> values) {
  Estimate out;
  out.n = values.size();
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  for (const double v : values) sum += v;
  out.mean = sum / n;
  double squares = 0;
  for (const double v : values) squares += (v - out.mean) * (v - out.mean);
  if (values.size() > 1) out.standard_error = std::sqrt(squares / (n - 1) / n);
  const auto quantile = [&](double q) {
    const auto rank = static_cast<size_t>(std::ceil(q * n));
    return values[std::max<size_t>(rank, 1) - 1];
  };
  out.p50 = quantile(0.5);
  out.p95 = quantile(0.95);
  out.max = values.back();
  return out;
}

Estimate EstimateOfGroups(const std::vector<std::vector<double>>& groups) {
  std::vector<double> all;
  std::vector<double> means;
  for (const std::vector<double>& group : groups) {
    if (group.empty()) continue;
    all.insert(all.end(), group.begin(), group.end());
    means.push_back(EstimateOf(group).mean);
  }
  Estimate out = EstimateOf(std::move(all));
  const Estimate of_means = EstimateOf(std::move(means));
  out.mean = of_means.mean;
  out.standard_error = of_means.standard_error;
  return out;
}

nlohmann::json ToJson(const Estimate& e) {
  return {
      {"n", e.n},     {"mean", e.mean}, {"standard_error", e.standard_error},
      {"p50", e.p50}, {"p95", e.p95},   {"max", e.max}};
}

std::string MeanText(const Estimate& e) {
  return absl::StrFormat("%.3g +- %.1g", e.mean, e.standard_error);
}

bool IsKnownFormat(const std::string& format) {
  return replay::RowValues(format, 0, {}).has_value();
}

std::vector<float> RowValues(const std::string& format,
                             std::span<const uint8_t> row) {
  if (auto values = replay::RowValues(format, row.size(), row)) {
    return *std::move(values);
  }
  return {row.begin(), row.end()};
}

double RelativeL2(std::span<const float> a, std::span<const float> b) {
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < b.size() && i < a.size(); ++i) {
    const double d = double{a[i]} - double{b[i]};
    difference += d * d;
    size += double{b[i]} * double{b[i]};
  }
  return difference == 0 ? 0 : std::sqrt(difference / size);
}

std::vector<LayerDistance> CompareWindows(const replay::ModelLayout& layout,
                                          const replay::WindowState& got,
                                          const replay::WindowState& wanted) {
  std::map<uint32_t, std::vector<SlotPair>> layers;
  for (size_t i = 0; i < wanted.slots.size() && i < got.slots.size(); ++i) {
    const replay::Slot& slot = layout.slots[wanted.slots[i].slot];
    if (!slot.is_window() || slot.is_draft()) continue;
    layers[slot.owner_layer].emplace_back(&got.slots[i], &wanted.slots[i]);
  }
  std::vector<LayerDistance> out;
  for (const auto& [layer, slots] : layers) {
    out.push_back(CompareLayer(layout, layer, slots));
  }
  return out;
}

double MeanRowL2(const std::vector<LayerDistance>& layers) {
  double sum = 0;
  size_t n = 0;
  for (const LayerDistance& layer : layers) {
    for (const double l2 : layer.row_l2) sum += l2;
    n += layer.row_l2.size();
  }
  return n == 0 ? 0 : sum / static_cast<double>(n);
}

double CompactRowL2(const replay::ModelLayout& layout, const KeptRows& got,
                    const KeptRows& wanted, uint64_t begin, uint64_t end) {
  double sum = 0;
  size_t n = 0;
  for (const uint32_t index : layout.CompactSlots()) {
    const replay::Slot& slot = layout.slots[index];
    for (uint64_t row = begin / slot.tokens_per_row;
         row < end / slot.tokens_per_row; ++row) {
      sum += RelativeL2(RowValues(slot.format, got.Row(index, row)),
                        RowValues(slot.format, wanted.Row(index, row)));
      ++n;
    }
  }
  return n == 0 ? 0 : sum / static_cast<double>(n);
}

NextTokens::NextTokens(std::vector<float> logits, size_t vocab)
    : logits_(std::move(logits)), vocab_(vocab) {
  for (size_t at = 0; at + vocab_ <= logits_.size(); at += vocab_) {
    const auto row = std::span(logits_).subspan(at, vocab_);
    const float max = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float x : row) sum += std::exp(x - max);
    log_sums_.push_back(max + std::log(sum));
  }
}

double NextTokens::LogProbability(size_t row, uint32_t id) const {
  return Row(row)[id] - log_sums_[row];
}

uint32_t NextTokens::Likeliest(size_t row) const {
  const auto logits = Row(row);
  return static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) -
                               logits.begin());
}

double NextTokens::Divergence(size_t row, const NextTokens& other) const {
  const auto a = Row(row);
  const auto b = other.Row(row);
  const double shift = other.log_sums_[row] - log_sums_[row];
  double kl = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double p = std::exp(static_cast<float>(a[i] - log_sums_[row]));
    kl += p * (double{a[i]} - double{b[i]} + shift);
  }
  return std::max(0.0, kl);
}

double SlopeOf(std::span<const double> x, std::span<const double> y) {
  double mx = 0;
  double my = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    mx += x[i] / static_cast<double>(x.size());
    my += y[i] / static_cast<double>(x.size());
  }
  double xy = 0;
  double xx = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mx) * (y[i] - my);
    xx += (x[i] - mx) * (x[i] - mx);
  }
  return xx == 0 ? 0 : xy / xx;
}

}  // namespace torpor::bench
