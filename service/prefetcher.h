// SPDX-License-Identifier: Apache-2.0
//
// Work ahead of resumes that are to come: windows that are rebuilt and held,
// rows that are read into the page cache. It runs on threads of its own. A
// window is held for one resume, until its time is over; it is found by all
// that decided its bytes, so one that is stale is never served. Thread-safe.

#ifndef TORPOR_SERVICE_PREFETCHER_H_
#define TORPOR_SERVICE_PREFETCHER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/worker_pool.h"
#include "replay/planner.h"
#include "service/metrics.h"
#include "service/model_registry.h"
#include "service/window_rebuild.h"
#include "store/types.h"

namespace torpor::service {

struct PrefetcherOptions {
  // Memory of windows, from the moment their rebuild is admitted; 0 = none is
  // rebuilt ahead.
  uint64_t held_bytes = uint64_t{256} << 20;
  // Sessions that are prefetched at once.
  size_t sessions = 64;
  // The longest that a window is held.
  std::chrono::seconds hold_limit{600};

  // kInvalidArgument names the key.
  [[nodiscard]] absl::Status Validate() const;
};

// The window that a resume would rebuild: equal ones have equal bytes, and are
// judged and climb alike.
struct PlannedWindow {
  store::SessionKey session;
  // With the moment of that version, which an import brings along: its number
  // may have been in use here before.
  uint64_t version = 0;
  int64_t updated_at_us = 0;
  std::shared_ptr<const RegisteredModel> model;
  // It has the cut.
  replay::ReplayPlan plan;
  bool want_logits = false;
  double max_error = 0;
  bool allow_cold = false;

  friend bool operator==(const PlannedWindow&, const PlannedWindow&) = default;
};

class Prefetcher {
 public:
  using SteadyClock = std::chrono::steady_clock;
  using Clock = std::function<SteadyClock::time_point()>;
  // Polled by work; true ends it soon.
  using Cancelled = std::function<bool()>;

  // `metrics` outlives the prefetcher.
  Prefetcher(const PrefetcherOptions& options, Metrics* metrics,
             Clock clock = SteadyClock::now);
  // Stops.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // What a session is prefetched with. What the functions own is kept until the
  // window is taken or dropped.
  struct Work {
    PlannedWindow window;
    std::function<absl::Status(const Cancelled&)> read;
    // Null: rows are read, and no window is rebuilt.
    std::function<Rebuilt(const Cancelled&)> rebuild;
    // Why it is null, where a window was asked.
    std::string refused;
    uint64_t window_bytes = 0;
    std::chrono::seconds hold{0};
  };
  struct Begun {
    // The window was under way or held before; its time begins anew.
    bool renewed = false;
    // Why no window is rebuilt, where one was asked: as given, or no room.
    std::string refused;
  };
  // Returns when the work is admitted. kInvalidArgument when `hold` is beyond
  // the limit; kResourceExhausted when too many sessions are prefetched;
  // kUnavailable once stopped.
  absl::StatusOr<Begun> Begin(Work work);

  // Takes the window out; waits for one that is being rebuilt. nullopt when
  // there is none, its rebuild failed, it was dropped meanwhile, or `cancelled`
  // turned true.
  std::optional<Rebuilt> Take(const PlannedWindow& window,
                              const Cancelled& cancelled);

  // Drops what is prefetched of a session, which has changed.
  void Cancel(const store::SessionKey& session);
  // Drops windows whose time is over, but for one that a resume waits for.
  void DropExpired();
  // Drops everything, and takes nothing more.
  void Stop();

  [[nodiscard]] std::chrono::seconds hold_limit() const {
    return options_.hold_limit;
  }
  struct Stats {
    size_t sessions = 0;
    // Memory of windows.
    uint64_t held_bytes = 0;
  };
  [[nodiscard]] Stats stats() const;

 private:
  struct Entry;
  using Entries = std::map<store::SessionKey, std::shared_ptr<Entry>>;

  void Post(const std::shared_ptr<Entry>& entry);
  void RebuildAhead(const std::shared_ptr<Entry>& entry);
  void ReadAhead(const std::shared_ptr<Entry>& entry);
  // Ends the entry's work and takes it out of the map; `event` is counted when
  // it has a window.
  std::shared_ptr<Entry> Drop(Entries::iterator it, const char* event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const PrefetcherOptions options_;
  Metrics& metrics_;
  const Clock clock_;
  mutable Mutex mu_;
  CondVar changed_;
  Entries entries_ ABSL_GUARDED_BY(mu_);
  uint64_t held_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  // Last: its threads use the rest.
  WorkerPool threads_;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_PREFETCHER_H_
