// SPDX-License-Identifier: Apache-2.0
//
// What benchmarks that run a model share: which model, at which lengths, in
// which modes.

#ifndef TORPOR_BENCH_ENGINE_CASE_H_
#define TORPOR_BENCH_ENGINE_CASE_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/limit_row.h"
#include "replay/model.h"
#include "service/cli/engine_options.h"

namespace torpor::bench {

struct EngineCases {
  // config.json and safetensors of a family that runs here.
  std::string model_dir = "models/nano";
  service::cli::EngineOptions engine;
  // Tokens with KV.
  std::vector<uint64_t> lengths = {1'024, 8'192};
  // Bounded replay lengths R; 0 = the largest window.
  std::vector<uint64_t> replay_tokens = {0};
  std::vector<std::string> modes = {"bounded", "exact", "snapshot", "cold"};
  int repeats = 5;

  void AddTo(CLI::App* app);
  // As replay::LoadModel.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<replay::Model>> Load() const;
};

// One line of a result: "exact", or "bounded 256" with its R.
struct ModeCase {
  std::string name;
  replay::ReplayMode mode = replay::ReplayMode::kExact;
  uint64_t replay_tokens = 0;
};
std::vector<ModeCase> ModeCasesOf(const EngineCases& cases,
                                  const replay::ModelLayout& layout);

// Made-up ids; the model is held against itself, whatever they mean.
std::vector<uint32_t> MadeUpIds(const replay::Model& model, uint64_t n,
                                uint64_t seed);

// How many times faster than a cold prefill. The design asks 30 of bounded and
// 5 of exact on Gemma 3 270M at 32k tokens; of others nothing.
LimitRow AgainstCold(const replay::ModelLayout& layout, uint64_t n_tokens,
                     const ModeCase& mode, double ms, double cold_ms);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_ENGINE_CASE_H_
