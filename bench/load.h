// SPDX-License-Identifier: Apache-2.0
//
// Clients that act for many sessions at once: each session is due at a time of
// its own, and the first free client takes the one that is due longest. A
// session that has to wait for a client is late; how late is measured, so a
// slow daemon cannot hide behind its own clients.

#ifndef TORPOR_BENCH_LOAD_H_
#define TORPOR_BENCH_LOAD_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/daemon.h"
#include "service/client.h"

namespace torpor::bench {

using SteadyClock = std::chrono::steady_clock;

inline double MillisecondsSince(SteadyClock::time_point begin) {
  return std::chrono::duration<double, std::milli>(SteadyClock::now() - begin)
      .count();
}

// Milliseconds of many calls.
class Latencies {
 public:
  void Add(double ms) { values_.push_back(ms); }
  void Add(const Latencies& other) {
    values_.insert(values_.end(), other.values_.begin(), other.values_.end());
  }

  [[nodiscard]] size_t size() const { return values_.size(); }
  // The smallest value that at least this share of all do not exceed; 0 when
  // there are none.
  [[nodiscard]] double Quantile(double share) const;
  // {"n", "p50", "p99", "max"}, milliseconds.
  [[nodiscard]] nlohmann::json ToJson() const;
  // The same as cells of a table: n, p50, p99, max.
  [[nodiscard]] std::vector<std::string> Cells() const;
  // Share of calls that took longer against their milliseconds.
  [[nodiscard]] std::vector<std::pair<double, double>> Tail() const;

 private:
  std::vector<double> values_;
};

// How long a session waits for its tool or person before its next turn.
struct ThinkTime {
  // "fixed" or "exponential".
  std::string distribution = "exponential";
  double mean_ms = 200;

  [[nodiscard]] SteadyClock::duration Draw(std::mt19937_64* random) const;
};

class ClientPool {
 public:
  struct Due {
    SteadyClock::time_point at;
    uint64_t session = 0;
  };
  // One step of a session by client `client_idx`: when it is due again, or
  // nothing when it has ended. An error ends the run.
  using Step =
      std::function<absl::StatusOr<std::optional<SteadyClock::time_point>>(
          service::Client* client, int client_idx, const Due& due)>;

  // Each with a connection of its own.
  static absl::StatusOr<ClientPool> Connect(const Daemon& daemon,
                                            int n_clients);

  [[nodiscard]] int size() const { return static_cast<int>(clients_.size()); }
  [[nodiscard]] service::Client* client(int i) const {
    return clients_[static_cast<size_t>(i)].get();
  }

  // Returns when every session has ended, or with the first error.
  absl::Status Run(std::vector<Due> first, const Step& step);
  // The same for sessions [0, n), all due now.
  absl::Status Run(uint64_t n_sessions, const Step& step);

 private:
  std::vector<std::unique_ptr<service::Client>> clients_;
};

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_LOAD_H_
