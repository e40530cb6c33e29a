// SPDX-License-Identifier: Apache-2.0

#include "bench/rig.h"

#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bench/daemon.h"
#include "bench/rig_report.h"
#include "bench/synthetic.h"

namespace torpor::bench {
namespace {

// What the clients know of a session. One client has it at a time.
struct Session {
  uint64_t version = 0;
  // Acknowledged.
  uint64_t n_tokens = 0;
  uint64_t turns = 0;
  // A suspend to these tokens was sent and not answered.
  uint64_t n_tokens_sent = 0;
};

// Sums and times of one client; added up at the end of a phase.
struct Tally {
  Latencies suspend;
  Latencies resume;
  Latencies late;
  RigResult::Phase bytes;
  std::vector<uint8_t> buffer;

  void Add(const v1::SuspendReceipt& receipt) {
    bytes.row_bytes_received += receipt.row_bytes_received();
    bytes.row_bytes_copied += receipt.row_bytes_copied();
    bytes.token_bytes += receipt.token_bytes();
  }
};

class Rig {
 public:
  Rig(const RigOptions& options, const Common& common)
      : options_(options), common_(common), sessions_(options.n_sessions) {}

  absl::StatusOr<RigResult> Run() {
    TORPOR_ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Make(common_.dir));
    TORPOR_RETURN_IF_ERROR(Prepare(scratch.path()));
    TORPOR_RETURN_IF_ERROR(FirstSuspends());
    TORPOR_RETURN_IF_ERROR(Turns());
    if (daemon_->own()) {
      TORPOR_RETURN_IF_ERROR(KillWhileBusy());
      TORPOR_RETURN_IF_ERROR(VerifyAfterCrash());
    } else {
      TORPOR_RETURN_IF_ERROR(DeleteAll());
    }
    return std::move(result_);
  }

 private:
  absl::Status Prepare(const std::string& work_dir) {
    absl::StatusOr<Daemon> daemon =
        options_.server.empty() ? Daemon::Start({common_.bin_dir, work_dir, {}})
                                : Daemon::Attach(options_.server);
    TORPOR_RETURN_IF_ERROR(daemon.status());
    daemon_ = std::make_unique<Daemon>(*std::move(daemon));
    TORPOR_RETURN_IF_ERROR(Connect());
    TORPOR_ASSIGN_OR_RETURN(
        Synthetic model,
        Synthetic::Register(pool_->client(0),
                            {.layout = options_.layout,
                             .seed = common_.seed,
                             .block_size = options_.block_size,
                             .wrong_session = options_.wrong_session}));
    model_ = std::make_unique<Synthetic>(std::move(model));
    result_.layout = options_.layout.family;
    result_.compact_bytes_per_token =
        replay::FiguresOf(options_.layout, 1).compact_bytes_per_token;
    result_.block_size = model_->block_size();
    result_.idle_bytes = UsageOf(daemon_->pid()).private_bytes;
    return absl::OkStatus();
  }

  absl::Status Connect() {
    TORPOR_ASSIGN_OR_RETURN(ClientPool pool,
                            ClientPool::Connect(*daemon_, options_.n_clients));
    pool_ = std::make_unique<ClientPool>(std::move(pool));
    return absl::OkStatus();
  }

  // Runs a phase and adds up what clients, kernel and store say of it.
  absl::Status Measure(const std::function<absl::Status()>& body,
                       RigResult::Phase* phase, Tally* sum) {
    tallies_.assign(static_cast<size_t>(pool_->size()), Tally());
    const Usage before = UsageOf(daemon_->pid());
    TORPOR_ASSIGN_OR_RETURN(const uint64_t commits,
                            CommitsOf(pool_->client(0)));
    MemoryWatch watch(daemon_->pid());
    const SteadyClock::time_point begin = SteadyClock::now();
    TORPOR_RETURN_IF_ERROR(body());
    for (const Tally& tally : tallies_) {
      sum->suspend.Add(tally.suspend);
      sum->resume.Add(tally.resume);
      sum->late.Add(tally.late);
      phase->row_bytes_received += tally.bytes.row_bytes_received;
      phase->row_bytes_copied += tally.bytes.row_bytes_copied;
      phase->token_bytes += tally.bytes.token_bytes;
      phase->row_bytes_sent += tally.bytes.row_bytes_sent;
    }
    phase->seconds = MillisecondsSince(begin) / 1000;
    result_.busy_bytes = std::max(result_.busy_bytes, watch.Stop());
    const Usage after = UsageOf(daemon_->pid());
    phase->written = after.written_bytes - before.written_bytes;
    phase->disk_read = after.read_bytes - before.read_bytes;
    TORPOR_ASSIGN_OR_RETURN(const uint64_t commits_now,
                            CommitsOf(pool_->client(0)));
    phase->commits = commits_now - commits;
    return absl::OkStatus();
  }

  absl::Status Suspend(service::Client* client, uint64_t number,
                       uint64_t n_tokens, Tally* tally) {
    Session& session = sessions_[number];
    session.n_tokens_sent = n_tokens;
    const SteadyClock::time_point begin = SteadyClock::now();
    TORPOR_ASSIGN_OR_RETURN(const v1::SuspendReceipt receipt,
                            model_->Suspend(client, number, session.version,
                                            session.n_tokens, n_tokens));
    tally->suspend.Add(MillisecondsSince(begin));
    tally->Add(receipt);
    session.version = receipt.version();
    session.n_tokens = n_tokens;
    return absl::OkStatus();
  }

  absl::Status Resume(service::Client* client, uint64_t number, Tally* tally) {
    const uint64_t n_tokens = sessions_[number].n_tokens;
    TORPOR_ASSIGN_OR_RETURN(
        const SyntheticWake wake,
        model_->Resume(client, number, n_tokens, &tally->buffer));
    tally->resume.Add(wake.ms);
    tally->bytes.row_bytes_sent += model_->CompactBytes(n_tokens);
    return absl::OkStatus();
  }

  absl::Status FirstSuspends() {
    Tally sum;
    TORPOR_RETURN_IF_ERROR(Measure(
        [&] {
          return pool_->Run(
              options_.n_sessions,
              [&](service::Client* client, int i, const ClientPool::Due& due)
                  -> absl::StatusOr<std::optional<SteadyClock::time_point>> {
                TORPOR_RETURN_IF_ERROR(Suspend(client, due.session,
                                               options_.n_tokens, TallyOf(i)));
                return std::nullopt;
              });
        },
        &result_.first, &sum));
    result_.first_suspend = std::move(sum.suspend);
    common_.Say(absl::StrFormat(
        "%d sessions of %d tokens sleep: %.3g MB of rows in %.2f s",
        options_.n_sessions, options_.n_tokens,
        static_cast<double>(result_.first.row_bytes_received) / 1e6,
        result_.first.seconds));
    return absl::OkStatus();
  }

  absl::Status Turns() {
    std::vector<std::mt19937_64> random;
    for (int i = 0; i < pool_->size(); ++i) {
      random.emplace_back(common_.seed + static_cast<uint64_t>(i));
    }
    std::mt19937_64 start(common_.seed);
    std::vector<ClientPool::Due> first;
    for (uint64_t number = 0; number < options_.n_sessions; ++number) {
      first.push_back(
          {SteadyClock::now() + options_.think.Draw(&start), number});
    }
    if (options_.n_turns == 0) first.clear();
    const auto turn = [&](service::Client* client, int i,
                          const ClientPool::Due& due)
        -> absl::StatusOr<std::optional<SteadyClock::time_point>> {
      Tally* tally = TallyOf(i);
      tally->late.Add(MillisecondsSince(due.at));
      Session& session = sessions_[due.session];
      TORPOR_RETURN_IF_ERROR(Resume(client, due.session, tally));
      TORPOR_RETURN_IF_ERROR(Suspend(client, due.session,
                                     session.n_tokens + options_.n_new_tokens,
                                     tally));
      if (++session.turns == options_.n_turns) return std::nullopt;
      return SteadyClock::now() +
             options_.think.Draw(&random[static_cast<size_t>(i)]);
    };
    Tally sum;
    TORPOR_RETURN_IF_ERROR(
        Measure([&] { return pool_->Run(first, turn); }, &result_.turns, &sum));
    result_.resume = std::move(sum.resume);
    result_.delta_suspend = std::move(sum.suspend);
    result_.late = std::move(sum.late);
    common_.Say(absl::StrFormat(
        "%d turns of %d new tokens in %.2f s, every byte as it was",
        result_.resume.size(), options_.n_new_tokens, result_.turns.seconds));
    return absl::OkStatus();
  }

  // Every session suspends more tokens; half-way the daemon is killed.
  absl::Status KillWhileBusy() {
    tallies_.assign(static_cast<size_t>(pool_->size()), Tally());
    const uint64_t enough = (options_.n_sessions + 1) / 2;
    std::atomic<uint64_t> acknowledged{0};
    std::atomic<bool> killed{false};
    Mutex mu;
    TORPOR_RETURN_IF_ERROR(pool_->Run(
        options_.n_sessions,
        [&](service::Client* client, int i, const ClientPool::Due& due)
            -> absl::StatusOr<std::optional<SteadyClock::time_point>> {
          if (killed) return std::nullopt;
          const absl::Status status =
              Suspend(client, due.session,
                      sessions_[due.session].n_tokens + options_.n_new_tokens,
                      TallyOf(i));
          // Nobody answers a client of a dead daemon.
          if (!status.ok() && !killed) return status;
          if (status.ok() && acknowledged.fetch_add(1) + 1 == enough) {
            killed = true;
            MutexLock lock(&mu);
            daemon_->Kill();
          }
          return std::nullopt;
        }));
    result_.crash.emplace();
    result_.crash->acknowledged = acknowledged;
    for (const Session& session : sessions_) {
      if (session.n_tokens_sent != session.n_tokens) {
        ++result_.crash->on_their_way;
      }
    }
    common_.Say(absl::StrFormat(
        "kill -9 after %d acknowledgements, %d suspends on their way",
        acknowledged.load(), result_.crash->on_their_way));
    return absl::OkStatus();
  }

  absl::Status VerifyAfterCrash() {
    const SteadyClock::time_point begin = SteadyClock::now();
    TORPOR_RETURN_IF_ERROR(daemon_->Restart());
    RigResult::Crash& crash = *result_.crash;
    crash.restart_ms = MillisecondsSince(begin);
    TORPOR_RETURN_IF_ERROR(Connect());
    tallies_.assign(static_cast<size_t>(pool_->size()), Tally());
    std::atomic<uint64_t> unheard{0};
    const uint64_t n_read =
        options_.n_verified == 0
            ? options_.n_sessions
            : std::min(options_.n_verified, options_.n_sessions);
    TORPOR_RETURN_IF_ERROR(pool_->Run(
        options_.n_sessions,
        [&](service::Client* client, int i, const ClientPool::Due& due)
            -> absl::StatusOr<std::optional<SteadyClock::time_point>> {
          TORPOR_ASSIGN_OR_RETURN(const bool heard,
                                  Compare(client, due.session));
          if (!heard) ++unheard;
          // Spread over all of them.
          if (due.session * n_read / options_.n_sessions !=
              (due.session + 1) * n_read / options_.n_sessions) {
            TORPOR_RETURN_IF_ERROR(Resume(client, due.session, TallyOf(i)));
          }
          return std::nullopt;
        }));
    crash.durable_unheard = unheard;
    crash.sessions_read = n_read;
    common_.Say(absl::StrFormat(
        "started again in %.0f ms: %d acknowledged versions are there, %d read "
        "to the last byte",
        crash.restart_ms, options_.n_sessions, n_read));
    // A drain waits a little for clients that are connected.
    pool_.reset();
    return daemon_->Stop();
  }

  // Whether a session is what its client was last told. False when a suspend
  // that nobody heard of had become durable, which then is its state.
  absl::StatusOr<bool> Compare(service::Client* client, uint64_t number) {
    Session& session = sessions_[number];
    v1::DescribeRequest request;
    request.set_session(Synthetic::Id(number));
    TORPOR_ASSIGN_OR_RETURN(
        const v1::SessionState state,
        client->Unary(client->sessions(), &v1::SessionService::Stub::Describe,
                      request));
    if (state.version() == session.version &&
        state.kv_len() == session.n_tokens) {
      return true;
    }
    if (state.version() == session.version + 1 &&
        state.kv_len() == session.n_tokens_sent &&
        session.n_tokens_sent != session.n_tokens) {
      session.version = state.version();
      session.n_tokens = state.kv_len();
      return false;
    }
    return absl::DataLossError(absl::StrFormat(
        "session %s after kill -9: got version %d of %d tokens, wanted version "
        "%d of %d, which was acknowledged",
        Synthetic::Id(number), state.version(), state.kv_len(), session.version,
        session.n_tokens));
  }

  absl::Status DeleteAll() {
    return pool_->Run(
        options_.n_sessions,
        [&](service::Client* client, int, const ClientPool::Due& due)
            -> absl::StatusOr<std::optional<SteadyClock::time_point>> {
          v1::DeleteRequest request;
          request.set_session(Synthetic::Id(due.session));
          request.set_expected_version(sessions_[due.session].version);
          request.set_operation_id(service::NewOperationId());
          TORPOR_RETURN_IF_ERROR(client
                                     ->Unary(client->sessions(),
                                             &v1::SessionService::Stub::Delete,
                                             request)
                                     .status());
          return std::nullopt;
        });
  }

  Tally* TallyOf(int client_idx) {
    return &tallies_[static_cast<size_t>(client_idx)];
  }

  const RigOptions& options_;
  const Common& common_;
  RigResult result_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<ClientPool> pool_;
  std::unique_ptr<Synthetic> model_;
  std::vector<Session> sessions_;
  std::vector<Tally> tallies_;
};

}  // namespace

absl::StatusOr<RigResult> RunRig(const RigOptions& options,
                                 const Common& common) {
  return Rig(options, common).Run();
}

namespace {

struct RigFlags {
  RigOptions options;
  std::string config;
  std::string kv_dtype = "native";
};

void AddRigFlags(CLI::App* app, RigFlags* flags) {
  RigOptions& o = flags->options;
  app->add_option("--config", flags->config,
                  "config.json of a known family, or a directory with one "
                  "(default: a layout of 890 B/token)");
  app->add_option("--kv-dtype", flags->kv_dtype, "native, bf16 or f32")
      ->capture_default_str();
  app->add_option("--block-size", o.block_size,
                  "Tokens a block (default: chosen from the row sizes)");
  app->add_option("--sessions", o.n_sessions, "Sessions")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--tokens", o.n_tokens, "Tokens of a first suspend")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--new-tokens", o.n_new_tokens, "New tokens a turn")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--turns", o.n_turns, "Turns of each session")
      ->capture_default_str();
  app->add_option("--clients", o.n_clients, "Clients that act for them")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app->add_option("--think", o.think.distribution, "fixed or exponential")
      ->check(CLI::IsMember({"fixed", "exponential"}))
      ->capture_default_str();
  app->add_option("--think-ms", o.think.mean_ms,
                  "Mean wait of a session between turns")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->add_option("--verify", o.n_verified,
                  "Sessions to read after the crash (default: all)");
  app->add_option("--server", o.server,
                  "unix:///path of a daemon that runs, which is not killed "
                  "(default: one of its own)");
}

}  // namespace

RunBenchmark AddRigCommand(CLI::App* app, const Common* common) {
  auto flags = std::make_shared<RigFlags>();
  AddRigFlags(app, flags.get());
  return [flags, common]() -> absl::StatusOr<Result> {
    RigOptions& options = flags->options;
    TORPOR_ASSIGN_OR_RETURN(options.layout,
                            LayoutOf(flags->config, flags->kv_dtype));
    TORPOR_ASSIGN_OR_RETURN(const RigResult result, RunRig(options, *common));
    return ReportOf(options, result);
  };
}

}  // namespace torpor::bench
