// SPDX-License-Identifier: Apache-2.0

#include "bench/error_study.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/error_parts.h"
#include "bench/error_study_report.h"
#include "replay/families.h"

namespace torpor::bench {
namespace {

// Sample sizes by what one session costs: about ten minutes on two cores for
// the models of this repository and Gemma 3 270M alike.
constexpr double kWork = 9e10;

uint64_t CutsFor(const replay::Model& model, uint64_t exact_tokens) {
  const double work = static_cast<double>(exact_tokens) *
                      model.layout().n_layers * model.hidden_size() *
                      model.hidden_size();
  return static_cast<uint64_t>(std::clamp(kWork / work, 8.0, 128.0));
}

struct NamedModel {
  std::string name;
  std::string dir;
};

// "NAME=DIRECTORY", or a directory, which is called by its last part.
NamedModel ModelOf(const std::string& entry) {
  const size_t equals = entry.find('=');
  if (equals != 0 && equals < entry.find('/')) {
    return {entry.substr(0, equals), entry.substr(equals + 1)};
  }
  const std::filesystem::path path(entry);
  return {(path.has_filename() ? path : path.parent_path()).filename().string(),
          entry};
}

absl::StatusOr<std::string> IdsFileOf(const ErrorStudyOptions& options,
                                      const std::string& name) {
  for (const std::string& entry : options.ids_files) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--ids %s: wanted NAME=FILE", entry));
    }
    if (entry.substr(0, equals) == name) return entry.substr(equals + 1);
  }
  return std::string();
}

absl::StatusOr<StudyContext> ContextOf(const ErrorStudyOptions& options,
                                       const NamedModel& named,
                                       replay::Model* model,
                                       const Common& common) {
  const replay::ModelLayout& layout = model->layout();
  StudyContext study;
  study.model = model;
  study.options = &options;
  study.common = &common;
  study.window = layout.LargestWindow();
  study.exact_tokens = replay::FiguresOf(layout, 0).exact_tokens;
  if (study.window == 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: wanted a model with windows to rebuild; %s has none", named.name,
        layout.family));
  }
  for (const replay::Slot& slot : layout.slots) {
    study.group = std::lcm(study.group, uint64_t{slot.tokens_per_row});
  }
  const uint64_t n = CutsFor(*model, study.exact_tokens);
  const auto or_default = [](uint64_t asked, uint64_t otherwise) {
    return asked != 0 ? asked : otherwise;
  };
  study.n_cuts = or_default(options.n_cuts, n);
  study.n_needles =
      or_default(options.n_needles, std::clamp<uint64_t>(3 * n / 8, 6, 48));
  study.n_chains =
      or_default(options.n_chains, std::clamp<uint64_t>(n / 8, 2, 16));
  TextRequest request;
  TORPOR_ASSIGN_OR_RETURN(request.ids_file, IdsFileOf(options, named.name));
  request.bytes_file = options.text_file;
  TORPOR_ASSIGN_OR_RETURN(request.config_json,
                          replay::ReadModelConfig(named.dir));
  request.n_sampled = study.LongestSession();
  request.seed = options.seed;
  TORPOR_ASSIGN_OR_RETURN(study.text, TextFor(model, request, common));
  return study;
}

}  // namespace

uint64_t StudyContext::CutMin() const { return WholeGroups(exact_tokens + 1); }

uint64_t StudyContext::CutMax() const { return CutMin() + 4 * window; }

uint64_t StudyContext::DrawCut(std::mt19937_64* random) const {
  return (CutMin() + Below(random, 4 * window + 1)) / group * group;
}

uint64_t StudyContext::LongestSession() const {
  const uint64_t chain =
      WholeGroups(64) * options->n_wakes + options->n_fed + 1;
  return CutMax() + std::max(chain, 4 * window + 2 * group + 1);
}

absl::StatusOr<replay::ReplayPlan> StudyContext::Bounded(
    uint64_t cut, uint64_t replay_tokens,
    std::vector<replay::Floor> floors) const {
  return replay::PlanReplay(model->layout(),
                            {.resume_at = cut,
                             .mode = replay::ReplayMode::kBounded,
                             .replay_tokens = replay_tokens,
                             .floors = std::move(floors)});
}

absl::StatusOr<replay::ReplayPlan> StudyContext::Exact(
    uint64_t cut, std::vector<replay::Floor> floors) const {
  return replay::PlanReplay(model->layout(),
                            {.resume_at = cut,
                             .mode = replay::ReplayMode::kExact,
                             .floors = std::move(floors)});
}

absl::StatusOr<NextTokens> StudyContext::Feed(KeptRows* rows,
                                              const replay::WindowState& window,
                                              std::span<const uint32_t> text,
                                              uint64_t n) const {
  TORPOR_ASSIGN_OR_RETURN(LabSession session,
                          LabSession::Wake(model, text, rows, window));
  const uint64_t cut = window.resume_at;
  TORPOR_ASSIGN_OR_RETURN(std::vector<float> logits,
                          session.Run(text, cut + n, cut));
  return NextTokens(std::move(logits), model->vocab_size());
}

absl::Status SameWindow(const replay::WindowState& got,
                        const replay::WindowState& wanted,
                        const std::string& what) {
  if (got.slots == wanted.slots) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "%s at %d: the window differs from that of the session that held it",
      what, wanted.resume_at));
}

std::vector<uint64_t> ReplayGrid(uint64_t window, uint64_t exact_tokens) {
  std::vector<uint64_t> out;
  for (uint64_t twice = 2; twice * window / 2 < exact_tokens; twice *= 2) {
    for (const uint64_t halves : {twice, twice * 3 / 2}) {
      const uint64_t r = halves * window / 2;
      if (r < exact_tokens) out.push_back(r);
    }
  }
  return out;
}

absl::StatusOr<ErrorStudyResult> MeasureErrors(const ErrorStudyOptions& options,
                                               const std::string& model,
                                               const Common& common) {
  const NamedModel named = ModelOf(model);
  TORPOR_ASSIGN_OR_RETURN(const replay::ModelOptions model_options,
                          options.engine.ModelOptionsOf());
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<replay::Model> loaded,
                          replay::LoadModel(named.dir, model_options));
  ErrorStudyResult out;
  out.model = named.name;
  if (options.engine.dtype != "native") {
    out.model += "-" + options.engine.dtype;
  }
  TORPOR_ASSIGN_OR_RETURN(const StudyContext study,
                          ContextOf(options, named, loaded.get(), common));
  out.layout = loaded->layout();
  out.numerics_id = loaded->numerics_id();
  out.text = study.text.source;
  out.text_tokens = study.text.n_tokens();
  out.window = study.window;
  out.exact_tokens = study.exact_tokens;
  out.cut_min = study.CutMin();
  out.cut_max = study.CutMax();
  out.n_fed = options.n_fed;
  out.n_greedy = options.n_greedy;
  TORPOR_RETURN_IF_ERROR(StudyCuts(study, &out));
  TORPOR_RETURN_IF_ERROR(StudyNeedles(study, &out));
  TORPOR_RETURN_IF_ERROR(StudyChains(study, &out));
  return out;
}

RunBenchmark AddErrorCommand(CLI::App* app, const Common* common) {
  auto options = std::make_shared<ErrorStudyOptions>();
  app->add_option("--model", options->models,
                  "Directory of a model that runs here, or NAME=DIRECTORY; "
                  "several")
      ->capture_default_str();
  app->add_option("--ids", options->ids_files,
                  "NAME=FILE, token ids for the model that is called NAME, "
                  "as its directory if by nothing else; several. Without it a "
                  "model samples its text");
  app->add_option("--text", options->text_file,
                  "Text for models whose tokens are bytes")
      ->capture_default_str();
  app->add_option("--cuts", options->n_cuts,
                  "Random cuts; 0 = from the model's size")
      ->capture_default_str();
  app->add_option("--needles", options->n_needles, "Needles; 0 likewise")
      ->capture_default_str();
  app->add_option("--chains", options->n_chains,
                  "Sessions that wake again and again; 0 likewise")
      ->capture_default_str();
  options->engine.AddTo(app);
  return [options, common]() -> absl::StatusOr<Result> {
    options->seed = common->seed;
    std::vector<Result> results;
    for (const std::string& model : options->models) {
      TORPOR_ASSIGN_OR_RETURN(const ErrorStudyResult result,
                              MeasureErrors(*options, model, *common));
      results.push_back(ReportOf(result));
    }
    Result first = std::move(results.front());
    first.further.assign(std::make_move_iterator(results.begin() + 1),
                         std::make_move_iterator(results.end()));
    return first;
  };
}

}  // namespace torpor::bench
