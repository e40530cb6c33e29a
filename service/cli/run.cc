// SPDX-License-Identifier: Apache-2.0
//
// torpor run: the built-in engine. Prefill, generate, suspend; or wake, go on,
// suspend again.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/families.h"
#include "service/cli/context.h"
#include "service/cli/engine.h"
#include "service/cli/engine_options.h"

namespace torpor::service::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct Options {
  std::string session;
  std::string model;
  std::string model_dir;
  std::string prompt;
  std::string prompt_file;
  std::string token_file;
  std::optional<uint64_t> generate;
  std::string wake;
  uint64_t replay_tokens = 0;
  double max_error = 0;
  bool allow_cold = false;
  uint64_t cut = 0;
  bool sleep = true;
  bool linger = false;
  bool snapshot = false;
  bool decoder_tail = false;
  std::string feed_file;
  uint64_t feed_tokens = 0;
  std::string logits_out;
  SamplerOptions sampler;
  EngineOptions engine;
};

double MillisecondsSince(SteadyClock::time_point begin) {
  return std::chrono::duration<double, std::milli>(SteadyClock::now() - begin)
      .count();
}

// Text of a byte-vocabulary model: a token is a byte.
std::vector<uint32_t> BytesAsTokens(const std::string& text) {
  std::vector<uint32_t> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

absl::StatusOr<std::vector<uint32_t>> PromptOf(const Options& options,
                                               uint32_t vocab_size) {
  if (!options.token_file.empty()) return ReadTokenFile(options.token_file);
  std::string text = options.prompt;
  if (!options.prompt_file.empty()) {
    TORPOR_ASSIGN_OR_RETURN(text, ReadFile(options.prompt_file));
  }
  if (!text.empty() && vocab_size != 256) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "prompt: this model has %d tokens and the engine no tokenizer; give "
        "--tokens FILE.json",
        vocab_size));
  }
  return BytesAsTokens(text);
}

class Runner {
 public:
  Runner(const Options& options, Context* context)
      : options_(options), context_(*context) {}

  absl::Status Run() {
    TORPOR_ASSIGN_OR_RETURN(client_, context_.Connect());
    TORPOR_ASSIGN_OR_RETURN(
        const v1::ModelState state,
        client_->Unary(client_->models(), &v1::ModelService::Stub::Describe,
                       Named()));
    block_size_ = state.block_size();
    const std::string dir =
        options_.model_dir.empty() ? state.model_dir() : options_.model_dir;
    if (dir.empty()) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "model '%s': registered without weights; give --model-dir",
          options_.model));
    }
    const SteadyClock::time_point load = SteadyClock::now();
    TORPOR_ASSIGN_OR_RETURN(const replay::ModelOptions model_options,
                            options_.engine.ModelOptionsOf());
    TORPOR_ASSIGN_OR_RETURN(model_, replay::LoadModel(dir, model_options));
    report_["model_load_ms"] = MillisecondsSince(load);
    engine_ = std::make_unique<Engine>(model_.get(), options_.model);
    engine_->set_decoder_tail(options_.decoder_tail);

    const SteadyClock::time_point begin = SteadyClock::now();
    if (options_.wake.empty()) {
      engine_->Start(options_.sampler);
    } else {
      TORPOR_RETURN_IF_ERROR(Wake());
    }
    TORPOR_ASSIGN_OR_RETURN(const std::vector<uint32_t> prompt,
                            PromptOf(options_, model_->vocab_size()));
    engine_->Append(prompt);
    TORPOR_RETURN_IF_ERROR(Feed());
    TORPOR_RETURN_IF_ERROR(Generate(begin));
    if (options_.sleep) TORPOR_RETURN_IF_ERROR(Sleep());
    report_["n_tokens"] = engine_->ids().size();
    report_["kv_len"] = engine_->kv_len();
    if (context_.json) PrintJson(report_);
    if (options_.linger) {
      std::cout << std::flush;
      while (true) pause();
    }
    return absl::OkStatus();
  }

 private:
  v1::DescribeModelRequest Named() const {
    v1::DescribeModelRequest request;
    request.set_name(options_.model);
    return request;
  }

  // Whether the next token follows the last one that has KV: after a fork or a
  // rewind none pends.
  absl::StatusOr<bool> WantsLogits(v1::ReplayMode mode) {
    const bool follows =
        options_.generate.value_or(0) > 0 && options_.prompt.empty() &&
        options_.prompt_file.empty() && options_.token_file.empty() &&
        options_.feed_file.empty() && mode != v1::REPLAY_MODE_COLD;
    if (!follows) return false;
    v1::DescribeRequest request;
    request.set_session(options_.session);
    TORPOR_ASSIGN_OR_RETURN(
        const v1::SessionState state,
        client_->Unary(client_->sessions(), &v1::SessionService::Stub::Describe,
                       request));
    const uint64_t end = options_.cut != 0 ? options_.cut : state.n_tokens();
    return end <= state.kv_len();
  }

  absl::Status Wake() {
    WakeOptions wake;
    TORPOR_ASSIGN_OR_RETURN(wake.mode,
                            ParseReplayMode("--wake", options_.wake));
    wake.limits.set_replay_tokens(options_.replay_tokens);
    wake.limits.set_max_error(options_.max_error);
    wake.limits.set_allow_cold(options_.allow_cold);
    wake.cut = options_.cut;
    wake.sampler = options_.sampler;
    TORPOR_ASSIGN_OR_RETURN(wake.want_logits, WantsLogits(wake.mode));
    TORPOR_ASSIGN_OR_RETURN(const WakeReport report,
                            engine_->Wake(client_, options_.session, wake));
    report_["resume"] = {{"receipt", ToJson(report.receipt)},
                         {"resume_us", report.resume_us},
                         {"prefill_us", report.prefill_us},
                         {"prefilled_tokens", report.prefilled_tokens}};
    if (!context_.json) {
      const v1::ResumeReceipt& r = report.receipt;
      std::cerr << absl::StrFormat(
          "woken %s%s%s: %d loaded + %d replayed + %d recomputed of %d tokens, "
          "%s (replay %s)\n",
          std::string(replay::ReplayModeName(
              static_cast<replay::ReplayMode>(r.mode_used()))),
          r.exact()                                  ? ", the window it had"
          : r.mode_used() == v1::REPLAY_MODE_BOUNDED ? ", approximate"
                                                     : "",
          r.prefetched() ? ", prefetched" : "", r.loaded_tokens(),
          r.replayed_tokens(), r.recomputed_tokens(), r.prompt_tokens(),
          Milliseconds(report.resume_us), Milliseconds(r.times().replay_us()));
    }
    return absl::OkStatus();
  }

  // Teacher-forced: logits over given tokens, written as raw f32 rows.
  absl::Status Feed() {
    if (options_.feed_file.empty()) return absl::OkStatus();
    TORPOR_ASSIGN_OR_RETURN(const std::string text,
                            ReadFile(options_.feed_file));
    std::vector<uint32_t> ids = BytesAsTokens(text);
    if (options_.feed_tokens != 0 && options_.feed_tokens < ids.size()) {
      ids.resize(options_.feed_tokens);
    }
    TORPOR_ASSIGN_OR_RETURN(const std::vector<float> logits,
                            engine_->Feed(ids));
    if (options_.logits_out.empty()) return absl::OkStatus();
    std::ofstream out(options_.logits_out, std::ios::binary);
    out.write(reinterpret_cast<const char*>(logits.data()),
              static_cast<std::streamsize>(logits.size() * sizeof(float)));
    out.flush();
    return out ? absl::OkStatus()
               : absl::ResourceExhaustedError(
                     absl::StrFormat("write %s: failed", options_.logits_out));
  }

  absl::Status Generate(SteadyClock::time_point begin) {
    const uint64_t n = options_.generate.value_or(0);
    nlohmann::json tokens = nlohmann::json::array();
    const SteadyClock::time_point first = SteadyClock::now();
    for (uint64_t i = 0; i < n; ++i) {
      TORPOR_ASSIGN_OR_RETURN(const uint32_t id, engine_->Next());
      if (i == 0) {
        report_["first_token_ms"] = MillisecondsSince(first);
        report_["time_to_next_token_ms"] = MillisecondsSince(begin);
      }
      tokens.push_back(id);
      if (!context_.json && model_->vocab_size() == 256) {
        std::cout << static_cast<char>(id) << std::flush;
      }
    }
    if (!context_.json && n > 0) std::cout << '\n';
    report_["generate_ms"] = MillisecondsSince(first);
    report_["tokens"] = std::move(tokens);
    return absl::OkStatus();
  }

  absl::Status Sleep() {
    const SteadyClock::time_point begin = SteadyClock::now();
    TORPOR_ASSIGN_OR_RETURN(const v1::SuspendReceipt receipt,
                            engine_->Sleep(client_, options_.session,
                                           block_size_, options_.snapshot));
    report_["suspend"] = {{"receipt", ToJson(receipt)},
                          {"ms", MillisecondsSince(begin)}};
    if (!context_.json) {
      std::cerr << absl::StrFormat(
          "asleep as version %d: %d tokens, %s of rows sent, %s stored, "
          "durable after %.1f ms\n",
          receipt.version(), receipt.n_tokens(),
          Bytes(receipt.row_bytes_received()), Bytes(receipt.stored_bytes()),
          MillisecondsSince(begin));
    }
    return absl::OkStatus();
  }

  const Options& options_;
  Context& context_;
  Client* client_ = nullptr;
  std::unique_ptr<replay::Model> model_;
  std::unique_ptr<Engine> engine_;
  uint32_t block_size_ = 0;
  nlohmann::json report_;
};

}  // namespace

void AddRunCommand(CLI::App* app, Context* context, Run* run) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app->add_subcommand(
      "run", "The built-in engine: prefill, generate, suspend, resume");
  c->add_option("--session", o->session, "Id of the session")->required();
  c->add_option("--model", o->model, "Registered model")->required();
  c->add_option("--model-dir", o->model_dir,
                "Its weights, when this host has them elsewhere");
  c->add_option("--wake", o->wake,
                "Wake the session: auto, bounded, exact, snapshot or cold");
  c->add_option("--replay-tokens", o->replay_tokens,
                "Length of a bounded replay (default: the window)");
  c->add_option("--max-error", o->max_error,
                "Climb when the measured error of the window is above this");
  c->add_flag("--allow-cold", o->allow_cold, "The last rung may be a prefill");
  c->add_option("--cut", o->cut, "Wake the first tokens only");
  auto* prompt = c->add_option("--prompt", o->prompt, "Text to append");
  auto* file = c->add_option("--prompt-file", o->prompt_file,
                             "File whose text to append")
                   ->excludes(prompt);
  c->add_option("--tokens", o->token_file, "JSON file of token ids to append")
      ->excludes(prompt)
      ->excludes(file);
  c->add_option("--generate", o->generate, "Tokens to sample");
  c->add_option("--temperature", o->sampler.temperature,
                "0 takes the most likely token")
      ->capture_default_str();
  c->add_option("--top-k", o->sampler.top_k, "0 = all")->capture_default_str();
  c->add_option("--top-p", o->sampler.top_p, "1 = all")->capture_default_str();
  c->add_option("--seed", o->sampler.seed, "Of the sampler")
      ->capture_default_str();
  c->add_flag("--sleep,!--no-sleep", o->sleep, "Suspend at the end (default)");
  c->add_flag("--linger", o->linger,
              "Stay when all is done, as an engine does, until a signal");
  c->add_flag("--snapshot", o->snapshot, "Store the windows too");
  c->add_flag(
      "--decoder-tail", o->decoder_tail,
      "Prefill layers above the last compressed one for the last window "
      "of tokens alone (DeepSeek V4.1)");
  c->add_option("--feed", o->feed_file,
                "Run this text after the prompt, without sampling");
  c->add_option("--feed-tokens", o->feed_tokens, "Only so many of it");
  c->add_option("--logits-out", o->logits_out,
                "File for the fed tokens' logits, raw f32 rows");
  o->engine.AddTo(c);
  c->callback([=] { *run = [=] { return Runner(*o, context).Run(); }; });
}

}  // namespace torpor::service::cli
