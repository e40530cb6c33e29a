// SPDX-License-Identifier: Apache-2.0

#include "service/prefetcher.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "service/log.h"

namespace torpor::service {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(20);

void LogFailure(const store::SessionKey& session, const char* what,
                const absl::Status& status) {
  LogEvent(spdlog::level::warn, "prefetch_failed",
           {{"session", session.id},
            {"what", what},
            {"error", std::string(status.message())}});
}

// Rows of `read` are among those that `window` needs.
bool Covers(const PlannedWindow& window, const PlannedWindow& read) {
  return window.version == read.version &&
         window.updated_at_us == read.updated_at_us &&
         window.plan.resume_at >= read.plan.resume_at;
}

}  // namespace

absl::Status PrefetcherOptions::Validate() const {
  for (const auto& [name, value] :
       {std::pair<const char*, int64_t>{"prefetch.sessions",
                                        static_cast<int64_t>(sessions)},
        {"prefetch.hold_limit_seconds", hold_limit.count()}}) {
    if (value == 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: got 0, wanted at least 1", name));
    }
  }
  return absl::OkStatus();
}

struct Prefetcher::Entry {
  enum class State { kNoWindow, kRebuilding, kHeld };

  explicit Entry(Work w) : work(std::move(w)) {}

  const Work work;
  std::atomic<bool> dropped{false};
  // Guarded by the prefetcher's mutex.
  State state = State::kNoWindow;
  bool reading = true;
  // Resumes that wait for the window.
  size_t waiting = 0;
  SteadyClock::time_point until;
  Rebuilt rebuilt;
};

Prefetcher::Prefetcher(const PrefetcherOptions& options, Metrics* metrics,
                       Clock clock)
    : options_(options),
      metrics_(*metrics),
      clock_(std::move(clock)),
      threads_(options.sessions) {}

Prefetcher::~Prefetcher() { Stop(); }

absl::StatusOr<Prefetcher::Begun> Prefetcher::Begin(Work work) {
  if (work.hold > options_.hold_limit) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "hold_seconds: got %d, wanted at most %d (prefetch.hold_limit_seconds)",
        work.hold.count(), options_.hold_limit.count()));
  }
  metrics_.CountPrefetch("asked");
  Begun begun;
  begun.refused = std::exchange(work.refused, "");
  // Let go of without the lock.
  std::shared_ptr<Entry> replaced;
  MutexLock lock(&mu_);
  if (stopped_) return absl::UnavailableError("prefetch: the daemon is ending");
  const store::SessionKey session = work.window.session;
  const auto it = entries_.find(session);
  const bool has_window =
      it != entries_.end() && it->second->state != Entry::State::kNoWindow;
  const uint64_t by_others =
      held_bytes_ - (has_window ? it->second->work.window_bytes : 0);
  if (work.rebuild != nullptr &&
      work.window_bytes > options_.held_bytes - by_others) {
    begun.refused = absl::StrFormat(
        "the window takes %d bytes of memory, and %d of %d are held by others "
        "(prefetch.held_bytes)",
        work.window_bytes, by_others, options_.held_bytes);
    work.rebuild = nullptr;
  }
  if (it != entries_.end()) {
    Entry& entry = *it->second;
    const bool serves = work.rebuild == nullptr
                            ? Covers(entry.work.window, work.window)
                            : has_window && entry.work.window == work.window;
    if (serves) {
      if (work.rebuild != nullptr) {
        entry.until = clock_() + work.hold;
        begun.renewed = true;
      }
      if (!std::exchange(entry.reading, true)) Post(it->second);
      if (!begun.refused.empty()) metrics_.CountPrefetch("refused");
      return begun;
    }
    replaced = Drop(it, "cancelled");
  }
  if (entries_.size() >= options_.sessions) {
    metrics_.CountPrefetch("refused");
    return absl::ResourceExhaustedError(absl::StrFormat(
        "prefetch: %d sessions are prefetched, which is the limit "
        "(prefetch.sessions); resume without it, or ask again when one of them "
        "is awake",
        entries_.size()));
  }
  if (!begun.refused.empty()) metrics_.CountPrefetch("refused");
  const auto entry = std::make_shared<Entry>(std::move(work));
  if (entry->work.rebuild != nullptr) {
    entry->state = Entry::State::kRebuilding;
    entry->until = clock_() + entry->work.hold;
    held_bytes_ += entry->work.window_bytes;
  }
  entries_.emplace(session, entry);
  Post(entry);
  return begun;
}

std::optional<Rebuilt> Prefetcher::Take(const PlannedWindow& window,
                                        const Cancelled& cancelled) {
  std::shared_ptr<Entry> entry;
  MutexLock lock(&mu_);
  const auto it = entries_.find(window.session);
  if (it == entries_.end()) return std::nullopt;
  entry = it->second;
  if (entry->state == Entry::State::kNoWindow || entry->work.window != window ||
      clock_() >= entry->until) {
    return std::nullopt;
  }
  const auto gave_up = [&] { return cancelled != nullptr && cancelled(); };
  ++entry->waiting;
  while (entry->state == Entry::State::kRebuilding && !entry->dropped &&
         !gave_up()) {
    changed_.WaitUntil(&mu_, SteadyClock::now() + kPoll);
  }
  --entry->waiting;
  // Another resume may have been first.
  if (entry->dropped || entry->state != Entry::State::kHeld || gave_up()) {
    return std::nullopt;
  }
  Rebuilt rebuilt = std::move(entry->rebuilt);
  (void)Drop(entries_.find(window.session), "used");
  return rebuilt;
}

void Prefetcher::Cancel(const store::SessionKey& session) {
  std::shared_ptr<Entry> dropped;
  MutexLock lock(&mu_);
  const auto it = entries_.find(session);
  if (it != entries_.end()) dropped = Drop(it, "cancelled");
}

void Prefetcher::DropExpired() {
  std::vector<std::shared_ptr<Entry>> dropped;
  MutexLock lock(&mu_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto here = it++;
    const Entry& entry = *here->second;
    if (entry.state != Entry::State::kNoWindow && entry.waiting == 0 &&
        clock_() >= entry.until) {
      dropped.push_back(Drop(here, "expired"));
    }
  }
}

void Prefetcher::Stop() {
  std::vector<std::shared_ptr<Entry>> dropped;
  MutexLock lock(&mu_);
  stopped_ = true;
  while (!entries_.empty()) {
    dropped.push_back(Drop(entries_.begin(), "cancelled"));
  }
}

Prefetcher::Stats Prefetcher::stats() const {
  MutexLock lock(&mu_);
  return {entries_.size(), held_bytes_};
}

// ---- on its threads -------------------------------------------------------

void Prefetcher::Post(const std::shared_ptr<Entry>& entry) {
  threads_.Post([this, entry] {
    RebuildAhead(entry);
    ReadAhead(entry);
  });
}

void Prefetcher::RebuildAhead(const std::shared_ptr<Entry>& entry) {
  {
    MutexLock lock(&mu_);
    if (entry->dropped || entry->state != Entry::State::kRebuilding) return;
  }
  Rebuilt rebuilt = entry->work.rebuild([&] { return entry->dropped.load(); });
  const absl::Status status = rebuilt.status;
  {
    MutexLock lock(&mu_);
    if (entry->dropped) return;
    if (status.ok()) {
      entry->rebuilt = std::move(rebuilt);
      entry->state = Entry::State::kHeld;
      metrics_.CountPrefetch("held");
    } else {
      entry->state = Entry::State::kNoWindow;
      held_bytes_ -= entry->work.window_bytes;
      metrics_.CountPrefetch("failed");
    }
    changed_.NotifyAll();
  }
  // The resume will meet it too, and report it.
  if (!status.ok()) LogFailure(entry->work.window.session, "replay", status);
}

void Prefetcher::ReadAhead(const std::shared_ptr<Entry>& entry) {
  if (entry->dropped) return;
  const absl::Status status =
      entry->work.read([&] { return entry->dropped.load(); });
  std::shared_ptr<Entry> ended;
  {
    MutexLock lock(&mu_);
    if (entry->dropped) return;
    metrics_.CountPrefetch(status.ok() ? "read" : "failed");
    entry->reading = false;
    if (entry->state == Entry::State::kNoWindow) {
      ended = Drop(entries_.find(entry->work.window.session), "read");
    }
  }
  if (!status.ok()) LogFailure(entry->work.window.session, "read", status);
}

std::shared_ptr<Prefetcher::Entry> Prefetcher::Drop(Entries::iterator it,
                                                    const char* event) {
  std::shared_ptr<Entry> entry = std::move(it->second);
  entries_.erase(it);
  entry->dropped = true;
  if (entry->state != Entry::State::kNoWindow) {
    held_bytes_ -= entry->work.window_bytes;
    metrics_.CountPrefetch(event);
  }
  changed_.NotifyAll();
  return entry;
}

}  // namespace torpor::service
