// SPDX-License-Identifier: Apache-2.0
//
// torpor explain: what a resume would reuse, what not, and why. Reads and
// changes nothing.

#include <iostream>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "service/cli/context.h"

namespace torpor::service::cli {
namespace {

struct Options {
  std::string session;
  std::string model;
  std::string token_file;
  std::string prompt_file;
};

absl::StatusOr<v1::BeginResumeResponse> Begin(Client* client,
                                              const Options& options,
                                              std::span<const uint32_t> ids,
                                              bool engine_replays) {
  const auto context = client->Context();
  v1::BeginResumeResponse response;
  const auto writer = client->sessions().BeginResume(context.get(), &response);
  v1::BeginResumeRequest message;
  v1::BeginResumeHeader* header = message.mutable_header();
  header->set_session(options.session);
  header->set_model(options.model);
  header->set_mode(v1::REPLAY_MODE_EXACT);
  header->set_engine_replays(engine_replays);
  header->mutable_limits()->set_allow_shorter(true);
  bool writing = writer->Write(message);
  constexpr size_t kIdsPerMessage = 65'536;
  for (size_t at = 0; writing && at < ids.size(); at += kIdsPerMessage) {
    v1::BeginResumeRequest tokens;
    const auto part =
        ids.subspan(at, std::min(kIdsPerMessage, ids.size() - at));
    tokens.mutable_tokens()->mutable_ids()->Add(part.begin(), part.end());
    writing = writer->Write(tokens);
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                        status.error_message());
  }
  return response;
}

absl::Status Explain(const Options& options, Context* context) {
  std::vector<uint32_t> ids;
  if (!options.token_file.empty()) {
    TORPOR_ASSIGN_OR_RETURN(ids, ReadTokenFile(options.token_file));
  } else if (!options.prompt_file.empty()) {
    TORPOR_ASSIGN_OR_RETURN(const std::string text,
                            ReadFile(options.prompt_file));
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  }
  TORPOR_ASSIGN_OR_RETURN(Client * client, context->Connect());
  // The plan is wanted, not a replay; but an engine is refused where the
  // snapshot holds what no replay brings back.
  absl::StatusOr<v1::BeginResumeResponse> begun =
      Begin(client, options, ids, /*engine_replays=*/true);
  if (absl::IsFailedPrecondition(begun.status())) {
    begun = Begin(client, options, ids, /*engine_replays=*/false);
  }
  TORPOR_ASSIGN_OR_RETURN(const v1::BeginResumeResponse begin,
                          std::move(begun));
  v1::ReleaseRequest release;
  release.set_lease(begin.lease());
  TORPOR_ASSIGN_OR_RETURN(
      const v1::ResumeReceipt receipt,
      client->Unary(client->sessions(), &v1::SessionService::Stub::Release,
                    release));
  if (context->json) {
    PrintJson({{"begin", ToJson(begin)}, {"receipt", ToJson(receipt)}});
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> rows = {
      {"tokens of the prompt", std::to_string(receipt.prompt_tokens())},
      {"loaded", absl::StrFormat("%d: their stored rows serve as they are",
                                 receipt.loaded_tokens())},
      {"replayed (exact)",
       absl::StrFormat("%d: run again over stored rows, %d token-layers",
                       receipt.replayed_tokens(), begin.plan().token_layers())},
      {"recomputed", absl::StrFormat("%d: the engine prefills them",
                                     receipt.recomputed_tokens())}};
  for (const v1::TokenReason& reason : receipt.reasons()) {
    rows.push_back({"  because", absl::StrFormat("%d: %s", reason.tokens(),
                                                 reason.reason())});
  }
  if (begin.has_divergence()) {
    const v1::Divergence& d = begin.divergence();
    rows.push_back(
        {"diverges at",
         d.extra_key_differs()
             ? absl::StrFormat("%d: the same id %d under another extra key",
                               d.position(), d.stored_id())
             : absl::StrFormat("%d: stored id %d, prompt id %d", d.position(),
                               d.stored_id(), d.prompt_id())});
  }
  PrintTable(rows);
  return absl::OkStatus();
}

}  // namespace

void AddExplainCommand(CLI::App* app, Context* context, Run* run) {
  auto options = std::make_shared<Options>();
  CLI::App* c = app->add_subcommand(
      "explain", "What a resume would reuse, what not, and why");
  c->add_option("session", options->session,
                "Session to resume (without: by tokens alone)");
  c->add_option("--model", options->model, "Model, when resuming by tokens");
  auto* tokens = c->add_option("--tokens", options->token_file,
                               "The prompt as a JSON file of token ids");
  c->add_option("--prompt-file", options->prompt_file,
                "The prompt as text, for byte vocabularies")
      ->excludes(tokens);
  c->callback([=] { *run = [=] { return Explain(*options, context); }; });
}

}  // namespace torpor::service::cli
