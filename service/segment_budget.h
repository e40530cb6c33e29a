// SPDX-License-Identifier: Apache-2.0
//
// How many bytes segments of one kind may hold together. Thread-safe.

#ifndef TORPOR_SERVICE_SEGMENT_BUDGET_H_
#define TORPOR_SERVICE_SEGMENT_BUDGET_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "base/mutex.h"

namespace torpor::service {

class SegmentBudget {
 public:
  // `option` names the limit to whom it stops.
  SegmentBudget(uint64_t max_bytes, const char* option)
      : max_bytes_(max_bytes), option_(option) {}

  // A segment's part, given back with it.
  class Charge {
   public:
    ~Charge();
    Charge(const Charge&) = delete;
    Charge& operator=(const Charge&) = delete;

   private:
    friend class SegmentBudget;
    Charge(std::shared_ptr<SegmentBudget> budget, uint64_t bytes)
        : budget_(std::move(budget)), bytes_(bytes) {}

    const std::shared_ptr<SegmentBudget> budget_;
    const uint64_t bytes_;
  };
  // kResourceExhausted when there is no room.
  static absl::StatusOr<std::unique_ptr<Charge>> Take(
      const std::shared_ptr<SegmentBudget>& budget, uint64_t bytes);

  struct Held {
    size_t segments = 0;
    uint64_t bytes = 0;
  };
  [[nodiscard]] Held held() const;

 private:
  const uint64_t max_bytes_;
  const char* const option_;
  mutable Mutex mu_;
  Held held_ ABSL_GUARDED_BY(mu_);
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_SEGMENT_BUDGET_H_
