// SPDX-License-Identifier: Apache-2.0

#include "replay/fallback_replayer.h"

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace torpor::replay {
namespace {

class FallbackReplayer final : public Replayer {
 public:
  FallbackReplayer(std::unique_ptr<Replayer> device, CpuModelLoader load_cpu,
                   uint64_t cpu_memory_bytes)
      : device_(std::move(device)),
        load_cpu_(std::move(load_cpu)),
        cpu_memory_bytes_(cpu_memory_bytes) {}

  uint64_t MemoryFor(const ReplayPlan& plan) const override {
    return device_->MemoryFor(plan);
  }

  absl::StatusOr<std::vector<ReplayResult>> Rebuild(
      std::span<const ReplayJob> jobs,
      const std::function<bool()>& cancelled) override {
    absl::StatusOr<std::vector<ReplayResult>> results =
        device_->Rebuild(jobs, cancelled);
    if (!absl::IsResourceExhausted(results.status())) return results;
    if (jobs.size() == 1) return OnCpu(jobs, results.status(), cancelled);
    // Half of them may fit.
    const size_t half = jobs.size() / 2;
    TORPOR_ASSIGN_OR_RETURN(std::vector<ReplayResult> all,
                            Rebuild(jobs.first(half), cancelled));
    TORPOR_ASSIGN_OR_RETURN(std::vector<ReplayResult> others,
                            Rebuild(jobs.subspan(half), cancelled));
    for (ReplayResult& result : others) all.push_back(std::move(result));
    return all;
  }

 private:
  absl::StatusOr<std::vector<ReplayResult>> OnCpu(
      std::span<const ReplayJob> jobs, const absl::Status& why,
      const std::function<bool()>& cancelled) {
    if (cpu_ == nullptr) {
      TORPOR_ASSIGN_OR_RETURN(cpu_model_, load_cpu_());
      cpu_ = MakeReplayer(cpu_model_.get());
    }
    if (cpu_->MemoryFor(*jobs[0].plan) > cpu_memory_bytes_) return why;
    TORPOR_ASSIGN_OR_RETURN(std::vector<ReplayResult> results,
                            cpu_->Rebuild(jobs, cancelled));
    for (ReplayResult& result : results) {
      result.fallback_reason = std::string(why.message());
    }
    return results;
  }

  const std::unique_ptr<Replayer> device_;
  const CpuModelLoader load_cpu_;
  const uint64_t cpu_memory_bytes_;
  std::unique_ptr<Model> cpu_model_;
  std::unique_ptr<Replayer> cpu_;
};

}  // namespace

std::unique_ptr<Replayer> MakeFallbackReplayer(std::unique_ptr<Replayer> device,
                                               CpuModelLoader load_cpu,
                                               uint64_t cpu_memory_bytes) {
  return std::make_unique<FallbackReplayer>(
      std::move(device), std::move(load_cpu), cpu_memory_bytes);
}

}  // namespace torpor::replay
