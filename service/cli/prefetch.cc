// SPDX-License-Identifier: Apache-2.0
//
// torpor prefetch: a session that will be resumed soon.

#include <iostream>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/planner.h"
#include "service/cli/context.h"

namespace torpor::service::cli {
namespace {

struct PrefetchOptions {
  std::string session;
  bool replay = false;
  std::string mode = "auto";
  uint32_t hold_seconds = 0;
  uint64_t cut = 0;
  uint64_t replay_tokens = 0;
  double max_error = 0;
  bool allow_cold = false;
};

void Print(const PrefetchOptions& options, const v1::PrefetchResponse& answer) {
  std::cout << absl::StrFormat("reading ahead %s: %s, version %d, %d tokens\n",
                               Bytes(answer.read_bytes()),
                               ShowId(options.session), answer.version(),
                               answer.resume_at());
  if (answer.replaying()) {
    const v1::ReplayPlan& plan = answer.plan();
    std::cout << absl::StrFormat(
        "%s its window: %s, %d tokens to replay, %s held until %s\n",
        answer.renewed() ? "keeping" : "rebuilding",
        std::string(replay::ReplayModeName(
            static_cast<replay::ReplayMode>(plan.mode()))),
        plan.resume_at() - plan.replay_start(), Bytes(answer.held_bytes()),
        ShowTime(answer.held_until()));
  } else if (options.replay) {
    std::cout << "no window is rebuilt: " << answer.reason() << '\n';
  }
}

absl::Status Prefetch(const PrefetchOptions& options, Context* context) {
  v1::PrefetchRequest request;
  request.set_session(options.session);
  request.set_replay(options.replay);
  TORPOR_ASSIGN_OR_RETURN(const v1::ReplayMode mode,
                          ParseReplayMode("--mode", options.mode));
  request.set_mode(mode);
  request.set_hold_seconds(options.hold_seconds);
  request.set_cut(options.cut);
  request.mutable_limits()->set_replay_tokens(options.replay_tokens);
  request.mutable_limits()->set_max_error(options.max_error);
  request.mutable_limits()->set_allow_cold(options.allow_cold);
  TORPOR_ASSIGN_OR_RETURN(Client * client, context->Connect());
  TORPOR_ASSIGN_OR_RETURN(
      const v1::PrefetchResponse answer,
      client->Unary(client->sessions(), &v1::SessionService::Stub::Prefetch,
                    request));
  if (context->json) {
    PrintJson(ToJson(answer));
  } else {
    Print(options, answer);
  }
  return absl::OkStatus();
}

}  // namespace

void AddPrefetchCommand(CLI::App* app, Context* context, Run* run) {
  auto o = std::make_shared<PrefetchOptions>();
  CLI::App* c = app->add_subcommand(
      "prefetch", "Read a session ahead of its wake, or replay it ahead");
  c->add_option("session", o->session)->required();
  c->add_flag("--replay", o->replay,
              "Rebuild its window too, and hold it for a wake with the same "
              "mode, cut and limits");
  c->add_option("--mode", o->mode, "auto, bounded, exact or snapshot")
      ->capture_default_str();
  c->add_option("--hold", o->hold_seconds,
                "How long, for example 30s or 2m (default: 1m)")
      ->transform(CLI::AsNumberWithUnit(
          std::map<std::string, uint32_t>{{"s", 1}, {"m", 60}}));
  c->add_option("--cut", o->cut, "Its first tokens only");
  c->add_option("--replay-tokens", o->replay_tokens,
                "Length of a bounded replay (default: the window)");
  c->add_option("--max-error", o->max_error,
                "Climb when the measured error of the window is above this");
  c->add_flag("--allow-cold", o->allow_cold, "The last rung may be a prefill");
  c->callback([=] { *run = [=] { return Prefetch(*o, context); }; });
}

}  // namespace torpor::service::cli
