// SPDX-License-Identifier: Apache-2.0
//
// How wrong a bounded wake is, in process, on any model that runs here: at
// random cuts, right after something that must be remembered, and after many
// bounded wakes in a row. Every figure is against a twin that never slept; an
// exact wake must be == to it before anything is reported. The same seed gives
// the same figures on the same path.

#ifndef TORPOR_BENCH_ERROR_STUDY_H_
#define TORPOR_BENCH_ERROR_STUDY_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/command.h"
#include "bench/study_text.h"
#include "replay/model.h"
#include "service/cli/engine_options.h"

namespace torpor::bench {

struct ErrorStudyOptions {
  // A model's directory, or "NAME=DIRECTORY"; results bear the name, which is
  // the directory's last part otherwise.
  std::vector<std::string> models = {"models/nano"};
  service::cli::EngineOptions engine;
  // "NAME=FILE": token ids for the model that is called so.
  std::vector<std::string> ids_files;
  // For models whose tokens are bytes.
  std::string text_file = "models/nano/heldout_sample.bin";
  // Random cuts, needles and chains of wakes; 0 = from the model's size.
  uint64_t n_cuts = 0;
  uint64_t n_needles = 0;
  uint64_t n_chains = 0;
  // Tokens of true text after a cut, and tokens decoded greedily.
  uint64_t n_fed = 64;
  uint64_t n_greedy = 256;
  // Wakes in a row.
  uint64_t n_wakes = 64;
  uint64_t seed = 1;
};

// At random cuts, for one R.
struct CutStudy {
  // R as asked; the exact plan's own when exact.
  uint64_t replay_tokens = 0;
  bool exact = false;
  uint64_t token_layers = 0;
  struct Layer {
    uint32_t layer = 0;
    // Relative L2 of window rows, a group a cut.
    std::vector<std::vector<double>> row_l2;
    // Largest difference over largest value, one a cut.
    std::vector<double> max_relative;
  };
  std::vector<Layer> layers;
  // Mean relative L2 over layers, one value a cut, for each quarter of the
  // window's rows: the oldest first.
  std::array<std::vector<double>, 4> quarters;
  // One value a cut: KL(never slept || bounded) of the first token after the
  // cut, its mean over n_fed tokens of true text, nats; and the loss on that
  // text less that of the twin, nats a token.
  std::vector<double> kl_next;
  std::vector<double> kl_fed;
  std::vector<double> loss_added;
  // Of the n_fed, where the likeliest token is another one; share.
  std::vector<double> likeliest_differs;
  // Tokens decoded greedily before the first that differs; n_greedy = none did.
  std::vector<uint64_t> first_difference;

  [[nodiscard]] std::vector<double> MeanRowL2s() const;
};

// Something said once must be said again: its answer's tokens, teacher-forced.
struct NeedleStudy {
  struct Case {
    // "never slept", "never told", or "bounded 128".
    std::string name;
    // 0 unless bounded.
    uint64_t replay_tokens = 0;
    // One value a needle: nats a token of the answer, and the share of its
    // tokens that are the likeliest.
    std::vector<double> log_probability;
    std::vector<double> hits;
  };
  // Tokens between the needle and the cut.
  uint64_t distance = 0;
  std::vector<Case> cases;
};

// Wakes in a row, each bounded by the window.
struct ChainStudy {
  // Tokens between wakes.
  uint64_t interval = 0;
  struct Point {
    uint64_t n_wakes = 0;
    // One value a chain. After so many wakes, and where the twin wakes once at
    // the same cut: relative L2 of window rows, KL over n_fed tokens.
    std::vector<double> row_l2, row_l2_once;
    std::vector<double> kl, kl_once;
    // Relative L2 of the persisted rows of the last interval.
    std::vector<double> compact_l2;
  };
  std::vector<Point> points;
  // One value a chain: the slope of log2(after k / woken once) over log2 k.
  std::vector<double> row_slope, kl_slope;
};

struct ErrorStudyResult {
  std::string model;
  replay::ModelLayout layout;
  std::string numerics_id;
  std::string text;
  uint64_t text_tokens = 0;
  uint64_t window = 0;
  uint64_t exact_tokens = 0;
  // Cuts are at tokens [cut_min, cut_max].
  uint64_t cut_min = 0;
  uint64_t cut_max = 0;
  uint64_t n_fed = 0;
  uint64_t n_greedy = 0;
  // Exact wakes that were held against the twin, all of them ==.
  uint64_t n_verified = 0;
  std::vector<CutStudy> cuts;
  std::vector<NeedleStudy> needles;
  std::vector<ChainStudy> chains;
};

// `model` as in ErrorStudyOptions.models. kDataLoss when an exact wake is not
// ==; kFailedPrecondition for a model without windows to rebuild.
absl::StatusOr<ErrorStudyResult> MeasureErrors(const ErrorStudyOptions& options,
                                               const std::string& model,
                                               const Common& common);

RunBenchmark AddErrorCommand(CLI::App* app, const Common* common);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_ERROR_STUDY_H_
