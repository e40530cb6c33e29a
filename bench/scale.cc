// SPDX-License-Identifier: Apache-2.0

#include "bench/scale.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/daemon.h"
#include "bench/scale_report.h"
#include "bench/synthetic.h"

namespace torpor::bench {
namespace {

constexpr uint32_t kPage = 100;
// Of a turn.
constexpr uint64_t kNewTokens = 4;

absl::Status Wrong(const std::string& call, uint64_t got, uint64_t wanted) {
  return absl::DataLossError(
      absl::StrFormat("%s: got %d, wanted %d", call, got, wanted));
}

// A daemon and its sessions, numbered from 0.
class Node {
 public:
  static absl::StatusOr<std::unique_ptr<Node>> Start(
      const ScaleOptions& options, const Common& common,
      const std::string& work_dir) {
    std::filesystem::create_directories(work_dir);
    TORPOR_ASSIGN_OR_RETURN(Daemon daemon,
                            Daemon::Start({common.bin_dir, work_dir, {}}));
    std::unique_ptr<Node> node(new Node(options, std::move(daemon)));
    TORPOR_RETURN_IF_ERROR(node->Connect());
    TORPOR_ASSIGN_OR_RETURN(
        Synthetic model,
        Synthetic::Register(node->client(),
                            {.layout = TinyLayout(),
                             .seed = common.seed,
                             .block_size = options.block_size,
                             .ttl_seconds = options.ttl_seconds,
                             .wrong_session = options.wrong_session}));
    node->model_ = std::make_unique<Synthetic>(std::move(model));
    return node;
  }

  [[nodiscard]] uint64_t population() const { return sessions_.size(); }
  service::Client* client() { return pool_->client(0); }
  Daemon& daemon() { return daemon_; }

  // Creates sessions until there are `population`, many clients at once.
  absl::Status GrowTo(uint64_t population) {
    const uint64_t first = sessions_.size();
    sessions_.resize(population);
    return pool_->Run(
        population - first,
        [&](service::Client* client, int, const ClientPool::Due& due)
            -> absl::StatusOr<std::optional<SteadyClock::time_point>> {
          TORPOR_RETURN_IF_ERROR(
              Suspend(client, first + due.session, options_.n_tokens));
          return std::nullopt;
        });
  }

  // One call of each kind, to sessions drawn at random.
  absl::Status Sample(std::mt19937_64* random,
                      std::map<std::string, Latencies>* out) {
    const auto draw = [&] { return (*random)() % sessions_.size(); };
    const uint64_t woken = draw();
    TORPOR_ASSIGN_OR_RETURN(
        const SyntheticWake wake,
        model_->Resume(client(), woken, sessions_[woken].n_tokens, &buffer_));
    (*out)["resume"].Add(wake.ms);
    TORPOR_RETURN_IF_ERROR(Timed(&(*out)["suspend"], [&] {
      return Suspend(client(), woken, sessions_[woken].n_tokens + kNewTokens);
    }));
    TORPOR_RETURN_IF_ERROR(LookUp(draw(), &(*out)["lookup"]));
    TORPOR_RETURN_IF_ERROR(List(draw(), &(*out)["list 100"]));
    return Describe(draw(), &(*out)["describe"]);
  }

  // A drain waits a little for clients that are connected.
  absl::Status Stop() {
    pool_.reset();
    return daemon_.Stop();
  }

  // Stops and starts again; milliseconds until it serves.
  absl::StatusOr<double> RestartMs(bool cold) {
    TORPOR_RETURN_IF_ERROR(Stop());
    if (cold) TORPOR_RETURN_IF_ERROR(DropPageCache(daemon_.data_dir()));
    const SteadyClock::time_point begin = SteadyClock::now();
    TORPOR_RETURN_IF_ERROR(daemon_.Restart());
    const double ms = MillisecondsSince(begin);
    TORPOR_RETURN_IF_ERROR(Connect());
    return ms;
  }

 private:
  struct Session {
    uint64_t version = 0;
    uint64_t n_tokens = 0;
  };

  Node(const ScaleOptions& options, Daemon daemon)
      : options_(options), daemon_(std::move(daemon)) {}

  absl::Status Connect() {
    TORPOR_ASSIGN_OR_RETURN(ClientPool pool,
                            ClientPool::Connect(daemon_, options_.n_clients));
    pool_ = std::make_unique<ClientPool>(std::move(pool));
    return absl::OkStatus();
  }

  template <typename Call>
  static absl::Status Timed(Latencies* out, const Call& call) {
    const SteadyClock::time_point begin = SteadyClock::now();
    TORPOR_RETURN_IF_ERROR(call());
    out->Add(MillisecondsSince(begin));
    return absl::OkStatus();
  }

  absl::Status Suspend(service::Client* client, uint64_t number,
                       uint64_t n_tokens) {
    Session& session = sessions_[number];
    TORPOR_ASSIGN_OR_RETURN(const v1::SuspendReceipt receipt,
                            model_->Suspend(client, number, session.version,
                                            session.n_tokens, n_tokens));
    session = {receipt.version(), n_tokens};
    return absl::OkStatus();
  }

  absl::Status LookUp(uint64_t number, Latencies* out) {
    const uint64_t n_tokens = sessions_[number].n_tokens;
    const std::vector<uint32_t> ids = model_->Tokens(number, 0, n_tokens);
    uint64_t hit_len = 0;
    TORPOR_RETURN_IF_ERROR(Timed(out, [&]() -> absl::Status {
      TORPOR_ASSIGN_OR_RETURN(hit_len, model_->LookupPrefix(client(), ids));
      return absl::OkStatus();
    }));
    return hit_len == n_tokens ? absl::OkStatus()
                               : Wrong("lookup", hit_len, n_tokens);
  }

  // The page that begins at a session.
  absl::Status List(uint64_t number, Latencies* out) {
    v1::ListRequest request;
    request.set_page_size(kPage);
    if (number > 0) {
      request.set_page_token(absl::BytesToHexString(Synthetic::Id(number - 1)));
    }
    v1::ListResponse page;
    TORPOR_RETURN_IF_ERROR(Timed(out, [&]() -> absl::Status {
      TORPOR_ASSIGN_OR_RETURN(
          page, client()->Unary(client()->sessions(),
                                &v1::SessionService::Stub::List, request));
      return absl::OkStatus();
    }));
    const uint64_t wanted =
        std::min<uint64_t>(kPage, sessions_.size() - number);
    if (static_cast<uint64_t>(page.sessions_size()) != wanted) {
      return Wrong("list", static_cast<uint64_t>(page.sessions_size()), wanted);
    }
    for (const v1::SessionState& state : page.sessions()) {
      if (state.session() != Synthetic::Id(number)) {
        return absl::DataLossError(
            absl::StrFormat("list: got session '%s', wanted '%s'",
                            state.session(), Synthetic::Id(number)));
      }
      ++number;
    }
    return absl::OkStatus();
  }

  absl::Status Describe(uint64_t number, Latencies* out) {
    v1::DescribeRequest request;
    request.set_session(Synthetic::Id(number));
    v1::SessionState state;
    TORPOR_RETURN_IF_ERROR(Timed(out, [&]() -> absl::Status {
      TORPOR_ASSIGN_OR_RETURN(
          state, client()->Unary(client()->sessions(),
                                 &v1::SessionService::Stub::Describe, request));
      return absl::OkStatus();
    }));
    const Session& session = sessions_[number];
    return state.version() == session.version &&
                   state.n_tokens() == session.n_tokens
               ? absl::OkStatus()
               : Wrong("describe", state.n_tokens(), session.n_tokens);
  }

  const ScaleOptions& options_;
  Daemon daemon_;
  std::unique_ptr<ClientPool> pool_;
  std::unique_ptr<Synthetic> model_;
  std::vector<Session> sessions_;
  std::vector<uint8_t> buffer_;
};

absl::Status Measure(const ScaleOptions& options, uint64_t seed, Node* small,
                     Node* large, ScaleResult::Step* step) {
  std::mt19937_64 random(seed);
  std::map<std::string, Latencies> unused;
  // The first calls find nothing warm.
  for (Node* node : {small, large}) {
    for (int i = 0; i < 5; ++i) {
      TORPOR_RETURN_IF_ERROR(node->Sample(&random, &unused));
    }
  }
  for (uint64_t i = 0; i < options.n_samples; ++i) {
    // Neither is always the one that comes second.
    const bool first = i % 2 == 0;
    TORPOR_RETURN_IF_ERROR(
        (first ? small : large)
            ->Sample(&random, first ? &step->small : &step->here));
    TORPOR_RETURN_IF_ERROR(
        (first ? large : small)
            ->Sample(&random, first ? &step->here : &step->small));
  }
  return absl::OkStatus();
}

absl::Status Restarts(Node* node, ScaleResult::Step* step) {
  TORPOR_ASSIGN_OR_RETURN(step->start_cold_ms, node->RestartMs(true));
  TORPOR_ASSIGN_OR_RETURN(step->start_hot_ms, node->RestartMs(false));
  step->idle_bytes = UsageOf(node->daemon().pid()).private_bytes;
  // Calls are compared with the page cache hot.
  return FillPageCache(node->daemon().data_dir());
}

}  // namespace

absl::StatusOr<ScaleResult> RunScale(const ScaleOptions& options,
                                     const Common& common) {
  TORPOR_ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Make(common.dir));
  TORPOR_ASSIGN_OR_RETURN(
      const std::unique_ptr<Node> small,
      Node::Start(options, common, scratch.path() + "/small"));
  TORPOR_ASSIGN_OR_RETURN(
      const std::unique_ptr<Node> large,
      Node::Start(options, common, scratch.path() + "/large"));
  ScaleResult result;
  TORPOR_RETURN_IF_ERROR(small->GrowTo(options.populations.front()));
  TORPOR_RETURN_IF_ERROR(small->RestartMs(false).status());
  result.small_idle_bytes = UsageOf(small->daemon().pid()).private_bytes;
  for (const uint64_t population : options.populations) {
    ScaleResult::Step step;
    step.population = population;
    step.created = population - large->population();
    TORPOR_ASSIGN_OR_RETURN(const uint64_t commits, CommitsOf(large->client()));
    const SteadyClock::time_point begin = SteadyClock::now();
    TORPOR_RETURN_IF_ERROR(large->GrowTo(population));
    step.create_seconds = MillisecondsSince(begin) / 1000;
    TORPOR_ASSIGN_OR_RETURN(step.commits, CommitsOf(large->client()));
    step.commits -= commits;
    common.Say(absl::StrFormat("%d sessions sleep, %d of them new in %.1f s",
                               population, step.created, step.create_seconds));
    // Both have just been started when they are asked.
    TORPOR_RETURN_IF_ERROR(Restarts(large.get(), &step));
    common.Say(absl::StrFormat("starts in %.0f ms from disk, %.0f ms hot",
                               step.start_cold_ms, step.start_hot_ms));
    TORPOR_RETURN_IF_ERROR(Measure(options, common.seed + population,
                                   small.get(), large.get(), &step));
    result.steps.push_back(std::move(step));
  }
  TORPOR_RETURN_IF_ERROR(small->Stop());
  TORPOR_RETURN_IF_ERROR(large->Stop());
  return result;
}

RunBenchmark AddScaleCommand(CLI::App* app, const Common* common) {
  auto options = std::make_shared<ScaleOptions>();
  app->add_option("--populations", options->populations,
                  "Numbers of sessions, ascending")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--clients", options->n_clients,
                  "Clients that create sessions at once")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app->add_option("--samples", options->n_samples,
                  "Calls of each kind at each population")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--tokens", options->n_tokens, "Tokens of a session")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--ttl", options->ttl_seconds,
                  "Seconds until sessions expire (default: never)")
      ->check(CLI::NonNegativeNumber);
  return [options, common]() -> absl::StatusOr<Result> {
    if (!std::is_sorted(options->populations.begin(),
                        options->populations.end())) {
      return absl::InvalidArgumentError(
          "populations: wanted numbers that ascend");
    }
    TORPOR_ASSIGN_OR_RETURN(const ScaleResult result,
                            RunScale(*options, *common));
    return ReportOf(*options, result);
  };
}

}  // namespace torpor::bench
