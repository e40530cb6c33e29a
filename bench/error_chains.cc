// SPDX-License-Identifier: Apache-2.0
//
// Chains: a session that is suspended and woken bounded again and again, with
// the floors that its wakes log, against one that never sleeps. What a wake
// gets wrong goes into rows that persist, and so into later wakes.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/error_parts.h"

namespace torpor::bench {
namespace {

constexpr uint64_t kIntervals[] = {64, 16};

class Chains {
 public:
  Chains(const StudyContext& study, ErrorStudyResult* result)
      : study_(study), result_(*result) {}

  absl::Status Run() {
    for (const uint64_t interval : kIntervals) {
      ChainStudy& chain = result_.chains.emplace_back();
      chain.interval = study_.WholeGroups(interval);
      for (uint64_t k = 1; k <= study_.options->n_wakes; k *= 2) {
        chain.points.emplace_back().n_wakes = k;
      }
    }
    std::mt19937_64 random(study_.options->seed + 2);
    for (uint64_t i = 0; i < study_.n_chains; ++i) {
      TORPOR_RETURN_IF_ERROR(One(i, &random));
      study_.common->Say(
          absl::StrFormat("chain of wakes %d of %d", i + 1, study_.n_chains));
    }
    for (ChainStudy& chain : result_.chains) AddSlopes(&chain);
    return absl::OkStatus();
  }

 private:
  absl::Status One(uint64_t i, std::mt19937_64* random) {
    const uint64_t begin = study_.DrawCut(random);
    const uint64_t longest = result_.chains.front().interval;
    const uint64_t n_after =
        longest * study_.options->n_wakes + study_.options->n_fed;
    TORPOR_ASSIGN_OR_RETURN(
        const std::vector<uint32_t> text,
        DrawText(study_.text, i, study_.n_chains, begin + n_after, random));
    LabSession prefill(study_.model);
    TORPOR_RETURN_IF_ERROR(prefill.Run(text, begin, begin).status());
    TORPOR_ASSIGN_OR_RETURN(const Asleep start, prefill.Suspend());
    for (ChainStudy& chain : result_.chains) {
      TORPOR_RETURN_IF_ERROR(Chain(text, start, &chain));
    }
    return absl::OkStatus();
  }

  absl::Status Chain(std::span<const uint32_t> text, const Asleep& start,
                     ChainStudy* chain) {
    TORPOR_ASSIGN_OR_RETURN(
        LabSession twin,
        LabSession::Wake(study_.model, text, start.rows.get(), start.window));
    TORPOR_ASSIGN_OR_RETURN(
        LabSession session,
        LabSession::Wake(study_.model, text, start.rows.get(), start.window));
    std::vector<replay::Floor> floors;
    auto point = chain->points.begin();
    for (uint64_t k = 1; k <= study_.options->n_wakes; ++k) {
      TORPOR_ASSIGN_OR_RETURN(const Asleep asleep, session.Suspend());
      TORPOR_ASSIGN_OR_RETURN(const replay::ReplayPlan plan,
                              study_.Bounded(asleep.at, study_.window, floors));
      TORPOR_ASSIGN_OR_RETURN(
          const replay::WindowState window,
          Rebuild(study_.model, plan, text, asleep.rows.get()));
      if (!plan.exact) floors.push_back(plan.floor());
      if (point != chain->points.end() && point->n_wakes == k) {
        TORPOR_RETURN_IF_ERROR(twin.Run(text, asleep.at, asleep.at).status());
        TORPOR_RETURN_IF_ERROR(
            Compare(text, twin, asleep, window, chain->interval, &*point));
        ++point;
      }
      TORPOR_ASSIGN_OR_RETURN(
          session,
          LabSession::Wake(study_.model, text, asleep.rows.get(), window));
      const uint64_t next = asleep.at + chain->interval;
      TORPOR_RETURN_IF_ERROR(session.Run(text, next, next).status());
    }
    return CheckExact(text, session, floors);
  }

  absl::Status Compare(std::span<const uint32_t> text, const LabSession& twin,
                       const Asleep& asleep, const replay::WindowState& window,
                       uint64_t interval, ChainStudy::Point* out) {
    const replay::ModelLayout& layout = study_.model->layout();
    const uint64_t n_fed = study_.options->n_fed;
    TORPOR_ASSIGN_OR_RETURN(const Asleep never, twin.Suspend());
    TORPOR_ASSIGN_OR_RETURN(const replay::ReplayPlan plan,
                            study_.Bounded(never.at, study_.window));
    TORPOR_ASSIGN_OR_RETURN(
        const replay::WindowState once,
        Rebuild(study_.model, plan, text, never.rows.get()));
    out->row_l2.push_back(
        MeanRowL2(CompareWindows(layout, window, never.window)));
    out->row_l2_once.push_back(
        MeanRowL2(CompareWindows(layout, once, never.window)));
    out->compact_l2.push_back(CompactRowL2(layout, *asleep.rows, *never.rows,
                                           never.at - interval, never.at));
    TORPOR_ASSIGN_OR_RETURN(
        const NextTokens truth,
        study_.Feed(never.rows.get(), never.window, text, n_fed));
    TORPOR_ASSIGN_OR_RETURN(
        const NextTokens after,
        study_.Feed(asleep.rows.get(), window, text, n_fed));
    TORPOR_ASSIGN_OR_RETURN(const NextTokens after_once,
                            study_.Feed(never.rows.get(), once, text, n_fed));
    out->kl.push_back(MeanKl(truth, after));
    out->kl_once.push_back(MeanKl(truth, after_once));
    return absl::OkStatus();
  }

  static double MeanKl(const NextTokens& truth, const NextTokens& other) {
    double kl = 0;
    for (size_t row = 0; row < truth.size(); ++row) {
      kl += truth.Divergence(row, other);
    }
    return kl / static_cast<double>(truth.size());
  }

  // With the floors of all its wakes, an exact wake gives what this session
  // holds, however it came to hold it.
  absl::Status CheckExact(std::span<const uint32_t> text,
                          const LabSession& session,
                          const std::vector<replay::Floor>& floors) {
    TORPOR_ASSIGN_OR_RETURN(const Asleep asleep, session.Suspend());
    TORPOR_ASSIGN_OR_RETURN(const replay::ReplayPlan plan,
                            study_.Exact(asleep.at, floors));
    TORPOR_ASSIGN_OR_RETURN(
        const replay::WindowState window,
        Rebuild(study_.model, plan, text, asleep.rows.get()));
    ++result_.n_verified;
    return SameWindow(
        window, asleep.window,
        absl::StrFormat("exact wake after %d bounded ones", floors.size()));
  }

  // Slopes over the points that are not 0 on either side.
  static void AddSlopes(ChainStudy* chain) {
    const size_t n =
        chain->points.empty() ? 0 : chain->points.front().row_l2.size();
    for (size_t i = 0; i < n; ++i) {
      std::vector<double> k;
      std::vector<double> rows;
      std::vector<double> kl;
      for (const ChainStudy::Point& p : chain->points) {
        const double row_ratio = p.row_l2[i] / p.row_l2_once[i];
        const double kl_ratio = p.kl[i] / p.kl_once[i];
        const bool usable = std::isfinite(row_ratio) && row_ratio > 0 &&
                            std::isfinite(kl_ratio) && kl_ratio > 0;
        if (!usable) continue;
        k.push_back(std::log2(static_cast<double>(p.n_wakes)));
        rows.push_back(std::log2(row_ratio));
        kl.push_back(std::log2(kl_ratio));
      }
      if (k.size() < 2) continue;
      chain->row_slope.push_back(SlopeOf(k, rows));
      chain->kl_slope.push_back(SlopeOf(k, kl));
    }
  }

  const StudyContext& study_;
  ErrorStudyResult& result_;
};

}  // namespace

absl::Status StudyChains(const StudyContext& study, ErrorStudyResult* result) {
  return Chains(study, result).Run();
}

}  // namespace torpor::bench
