// SPDX-License-Identifier: Apache-2.0
//
// What every command of `torpor` shares: how it reaches the daemon, and how it
// prints. Commands are functions that take their options and return a status.

#ifndef TORPOR_SERVICE_CLI_CONTEXT_H_
#define TORPOR_SERVICE_CLI_CONTEXT_H_

#include <google/protobuf/message.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "service/client.h"

namespace torpor::service::cli {

struct Context {
  ClientOptions client;
  bool json = false;

  // Connects at the first use.
  absl::StatusOr<Client*> Connect();

 private:
  std::unique_ptr<Client> connected_;
};

// A command adds its options to a subcommand of `app` and stores what to run in
// `run`.
using Run = std::function<absl::Status()>;
void AddModelCommands(CLI::App* app, Context* context, Run* run);
void AddPlanCommand(CLI::App* app, Context* context, Run* run);
void AddDumpCommand(CLI::App* app, Context* context, Run* run);
void AddRunCommand(CLI::App* app, Context* context, Run* run);
void AddSessionCommands(CLI::App* app, Context* context, Run* run);
void AddPrefetchCommand(CLI::App* app, Context* context, Run* run);
void AddTransferCommands(CLI::App* app, Context* context, Run* run);
void AddExplainCommand(CLI::App* app, Context* context, Run* run);
void AddAdminCommands(CLI::App* app, Context* context, Run* run);
void AddBenchCommand(CLI::App* app, Context* context, Run* run);
void AddCompletionCommand(CLI::App* app, Run* run);

// ---- output
// Columns aligned, the first row being the header.
void PrintTable(const std::vector<std::vector<std::string>>& rows);
// "4.2 MB".
std::string Bytes(uint64_t n);
std::string Milliseconds(uint64_t microseconds);
// An id as text: printable bytes as they are, others escaped.
std::string ShowId(std::string_view id);
// Unix seconds as "2026-11-29 20:15:00", or "-".
std::string ShowTime(int64_t unix_seconds);
// A line that is written over itself on a terminal; empty clears it.
void ShowProgress(const std::string& text);
nlohmann::json ToJson(const google::protobuf::Message& message);
void PrintJson(const nlohmann::json& json);

// kInvalidArgument names the option.
absl::StatusOr<v1::ReplayMode> ParseReplayMode(const std::string& option,
                                               const std::string& name);
// A path as it is from anywhere. kInvalidArgument when it is empty.
absl::StatusOr<std::string> AbsolutePath(const std::string& option,
                                         const std::string& path);
// Whether a directory is there, as far as we may look.
bool IsDirectory(const std::string& path);
// kNotFound with the reason; kFailedPrecondition when it is a directory.
absl::StatusOr<std::string> ReadFile(const std::string& path);
// Token ids of a JSON file: a list, or an object with a list "tokens".
absl::StatusOr<std::vector<uint32_t>> ReadTokenFile(const std::string& path);

}  // namespace torpor::service::cli

#endif  // TORPOR_SERVICE_CLI_CONTEXT_H_
