// SPDX-License-Identifier: Apache-2.0

#include "bench/resume.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/daemon.h"
#include "bench/resume_report.h"
#include "replay/planner.h"
#include "service/cli/engine.h"
#include "service/convert.h"

namespace torpor::bench {
namespace {

using service::cli::Engine;
using service::cli::WakeReport;

constexpr char kModel[] = "bench";
constexpr size_t kPrefillPhase = 6;
constexpr size_t kDecodePhase = 7;
// Of the compact rows, at least this share must come from the disk when pages
// were dropped.
constexpr double kFromDisk = 0.9;

std::string SessionOf(uint64_t n_tokens) {
  return absl::StrFormat("tokens-%d", n_tokens);
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Times of the wakes of one case.
struct Timed {
  ResumeResult::Case result;
  std::array<std::vector<double>, ResumeResult::kPhases.size()> phases;
};

class Resume {
 public:
  Resume(const ResumeOptions& options, const Common& common)
      : options_(options), common_(common) {}

  absl::StatusOr<ResumeResult> Run() {
    TORPOR_ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Make(common_.dir));
    TORPOR_ASSIGN_OR_RETURN(model_, options_.cases.Load());
    result_.layout = model_->layout();
    result_.numerics_id = model_->numerics_id();
    modes_ = ModeCasesOf(options_.cases, model_->layout());
    feed_ = MadeUpIds(*model_, options_.fed_tokens, options_.seed);
    TORPOR_RETURN_IF_ERROR(StartDaemon(scratch.path()));
    for (const uint64_t n : options_.cases.lengths) {
      TORPOR_RETURN_IF_ERROR(PutToSleep(n));
    }
    for (const uint64_t n : options_.cases.lengths) {
      for (const ModeCase& mode : modes_) {
        TORPOR_RETURN_IF_ERROR(VerifyBits(n, mode));
      }
    }
    common_.Say("woken sessions hold the bits of those that never slept");
    for (const std::string& variant : options_.variants) {
      TORPOR_RETURN_IF_ERROR(Time(variant));
    }
    client_.reset();
    TORPOR_RETURN_IF_ERROR(daemon_->Stop());
    return std::move(result_);
  }

 private:
  absl::Status StartDaemon(const std::string& work_dir) {
    const service::cli::EngineOptions& engine = options_.cases.engine;
    std::vector<std::string> flags = {"--isa", engine.isa};
    if (engine.n_threads > 0) {
      flags.insert(flags.end(),
                   {"--threads", std::to_string(engine.n_threads)});
    }
    TORPOR_ASSIGN_OR_RETURN(Daemon daemon,
                            Daemon::Start({common_.bin_dir, work_dir, flags}));
    daemon_ = std::make_unique<Daemon>(std::move(daemon));
    TORPOR_ASSIGN_OR_RETURN(client_, daemon_->Connect());
    v1::RegisterRequest request;
    request.set_name(kModel);
    request.set_model_dir(std::filesystem::absolute(options_.cases.model_dir));
    request.set_kv_dtype(engine.dtype);
    TORPOR_ASSIGN_OR_RETURN(
        const v1::ModelState state,
        client_->Unary(client_->models(), &v1::ModelService::Stub::Register,
                       request));
    block_size_ = state.block_size();
    return absl::OkStatus();
  }

  // Suspends a session and feeds the twin that goes on in memory.
  absl::Status PutToSleep(uint64_t n_tokens) {
    Engine engine(model_.get(), kModel);
    engine.Start({});
    // The last one pends: it has no KV yet.
    engine.Append(MadeUpIds(*model_, n_tokens + 1, options_.seed + n_tokens));
    const bool snapshot =
        std::any_of(modes_.begin(), modes_.end(), [](const ModeCase& mode) {
          return mode.mode == replay::ReplayMode::kSnapshot;
        });
    TORPOR_ASSIGN_OR_RETURN(const v1::SuspendReceipt receipt,
                            engine.Sleep(client_.get(), SessionOf(n_tokens),
                                         block_size_, snapshot));
    compact_bytes_[n_tokens] = receipt.row_bytes_received();
    TORPOR_ASSIGN_OR_RETURN(held_[n_tokens], engine.Feed(feed_));
    common_.Say(absl::StrFormat("a session of %d tokens sleeps", n_tokens));
    return absl::OkStatus();
  }

  absl::StatusOr<WakeReport> Wake(uint64_t n_tokens, const ModeCase& mode,
                                  Engine* engine) {
    service::cli::WakeOptions wake;
    wake.mode = service::ToProto(mode.mode);
    wake.limits.set_replay_tokens(mode.replay_tokens);
    return engine->Wake(client_.get(), SessionOf(n_tokens), wake);
  }

  absl::Status VerifyBits(uint64_t n_tokens, const ModeCase& mode) {
    Engine engine(model_.get(), kModel);
    TORPOR_ASSIGN_OR_RETURN(const WakeReport report,
                            Wake(n_tokens, mode, &engine));
    TORPOR_ASSIGN_OR_RETURN(const std::vector<float> woken, engine.Feed(feed_));
    // Bounded is approximate unless its receipt says otherwise.
    if (mode.mode == replay::ReplayMode::kBounded && !report.receipt.exact()) {
      return absl::OkStatus();
    }
    if (SameBits(held_[n_tokens], woken)) return absl::OkStatus();
    return absl::DataLossError(absl::StrFormat(
        "%s at %d tokens: logits differ from the session that never slept",
        mode.name, n_tokens));
  }

  absl::Status Reconnect(const std::string& variant) {
    client_.reset();
    if (variant == "killed") {
      daemon_->Kill();
    } else {
      TORPOR_RETURN_IF_ERROR(daemon_->Stop());
      TORPOR_RETURN_IF_ERROR(DropPageCache(daemon_->data_dir()));
    }
    TORPOR_RETURN_IF_ERROR(daemon_->Restart());
    TORPOR_ASSIGN_OR_RETURN(client_, daemon_->Connect());
    return absl::OkStatus();
  }

  absl::Status Time(const std::string& variant) {
    std::vector<Timed> all;
    for (const uint64_t n : options_.cases.lengths) {
      for (const ModeCase& mode : modes_) {
        all.emplace_back();
        all.back().result.n_tokens = n;
        all.back().result.variant = variant;
        all.back().result.mode = mode;
      }
    }
    for (int i = 0; i < options_.cases.repeats; ++i) {
      for (Timed& timed : all) {
        if (variant != "hot") TORPOR_RETURN_IF_ERROR(Reconnect(variant));
        TORPOR_RETURN_IF_ERROR(TimeOne(&timed));
      }
    }
    for (Timed& timed : all) {
      for (size_t i = 0; i < timed.phases.size(); ++i) {
        timed.result.phases[i] = Median(timed.phases[i]);
      }
      if (variant == "killed") {
        TORPOR_RETURN_IF_ERROR(
            VerifyBits(timed.result.n_tokens, timed.result.mode));
      }
      result_.cases.push_back(std::move(timed.result));
    }
    common_.Say(absl::StrFormat(
        "%s: %d wakes timed", variant,
        all.size() * static_cast<size_t>(options_.cases.repeats)));
    return absl::OkStatus();
  }

  absl::Status TimeOne(Timed* timed) {
    ResumeResult::Case& c = timed->result;
    const uint64_t disk_before = UsageOf(daemon_->pid()).read_bytes;
    Engine engine(model_.get(), kModel);
    const SteadyClock::time_point begin = SteadyClock::now();
    TORPOR_ASSIGN_OR_RETURN(const WakeReport report,
                            Wake(c.n_tokens, c.mode, &engine));
    const SteadyClock::time_point woken = SteadyClock::now();
    TORPOR_RETURN_IF_ERROR(engine.Next().status());
    c.to_next_token.Add(MillisecondsSince(begin));
    const v1::ResumeReceipt& receipt = report.receipt;
    const v1::PhaseTimes& times = receipt.times();
    const std::array<uint64_t, 6> us = {times.queue_us(),  times.index_us(),
                                        times.read_us(),   times.verify_us(),
                                        times.replay_us(), times.transfer_us()};
    for (size_t i = 0; i < us.size(); ++i) {
      timed->phases[i].push_back(static_cast<double>(us[i]) / 1e3);
    }
    timed->phases[kPrefillPhase].push_back(
        static_cast<double>(report.prefill_us) / 1e3);
    timed->phases[kDecodePhase].push_back(MillisecondsSince(woken));
    c.exact = receipt.exact();
    c.verdict = v1::WitnessVerdict_Name(receipt.verdict())
                    .substr(std::strlen("WITNESS_VERDICT_"));
    c.max_layer_error = 0;
    for (const v1::LayerError& error : receipt.errors()) {
      c.max_layer_error = std::max(c.max_layer_error, error.max_relative());
    }
    c.replayed_tokens = receipt.replayed_tokens();
    c.bytes_read = receipt.bytes_read();
    c.disk_read = UsageOf(daemon_->pid()).read_bytes - disk_before;
    return CheckDisk(c);
  }

  absl::Status CheckDisk(const ResumeResult::Case& c) {
    const uint64_t compact = compact_bytes_[c.n_tokens];
    if (c.variant != "cold-cache" || c.mode.mode == replay::ReplayMode::kCold ||
        static_cast<double>(c.disk_read) >=
            kFromDisk * static_cast<double>(compact)) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s at %d tokens, pages dropped: %d bytes were read from the disk, "
        "wanted most of %d; is %s on a disk?",
        c.mode.name, c.n_tokens, c.disk_read, compact, common_.dir));
  }

  const ResumeOptions& options_;
  const Common& common_;
  ResumeResult result_;
  std::unique_ptr<replay::Model> model_;
  std::vector<ModeCase> modes_;
  std::vector<uint32_t> feed_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<service::Client> client_;
  uint32_t block_size_ = 0;
  // By length: what the session that never slept says to `feed_`.
  std::map<uint64_t, std::vector<float>> held_;
  std::map<uint64_t, uint64_t> compact_bytes_;
};

}  // namespace

absl::StatusOr<ResumeResult> MeasureResume(const ResumeOptions& options,
                                           const Common& common) {
  return Resume(options, common).Run();
}

RunBenchmark AddResumeCommand(CLI::App* app, const Common* common) {
  auto options = std::make_shared<ResumeOptions>();
  options->cases.AddTo(app);
  app->add_option("--modes", options->cases.modes, "Modes, several")
      ->delimiter(',')
      ->check(CLI::IsMember({"bounded", "exact", "snapshot", "cold"}))
      ->capture_default_str();
  app->add_option("--variants", options->variants,
                  "hot; cold-cache: stopped, pages dropped; killed: with -9")
      ->delimiter(',')
      ->check(CLI::IsMember({"hot", "cold-cache", "killed"}))
      ->capture_default_str();
  return [options, common]() -> absl::StatusOr<Result> {
    options->seed = common->seed;
    TORPOR_ASSIGN_OR_RETURN(const ResumeResult result,
                            MeasureResume(*options, *common));
    return ReportOf(*options, result);
  };
}

}  // namespace torpor::bench
