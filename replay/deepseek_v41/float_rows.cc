// SPDX-License-Identifier: Apache-2.0

#include "replay/deepseek_v41/float_rows.h"

#include <cassert>
#include <utility>

namespace torpor::replay::deepseek_v41 {
namespace {

// Rows of a decode step. Memory comes in two sizes a dim, this and max_rows:
// batches of many sizes would leave one of each behind.
constexpr uint64_t kFewRows = 16;

}  // namespace

FloatRows RowPool::New(uint64_t n_rows, int64_t dim) {
  assert(n_rows <= max_rows_);
  if (n_rows == 0) return {nullptr, 0, dim};
  std::unique_ptr<Floats> floats =
      Take(static_cast<size_t>(n_rows) * static_cast<size_t>(dim));
  if (floats == nullptr) {
    floats = std::make_unique<Floats>(&ops_);
    floats->Resize((n_rows <= kFewRows ? kFewRows : max_rows_) *
                   static_cast<size_t>(dim));
  }
  float* const data = floats->data();
  // The deleter owns the memory until it goes back; what found no room does
  // not.
  std::shared_ptr<Floats> owner(floats.release(), [this](Floats* back) {
    std::unique_ptr<Floats> owned(back);
    if (owned->data() != nullptr) free_.push_back(std::move(owned));
  });
  return {{std::move(owner), data}, n_rows, dim};
}

std::unique_ptr<kernels::Buffer<float>> RowPool::Take(size_t n) {
  size_t best = free_.size();
  for (size_t i = 0; i < free_.size(); ++i) {
    if (free_[i]->size() < n) continue;
    if (best == free_.size() || free_[i]->size() < free_[best]->size()) {
      best = i;
    }
  }
  if (best == free_.size()) return nullptr;
  std::unique_ptr<Floats> floats = std::move(free_[best]);
  free_[best] = std::move(free_.back());
  free_.pop_back();
  return floats;
}

}  // namespace torpor::replay::deepseek_v41
