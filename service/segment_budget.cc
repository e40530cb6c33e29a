// SPDX-License-Identifier: Apache-2.0

#include "service/segment_budget.h"

#include "absl/strings/str_format.h"

namespace torpor::service {

SegmentBudget::Charge::~Charge() {
  MutexLock lock(&budget_->mu_);
  --budget_->held_.segments;
  budget_->held_.bytes -= bytes_;
}

absl::StatusOr<std::unique_ptr<SegmentBudget::Charge>> SegmentBudget::Take(
    const std::shared_ptr<SegmentBudget>& budget, uint64_t bytes) {
  MutexLock lock(&budget->mu_);
  Held& held = budget->held_;
  if (held.bytes + bytes > budget->max_bytes_) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "too many segments: %d hold %d bytes of %d (%s)", held.segments,
        held.bytes, budget->max_bytes_, budget->option_));
  }
  ++held.segments;
  held.bytes += bytes;
  return std::unique_ptr<Charge>(new Charge(budget, bytes));
}

SegmentBudget::Held SegmentBudget::held() const {
  MutexLock lock(&mu_);
  return held_;
}

}  // namespace torpor::service
