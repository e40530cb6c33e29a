// SPDX-License-Identifier: Apache-2.0
//
// torpor: the command line.

#include <sodium.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "service/cli/context.h"
#include "service/version.h"

namespace torpor::service::cli {
namespace {

constexpr char kDefaultAddress[] = "unix:///run/torpor/torpor.sock";

// What a caller can do about a code.
const char* Advice(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kAborted:
      return "somebody else changed the session; look at it (torpor show) and "
             "try again";
    case absl::StatusCode::kResourceExhausted:
      return "torpor stats shows budget and disk; delete sessions, or give "
             "them a TTL";
    case absl::StatusCode::kDataLoss:
      return "torpor verify names what is damaged";
    case absl::StatusCode::kUnavailable:
      return "torpor doctor looks for the cause";
    case absl::StatusCode::kUnauthenticated:
      return "give --token, or set TORPOR_TOKEN";
    default:
      return nullptr;
  }
}

// CLI11 lets "-1" wrap to the largest number, and holds what is larger to it.
void CheckCounts(CLI::App* command) {
  static const CLI::Validator count(
      [](const std::string& text) -> std::string {
        uint64_t value = 0;
        if (absl::SimpleAtoi(text, &value)) return "";
        return absl::StrFormat("got '%s', wanted a whole number from 0 to %d",
                               text, UINT64_MAX);
      },
      "");
  for (CLI::Option* option : command->get_options()) {
    if (option->get_type_name() == "UINT") option->check(count);
  }
  for (CLI::App* sub : command->get_subcommands(nullptr)) CheckCounts(sub);
}

constexpr double kMinTimeoutSeconds = 1e-3;
constexpr double kMaxTimeoutSeconds = 1e9;

int Main(int argc, char** argv) {
  if (sodium_init() < 0) {
    std::cerr << "torpor: libsodium does not start\n";
    return 1;
  }
  CLI::App app{"Puts LLM sessions to sleep on SSD and wakes them again"};
  app.set_version_flag("--version", std::string("torpor ") + kVersion);
  // One is required; asked for below, so that an unknown one is named.
  app.require_subcommand(0, 1);
  app.fallthrough();
  Context context;
  context.client.address = kDefaultAddress;
  app.add_option("--server", context.client.address,
                 "unix:///path or host:port")
      ->envname("TORPOR_SERVER")
      ->capture_default_str();
  app.add_option("--token", context.client.token, "Bearer token")
      ->envname("TORPOR_TOKEN");
  app.add_option("--tls-ca", context.client.tls_ca,
                 "PEM file of the CA to trust");
  double timeout_seconds = 600;
  app.add_option("--timeout", timeout_seconds, "Seconds for one call")
      ->capture_default_str();
  const std::map<std::string, RowPlane> planes = {
      {"auto", RowPlane::kAuto},
      {"grpc", RowPlane::kGrpc},
      {"shm", RowPlane::kSharedMemory},
      {"cuda", RowPlane::kCudaIpc}};
  app.add_option("--plane", context.client.plane,
                 "How rows travel: auto, grpc, shm or cuda (default auto: "
                 "shared memory over unix sockets)")
      ->transform(CLI::CheckedTransformer(planes))
      ->option_text("NAME");
  app.add_flag("--json", context.json, "Machine-readable output");

  Run run;
  AddRunCommand(&app, &context, &run);
  AddModelCommands(&app, &context, &run);
  AddPlanCommand(&app, &context, &run);
  AddSessionCommands(&app, &context, &run);
  AddPrefetchCommand(&app, &context, &run);
  AddTransferCommands(&app, &context, &run);
  AddExplainCommand(&app, &context, &run);
  AddAdminCommands(&app, &context, &run);
  AddDumpCommand(&app, &context, &run);
  AddBenchCommand(&app, &context, &run);
  AddCompletionCommand(&app, &run);
  CheckCounts(&app);
  CLI11_PARSE(app, argc, argv);
  if (app.get_subcommands().empty()) {
    std::cerr << "torpor: wanted a subcommand; --help lists them\n";
    return 1;
  }
  if (!(timeout_seconds >= kMinTimeoutSeconds &&
        timeout_seconds <= kMaxTimeoutSeconds)) {
    std::cerr << absl::StrFormat(
        "torpor: --timeout: got %g, wanted %g to %g seconds\n", timeout_seconds,
        kMinTimeoutSeconds, kMaxTimeoutSeconds);
    return 1;
  }
  context.client.timeout =
      std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000));

  const absl::Status status = run();
  if (status.ok()) return 0;
  std::cerr << absl::StrFormat("torpor: %s: %s\n",
                               absl::StatusCodeToString(status.code()),
                               std::string(status.message()));
  if (const char* advice = Advice(status.code())) {
    std::cerr << "        " << advice << '\n';
  }
  return 1;
}

}  // namespace
}  // namespace torpor::service::cli

int main(int argc, char** argv) {
  return torpor::service::cli::Main(argc, argv);
}
