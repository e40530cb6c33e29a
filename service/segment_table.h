// SPDX-License-Identifier: Apache-2.0
//
// What the broker knows of its segments, by nonce: those that wait for their
// client, those that a client holds, and memory that stays when its owner has
// ended. Internal to the broker. Thread-safe; memory is freed, and no reference
// to a segment dropped, outside the lock.

#ifndef TORPOR_SERVICE_SEGMENT_TABLE_H_
#define TORPOR_SERVICE_SEGMENT_TABLE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "service/segment.h"
#include "service/segment_budget.h"

namespace torpor::service {

class ServerSegment;

// Memory that counts while it is there.
struct ChargedSegment {
  std::unique_ptr<SegmentBudget::Charge> charge;
  std::unique_ptr<Segment> segment;
  Flow flow = Flow::kToClient;
};

class SegmentTable {
 public:
  using Clock = std::chrono::steady_clock;

  // A segment that waits for its client until `due`.
  void Offer(const std::string& nonce,
             const std::shared_ptr<ServerSegment>& segment,
             Clock::time_point due);
  // Its client came: null for a nonce that is unknown, used or expired.
  std::shared_ptr<ServerSegment> Take(const std::string& nonce);

  // How a segment that a client holds stands.
  enum class State {
    kOwned,
    // Nobody owns it; another call may take it up.
    kKept,
    // Nobody owns it, and its memory stays until the client lets it go.
    kUntilClosed,
    kGone,
  };
  State Look(const std::string& nonce) const;
  // The client is gone, or nothing is left to hold. Its owner, if it has one.
  std::shared_ptr<ServerSegment> Drop(const std::string& nonce);

  // The owner ended (~ServerSegment). With `keep` the memory may be taken up
  // until `due`.
  void Free(const std::string& nonce, std::shared_ptr<ChargedSegment> memory,
            bool keep, Clock::time_point due);
  // Kept memory of this flow and of at least `bytes` bytes, to an owner that
  // `own` makes; null when there is none. `own` runs under the lock.
  std::shared_ptr<ServerSegment> Reuse(
      const std::string& nonce, Flow flow, uint64_t bytes,
      const std::function<std::shared_ptr<ServerSegment>(
          std::shared_ptr<ChargedSegment>)>& own);
  // Frees kept memory: that of `rather`, else what is due first; false when
  // there is none.
  bool EvictKept(const std::string& rather);

  // When Expire has something to do, at most `latest`.
  Clock::time_point Due(Clock::time_point latest) const;
  // Frees kept memory that is due, and returns the segments that nobody took.
  std::vector<std::shared_ptr<ServerSegment>> Expire(Clock::time_point now);
  // Forgets all.
  void Clear();

 private:
  struct Entry {
    std::weak_ptr<ServerSegment> owner;
    bool owned = true;
    bool taken = false;
    // Of one that is not owned.
    std::shared_ptr<ChargedSegment> memory;
    bool kept = false;
    // Of an offer and of kept memory.
    Clock::time_point due;
  };

  mutable Mutex mu_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_SEGMENT_TABLE_H_
