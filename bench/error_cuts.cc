// SPDX-License-Identifier: Apache-2.0
//
// Random cuts: windows, distributions and greedy text of bounded wakes against
// the twin.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/error_parts.h"

namespace torpor::bench {
namespace {

class Cuts {
 public:
  Cuts(const StudyContext& study, ErrorStudyResult* result)
      : study_(study), result_(*result) {}

  absl::Status Run() {
    for (const uint64_t r : ReplayGrid(study_.window, study_.exact_tokens)) {
      result_.cuts.emplace_back().replay_tokens = r;
    }
    CutStudy& exact = result_.cuts.emplace_back();
    exact.replay_tokens = study_.exact_tokens;
    exact.exact = true;
    std::mt19937_64 random(study_.options->seed);
    for (uint64_t i = 0; i < study_.n_cuts; ++i) {
      TORPOR_RETURN_IF_ERROR(One(i, &random));
      study_.common->Say(
          absl::StrFormat("random cut %d of %d", i + 1, study_.n_cuts));
    }
    return absl::OkStatus();
  }

 private:
  // Two sessions that wake with the same rows.
  struct Woken {
    CutStudy* study;
    LabSession session;
    bool differs = false;
  };

  absl::Status One(uint64_t i, std::mt19937_64* random) {
    const uint64_t n_fed = study_.options->n_fed;
    const uint64_t cut = study_.DrawCut(random);
    TORPOR_ASSIGN_OR_RETURN(
        const std::vector<uint32_t> text,
        DrawText(study_.text, i, study_.n_cuts, cut + n_fed + 1, random));
    LabSession twin(study_.model);
    TORPOR_RETURN_IF_ERROR(twin.Run(text, cut, cut).status());
    TORPOR_ASSIGN_OR_RETURN(const Asleep asleep, twin.Suspend());
    TORPOR_ASSIGN_OR_RETURN(std::vector<float> logits,
                            twin.Run(text, cut + n_fed, cut));
    const NextTokens never(std::move(logits), study_.model->vocab_size());
    std::vector<Woken> woken;
    for (CutStudy& cuts : result_.cuts) {
      TORPOR_ASSIGN_OR_RETURN(const replay::ReplayPlan plan,
                              cuts.exact
                                  ? study_.Exact(cut)
                                  : study_.Bounded(cut, cuts.replay_tokens));
      TORPOR_ASSIGN_OR_RETURN(
          const replay::WindowState window,
          Rebuild(study_.model, plan, text, asleep.rows.get()));
      cuts.token_layers = plan.token_layers;
      TORPOR_ASSIGN_OR_RETURN(
          const NextTokens next,
          study_.Feed(asleep.rows.get(), window, text, n_fed));
      if (plan.exact) {
        TORPOR_RETURN_IF_ERROR(SameWindow(window, asleep.window, "exact wake"));
        TORPOR_RETURN_IF_ERROR(SameLogits(next, never));
        ++result_.n_verified;
      }
      AddWindow(CompareWindows(study_.model->layout(), window, asleep.window),
                &cuts);
      AddNext(never, next, std::span(text).subspan(cut + 1), &cuts);
      TORPOR_ASSIGN_OR_RETURN(
          LabSession session,
          LabSession::Wake(study_.model, text, asleep.rows.get(), window));
      woken.push_back({&cuts, std::move(session)});
    }
    TORPOR_ASSIGN_OR_RETURN(
        LabSession awake,
        LabSession::Wake(study_.model, text, asleep.rows.get(), asleep.window));
    return Greedy(text[cut], std::move(awake), &woken);
  }

  static absl::Status SameLogits(const NextTokens& got,
                                 const NextTokens& wanted) {
    if (got.logits().size() == wanted.logits().size() &&
        std::memcmp(got.logits().data(), wanted.logits().data(),
                    got.logits().size() * sizeof(float)) == 0) {
      return absl::OkStatus();
    }
    return absl::DataLossError(
        "exact wake: logits differ from the session that never slept");
  }

  static void AddWindow(const std::vector<LayerDistance>& layers,
                        CutStudy* out) {
    out->layers.resize(layers.size());
    std::array<std::vector<double>, 4> quarters;
    for (size_t i = 0; i < layers.size(); ++i) {
      const std::vector<double>& rows = layers[i].row_l2;
      out->layers[i].layer = layers[i].layer;
      out->layers[i].row_l2.push_back(rows);
      out->layers[i].max_relative.push_back(layers[i].max_relative);
      for (size_t row = 0; row < rows.size(); ++row) {
        quarters[row * 4 / rows.size()].push_back(rows[row]);
      }
    }
    for (size_t q = 0; q < quarters.size(); ++q) {
      out->quarters[q].push_back(EstimateOf(quarters[q]).mean);
    }
  }

  // `after`: the tokens that follow each of the rows.
  static void AddNext(const NextTokens& never, const NextTokens& next,
                      std::span<const uint32_t> after, CutStudy* out) {
    double kl = 0;
    double loss = 0;
    double others = 0;
    for (size_t row = 0; row < never.size(); ++row) {
      const double here = never.Divergence(row, next);
      if (row == 0) out->kl_next.push_back(here);
      kl += here;
      loss += never.LogProbability(row, after[row]) -
              next.LogProbability(row, after[row]);
      others += never.Likeliest(row) == next.Likeliest(row) ? 0 : 1;
    }
    const auto n = static_cast<double>(never.size());
    out->kl_fed.push_back(kl / n);
    out->loss_added.push_back(loss / n);
    out->likeliest_differs.push_back(others / n);
  }

  // All sessions decode side by side; one that differs leaves.
  absl::Status Greedy(uint32_t first, LabSession awake,
                      std::vector<Woken>* woken) {
    uint32_t token = first;
    const uint64_t n = study_.options->n_greedy;
    for (uint64_t step = 0; step < n; ++step) {
      std::vector<LabSession*> live = {&awake};
      std::vector<Woken*> compared;
      for (Woken& w : *woken) {
        if (w.differs) continue;
        live.push_back(&w.session);
        compared.push_back(&w);
      }
      if (compared.empty()) break;
      TORPOR_ASSIGN_OR_RETURN(const std::vector<uint32_t> next,
                              Step(token, live));
      for (size_t i = 0; i < compared.size(); ++i) {
        if (next[i + 1] == next[0]) continue;
        compared[i]->differs = true;
        compared[i]->study->first_difference.push_back(step);
      }
      token = next[0];
    }
    for (const Woken& w : *woken) {
      if (!w.differs) w.study->first_difference.push_back(n);
    }
    return absl::OkStatus();
  }

  // The likeliest next token of each session after `token`.
  absl::StatusOr<std::vector<uint32_t>> Step(
      uint32_t token, const std::vector<LabSession*>& live) {
    std::vector<replay::Segment> batch;
    for (LabSession* session : live) batch.push_back(session->Step(token));
    std::vector<std::vector<float>> logits;
    TORPOR_RETURN_IF_ERROR(study_.model->Forward(batch, {}, &logits));
    std::vector<uint32_t> next;
    for (const std::vector<float>& row : logits) {
      next.push_back(static_cast<uint32_t>(
          std::max_element(row.begin(), row.end()) - row.begin()));
    }
    return next;
  }

  const StudyContext& study_;
  ErrorStudyResult& result_;
};

}  // namespace

std::vector<double> CutStudy::MeanRowL2s() const {
  std::vector<double> out;
  for (size_t cut = 0; cut < kl_next.size(); ++cut) {
    double sum = 0;
    for (const Layer& layer : layers) sum += EstimateOf(layer.row_l2[cut]).mean;
    out.push_back(sum / static_cast<double>(layers.size()));
  }
  return out;
}

absl::Status StudyCuts(const StudyContext& study, ErrorStudyResult* result) {
  return Cuts(study, result).Run();
}

}  // namespace torpor::bench
