// SPDX-License-Identifier: Apache-2.0

#include "bench/load.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <queue>
#include <thread>

#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "base/status.h"

namespace torpor::bench {
namespace {

// Sessions by the time they are due.
class DueQueue {
 public:
  explicit DueQueue(std::vector<ClientPool::Due> first)
      : n_running_(first.size()), queue_(Later{}, std::move(first)) {}

  // Waits until a session is due and takes it; nothing when all have ended.
  std::optional<ClientPool::Due> Take() {
    MutexLock lock(&mu_);
    while (status_.ok() && n_running_ > 0) {
      if (queue_.empty()) {
        changed_.Wait(&mu_);
      } else if (const auto at = queue_.top().at; at > SteadyClock::now()) {
        changed_.WaitUntil(&mu_, at);
      } else {
        const ClientPool::Due due = queue_.top();
        queue_.pop();
        return due;
      }
    }
    return std::nullopt;
  }

  // What became of a session that was taken.
  void Put(uint64_t session,
           const absl::StatusOr<std::optional<SteadyClock::time_point>>& next) {
    MutexLock lock(&mu_);
    if (next.ok() && next->has_value()) {
      queue_.push({**next, session});
    } else {
      --n_running_;
      status_.Update(next.status());
    }
    changed_.NotifyAll();
  }

  absl::Status status() {
    MutexLock lock(&mu_);
    return status_;
  }

 private:
  struct Later {
    bool operator()(const ClientPool::Due& a, const ClientPool::Due& b) const {
      return a.at > b.at;
    }
  };

  Mutex mu_;
  CondVar changed_;
  uint64_t n_running_ ABSL_GUARDED_BY(mu_);
  std::priority_queue<ClientPool::Due, std::vector<ClientPool::Due>, Later>
      queue_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

double Latencies::Quantile(double share) const {
  if (values_.empty()) return 0;
  std::vector<double> sorted = values_;
  const double rank = std::ceil(share * static_cast<double>(sorted.size()));
  const size_t index =
      std::min(sorted.size() - 1, static_cast<size_t>(std::max(rank, 1.0)) - 1);
  std::nth_element(sorted.begin(),
                   sorted.begin() + static_cast<ptrdiff_t>(index),
                   sorted.end());
  return sorted[index];
}

nlohmann::json Latencies::ToJson() const {
  return {{"n", size()},
          {"p50_ms", Quantile(0.5)},
          {"p99_ms", Quantile(0.99)},
          {"max_ms", Quantile(1)}};
}

std::vector<std::string> Latencies::Cells() const {
  std::vector<std::string> cells = {absl::StrFormat("%d", size())};
  for (const double share : {0.5, 0.99, 1.0}) {
    cells.push_back(absl::StrFormat("%.3g ms", Quantile(share)));
  }
  return cells;
}

std::vector<std::pair<double, double>> Latencies::Tail() const {
  std::vector<std::pair<double, double>> points;
  const auto n = static_cast<double>(size());
  for (double slower = 1; slower * n >= 1; slower /= 1.5) {
    points.emplace_back(slower, Quantile(1 - slower));
  }
  std::reverse(points.begin(), points.end());
  return points;
}

SteadyClock::duration ThinkTime::Draw(std::mt19937_64* random) const {
  double ms = mean_ms;
  if (distribution == "exponential" && mean_ms > 0) {
    ms = std::exponential_distribution<double>(1 / mean_ms)(*random);
  }
  return std::chrono::duration_cast<SteadyClock::duration>(
      std::chrono::duration<double, std::milli>(ms));
}

absl::StatusOr<ClientPool> ClientPool::Connect(const Daemon& daemon,
                                               int n_clients) {
  ClientPool pool;
  for (int i = 0; i < n_clients; ++i) {
    TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<service::Client> client,
                            daemon.Connect());
    pool.clients_.push_back(std::move(client));
  }
  return pool;
}

absl::Status ClientPool::Run(std::vector<Due> first, const Step& step) {
  DueQueue queue(std::move(first));
  std::vector<std::thread> threads;
  for (int i = 0; i < size(); ++i) {
    threads.emplace_back([&, i] {
      while (const std::optional<Due> due = queue.Take()) {
        queue.Put(due->session, step(client(i), i, *due));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return queue.status();
}

absl::Status ClientPool::Run(uint64_t n_sessions, const Step& step) {
  std::vector<Due> first;
  const SteadyClock::time_point now = SteadyClock::now();
  for (uint64_t session = 0; session < n_sessions; ++session) {
    first.push_back({now, session});
  }
  return Run(std::move(first), step);
}

}  // namespace torpor::bench
