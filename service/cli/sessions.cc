// SPDX-License-Identifier: Apache-2.0
//
// torpor sessions | show | fork | rewind | rm | touch.

#include <iostream>
#include <memory>
#include <optional>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "service/cli/context.h"

namespace torpor::service::cli {
namespace {

using Stub = v1::SessionService::Stub;

absl::StatusOr<v1::SessionState> Describe(Client* client,
                                          const std::string& id) {
  v1::DescribeRequest request;
  request.set_session(id);
  return client->Unary(client->sessions(), &Stub::Describe, request);
}

// The version to expect: as given, or the current one.
absl::StatusOr<uint64_t> VersionOf(Client* client, const std::string& id,
                                   std::optional<uint64_t> given) {
  if (given.has_value()) return *given;
  TORPOR_ASSIGN_OR_RETURN(const v1::SessionState state, Describe(client, id));
  return state.version();
}

std::string ProvenanceText(const v1::SessionState& state) {
  std::string out;
  for (const v1::ProvenanceRange& range : state.provenance()) {
    const std::string name = v1::Provenance_Name(range.provenance());
    absl::StrAppendFormat(&out, "%s[%d, %d) %s", out.empty() ? "" : ", ",
                          range.begin(), range.end(),
                          name.substr(sizeof("PROVENANCE_") - 1));
  }
  return out;
}

std::string ClassText(v1::SessionClass session_class) {
  return session_class == v1::SESSION_CLASS_CACHE ? "cache" : "durable";
}

void PrintState(const v1::SessionState& s) {
  const v1::SessionBytes& b = s.bytes();
  const double per_token =
      s.kv_len() == 0
          ? 0
          : static_cast<double>(b.compact()) / static_cast<double>(s.kv_len());
  std::vector<std::vector<std::string>> rows = {
      {"session", ShowId(s.session())},
      {"model", s.model()},
      {"version", std::to_string(s.version())},
      {"tokens", absl::StrFormat("%d, %d with KV", s.n_tokens(), s.kv_len())},
      {"usable",
       s.usable_len() == s.kv_len()
           ? "all"
           : absl::StrFormat("%d: damaged from there", s.usable_len())},
      {"class", ClassText(s.session_class())},
      {"created", ShowTime(s.created_at())},
      {"updated",
       absl::StrFormat("%s by %s", ShowTime(s.updated_at()), s.holder())},
      {"expires", ShowTime(s.expires_at())},
      {"pinned until", ShowTime(s.pinned_until())},
      {"stored",
       absl::StrFormat("%s in %d blocks", Bytes(b.stored()), s.n_blocks())},
      {"  grows with tokens",
       absl::StrFormat("%s compact rows (%g B/token), %s token ids",
                       Bytes(b.compact()), per_token, Bytes(b.tokens()))},
      {"  does not",
       absl::StrFormat("%s witness, %s client state, %s snapshot",
                       Bytes(b.witness()), Bytes(b.client_state()),
                       Bytes(b.snapshot()))},
      {"provenance", ProvenanceText(s)},
      {"numerics", s.numerics_id()}};
  for (const v1::Floor& floor : s.floors()) {
    rows.push_back(
        {"floor", absl::StrFormat("woken bounded at %d, replayed from %d",
                                  floor.resume_at(), floor.replay_start())});
  }
  for (const auto& [key, value] : s.labels()) {
    rows.push_back({"label", key + "=" + value});
  }
  PrintTable(rows);
}

absl::Status Show(const v1::SessionState& state, bool json) {
  if (json) {
    PrintJson(ToJson(state));
  } else {
    PrintState(state);
  }
  return absl::OkStatus();
}

absl::Status ListSessions(const std::string& prefix, uint32_t limit,
                          Context* context) {
  TORPOR_ASSIGN_OR_RETURN(Client * client, context->Connect());
  v1::ListRequest request;
  request.set_prefix(prefix);
  std::vector<std::vector<std::string>> rows = {
      {"SESSION", "MODEL", "VERSION", "TOKENS", "STORED", "CLASS", "UPDATED"}};
  nlohmann::json json = nlohmann::json::array();
  uint32_t shown = 0;
  do {
    request.set_page_size(std::min(1000U, limit - shown));
    TORPOR_ASSIGN_OR_RETURN(
        const v1::ListResponse page,
        client->Unary(client->sessions(), &Stub::List, request));
    for (const v1::SessionState& s : page.sessions()) {
      rows.push_back({ShowId(s.session()), s.model(),
                      std::to_string(s.version()), std::to_string(s.n_tokens()),
                      Bytes(s.bytes().stored()), ClassText(s.session_class()),
                      ShowTime(s.updated_at())});
      json.push_back(ToJson(s));
      ++shown;
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty() && shown < limit);
  if (context->json) {
    PrintJson(json);
    return absl::OkStatus();
  }
  PrintTable(rows);
  if (!request.page_token().empty()) {
    std::cout << absl::StrFormat("... and more; --limit shows more than %d\n",
                                 limit);
  }
  return absl::OkStatus();
}

struct Names {
  std::string id;
  std::string other;
  std::optional<uint64_t> version;
  std::optional<uint64_t> at;
};

absl::Status Fork(const Names& names, Context* context) {
  TORPOR_ASSIGN_OR_RETURN(Client * client, context->Connect());
  v1::ForkRequest request;
  request.set_source(names.id);
  request.set_target(names.other);
  request.set_source_version(names.version.value_or(0));
  request.set_operation_id(NewOperationId());
  if (names.at.has_value()) request.set_at(*names.at);
  TORPOR_ASSIGN_OR_RETURN(
      const v1::SessionState state,
      client->Unary(client->sessions(), &Stub::Fork, request));
  return Show(state, context->json);
}

absl::Status Rewind(const Names& names, Context* context) {
  TORPOR_ASSIGN_OR_RETURN(Client * client, context->Connect());
  v1::RewindRequest request;
  request.set_session(names.id);
  TORPOR_ASSIGN_OR_RETURN(const uint64_t version,
                          VersionOf(client, names.id, names.version));
  request.set_expected_version(version);
  request.set_operation_id(NewOperationId());
  request.set_at(*names.at);
  TORPOR_ASSIGN_OR_RETURN(
      const v1::SessionState state,
      client->Unary(client->sessions(), &Stub::Rewind, request));
  return Show(state, context->json);
}

absl::Status Remove(const std::vector<std::string>& ids,
                    std::optional<uint64_t> version, Context* context) {
  TORPOR_ASSIGN_OR_RETURN(Client * client, context->Connect());
  for (const std::string& id : ids) {
    v1::DeleteRequest request;
    request.set_session(id);
    TORPOR_ASSIGN_OR_RETURN(const uint64_t expected,
                            VersionOf(client, id, version));
    request.set_expected_version(expected);
    request.set_operation_id(NewOperationId());
    TORPOR_ASSIGN_OR_RETURN(
        const v1::DeleteResponse deleted,
        client->Unary(client->sessions(), &Stub::Delete, request));
    if (!context->json) {
      std::cout << absl::StrFormat("deleted %s, version %d\n", ShowId(id),
                                   deleted.version());
    }
  }
  if (context->json) PrintJson({{"deleted", ids}});
  return absl::OkStatus();
}

struct TouchOptions {
  std::string id;
  std::string session_class;
  int64_t ttl = 0;
  int64_t pin = 0;
  std::vector<std::string> labels;
};

absl::Status Touch(const TouchOptions& options, Context* context) {
  TORPOR_ASSIGN_OR_RETURN(Client * client, context->Connect());
  v1::TouchRequest request;
  request.set_session(options.id);
  if (options.session_class == "durable") {
    request.set_session_class(v1::SESSION_CLASS_DURABLE);
  } else if (options.session_class == "cache") {
    request.set_session_class(v1::SESSION_CLASS_CACHE);
  } else if (!options.session_class.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--class: got '%s', wanted durable or cache", options.session_class));
  }
  request.set_ttl_seconds(options.ttl);
  request.set_pin_seconds(options.pin);
  for (const std::string& label : options.labels) {
    const size_t equals = label.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--label: got '%s', wanted KEY=VALUE, or KEY= to remove it", label));
    }
    (*request.mutable_labels())[label.substr(0, equals)] =
        label.substr(equals + 1);
  }
  TORPOR_ASSIGN_OR_RETURN(
      const v1::SessionState state,
      client->Unary(client->sessions(), &Stub::Touch, request));
  return Show(state, context->json);
}

}  // namespace

void AddSessionCommands(CLI::App* app, Context* context, Run* run) {
  {
    auto prefix = std::make_shared<std::string>();
    auto limit = std::make_shared<uint32_t>(1000);
    CLI::App* c = app->add_subcommand("sessions", "List sessions");
    c->add_option("prefix", *prefix, "Only ids that begin with this");
    c->add_option("--limit", *limit, "At most so many")->capture_default_str();
    c->callback(
        [=] { *run = [=] { return ListSessions(*prefix, *limit, context); }; });
  }
  {
    auto id = std::make_shared<std::string>();
    CLI::App* c = app->add_subcommand("show", "One session in full");
    c->add_option("session", *id)->required();
    c->callback([=] {
      *run = [=]() -> absl::Status {
        TORPOR_ASSIGN_OR_RETURN(Client * client, context->Connect());
        TORPOR_ASSIGN_OR_RETURN(const v1::SessionState state,
                                Describe(client, *id));
        return Show(state, context->json);
      };
    });
  }
  {
    auto names = std::make_shared<Names>();
    CLI::App* c =
        app->add_subcommand("fork", "A second session of the same tokens");
    c->add_option("session", names->id)->required();
    c->add_option("target", names->other, "Id of the new session")->required();
    c->add_option("--at", names->at, "Its first tokens only");
    c->add_option("--version", names->version, "Only if it is at this version");
    c->callback([=] { *run = [=] { return Fork(*names, context); }; });
  }
  {
    auto names = std::make_shared<Names>();
    CLI::App* c = app->add_subcommand("rewind", "Cut a session back");
    c->add_option("session", names->id)->required();
    c->add_option("at", names->at, "Tokens to keep")->required();
    c->add_option("--version", names->version, "Only if it is at this version");
    c->callback([=] { *run = [=] { return Rewind(*names, context); }; });
  }
  {
    auto ids = std::make_shared<std::vector<std::string>>();
    auto version = std::make_shared<std::optional<uint64_t>>();
    CLI::App* c = app->add_subcommand("rm", "Delete sessions");
    c->add_option("sessions", *ids)->required();
    c->add_option("--version", *version, "Only if it is at this version");
    c->callback(
        [=] { *run = [=] { return Remove(*ids, *version, context); }; });
  }
  {
    auto options = std::make_shared<TouchOptions>();
    CLI::App* c = app->add_subcommand("touch", "Class, TTL, pin, labels");
    c->add_option("session", options->id)->required();
    c->add_option("--class", options->session_class, "durable or cache");
    c->add_option("--ttl", options->ttl, "Seconds from now; -1 clears");
    c->add_option("--pin", options->pin,
                  "Seconds that a cache session is kept; -1 clears");
    c->add_option("--label", options->labels, "KEY=VALUE; KEY= removes");
    c->callback([=] { *run = [=] { return Touch(*options, context); }; });
  }
}

}  // namespace torpor::service::cli
