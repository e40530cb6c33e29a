// SPDX-License-Identifier: Apache-2.0

#include "bench/error_study_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "bench/divergence.h"
#include "bench/table.h"

namespace torpor::bench {
namespace {

using nlohmann::json;
using Rows = std::vector<std::vector<std::string>>;

// Answers that a session that never slept gets right by less are beyond the
// model: share of tokens.
constexpr double kCanDo = 0.5;

std::string NameOf(const CutStudy& cut) {
  return cut.exact ? "exact" : absl::StrFormat("R = %d", cut.replay_tokens);
}

struct Greedy {
  double never = 0;
  // Standard error of `never`.
  double never_se = 0;
  uint64_t p50 = 0;
  uint64_t p5 = 0;
};

Greedy GreedyOf(const CutStudy& cut, uint64_t n_greedy) {
  std::vector<uint64_t> sorted = cut.first_difference;
  if (sorted.empty()) return {};
  std::sort(sorted.begin(), sorted.end());
  const auto n = static_cast<double>(sorted.size());
  Greedy out;
  out.never =
      static_cast<double>(std::count(sorted.begin(), sorted.end(), n_greedy)) /
      n;
  out.never_se = std::sqrt(out.never * (1 - out.never) / n);
  out.p50 = sorted[(sorted.size() - 1) / 2];
  out.p5 = sorted[(sorted.size() - 1) / 20];
  return out;
}

json CutJson(const CutStudy& cut, const ErrorStudyResult& r) {
  const Greedy greedy = GreedyOf(cut, r.n_greedy);
  json out = {{"mode", cut.exact ? "exact" : "bounded"},
              {"replay_tokens", cut.replay_tokens},
              {"windows", static_cast<double>(cut.replay_tokens) /
                              static_cast<double>(r.window)},
              {"token_layers", cut.token_layers},
              {"row_relative_l2", ToJson(EstimateOf(cut.MeanRowL2s()))},
              {"kl_first_token", ToJson(EstimateOf(cut.kl_next))},
              {"kl", ToJson(EstimateOf(cut.kl_fed))},
              {"loss_added", ToJson(EstimateOf(cut.loss_added))},
              {"likeliest_differs", ToJson(EstimateOf(cut.likeliest_differs))},
              {"greedy",
               {{"sessions", cut.first_difference.size()},
                {"never_differ", greedy.never},
                {"never_differ_standard_error", greedy.never_se},
                {"first_difference", cut.first_difference},
                {"first_difference_p50", greedy.p50}}}};
  for (const auto& quarter : cut.quarters) {
    out["row_relative_l2_by_quarter"].push_back(ToJson(EstimateOf(quarter)));
  }
  for (const CutStudy::Layer& layer : cut.layers) {
    out["layers"].push_back(
        {{"layer", layer.layer},
         {"row_relative_l2", ToJson(EstimateOfGroups(layer.row_l2))},
         {"max_relative", ToJson(EstimateOf(layer.max_relative))}});
  }
  return out;
}

std::string CutTable(const ErrorStudyResult& r) {
  Rows table = {{"random cuts", "R / W", "rows' L2", "KL first", "KL fed",
                 "loss added", "likeliest differs", "first differs, p50",
                 "never differ"}};
  for (const CutStudy& cut : r.cuts) {
    const Greedy greedy = GreedyOf(cut, r.n_greedy);
    table.push_back(
        {NameOf(cut),
         absl::StrFormat("%.3g", static_cast<double>(cut.replay_tokens) /
                                     static_cast<double>(r.window)),
         MeanText(EstimateOf(cut.MeanRowL2s())),
         MeanText(EstimateOf(cut.kl_next)), MeanText(EstimateOf(cut.kl_fed)),
         MeanText(EstimateOf(cut.loss_added)),
         absl::StrFormat("%.2f %%",
                         100 * EstimateOf(cut.likeliest_differs).mean),
         greedy.p50 >= r.n_greedy ? absl::StrFormat(">= %d", r.n_greedy)
                                  : absl::StrFormat("%d", greedy.p50),
         absl::StrFormat("%.0f %%", 100 * greedy.never)});
  }
  return AlignedTable(table);
}

std::string LayerTable(const ErrorStudyResult& r) {
  Rows table = {{"rows' relative L2 by layer"}};
  if (r.cuts.empty()) return "";
  for (const CutStudy& cut : r.cuts) table.front().push_back(NameOf(cut));
  for (size_t i = 0; i < r.cuts.front().layers.size(); ++i) {
    std::vector<std::string> row = {
        absl::StrFormat("layer %d", r.cuts.front().layers[i].layer)};
    for (const CutStudy& cut : r.cuts) {
      row.push_back(
          absl::StrFormat("%.2g", EstimateOfGroups(cut.layers[i].row_l2).mean));
    }
    table.push_back(std::move(row));
  }
  return AlignedTable(table);
}

void AddCutPlots(const ErrorStudyResult& r, SvgPage* page) {
  LinePlot rows{"Window rows: relative L2 by layer, mean",
                "layer",
                "relative L2",
                false,
                true,
                {}};
  LinePlot age{"Window rows: relative L2 by age, mean of all layers",
               "quarter of the window, oldest first",
               "relative L2",
               false,
               true,
               {}};
  LinePlot by_r{"Next token: KL (never slept || bounded)",
                "R, tokens replayed",
                "nats a token",
                true,
                true,
                {}};
  by_r.series = {{"first token, mean", {}},
                 {absl::StrFormat("%d tokens, mean", r.n_fed), {}},
                 {absl::StrFormat("%d tokens, p95 of cuts", r.n_fed), {}},
                 {"window rows' relative L2", {}}};
  LinePlot greedy{"Greedy text that does not differ",
                  "R, tokens replayed",
                  absl::StrFormat("share of sessions, %d tokens", r.n_greedy),
                  true,
                  false,
                  {{"never differ", {}}}};
  for (const CutStudy& cut : r.cuts) {
    const auto x = static_cast<double>(cut.replay_tokens);
    greedy.series[0].points.emplace_back(x, GreedyOf(cut, r.n_greedy).never);
    if (cut.exact) continue;
    Series line{NameOf(cut), {}};
    for (const CutStudy::Layer& layer : cut.layers) {
      line.points.emplace_back(layer.layer,
                               EstimateOfGroups(layer.row_l2).mean);
    }
    rows.series.push_back(std::move(line));
    Series ages{NameOf(cut), {}};
    for (size_t q = 0; q < cut.quarters.size(); ++q) {
      ages.points.emplace_back(q + 1, EstimateOf(cut.quarters[q]).mean);
    }
    age.series.push_back(std::move(ages));
    const Estimate fed = EstimateOf(cut.kl_fed);
    by_r.series[0].points.emplace_back(x, EstimateOf(cut.kl_next).mean);
    by_r.series[1].points.emplace_back(x, fed.mean);
    by_r.series[2].points.emplace_back(x, fed.p95);
    by_r.series[3].points.emplace_back(x, EstimateOf(cut.MeanRowL2s()).mean);
  }
  for (const LinePlot& plot : {by_r, rows, age, greedy}) page->Add(plot);
}

// A model can do the task where a session that never slept does.
bool CanDo(const NeedleStudy& needle) {
  return !needle.cases.empty() &&
         EstimateOf(needle.cases.front().hits).mean >= kCanDo;
}

json NeedleJson(const NeedleStudy& needle) {
  json out = {{"tokens_to_cut", needle.distance},
              {"model_can_do_it", CanDo(needle)}};
  const NeedleStudy::Case& never = needle.cases.front();
  for (const NeedleStudy::Case& c : needle.cases) {
    std::vector<double> lost;
    for (size_t i = 0; i < c.log_probability.size(); ++i) {
      lost.push_back(never.log_probability[i] - c.log_probability[i]);
    }
    out["cases"].push_back(
        {{"session", c.name},
         {"replay_tokens", c.replay_tokens},
         {"log_probability", ToJson(EstimateOf(c.log_probability))},
         {"nats_lost", ToJson(EstimateOf(lost))},
         {"answer_tokens_likeliest", ToJson(EstimateOf(c.hits))}});
  }
  return out;
}

std::string NeedleTable(const ErrorStudyResult& r) {
  Rows table = {{"needles", "session", "nats a token", "probability",
                 "tokens right", "can do"}};
  for (const NeedleStudy& needle : r.needles) {
    for (const NeedleStudy::Case& c : needle.cases) {
      const Estimate p = EstimateOf(c.log_probability);
      table.push_back(
          {absl::StrFormat("%d tokens before", needle.distance), c.name,
           MeanText(p), absl::StrFormat("%.3f", std::exp(p.mean)),
           absl::StrFormat("%.1f +- %.1f %%", 100 * EstimateOf(c.hits).mean,
                           100 * EstimateOf(c.hits).standard_error),
           CanDo(needle) ? "yes" : "no"});
    }
  }
  return AlignedTable(table);
}

void AddNeedlePlot(const ErrorStudyResult& r, SvgPage* page) {
  LinePlot plot{"Needles: probability of a token of the answer",
                "tokens between needle and cut",
                "geometric mean",
                false,
                false,
                {}};
  for (const NeedleStudy& needle : r.needles) {
    plot.series.resize(needle.cases.size());
    for (size_t i = 0; i < needle.cases.size(); ++i) {
      plot.series[i].name = needle.cases[i].name;
      plot.series[i].points.emplace_back(
          needle.distance,
          std::exp(EstimateOf(needle.cases[i].log_probability).mean));
    }
  }
  page->Add(plot);
}

std::vector<double> Differences(const std::vector<double>& a,
                                const std::vector<double>& b) {
  std::vector<double> out;
  for (size_t i = 0; i < a.size(); ++i) out.push_back(a[i] - b[i]);
  return out;
}

json ChainJson(const ChainStudy& chain) {
  json out = {
      {"tokens_between_wakes", chain.interval},
      {"row_slope_log2_a_doubling", ToJson(EstimateOf(chain.row_slope))},
      {"kl_slope_log2_a_doubling", ToJson(EstimateOf(chain.kl_slope))}};
  for (const ChainStudy::Point& p : chain.points) {
    out["points"].push_back(
        {{"wakes", p.n_wakes},
         {"row_relative_l2", ToJson(EstimateOf(p.row_l2))},
         {"row_relative_l2_woken_once", ToJson(EstimateOf(p.row_l2_once))},
         {"compact_relative_l2", ToJson(EstimateOf(p.compact_l2))},
         {"kl", ToJson(EstimateOf(p.kl))},
         {"kl_woken_once", ToJson(EstimateOf(p.kl_once))},
         {"kl_added_to_woken_once",
          ToJson(EstimateOf(Differences(p.kl, p.kl_once)))}});
  }
  return out;
}

std::string ChainTable(const ErrorStudyResult& r) {
  Rows table = {{"wakes in a row", "every", "rows' L2", "woken once", "KL fed",
                 "woken once", "KL added", "stored rows' L2"}};
  std::string slopes;
  for (const ChainStudy& chain : r.chains) {
    for (const ChainStudy::Point& p : chain.points) {
      table.push_back(
          {absl::StrFormat("%d", p.n_wakes),
           absl::StrFormat("%d", chain.interval),
           MeanText(EstimateOf(p.row_l2)), MeanText(EstimateOf(p.row_l2_once)),
           MeanText(EstimateOf(p.kl)), MeanText(EstimateOf(p.kl_once)),
           MeanText(EstimateOf(Differences(p.kl, p.kl_once))),
           MeanText(EstimateOf(p.compact_l2))});
    }
    slopes += absl::StrFormat(
        "  every %d: against woken once, a doubling of the wakes multiplies "
        "rows' L2 by 2^(%s), KL by 2^(%s)\n",
        chain.interval, MeanText(EstimateOf(chain.row_slope)),
        MeanText(EstimateOf(chain.kl_slope)));
  }
  return AlignedTable(table) + slopes;
}

void AddChainPlots(const ErrorStudyResult& r, SvgPage* page) {
  LinePlot kl{"Bounded wakes in a row, R = W: KL of the next tokens",
              "wakes",
              "nats a token",
              true,
              true,
              {}};
  LinePlot rows{"Bounded wakes in a row, R = W: rows' relative L2",
                "wakes",
                "relative L2",
                true,
                true,
                {}};
  for (const ChainStudy& chain : r.chains) {
    const std::string every = absl::StrFormat("every %d", chain.interval);
    Series a{every, {}};
    Series b{every + ", woken once", {}};
    Series c{every + ", window", {}};
    Series d{every + ", window, woken once", {}};
    Series e{every + ", stored rows", {}};
    for (const ChainStudy::Point& p : chain.points) {
      const auto k = static_cast<double>(p.n_wakes);
      a.points.emplace_back(k, EstimateOf(p.kl).mean);
      b.points.emplace_back(k, EstimateOf(p.kl_once).mean);
      c.points.emplace_back(k, EstimateOf(p.row_l2).mean);
      d.points.emplace_back(k, EstimateOf(p.row_l2_once).mean);
      e.points.emplace_back(k, EstimateOf(p.compact_l2).mean);
    }
    kl.series.insert(kl.series.end(), {a, b});
    rows.series.insert(rows.series.end(), {c, d, e});
  }
  page->Add(kl);
  page->Add(rows);
}

bool PlainWindows(const replay::ModelLayout& layout) {
  return std::all_of(layout.slots.begin(), layout.slots.end(),
                     [](const replay::Slot& slot) {
                       return !slot.is_window() || IsKnownFormat(slot.format);
                     });
}

size_t Samples(const ErrorStudyResult& r) {
  return r.needles.empty() || r.needles.front().cases.empty()
             ? 0
             : r.needles.front().cases.front().hits.size();
}

size_t ChainsOf(const ErrorStudyResult& r) {
  return r.chains.empty() || r.chains.front().points.empty()
             ? 0
             : r.chains.front().points.front().kl.size();
}

json HeaderJson(const ErrorStudyResult& r, size_t n_cuts) {
  return {{"model", r.model},
          {"family", r.layout.family},
          {"numerics_id", r.numerics_id},
          {"text", r.text},
          {"text_tokens", r.text_tokens},
          {"window", r.window},
          {"exact_tokens", r.exact_tokens},
          {"layers", r.layout.n_layers},
          {"rows_compared_as", PlainWindows(r.layout) ? "numbers" : "bytes"},
          {"cut_at_least", r.cut_min},
          {"cut_at_most", r.cut_max},
          {"n_cuts", n_cuts},
          {"n_needles", Samples(r)},
          {"n_chains", ChainsOf(r)},
          {"tokens_fed", r.n_fed},
          {"tokens_decoded", r.n_greedy},
          {"exact_wakes_equal", r.n_verified}};
}

}  // namespace

Result ReportOf(const ErrorStudyResult& r) {
  Result out;
  out.file_name = "error-" + r.model;
  const size_t n_cuts = r.cuts.empty() ? 0 : r.cuts.front().kl_next.size();
  out.json = HeaderJson(r, n_cuts);
  for (const CutStudy& cut : r.cuts)
    out.json["cuts"].push_back(CutJson(cut, r));
  for (const NeedleStudy& needle : r.needles) {
    out.json["needles"].push_back(NeedleJson(needle));
  }
  for (const ChainStudy& chain : r.chains) {
    out.json["chains"].push_back(ChainJson(chain));
  }
  out.text = absl::StrFormat(
      "%s (%s, %s)\n%s, %d tokens\nW = %d, exact %d tokens; %d random cuts at "
      "%d to %d, %d needles, %d chains; KL over %d tokens, nats; means +- "
      "standard errors%s\nall %d exact wakes were == to the session that never "
      "slept\n\n%s\n%s\n%s\n%s",
      r.model, r.layout.family, r.numerics_id, r.text, r.text_tokens, r.window,
      r.exact_tokens, n_cuts, r.cut_min, r.cut_max, Samples(r), ChainsOf(r),
      r.n_fed,
      PlainWindows(r.layout) ? ""
                             : "\nrows are compared as bytes: their format is "
                               "not a plain one",
      r.n_verified, CutTable(r), LayerTable(r), NeedleTable(r), ChainTable(r));
  out.page = SvgPage(absl::StrFormat("Bounded replay's error, %s", r.model));
  AddCutPlots(r, &out.page);
  AddNeedlePlot(r, &out.page);
  AddChainPlots(r, &out.page);
  return out;
}

}  // namespace torpor::bench
