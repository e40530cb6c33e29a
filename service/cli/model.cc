// SPDX-License-Identifier: Apache-2.0
//
// torpor model add | list.

#include <filesystem>
#include <iostream>
#include <memory>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "service/cli/context.h"

namespace torpor::service::cli {
namespace {

struct AddOptions {
  std::string directory;
  std::string name;
  std::string config;
  std::string kv_dtype = "native";
  uint32_t block_size = 0;
};

absl::Status AddModel(const AddOptions& options, Context* context) {
  v1::RegisterRequest request;
  request.set_kv_dtype(options.kv_dtype);
  request.set_block_size(options.block_size);
  TORPOR_ASSIGN_OR_RETURN(const std::string absolute,
                          AbsolutePath("model", options.directory));
  std::filesystem::path path = absolute;
  if (IsDirectory(absolute)) {
    if (path.filename().empty()) path = path.parent_path();
    // The daemon opens it: it must stand on the daemon's host.
    request.set_model_dir(path.string());
  } else {
    TORPOR_ASSIGN_OR_RETURN(*request.mutable_config_json(),
                            ReadFile(options.directory));
    path = path.stem();
  }
  request.set_name(options.name.empty() ? path.filename().string()
                                        : options.name);
  TORPOR_ASSIGN_OR_RETURN(Client * client, context->Connect());
  TORPOR_ASSIGN_OR_RETURN(
      const v1::ModelState state,
      client->Unary(client->models(), &v1::ModelService::Stub::Register,
                    request));
  if (context->json) {
    PrintJson(ToJson(state));
    return absl::OkStatus();
  }
  std::cout << absl::StrFormat(
      "%s: %s, %d layers, blocks of %d tokens, replayed by %s\n", state.name(),
      state.layout().family(), state.layout().n_layers(), state.block_size(),
      absl::StrJoin(state.executors(), " or "));
  if (!state.daemon_executor_reason().empty()) {
    std::cout << state.daemon_executor_reason() << "\n";
  }
  return absl::OkStatus();
}

absl::Status ListModels(Context* context) {
  TORPOR_ASSIGN_OR_RETURN(Client * client, context->Connect());
  TORPOR_ASSIGN_OR_RETURN(
      const v1::ListModelsResponse models,
      client->Unary(client->models(), &v1::ModelService::Stub::List,
                    v1::ListModelsRequest()));
  if (context->json) {
    PrintJson(ToJson(models));
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> rows = {
      {"MODEL", "FAMILY", "LAYERS", "BLOCK", "REPLAY", "NOTE"}};
  for (const v1::ModelState& m : models.models()) {
    const bool daemon = m.executors_size() > 1;
    rows.push_back({m.name(), m.layout().family(),
                    std::to_string(m.layout().n_layers()),
                    std::to_string(m.block_size()),
                    daemon ? "daemon, engine" : "engine only",
                    daemon ? m.numerics_id() : m.daemon_executor_reason()});
  }
  PrintTable(rows);
  return absl::OkStatus();
}

}  // namespace

void AddModelCommands(CLI::App* app, Context* context, Run* run) {
  CLI::App* model = app->add_subcommand("model", "Register and list models");
  model->require_subcommand(1);
  auto options = std::make_shared<AddOptions>();
  CLI::App* add = model->add_subcommand(
      "add",
      "Register a model: a directory with weights or, for an engine to replay, "
      "one of a plan-only family or a config.json");
  add->add_option("source", options->directory,
                  "Directory on the daemon's host, or a config.json for models "
                  "that an engine replays")
      ->required();
  add->add_option("--name", options->name, "Default: the last path component");
  add->add_option("--kv-dtype", options->kv_dtype, "native, bf16, f16 or f32")
      ->capture_default_str();
  add->add_option("--block-size", options->block_size,
                  "Tokens a block (default: chosen from the row sizes)");
  add->callback([=] { *run = [=] { return AddModel(*options, context); }; });
  CLI::App* list = model->add_subcommand("list", "What is registered");
  list->callback([=] { *run = [=] { return ListModels(context); }; });
}

}  // namespace torpor::service::cli
