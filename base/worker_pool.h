// SPDX-License-Identifier: Apache-2.0
//
// Threads for work that its caller does not wait on: the blocking part of calls
// (disk, locks, replay), the hashing of blocks. The pool grows to its limit as
// work waits and keeps its threads; beyond the limit work queues.

#ifndef TORPOR_BASE_WORKER_POOL_H_
#define TORPOR_BASE_WORKER_POOL_H_

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace torpor {

class WorkerPool {
 public:
  explicit WorkerPool(size_t max_threads) : max_threads_(max_threads) {}
  // Runs what was posted, then ends.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void Post(std::function<void()> work);

 private:
  void Loop();

  const size_t max_threads_;
  Mutex mu_;
  CondVar wake_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  size_t idle_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace torpor

#endif  // TORPOR_BASE_WORKER_POOL_H_
