// SPDX-License-Identifier: Apache-2.0

#include "replay/compact_loader.h"

#include <algorithm>
#include <chrono>

#include "base/status.h"

namespace torpor::replay {
namespace {

using SteadyClock = std::chrono::steady_clock;

// The layer before which a slot's rows must stand: the first of its readers
// that runs a row; n_layers when none does.
uint32_t FirstUse(const ModelLayout& layout, const Slot& slot,
                  const ReplayPlan& plan) {
  for (const uint32_t reader : slot.reader_layers) {
    if (plan.layers[reader].run_begin < plan.resume_at) return reader;
  }
  return layout.n_layers;
}

}  // namespace

CompactLoader::CompactLoader(
    const ModelLayout& layout, std::span<const ReplayJob> jobs,
    std::span<const std::unique_ptr<Sequence>> sequences,
    const std::function<bool()>& cancelled)
    : layout_(layout),
      jobs_(jobs),
      sequences_(sequences),
      cancelled_(cancelled),
      bytes_(jobs.size()),
      microseconds_(jobs.size()),
      thread_([this] { Loop(); }) {}

CompactLoader::~CompactLoader() {
  stopping_.store(true);
  thread_.join();
}

absl::Status CompactLoader::WaitFor(uint32_t layer) {
  MutexLock lock(&mu_);
  while (loaded_ <= layer && status_.ok()) progress_.Wait(&mu_);
  return loaded_ > layer ? absl::OkStatus() : status_;
}

uint64_t CompactLoader::bytes(size_t i) const { return bytes_[i].load(); }

uint64_t CompactLoader::microseconds(size_t i) const {
  return microseconds_[i].load();
}

void CompactLoader::Loop() {
  for (uint32_t layer = 0; layer < layout_.n_layers; ++layer) {
    const absl::Status status = LoadLayer(layer);
    MutexLock lock(&mu_);
    status_ = status;
    if (status.ok()) loaded_ = layer + 1;
    progress_.NotifyAll();
    if (!status.ok()) return;
  }
}

absl::Status CompactLoader::LoadLayer(uint32_t layer) {
  for (size_t i = 0; i < jobs_.size(); ++i) {
    const ReplayPlan& plan = *jobs_[i].plan;
    if (plan.replay_tokens() == 0) continue;
    const SteadyClock::time_point begin = SteadyClock::now();
    for (const uint32_t index : layout_.CompactSlots()) {
      if (FirstUse(layout_, layout_.slots[index], plan) != layer) continue;
      const auto stop = [this] {
        return stopping_.load() || (cancelled_ && cancelled_());
      };
      TORPOR_ASSIGN_OR_RETURN(
          const uint64_t bytes,
          LoadSlotRows(layout_, index, plan.resume_at, jobs_[i].reader,
                       sequences_[i].get(), stop));
      bytes_[i].fetch_add(bytes);
    }
    microseconds_[i].fetch_add(static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(
            SteadyClock::now() - begin)
            .count()));
  }
  return absl::OkStatus();
}

}  // namespace torpor::replay
