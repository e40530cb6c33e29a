// SPDX-License-Identifier: Apache-2.0
//
// torpor plan CONFIG: sizes and replay lengths from any config.json. Needs
// neither weights nor a daemon.

#include <filesystem>
#include <iostream>
#include <memory>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/families.h"
#include "replay/planner.h"
#include "service/cli/context.h"

namespace torpor::service::cli {
namespace {

struct Options {
  std::string config;
  uint64_t n_tokens = 32'768;
  std::string kv_dtype = "native";
  uint64_t resume_at = 0;
  uint64_t replay_tokens = 0;
  bool want_logits = false;
};

nlohmann::json FiguresJson(const replay::ModelLayout& layout,
                           const replay::LayoutFigures& figures,
                           uint64_t n_tokens) {
  nlohmann::json out;
  out["family"] = layout.family;
  out["n_tokens"] = n_tokens;
  out["compact_bytes_per_token"] = figures.compact_bytes_per_token;
  out["all_window_bytes_per_token"] = figures.all_window_bytes_per_token;
  out["ratio"] = figures.compact_bytes_per_token == 0
                     ? nlohmann::json(nullptr)
                     : nlohmann::json(figures.ratio);
  out["snapshot_bytes"] = figures.snapshot_bytes;
  out["bounded_tokens"] = figures.bounded_tokens;
  out["exact_tokens"] = figures.exact_tokens;
  out["exact_token_layers"] = figures.exact_token_layers;
  out["block_size"] = replay::ChooseBlockSize(layout);
  return out;
}

absl::Status PrintPlan(const replay::ModelLayout& layout,
                       const replay::LayoutFigures& figures,
                       const Options& options) {
  const auto per_token = [](double bytes) {
    return absl::StrFormat("%g B/token", bytes);
  };
  const auto session = [&](double bytes) {
    return Bytes(
        static_cast<uint64_t>(bytes * static_cast<double>(options.n_tokens)));
  };
  std::vector<std::vector<std::string>> rows = {
      {"", absl::StrFormat("%s, %d layers", layout.family, layout.n_layers),
       absl::StrFormat("%d tokens", options.n_tokens)},
      {"stored (compact KV)", per_token(figures.compact_bytes_per_token),
       session(figures.compact_bytes_per_token)},
      {"every window row kept", per_token(figures.all_window_bytes_per_token),
       session(figures.all_window_bytes_per_token)},
      {"ratio",
       figures.ratio == 0 ? "-" : absl::StrFormat("%.2fx", figures.ratio), ""},
      {"one snapshot of the windows", "", Bytes(figures.snapshot_bytes)},
      {"bounded replay", absl::StrFormat("%d tokens", figures.bounded_tokens),
       ""},
      {"exact replay", absl::StrFormat("%d tokens", figures.exact_tokens),
       absl::StrFormat("%d token-layers", figures.exact_token_layers)}};
  for (const replay::ReplayMode mode :
       {replay::ReplayMode::kBounded, replay::ReplayMode::kExact}) {
    if (options.resume_at == 0) break;
    TORPOR_ASSIGN_OR_RETURN(
        const replay::ReplayPlan plan,
        replay::PlanReplay(layout, {.resume_at = options.resume_at,
                                    .mode = mode,
                                    .replay_tokens = options.replay_tokens,
                                    .want_logits = options.want_logits}));
    rows.push_back(
        {absl::StrFormat("resume at %d, %s", options.resume_at,
                         std::string(ReplayModeName(mode))),
         absl::StrFormat("rows [%d, %d)", plan.replay_start, plan.resume_at),
         absl::StrFormat("%d token-layers%s", plan.token_layers,
                         plan.exact ? ", exact" : "")});
  }
  PrintTable(rows);
  return absl::OkStatus();
}

absl::Status RunPlan(const Options& options, bool json) {
  const std::string path = std::filesystem::is_directory(options.config)
                               ? options.config + "/config.json"
                               : options.config;
  TORPOR_ASSIGN_OR_RETURN(const std::string config, ReadFile(path));
  TORPOR_ASSIGN_OR_RETURN(const replay::ModelLayout layout,
                          replay::LayoutFromConfig(config, {options.kv_dtype}));
  const replay::LayoutFigures figures =
      replay::FiguresOf(layout, options.n_tokens);
  if (!json) return PrintPlan(layout, figures, options);
  PrintJson(FiguresJson(layout, figures, options.n_tokens));
  return absl::OkStatus();
}

}  // namespace

void AddPlanCommand(CLI::App* app, Context* context, Run* run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app->add_subcommand(
      "plan", "Sizes and replay lengths of a model, from its config.json");
  command
      ->add_option("config", options->config,
                   "config.json, or a directory that holds one")
      ->required();
  command->add_option("--tokens", options->n_tokens, "Length of the session")
      ->capture_default_str();
  command->add_option("--kv-dtype", options->kv_dtype, "native, bf16 or f32")
      ->capture_default_str();
  command->add_option("--resume-at", options->resume_at,
                      "Also plan a resume at this token");
  command->add_option("--replay-tokens", options->replay_tokens,
                      "Length of the bounded replay (default: the window)");
  command->add_flag("--logits", options->want_logits,
                    "Also the last token's logits");
  command->callback(
      [=] { *run = [=] { return RunPlan(*options, context->json); }; });
}

}  // namespace torpor::service::cli
