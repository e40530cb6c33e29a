// SPDX-License-Identifier: Apache-2.0
//
// torpor plan CONFIG: sizes and replay lengths from any config.json. Needs
// neither weights nor a daemon.

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/families.h"
#include "replay/layout_report.h"
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
  // 0 = no fleet.
  uint64_t n_sessions = 0;
  uint64_t n_turns = 16;
};

using Rows = std::vector<std::vector<std::string>>;

struct Baseline {
  const char* key;
  const char* title;
  replay::FleetNeeds needs;
};

std::vector<Baseline> BaselinesOf(const replay::FleetFigures& fleet) {
  return {
      {"every_window_row", "every window row kept", fleet.every_window_row},
      {"snapshot_per_turn", "one snapshot per turn", fleet.snapshot_per_turn},
      {"snapshot_per_session", "one snapshot per session",
       fleet.snapshot_per_session},
      {"torpor", "torpor (windows are replayed)", fleet.torpor}};
}

// What the layout's figures do not say by themselves.
std::vector<std::string> NotesOf(const replay::PlannedLayout& planned) {
  std::vector<std::string> notes = planned.notes;
  for (const replay::PersistedWindow& window :
       replay::PersistedWindows(planned.layout)) {
    notes.push_back(absl::StrFormat(
        "%d layer%s a window or chunk of %d tokens, no less than the positions "
        "the model knows: treated as full, so %s rows persist",
        window.layers.size(), window.layers.size() == 1 ? " has" : "s have",
        window.reach, window.layers.size() == 1 ? "its" : "their"));
  }
  return notes;
}

nlohmann::json SlotJson(const replay::Slot& slot) {
  return {{"name", slot.name},
          {"layer", slot.owner_layer},
          {"reader_layers", slot.reader_layers},
          {"kind", std::string(replay::SlotKindName(slot.kind))},
          {"window", slot.window},
          {"chunk", slot.chunk},
          {"tokens_per_row", slot.tokens_per_row},
          {"rows_per_token", 1.0 / slot.tokens_per_row},
          {"overlap_tokens", slot.overlap_tokens},
          {"row_bytes", slot.row_bytes},
          {"bytes_per_token",
           static_cast<double>(slot.row_bytes) / slot.tokens_per_row},
          {"format", slot.format},
          {"come_back", std::string(replay::ComeBackName(slot.come_back))},
          {"draft", slot.is_draft()}};
}

nlohmann::json FleetJson(const replay::FleetFigures& fleet,
                         const Options& options) {
  nlohmann::json out = {{"sessions", options.n_sessions},
                        {"tokens", options.n_tokens},
                        {"turns", options.n_turns},
                        {"token_id_bytes", fleet.token_id_bytes}};
  for (const Baseline& baseline : BaselinesOf(fleet)) {
    out[baseline.key] = {{"ssd_bytes", baseline.needs.ssd_bytes},
                         {"memory_bytes", baseline.needs.memory_bytes}};
  }
  return out;
}

nlohmann::json FiguresJson(const replay::PlannedLayout& planned,
                           const replay::LayoutFigures& figures,
                           uint64_t n_tokens) {
  const replay::ModelLayout& layout = planned.layout;
  nlohmann::json out;
  out["family"] = layout.family;
  out["n_layers"] = layout.n_layers;
  out["plan_only"] = planned.plan_only;
  out["n_tokens"] = n_tokens;
  out["compact_bytes_per_token"] = figures.compact_bytes_per_token;
  out["all_window_bytes_per_token"] = figures.all_window_bytes_per_token;
  out["draft_bytes_per_token"] = figures.draft_bytes_per_token;
  out["ratio"] = figures.compact_bytes_per_token == 0
                     ? nlohmann::json(nullptr)
                     : nlohmann::json(figures.ratio);
  out["snapshot_bytes"] = figures.snapshot_bytes;
  out["bounded_tokens"] = figures.bounded_tokens;
  out["exact_tokens"] = figures.exact_tokens;
  out["exact_token_layers"] = figures.exact_token_layers;
  out["block_size"] = replay::ChooseBlockSize(layout);
  out["notes"] = NotesOf(planned);
  out["windows_treated_as_full"] = nlohmann::json::array();
  for (const replay::PersistedWindow& window :
       replay::PersistedWindows(layout)) {
    out["windows_treated_as_full"].push_back(
        {{"window", window.reach}, {"layers", window.layers}});
  }
  out["slots"] = nlohmann::json::array();
  for (const replay::Slot& slot : layout.slots) {
    out["slots"].push_back(SlotJson(slot));
  }
  return out;
}

Rows FigureRows(const replay::PlannedLayout& planned,
                const replay::LayoutFigures& figures, const Options& options) {
  const replay::ModelLayout& layout = planned.layout;
  const auto per_token = [](double bytes) {
    return absl::StrFormat("%.12g B/token", bytes);
  };
  const auto session = [&](double bytes) {
    // Sessions of any length may be asked for, also beyond what 64 bits count.
    return Bytes(static_cast<uint64_t>(
        std::min(bytes * static_cast<double>(options.n_tokens), 1e19)));
  };
  Rows rows = {
      {"",
       absl::StrFormat("%s, %d layers%s", layout.family, layout.n_layers,
                       planned.plan_only ? ", plan-only" : ""),
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
  if (figures.draft_bytes_per_token > 0) {
    rows.push_back({"draft windows, beside these",
                    per_token(figures.draft_bytes_per_token), "replayed"});
  }
  return rows;
}

absl::StatusOr<Rows> ResumeRows(const replay::ModelLayout& layout,
                                const Options& options) {
  Rows rows;
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
  return rows;
}

// Groups of slots that differ in their layer alone; the layers stand last,
// since there may be many.
Rows SlotRows(const replay::ModelLayout& layout) {
  Rows rows = {{"SLOT", "KIND", "ROWS/TOKEN", "B/ROW", "B/TOKEN", "COMES BACK",
                "LAYERS"}};
  for (const replay::SlotGroup& group : replay::GroupSlots(layout)) {
    const replay::Slot& slot = group.slot;
    std::string kind(replay::SlotKindName(slot.kind));
    if (slot.is_window()) absl::StrAppendFormat(&kind, " %d", slot.reach());
    if (slot.overlap_tokens > 0) {
      absl::StrAppendFormat(&kind, " +%d", slot.overlap_tokens);
    }
    // An open group has a row for each of its tokens, and none is kept.
    const bool is_open = slot.kind == replay::SlotKind::kOpenGroup;
    std::string layers = replay::LayerRanges(group.layers);
    if (slot.is_draft()) {
      // Several may stand at one layer of the model.
      layers = absl::StrFormat("%d draft layers, at the input of %d",
                               group.layers.size(), slot.owner_layer);
    } else if (slot.reader_layers.size() > 1) {
      layers += ", read by " + replay::LayerRanges(slot.reader_layers);
    }
    rows.push_back(
        {group.name, kind,
         is_open ? absl::StrFormat("of %d", slot.tokens_per_row)
         : slot.tokens_per_row == 1
             ? "1"
             : absl::StrFormat("1/%d", slot.tokens_per_row),
         std::to_string(slot.row_bytes),
         is_open ? "-" : absl::StrFormat("%.12g", group.bytes_per_token),
         std::string(replay::ComeBackName(slot.come_back)), layers});
  }
  return rows;
}

Rows FleetRows(const replay::FleetFigures& fleet, const Options& options) {
  Rows rows = {
      {absl::StrFormat("%d sessions of %d tokens, %d turns", options.n_sessions,
                       options.n_tokens, options.n_turns),
       "SSD, all asleep", "GPU or host memory, all awake"}};
  for (const Baseline& baseline : BaselinesOf(fleet)) {
    rows.push_back({baseline.title, Bytes(baseline.needs.ssd_bytes),
                    Bytes(baseline.needs.memory_bytes)});
  }
  rows.push_back({"token ids, beside each", Bytes(fleet.token_id_bytes), "-"});
  return rows;
}

absl::Status RunPlan(const Options& options, bool json) {
  const std::string path = IsDirectory(options.config)
                               ? options.config + "/config.json"
                               : options.config;
  TORPOR_ASSIGN_OR_RETURN(const std::string config, ReadFile(path));
  TORPOR_ASSIGN_OR_RETURN(const replay::PlannedLayout planned,
                          replay::PlanConfig(config, {options.kv_dtype}));
  const replay::ModelLayout& layout = planned.layout;
  const replay::LayoutFigures figures =
      replay::FiguresOf(layout, options.n_tokens);
  std::optional<replay::FleetFigures> fleet;
  if (options.n_sessions > 0) {
    TORPOR_ASSIGN_OR_RETURN(
        fleet,
        replay::FleetFiguresOf(
            layout, {options.n_sessions, options.n_tokens, options.n_turns}));
  }
  if (json) {
    nlohmann::json out = FiguresJson(planned, figures, options.n_tokens);
    if (fleet.has_value()) out["fleet"] = FleetJson(*fleet, options);
    PrintJson(out);
    return absl::OkStatus();
  }
  Rows rows = FigureRows(planned, figures, options);
  TORPOR_ASSIGN_OR_RETURN(const Rows resumes, ResumeRows(layout, options));
  rows.insert(rows.end(), resumes.begin(), resumes.end());
  PrintTable(rows);
  std::cout << "\n";
  PrintTable(SlotRows(layout));
  if (fleet.has_value()) {
    std::cout << "\n";
    PrintTable(FleetRows(*fleet, options));
  }
  const std::vector<std::string> notes = NotesOf(planned);
  if (!notes.empty()) std::cout << "\n";
  for (const std::string& note : notes) std::cout << "note: " << note << "\n";
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
  command->add_option("--sessions", options->n_sessions,
                      "Also what so many such sessions need, under each way to "
                      "keep window rows");
  command
      ->add_option("--turns", options->n_turns,
                   "Suspends of each of them, for snapshots of each turn")
      ->capture_default_str();
  command
      ->add_option("--kv-dtype", options->kv_dtype, "native, bf16, f16 or f32")
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
