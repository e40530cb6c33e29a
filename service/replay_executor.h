// SPDX-License-Identifier: Apache-2.0
//
// Runs replays one batch at a time: jobs of one model that wait together run in
// one ragged forward. Admission by memory, but for models on a device, whose
// own memory refuses. Thread-safe.

#ifndef TORPOR_SERVICE_REPLAY_EXECUTOR_H_
#define TORPOR_SERVICE_REPLAY_EXECUTOR_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "replay/replayer.h"
#include "service/model_registry.h"

namespace torpor::service {

struct ReplayExecutorOptions {
  // Bytes that the sequences of one batch may take.
  uint64_t memory_bytes = uint64_t{2} << 30;
  size_t max_batch = 64;
};

// What a replay needs, owned: the caller may give up while it runs.
struct ReplayRequest {
  std::shared_ptr<const RegisteredModel> model;
  replay::ReplayPlan plan;
  std::shared_ptr<const std::vector<uint32_t>> ids;
  std::vector<replay::TwoWaySpan> spans;
  std::shared_ptr<replay::CompactKvReader> reader;
  bool want_logits = false;
};

struct ReplayOutcome {
  replay::ReplayResult result;
  uint64_t queue_us = 0;
  // Jobs that ran beside this one, itself included.
  size_t batch = 0;
};

class ReplayExecutor {
 public:
  explicit ReplayExecutor(const ReplayExecutorOptions& options);
  ~ReplayExecutor();
  ReplayExecutor(const ReplayExecutor&) = delete;
  ReplayExecutor& operator=(const ReplayExecutor&) = delete;

  // Waits for the result. kResourceExhausted when the plan alone would exceed
  // the memory; kCancelled soon after `cancelled` turns true.
  absl::StatusOr<ReplayOutcome> Run(ReplayRequest request,
                                    const std::function<bool()>& cancelled);

  // kResourceExhausted when Run would refuse the plan.
  [[nodiscard]] absl::Status Admits(const RegisteredModel& model,
                                    const replay::ReplayPlan& plan) const;

  [[nodiscard]] size_t waiting() const;

 private:
  struct Job;

  void Loop();
  std::vector<std::shared_ptr<Job>> TakeBatch();
  void RunBatch(const std::vector<std::shared_ptr<Job>>& batch);

  const ReplayExecutorOptions options_;
  mutable Mutex mu_;
  CondVar wake_;
  CondVar finished_;
  std::deque<std::shared_ptr<Job>> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_REPLAY_EXECUTOR_H_
