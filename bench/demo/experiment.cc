// SPDX-License-Identifier: Apache-2.0

#include "bench/demo/experiment.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/limit_row.h"
#include "bench/process.h"
#include "kernels/isa.h"
#include "replay/families.h"
#include "service/cli/context.h"
#include "service/cli/engine.h"
#include "service/cli/engine_options.h"

namespace torpor::bench {
namespace {

using nlohmann::json;
using service::cli::Engine;
using SteadyClock = std::chrono::steady_clock;

constexpr char kSession[] = "agent-1";
constexpr char kModel[] = "demo";

double MillisecondsSince(SteadyClock::time_point begin) {
  return std::chrono::duration<double, std::milli>(SteadyClock::now() - begin)
      .count();
}

// A number of a JSON rendering of a proto, where 64-bit integers are strings.
uint64_t Number(const json& object, const char* key) {
  const json& value = object.at(key);
  return value.is_string() ? std::stoull(value.get<std::string>())
                           : value.get<uint64_t>();
}

// "REPLAY_MODE_EXACT" -> "exact".
std::string EnumName(const json& value, size_t prefix) {
  std::string name = value.get<std::string>().substr(prefix);
  for (char& c : name) c = static_cast<char>(std::tolower(c));
  return name;
}

std::vector<uint32_t> Ids(const std::string& text) {
  std::vector<uint32_t> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

// KL divergence of softmax(b) from softmax(a), nats.
double Divergence(std::span<const float> a, std::span<const float> b) {
  const auto log_sum = [](std::span<const float> row) {
    double max = row[0];
    for (const float x : row) max = std::max<double>(max, x);
    double sum = 0;
    for (const float x : row) sum += std::exp(x - max);
    return max + std::log(sum);
  };
  const double sum_a = log_sum(a);
  const double sum_b = log_sum(b);
  double kl = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double log_p = a[i] - sum_a;
    kl += std::exp(log_p) * (log_p - (b[i] - sum_b));
  }
  return std::max(0.0, kl);
}

void CompareLogits(std::span<const float> twin, std::span<const float> woken,
                   size_t vocab, Difference* out) {
  out->n_logit_rows = twin.size() / vocab;
  out->same_bits =
      twin.size() == woken.size() && !twin.empty() &&
      std::memcmp(twin.data(), woken.data(), twin.size_bytes()) == 0;
  const size_t n = std::min(twin.size(), woken.size()) / vocab;
  for (size_t row = 0; row < n; ++row) {
    const auto a = twin.subspan(row * vocab, vocab);
    const auto b = woken.subspan(row * vocab, vocab);
    for (size_t i = 0; i < vocab; ++i) {
      out->max_abs =
          std::max(out->max_abs, std::abs(double{a[i]} - double{b[i]}));
    }
    out->mean_kl += Divergence(a, b) / static_cast<double>(n);
  }
}

void CompareTokens(std::span<const uint32_t> twin,
                   std::span<const uint32_t> woken, Difference* out) {
  out->n_tokens = twin.size();
  out->first_token.reset();
  const auto [a, b] =
      std::mismatch(twin.begin(), twin.end(), woken.begin(), woken.end());
  if (a != twin.end() || b != woken.end()) {
    out->first_token = static_cast<uint64_t>(a - twin.begin());
  }
}

class Demo {
 public:
  Demo(const DemoOptions& options,
       const std::function<void(const std::string&)>& say)
      : options_(options),
        say_(say),
        address_("unix://" + options.work_dir + "/torpor.sock") {}

  absl::StatusOr<DemoResult> Run() {
    TORPOR_RETURN_IF_ERROR(RunTwin());
    TORPOR_RETURN_IF_ERROR(StartDaemon());
    say_(absl::StrFormat("torpord runs (pid %d) on %s", daemon_.pid(),
                         address_));
    TORPOR_RETURN_IF_ERROR(
        Torpor({"model", "add", options_.model_dir, "--name", kModel, "--json"})
            .status());
    TORPOR_RETURN_IF_ERROR(SuspendFirst());
    TORPOR_RETURN_IF_ERROR(WakeEveryMode());
    TORPOR_RETURN_IF_ERROR(ExtendAfterBounded());
    TORPOR_RETURN_IF_ERROR(daemon_.Stop());
    say_("torpord drained and stopped");
    return std::move(result_);
  }

 private:
  // ---- the twin

  absl::Status RunTwin() {
    service::cli::EngineOptions engine;
    engine.isa = options_.isa;
    engine.n_threads = options_.n_threads;
    TORPOR_ASSIGN_OR_RETURN(const replay::ModelOptions model_options,
                            engine.ModelOptionsOf());
    TORPOR_ASSIGN_OR_RETURN(
        model_, replay::LoadModel(options_.model_dir, model_options));
    if (model_->vocab_size() != 256) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "model %s: has %d tokens, the demo feeds bytes and wants 256",
          options_.model_dir, model_->vocab_size()));
    }
    TORPOR_ASSIGN_OR_RETURN(const std::string text,
                            service::cli::ReadFile(options_.session_file));
    TORPOR_ASSIGN_OR_RETURN(std::string feed,
                            service::cli::ReadFile(options_.feed_file));
    feed.resize(std::min<size_t>(feed.size(), options_.fed_tokens));
    prompt_ = Ids(text);
    feed_ = Ids(feed);
    // A turn begins with a line "[user]", "[assistant]" or "[tool] ...".
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '[' && (i == 0 || text[i - 1] == '\n')) {
        ++result_.stored.turns;
      }
    }
    say_(absl::StrFormat(
        "the twin that never sleeps: %d tokens of an agent session prefilled "
        "and %d generated in this process",
        prompt_.size(), options_.generated_tokens));
    TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<Engine> generating, NewTwin());
    const SteadyClock::time_point begin = SteadyClock::now();
    TORPOR_ASSIGN_OR_RETURN(
        twin_tokens_, Generate(generating.get(), options_.generated_tokens));
    result_.twin_decode_ms =
        MillisecondsSince(begin) /
        static_cast<double>(std::max<uint64_t>(options_.generated_tokens, 1));
    TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<Engine> feeding, NewTwin());
    TORPOR_ASSIGN_OR_RETURN(twin_logits_, feeding->Feed(feed_));

    const replay::ModelLayout& layout = model_->layout();
    result_.family = layout.family;
    result_.n_layers = layout.n_layers;
    result_.window = layout.LargestWindow();
    result_.exact_tokens = replay::FiguresOf(layout, 1).exact_tokens;
    result_.numerics_id = model_->numerics_id();
    result_.extended_tokens = options_.extended_tokens;
    return absl::OkStatus();
  }

  // The session as it is when the other one is suspended.
  absl::StatusOr<std::unique_ptr<Engine>> NewTwin() {
    auto engine = std::make_unique<Engine>(model_.get(), kModel);
    engine->Start(Sampling());
    engine->Append(prompt_);
    TORPOR_ASSIGN_OR_RETURN(std::vector<uint32_t> tokens,
                            Generate(engine.get(), options_.generated_tokens));
    first_tokens_ = std::move(tokens);
    return engine;
  }

  static absl::StatusOr<std::vector<uint32_t>> Generate(Engine* engine,
                                                        uint64_t n) {
    std::vector<uint32_t> tokens;
    for (uint64_t i = 0; i < n; ++i) {
      TORPOR_ASSIGN_OR_RETURN(const uint32_t id, engine->Next());
      tokens.push_back(id);
    }
    return tokens;
  }

  [[nodiscard]] service::cli::SamplerOptions Sampling() const {
    return {.temperature = options_.temperature, .seed = options_.seed};
  }

  // ---- processes

  absl::Status StartDaemon() {
    std::vector<std::string> argv = {options_.bin_dir + "/torpord",
                                     "--data-dir",
                                     options_.work_dir + "/data",
                                     "--listen",
                                     address_,
                                     "--isa",
                                     options_.isa};
    if (options_.n_threads > 0) {
      argv.insert(argv.end(),
                  {"--threads", std::to_string(options_.n_threads)});
    }
    TORPOR_ASSIGN_OR_RETURN(
        daemon_, Process::Start(argv, options_.work_dir + "/torpord.log"));
    return Connect().status();
  }

  absl::StatusOr<std::unique_ptr<service::Client>> Connect() {
    service::ClientOptions client;
    client.address = address_;
    return service::Client::Connect(client);
  }

  absl::StatusOr<Process> StartTorpor(const std::vector<std::string>& args) {
    std::vector<std::string> argv = {options_.bin_dir + "/torpor", "--server",
                                     address_};
    argv.insert(argv.end(), args.begin(), args.end());
    return Process::Start(argv, options_.work_dir + "/torpor.log");
  }

  absl::StatusOr<json> Torpor(const std::vector<std::string>& args) {
    TORPOR_ASSIGN_OR_RETURN(Process process, StartTorpor(args));
    TORPOR_ASSIGN_OR_RETURN(const std::string text, process.ReadJson());
    TORPOR_RETURN_IF_ERROR(process.Wait());
    return json::parse(text);
  }

  [[nodiscard]] std::vector<std::string> RunArgs() const {
    std::vector<std::string> args = {"run",    "--json",    "--session",
                                     kSession, "--model",   kModel,
                                     "--isa",  options_.isa};
    if (options_.n_threads > 0) {
      args.insert(args.end(),
                  {"--threads", std::to_string(options_.n_threads)});
    }
    return args;
  }

  void KillDaemon() {
    const pid_t pid = daemon_.pid();
    daemon_.Kill();
    say_(absl::StrFormat("kill -9 %d (torpord)", pid));
  }

  // ---- the steps

  absl::Status SuspendFirst() {
    std::vector<std::string> args = RunArgs();
    args.insert(args.end(),
                {"--prompt-file", options_.session_file, "--generate",
                 std::to_string(options_.generated_tokens), "--temperature",
                 absl::StrFormat("%g", options_.temperature), "--seed",
                 std::to_string(options_.seed), "--snapshot", "--linger"});
    TORPOR_ASSIGN_OR_RETURN(Process engine, StartTorpor(args));
    TORPOR_ASSIGN_OR_RETURN(const std::string text, engine.ReadJson());
    const json report = json::parse(text);
    const json& receipt = report.at("suspend").at("receipt");
    Stored& s = result_.stored;
    s.n_tokens = Number(receipt, "n_tokens");
    s.kv_len = Number(receipt, "kv_len");
    s.compact_bytes = Number(receipt, "row_bytes_received");
    s.token_bytes = Number(receipt, "token_bytes");
    s.witness_bytes = Number(receipt, "witness_bytes");
    s.client_state_bytes = Number(receipt, "client_state_bytes");
    s.snapshot_bytes = Number(receipt, "snapshot_bytes");
    s.stored_bytes = Number(receipt, "stored_bytes") - s.snapshot_bytes;
    s.suspend_ms = report.at("suspend").at("ms").get<double>();
    s.prefill_ms = report.at("first_token_ms").get<double>();
    const replay::LayoutFigures figures =
        replay::FiguresOf(model_->layout(), s.kv_len);
    const auto kv_len = static_cast<double>(s.kv_len);
    s.every_window_row_bytes =
        static_cast<uint64_t>(figures.all_window_bytes_per_token * kv_len);
    s.snapshot_per_turn_bytes =
        s.compact_bytes + s.turns * figures.snapshot_bytes;
    s.snapshot_per_session_bytes = s.compact_bytes + figures.snapshot_bytes;
    say_(absl::StrFormat(
        "the session: prefilled in %.0f ms by an engine process (pid %d), %d "
        "tokens generated, suspended; durable after %.0f ms",
        s.prefill_ms, engine.pid(), options_.generated_tokens, s.suspend_ms));
    if (report.at("tokens").get<std::vector<uint32_t>>() != first_tokens_) {
      return absl::InternalError(
          "the session and its twin differ before the first suspend");
    }
    say_(absl::StrFormat("kill -9 %d (the engine)", engine.pid()));
    engine.Kill();
    KillDaemon();
    TORPOR_RETURN_IF_ERROR(StartDaemon());
    say_(absl::StrFormat("torpord runs again (pid %d)", daemon_.pid()));
    return absl::OkStatus();
  }

  absl::Status WakeEveryMode() {
    const std::vector<std::string> modes = {"bounded", "exact", "snapshot",
                                            "cold"};
    std::map<std::string, std::vector<WakeTimes>> times;
    for (int i = 0; i < options_.repeats; ++i) {
      for (const std::string& mode : modes) {
        Wake wake;
        TORPOR_RETURN_IF_ERROR(WakeToGenerate(mode, &wake));
        times[mode].push_back(wake.times);
        if (i == 0) result_.wakes.push_back(std::move(wake));
      }
    }
    for (Wake& wake : result_.wakes) {
      TORPOR_ASSIGN_OR_RETURN(const std::vector<float> logits,
                              WakeToFeed(wake.name, nullptr));
      CompareLogits(twin_logits_, logits, model_->vocab_size(),
                    &wake.difference);
      SetMedians(times[wake.name], &wake.times);
      say_(
          absl::StrFormat("woken %s by a fresh engine process: next token "
                          "after %.1f ms",
                          wake.name, wake.times.to_next_token));
    }
    return absl::OkStatus();
  }

  static void SetMedians(const std::vector<WakeTimes>& all, WakeTimes* out) {
    for (double WakeTimes::*member :
         {&WakeTimes::to_next_token, &WakeTimes::queue, &WakeTimes::index,
          &WakeTimes::read, &WakeTimes::verify, &WakeTimes::replay,
          &WakeTimes::transfer, &WakeTimes::prefill, &WakeTimes::decode,
          &WakeTimes::model_load}) {
      std::vector<double> values;
      for (const WakeTimes& times : all) values.push_back(times.*member);
      out->*member = Median(std::move(values));
    }
  }

  absl::Status WakeToGenerate(const std::string& mode, Wake* wake) {
    std::vector<std::string> args = RunArgs();
    args.insert(args.end(), {"--wake", mode, "--no-sleep", "--generate",
                             std::to_string(options_.generated_tokens)});
    TORPOR_ASSIGN_OR_RETURN(const json report, Torpor(args));
    wake->name = mode;
    ReadWake(report, wake);
    CompareTokens(twin_tokens_,
                  report.at("tokens").get<std::vector<uint32_t>>(),
                  &wake->difference);
    return absl::OkStatus();
  }

  // Logits over the real text that follows.
  absl::StatusOr<std::vector<float>> WakeToFeed(const std::string& mode,
                                                Wake* wake) {
    const std::string file = options_.work_dir + "/logits.f32";
    std::vector<std::string> args = RunArgs();
    args.insert(args.end(),
                {"--wake", mode, "--no-sleep", "--feed", options_.feed_file,
                 "--feed-tokens", std::to_string(options_.fed_tokens),
                 "--logits-out", file});
    TORPOR_ASSIGN_OR_RETURN(const json report, Torpor(args));
    if (wake != nullptr) ReadWake(report, wake);
    TORPOR_ASSIGN_OR_RETURN(const std::string bytes,
                            service::cli::ReadFile(file));
    std::vector<float> logits(bytes.size() / sizeof(float));
    std::memcpy(logits.data(), bytes.data(), logits.size() * sizeof(float));
    return logits;
  }

  static void ReadWake(const json& report, Wake* wake) {
    const json& receipt = report.at("resume").at("receipt");
    wake->mode_used =
        EnumName(receipt.at("mode_used"), std::strlen("REPLAY_MODE_"));
    wake->exact = receipt.at("exact").get<bool>();
    wake->verdict =
        EnumName(receipt.at("verdict"), std::strlen("WITNESS_VERDICT_"));
    for (const json& error : receipt.at("errors")) {
      wake->max_layer_error = std::max(wake->max_layer_error,
                                       error.at("max_relative").get<double>());
    }
    wake->loaded_tokens = Number(receipt, "loaded_tokens");
    wake->replayed_tokens = Number(receipt, "replayed_tokens");
    wake->recomputed_tokens = Number(receipt, "recomputed_tokens");
    wake->token_layers = Number(receipt, "replayed_token_layers");
    wake->bytes_read = Number(receipt, "bytes_read");
    const json& times = receipt.at("times");
    const auto ms = [&](const char* key) {
      return static_cast<double>(Number(times, key)) / 1000;
    };
    WakeTimes& t = wake->times;
    t.queue = ms("queue_us");
    t.index = ms("index_us");
    t.read = ms("read_us");
    t.verify = ms("verify_us");
    t.replay = ms("replay_us");
    t.transfer = ms("transfer_us");
    t.prefill =
        static_cast<double>(Number(report.at("resume"), "prefill_us")) / 1000;
    t.decode = report.value("first_token_ms", 0.0);
    t.to_next_token = report.value("time_to_next_token_ms", 0.0);
    t.model_load = report.value("model_load_ms", 0.0);
  }

  absl::Status ExtendAfterBounded() {
    // The session goes on in this process, so that what it holds in memory can
    // be held against what wakes.
    Engine engine(model_.get(), kModel);
    service::cli::WakeOptions bounded;
    bounded.mode = torpor::v1::REPLAY_MODE_BOUNDED;
    {
      TORPOR_ASSIGN_OR_RETURN(const auto client, Connect());
      TORPOR_RETURN_IF_ERROR(
          engine.Wake(client.get(), kSession, bounded).status());
      TORPOR_RETURN_IF_ERROR(
          Generate(&engine, options_.extended_tokens).status());
      TORPOR_ASSIGN_OR_RETURN(const torpor::v1::ModelState model,
                              Describe(client.get()));
      TORPOR_RETURN_IF_ERROR(
          engine.Sleep(client.get(), kSession, model.block_size(), false)
              .status());
    }
    say_(absl::StrFormat("woken bounded, extended by %d tokens, suspended",
                         options_.extended_tokens));
    KillDaemon();
    TORPOR_RETURN_IF_ERROR(StartDaemon());
    TORPOR_ASSIGN_OR_RETURN(const std::vector<float> held, engine.Feed(feed_));
    Wake& wake = result_.after_bounded;
    wake.name = "exact after bounded";
    TORPOR_ASSIGN_OR_RETURN(const std::vector<float> woken,
                            WakeToFeed("exact", &wake));
    CompareLogits(held, woken, model_->vocab_size(), &wake.difference);
    say_("woken exact by a fresh engine process");
    return absl::OkStatus();
  }

  static absl::StatusOr<torpor::v1::ModelState> Describe(
      service::Client* client) {
    torpor::v1::DescribeModelRequest request;
    request.set_name(kModel);
    return client->Unary(client->models(),
                         &torpor::v1::ModelService::Stub::Describe, request);
  }

  const DemoOptions& options_;
  const std::function<void(const std::string&)>& say_;
  const std::string address_;
  DemoResult result_;
  Process daemon_;

  std::unique_ptr<replay::Model> model_;
  std::vector<uint32_t> prompt_;
  std::vector<uint32_t> feed_;
  std::vector<uint32_t> first_tokens_;
  std::vector<uint32_t> twin_tokens_;
  std::vector<float> twin_logits_;
};

}  // namespace

bool DemoResult::holds() const {
  bool ok = after_bounded.difference.none() && after_bounded.exact;
  for (const Wake& wake : wakes) {
    if (wake.name != "bounded") ok = ok && wake.difference.none();
    if (wake.name == "exact") {
      ok = ok && wake.exact && wake.verdict == "exact";
    }
  }
  return ok && wakes.size() == 4;
}

absl::StatusOr<DemoResult> RunDemo(
    const DemoOptions& options,
    const std::function<void(const std::string&)>& say) {
  return Demo(options, say).Run();
}

}  // namespace torpor::bench
