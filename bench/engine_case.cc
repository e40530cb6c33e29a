// SPDX-License-Identifier: Apache-2.0

#include "bench/engine_case.h"

#include <random>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/families.h"

namespace torpor::bench {
namespace {

constexpr double kBoundedMust = 30;
constexpr double kExactMust = 5;

// By its shape: 18 layers, windows of 512.
bool IsGemma3With270M(const replay::ModelLayout& layout) {
  return layout.family == "gemma3_text" && layout.n_layers == 18 &&
         layout.LargestWindow() == 512;
}

}  // namespace

void EngineCases::AddTo(CLI::App* app) {
  app->add_option("--model", model_dir, "Directory of the model")
      ->capture_default_str();
  engine.AddTo(app);
  app->add_option("--lengths", lengths, "Tokens of a session, several")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--replay-tokens", replay_tokens,
                  "Lengths of bounded replays, several; 0 = the window")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--repeats", repeats, "Timed runs of each case, interleaved")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
}

absl::StatusOr<std::unique_ptr<replay::Model>> EngineCases::Load() const {
  TORPOR_ASSIGN_OR_RETURN(const replay::ModelOptions options,
                          engine.ModelOptionsOf());
  return replay::LoadModel(model_dir, options);
}

std::vector<ModeCase> ModeCasesOf(const EngineCases& cases,
                                  const replay::ModelLayout& layout) {
  using replay::ReplayMode;
  std::vector<ModeCase> out;
  for (const std::string& mode : cases.modes) {
    if (mode == "bounded") {
      for (const uint64_t asked : cases.replay_tokens) {
        const uint64_t r = asked == 0 ? layout.LargestWindow() : asked;
        out.push_back(
            {absl::StrFormat("bounded %d", r), ReplayMode::kBounded, r});
      }
      continue;
    }
    out.push_back({mode,
                   mode == "exact"      ? ReplayMode::kExact
                   : mode == "snapshot" ? ReplayMode::kSnapshot
                                        : ReplayMode::kCold,
                   0});
  }
  return out;
}

std::vector<uint32_t> MadeUpIds(const replay::Model& model, uint64_t n,
                                uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint32_t> ids(n);
  for (uint32_t& id : ids) {
    id = static_cast<uint32_t>(random() % model.vocab_size());
  }
  return ids;
}

LimitRow AgainstCold(const replay::ModelLayout& layout, uint64_t n_tokens,
                     const ModeCase& mode, double ms, double cold_ms) {
  double must = 0;
  if (IsGemma3With270M(layout) && n_tokens >= 32'000) {
    if (mode.mode == replay::ReplayMode::kBounded) must = kBoundedMust;
    if (mode.mode == replay::ReplayMode::kExact) must = kExactMust;
  }
  return {absl::StrFormat("cold / %s at %d tokens", mode.name, n_tokens),
          cold_ms,
          ms,
          "ms",
          mode.name,
          must,
          /*at_least=*/true};
}

}  // namespace torpor::bench
