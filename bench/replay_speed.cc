// SPDX-License-Identifier: Apache-2.0

#include "bench/replay_speed.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/lab_session.h"
#include "bench/load.h"
#include "bench/table.h"
#include "replay/replayer.h"

namespace torpor::bench {
namespace {

using Case = ReplaySpeedResult::Case;

// Share of bytes in which two windows differ; 1 when they hold other rows.
double Different(const replay::WindowState& a, const replay::WindowState& b) {
  if (a.slots.size() != b.slots.size()) return 1;
  uint64_t all = 0;
  uint64_t different = 0;
  for (size_t i = 0; i < a.slots.size(); ++i) {
    const replay::SlotRows& x = a.slots[i];
    const replay::SlotRows& y = b.slots[i];
    if (x.slot != y.slot || x.first != y.first || x.end != y.end) return 1;
    all += x.bytes.size();
    for (size_t at = 0; at < x.bytes.size(); ++at) {
      different += x.bytes[at] == y.bytes[at] ? 0 : 1;
    }
  }
  return all == 0 ? 0
                  : static_cast<double>(different) / static_cast<double>(all);
}

class ReplaySpeed {
 public:
  ReplaySpeed(const ReplaySpeedOptions& options, const Common& common)
      : options_(options), common_(common) {}

  absl::StatusOr<ReplaySpeedResult> Run() {
    TORPOR_ASSIGN_OR_RETURN(model_, options_.cases.Load());
    replayer_ = replay::MakeReplayer(model_.get());
    result_.layout = model_->layout();
    result_.numerics_id = model_->numerics_id();
    for (const uint64_t n : options_.cases.lengths) {
      TORPOR_RETURN_IF_ERROR(Length(n));
    }
    return std::move(result_);
  }

 private:
  // Milliseconds of a prefill of everything.
  absl::StatusOr<double> Prefill(std::span<const uint32_t> ids,
                                 replay::Sequence* sequence) {
    const replay::Segment segment =
        replay::SegmentOf(sequence, ids, 0, ids.size());
    const SteadyClock::time_point begin = SteadyClock::now();
    TORPOR_RETURN_IF_ERROR(
        replay::RunTokens(model_.get(), segment, 0, {}).status());
    return MillisecondsSince(begin);
  }

  struct Planned {
    ModeCase mode;
    replay::ReplayPlan plan;
    std::vector<double> ms, read_ms, run_ms;
    double rows_different = 0;
  };

  absl::Status Rebuild(std::span<const uint32_t> ids, KeptRows* rows,
                       const replay::WindowState& held, Planned* planned) {
    const replay::ReplayJob job{
        .plan = &planned->plan, .ids = ids, .reader = rows};
    const SteadyClock::time_point begin = SteadyClock::now();
    TORPOR_ASSIGN_OR_RETURN(
        const std::vector<replay::ReplayResult> rebuilt,
        replayer_->Rebuild(std::span(&job, 1), [] { return false; }));
    planned->ms.push_back(MillisecondsSince(begin));
    const replay::ReplayResult& result = rebuilt.front();
    planned->read_ms.push_back(static_cast<double>(result.times.read_us) / 1e3);
    planned->run_ms.push_back(static_cast<double>(result.times.replay_us) /
                              1e3);
    planned->rows_different = Different(held, result.window);
    if (planned->plan.exact && planned->rows_different != 0) {
      return absl::DataLossError(absl::StrFormat(
          "%s at %d tokens: %.3g of the window's bytes differ from what the "
          "sequence held, wanted none",
          planned->mode.name, ids.size(), planned->rows_different));
    }
    return absl::OkStatus();
  }

  absl::Status Length(uint64_t n) {
    const std::vector<uint32_t> ids = MadeUpIds(*model_, n, options_.seed + n);
    const std::unique_ptr<replay::Sequence> sequence = model_->NewSequence();
    TORPOR_RETURN_IF_ERROR(Prefill(ids, sequence.get()).status());
    TORPOR_ASSIGN_OR_RETURN(
        const replay::WindowState held,
        replay::ExportWindow(model_->layout(), *sequence, n));
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<KeptRows> rows,
                            KeptRows::Of(model_->layout(), *sequence, n));
    std::vector<Planned> all;
    for (const ModeCase& mode : ModeCasesOf(options_.cases, model_->layout())) {
      if (mode.mode == replay::ReplayMode::kCold) continue;
      TORPOR_ASSIGN_OR_RETURN(
          replay::ReplayPlan plan,
          replay::PlanReplay(model_->layout(),
                             {.resume_at = n,
                              .mode = mode.mode,
                              .replay_tokens = mode.replay_tokens}));
      all.push_back({mode, std::move(plan), {}, {}, {}, 0});
      // Verified once before anything is timed.
      TORPOR_RETURN_IF_ERROR(Rebuild(ids, rows.get(), held, &all.back()));
      all.back().ms.clear();
      all.back().read_ms.clear();
      all.back().run_ms.clear();
    }
    std::vector<double> cold;
    for (int i = 0; i < options_.cases.repeats; ++i) {
      const std::unique_ptr<replay::Sequence> again = model_->NewSequence();
      TORPOR_ASSIGN_OR_RETURN(const double ms, Prefill(ids, again.get()));
      cold.push_back(ms);
      for (Planned& planned : all) {
        TORPOR_RETURN_IF_ERROR(Rebuild(ids, rows.get(), held, &planned));
      }
    }
    const double cold_ms = Median(cold);
    result_.cases.push_back({.n_tokens = n,
                             .mode = {"cold", replay::ReplayMode::kCold, 0},
                             .replay_tokens = n,
                             .token_layers = n * model_->layout().n_layers,
                             .exact = true,
                             .ms = cold_ms,
                             .run_ms = cold_ms});
    for (const Planned& planned : all) {
      result_.cases.push_back({n, planned.mode, planned.plan.replay_tokens(),
                               planned.plan.token_layers, planned.plan.exact,
                               planned.rows_different, Median(planned.ms),
                               Median(planned.read_ms),
                               Median(planned.run_ms)});
    }
    common_.Say(absl::StrFormat("%d tokens: prefill %.1f ms", n, cold_ms));
    return absl::OkStatus();
  }

  const ReplaySpeedOptions& options_;
  const Common& common_;
  ReplaySpeedResult result_;
  std::unique_ptr<replay::Model> model_;
  std::unique_ptr<replay::Replayer> replayer_;
};

Result ReportOf(const ReplaySpeedOptions& options, const ReplaySpeedResult& r) {
  Result out;
  const std::vector<LimitRow> limits = r.Limits();
  out.json = {
      {"model", options.cases.model_dir}, {"family", r.layout.family},
      {"numerics_id", r.numerics_id},     {"repeats", options.cases.repeats},
      {"rows", LimitsJson(limits)},       {"cases", nlohmann::json::array()}};
  std::vector<std::vector<std::string>> table = {
      {"tokens", "mode", "ms", "read", "run", "tokens run", "tokens/s",
       "token-layers", "window"}};
  LinePlot plot{"Rebuilding the window, or everything (cold)",
                "tokens of the session",
                "milliseconds",
                true,
                true,
                {}};
  for (const Case& c : r.cases) {
    const double per_second =
        c.run_ms == 0 ? 0
                      : static_cast<double>(c.replay_tokens) / c.run_ms * 1e3;
    out.json["cases"].push_back({{"n_tokens", c.n_tokens},
                                 {"mode", c.mode.name},
                                 {"replay_tokens", c.replay_tokens},
                                 {"token_layers", c.token_layers},
                                 {"exact", c.exact},
                                 {"window_bytes_different", c.rows_different},
                                 {"ms", c.ms},
                                 {"read_ms", c.read_ms},
                                 {"run_ms", c.run_ms},
                                 {"tokens_per_second", per_second}});
    table.push_back({absl::StrFormat("%d", c.n_tokens), c.mode.name,
                     absl::StrFormat("%.4g", c.ms),
                     absl::StrFormat("%.3g", c.read_ms),
                     absl::StrFormat("%.4g", c.run_ms),
                     absl::StrFormat("%d", c.replay_tokens),
                     absl::StrFormat("%.0f", per_second),
                     absl::StrFormat("%d", c.token_layers),
                     c.exact ? "the same bits" : "approximate"});
    auto series =
        std::find_if(plot.series.begin(), plot.series.end(),
                     [&](const Series& s) { return s.name == c.mode.name; });
    if (series == plot.series.end()) {
      series = plot.series.insert(series, Series{c.mode.name, {}});
    }
    series->points.emplace_back(c.n_tokens, c.ms);
  }
  out.text = absl::StrFormat("%s, %s\n\n", r.layout.family, r.numerics_id) +
             AlignedTable(table) + "\n" + LimitTable(limits);
  out.page = SvgPage(absl::StrFormat("Replay in process, %s", r.layout.family));
  out.page.Add(plot);
  out.holds = AllHold(limits);
  return out;
}

}  // namespace

std::vector<LimitRow> ReplaySpeedResult::Limits() const {
  std::vector<LimitRow> rows;
  double cold_ms = 0;
  for (const Case& c : cases) {
    if (c.mode.mode == replay::ReplayMode::kCold) {
      cold_ms = c.ms;
    } else {
      rows.push_back(AgainstCold(layout, c.n_tokens, c.mode, c.ms, cold_ms));
    }
  }
  return rows;
}

absl::StatusOr<ReplaySpeedResult> MeasureReplay(
    const ReplaySpeedOptions& options, const Common& common) {
  return ReplaySpeed(options, common).Run();
}

RunBenchmark AddReplayCommand(CLI::App* app, const Common* common) {
  auto options = std::make_shared<ReplaySpeedOptions>();
  options->cases.modes = {"bounded", "exact"};
  options->cases.AddTo(app);
  return [options, common]() -> absl::StatusOr<Result> {
    options->seed = common->seed;
    TORPOR_ASSIGN_OR_RETURN(const ReplaySpeedResult result,
                            MeasureReplay(*options, *common));
    return ReportOf(*options, result);
  };
}

}  // namespace torpor::bench
