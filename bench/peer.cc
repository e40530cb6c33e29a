// SPDX-License-Identifier: Apache-2.0

#include "bench/peer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/engine_case.h"
#include "bench/process.h"
#include "replay/model.h"

namespace torpor::bench {
namespace {

// Tokens that are decoded and timed.
constexpr uint64_t kDecoded = 32;
// Tokens on which decode is held against prefill.
constexpr uint64_t kVerified = 64;
// design.md, "Numbers that must hold".
constexpr double kMust = 1.0;

// One line of the table.
struct Task {
  bool decode = false;
  // Tokens of the prefill; of a decode, those before it.
  uint64_t n_tokens = 0;
  std::vector<double> ours;
  std::vector<double> peer;

  [[nodiscard]] std::string Name() const {
    return decode ? absl::StrFormat("decode after %d tokens", n_tokens)
                  : absl::StrFormat("prefill of %d tokens", n_tokens);
  }
};

std::vector<Task> TasksOf(const PeerOptions& options) {
  std::vector<Task> tasks;
  for (const uint64_t n : options.prefill) tasks.push_back({false, n, {}, {}});
  for (const uint64_t n : options.decode_at) tasks.push_back({true, n, {}, {}});
  return tasks;
}

class Peer {
 public:
  Peer(const PeerOptions& options, const Common& common)
      : options_(options), common_(common) {}

  absl::StatusOr<std::vector<LimitRow>> Run() {
    EngineCases cases;
    cases.model_dir = options_.model_dir;
    cases.engine = options_.engine;
    TORPOR_ASSIGN_OR_RETURN(model_, cases.Load());
    TORPOR_ASSIGN_OR_RETURN(const replay::ModelOptions engine,
                            options_.engine.ModelOptionsOf());
    n_threads_ = engine.n_threads;
    TORPOR_RETURN_IF_ERROR(Verify());
    std::vector<Task> tasks = TasksOf(options_);
    for (int round = 0; round < options_.rounds; ++round) {
      for (Task& task : tasks) {
        TORPOR_ASSIGN_OR_RETURN(const double ours, Ours(task));
        TORPOR_ASSIGN_OR_RETURN(const double theirs, Theirs(task));
        task.ours.push_back(ours);
        task.peer.push_back(theirs);
      }
      common_.Say(absl::StrFormat("round %d of %d against the peer", round + 1,
                                  options_.rounds));
    }
    std::vector<LimitRow> rows;
    for (const Task& task : tasks) {
      rows.push_back(
          {absl::StrFormat("%s, %d threads", task.Name(), n_threads_),
           Median(task.ours), Median(task.peer), "tokens/s", "llama-bench",
           kMust, /*at_least=*/true});
    }
    return rows;
  }

 private:
  absl::StatusOr<std::vector<float>> Forward(replay::Sequence* sequence,
                                             std::span<const uint32_t> ids,
                                             uint64_t begin, uint64_t end,
                                             uint64_t n_logits) {
    replay::Segment segment = replay::SegmentOf(sequence, ids, begin, end);
    segment.logits_begin = end - n_logits;
    return replay::RunTokens(model_.get(), segment, 0, {});
  }

  absl::Status Verify() {
    const std::vector<uint32_t> ids =
        MadeUpIds(*model_, kVerified, common_.seed);
    const auto whole = model_->NewSequence();
    TORPOR_ASSIGN_OR_RETURN(const std::vector<float> prefilled,
                            Forward(whole.get(), ids, 0, kVerified, kVerified));
    const auto stepped = model_->NewSequence();
    std::vector<float> decoded;
    for (uint64_t i = 0; i < kVerified; ++i) {
      TORPOR_ASSIGN_OR_RETURN(const std::vector<float> row,
                              Forward(stepped.get(), ids, i, i + 1, 1));
      decoded.insert(decoded.end(), row.begin(), row.end());
    }
    if (decoded.size() == prefilled.size() &&
        std::memcmp(decoded.data(), prefilled.data(),
                    decoded.size() * sizeof(float)) == 0) {
      return absl::OkStatus();
    }
    return absl::DataLossError(
        "tokens decoded one by one have other logits than prefilled");
  }

  absl::StatusOr<double> Ours(const Task& task) {
    const std::vector<uint32_t> ids =
        MadeUpIds(*model_, task.n_tokens + kDecoded, common_.seed);
    const auto sequence = model_->NewSequence();
    absl::Status status;
    const double prefill = SecondsOf([&] {
      if (task.n_tokens == 0) return;
      status = Forward(sequence.get(), ids, 0, task.n_tokens, 1).status();
    });
    TORPOR_RETURN_IF_ERROR(status);
    if (!task.decode) return static_cast<double>(task.n_tokens) / prefill;
    const double decode = SecondsOf([&] {
      for (uint64_t i = 0; i < kDecoded; ++i) {
        const uint64_t at = task.n_tokens + i;
        status.Update(Forward(sequence.get(), ids, at, at + 1, 1).status());
      }
    });
    TORPOR_RETURN_IF_ERROR(status);
    return static_cast<double>(kDecoded) / decode;
  }

  absl::StatusOr<double> Theirs(const Task& task) {
    double best = 0;
    for (const char* flash_attention : {"0", "1"}) {
      std::vector<std::string> argv = {options_.llama_bench,
                                       "-m",
                                       options_.gguf,
                                       "-t",
                                       std::to_string(n_threads_),
                                       "-r",
                                       "1",
                                       "-fa",
                                       flash_attention,
                                       "-o",
                                       "json"};
      const std::vector<std::string> what =
          task.decode
              ? std::vector<std::string>{"-p", "0",
                                         "-n", std::to_string(kDecoded),
                                         "-d", std::to_string(task.n_tokens)}
              : std::vector<std::string>{"-p", std::to_string(task.n_tokens),
                                         "-n", "0"};
      argv.insert(argv.end(), what.begin(), what.end());
      TORPOR_ASSIGN_OR_RETURN(Process process,
                              Process::Start(argv, "/dev/null"));
      TORPOR_ASSIGN_OR_RETURN(const std::string text, process.ReadJson());
      TORPOR_RETURN_IF_ERROR(process.Wait());
      const auto json = nlohmann::json::parse(text, nullptr, false);
      if (!json.is_array() || json.empty() || !json[0].contains("avg_ts") ||
          !json[0]["avg_ts"].is_number()) {
        return absl::InternalError(absl::StrFormat(
            "%s: its JSON has no 'avg_ts'", options_.llama_bench));
      }
      best = std::max(best, json[0]["avg_ts"].get<double>());
    }
    return best;
  }

  const PeerOptions& options_;
  const Common& common_;
  std::unique_ptr<replay::Model> model_;
  int n_threads_ = 1;
};

}  // namespace

absl::StatusOr<std::vector<LimitRow>> MeasurePeer(const PeerOptions& options,
                                                  const Common& common) {
  if (!options.model_dir.empty() && !options.llama_bench.empty() &&
      !options.gguf.empty()) {
    return Peer(options, common).Run();
  }
  std::vector<LimitRow> rows;
  for (const Task& task : TasksOf(options)) {
    LimitRow row{task.Name(),      0, 0, "tokens/s", "llama-bench", kMust,
                 /*at_least=*/true};
    row.not_measured = "wants --model, --llama-bench and --gguf";
    rows.push_back(row);
  }
  return rows;
}

void AddPeerOptions(CLI::App* app, PeerOptions* options) {
  app->add_option("--llama-bench", options->llama_bench,
                  "The peer's benchmark, built by hand")
      ->check(CLI::ExistingFile);
  app->add_option("--gguf", options->gguf,
                  "The model's weights for it, in the same dtype")
      ->check(CLI::ExistingFile);
  app->add_option("--prefill", options->prefill, "Tokens of a prefill, several")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--decode-at", options->decode_at,
                  "Tokens before those that are decoded, several")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--peer-rounds", options->rounds, "Interleaved rounds")
      ->check(CLI::Range(1, 101))
      ->capture_default_str();
}

RunBenchmark AddPeerCommand(CLI::App* app, const Common* common) {
  auto options = std::make_shared<PeerOptions>();
  app->add_option("--model", options->model_dir,
                  "Directory with config.json and safetensors")
      ->required();
  AddPeerOptions(app, options.get());
  options->engine.AddTo(app);
  return [options, common]() -> absl::StatusOr<Result> {
    TORPOR_ASSIGN_OR_RETURN(const std::vector<LimitRow> rows,
                            MeasurePeer(*options, *common));
    Result result;
    result.json["rows"] = LimitsJson(rows);
    result.json["model"] = options->model_dir;
    result.text = LimitTable(rows);
    result.page = SvgPage("Tokens a second against llama.cpp");
    result.page.Add(LimitsPlot(rows));
    result.holds = AllHold(rows);
    return result;
  };
}

}  // namespace torpor::bench
