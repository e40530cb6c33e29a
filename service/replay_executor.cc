// SPDX-License-Identifier: Apache-2.0

#include "service/replay_executor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::service {
namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr auto kPoll = std::chrono::milliseconds(20);

// A device refuses by itself what it has no room for.
uint64_t MemoryOf(const RegisteredModel& model,
                  const replay::ReplayPlan& plan) {
  return model.on_device ? 0 : model.replayer->MemoryFor(plan);
}

}  // namespace

struct ReplayExecutor::Job {
  ReplayRequest request;
  uint64_t memory = 0;
  SteadyClock::time_point queued = SteadyClock::now();
  std::atomic<bool> cancelled{false};
  // Guarded by the executor's mutex.
  bool done = false;
  absl::StatusOr<ReplayOutcome> outcome = absl::UnknownError("not run");

  [[nodiscard]] replay::ReplayJob AsReplayJob() const {
    return {.plan = &request.plan,
            .ids = *request.ids,
            .spans = request.spans,
            .reader = request.reader.get(),
            .want_logits = request.want_logits};
  }
};

ReplayExecutor::ReplayExecutor(const ReplayExecutorOptions& options)
    : options_(options), thread_([this] { Loop(); }) {}

ReplayExecutor::~ReplayExecutor() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    for (const auto& job : queue_) job->cancelled.store(true);
  }
  wake_.NotifyAll();
  thread_.join();
}

size_t ReplayExecutor::waiting() const {
  MutexLock lock(&mu_);
  return queue_.size();
}

absl::Status ReplayExecutor::Admits(const RegisteredModel& model,
                                    const replay::ReplayPlan& plan) const {
  const uint64_t memory = MemoryOf(model, plan);
  if (memory <= options_.memory_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "replay of %d tokens at %d: takes %d bytes of memory, %d are allowed",
      plan.replay_tokens(), plan.resume_at, memory, options_.memory_bytes));
}

absl::StatusOr<ReplayOutcome> ReplayExecutor::Run(
    ReplayRequest request, const std::function<bool()>& cancelled) {
  TORPOR_RETURN_IF_ERROR(Admits(*request.model, request.plan));
  auto job = std::make_shared<Job>();
  job->memory = MemoryOf(*request.model, request.plan);
  job->request = std::move(request);
  MutexLock lock(&mu_);
  if (stopping_) return absl::UnavailableError("replay: shutting down");
  queue_.push_back(job);
  wake_.NotifyOne();
  while (!job->done) {
    if (cancelled && cancelled()) {
      job->cancelled.store(true);
      std::erase(queue_, job);
      return absl::CancelledError("replay: cancelled");
    }
    finished_.WaitUntil(&mu_, SteadyClock::now() + kPoll);
  }
  return std::move(job->outcome);
}

std::vector<std::shared_ptr<ReplayExecutor::Job>> ReplayExecutor::TakeBatch() {
  MutexLock lock(&mu_);
  while (queue_.empty() && !stopping_) wake_.Wait(&mu_);
  std::vector<std::shared_ptr<Job>> batch;
  uint64_t memory = 0;
  for (auto it = queue_.begin();
       it != queue_.end() && batch.size() < options_.max_batch;) {
    const std::shared_ptr<Job>& job = *it;
    const bool fits =
        batch.empty() || (job->request.model == batch.front()->request.model &&
                          memory + job->memory <= options_.memory_bytes);
    if (!fits) {
      ++it;
      continue;
    }
    memory += job->memory;
    batch.push_back(job);
    it = queue_.erase(it);
  }
  return batch;
}

void ReplayExecutor::RunBatch(const std::vector<std::shared_ptr<Job>>& batch) {
  const SteadyClock::time_point begin = SteadyClock::now();
  std::vector<replay::ReplayJob> jobs;
  for (const auto& job : batch) jobs.push_back(job->AsReplayJob());
  // The batch stops when nobody waits for any of it.
  const auto all_cancelled = [&] {
    return std::all_of(batch.begin(), batch.end(),
                       [](const auto& job) { return job->cancelled.load(); });
  };
  auto results =
      batch.front()->request.model->replayer->Rebuild(jobs, all_cancelled);
  if (!results.ok() && batch.size() > 1 && !all_cancelled()) {
    // One job's damage is not its neighbours'.
    for (const auto& job : batch) RunBatch({job});
    return;
  }
  MutexLock lock(&mu_);
  for (size_t i = 0; i < batch.size(); ++i) {
    Job& job = *batch[i];
    if (results.ok()) {
      ReplayOutcome outcome;
      outcome.result = std::move((*results)[i]);
      outcome.queue_us = static_cast<uint64_t>(
          std::chrono::duration_cast<std::chrono::microseconds>(begin -
                                                                job.queued)
              .count());
      outcome.batch = batch.size();
      job.outcome = std::move(outcome);
    } else {
      job.outcome = results.status();
    }
    job.done = true;
  }
  finished_.NotifyAll();
}

void ReplayExecutor::Loop() {
  for (;;) {
    const auto batch = TakeBatch();
    if (batch.empty()) return;
    RunBatch(batch);
  }
}

}  // namespace torpor::service
