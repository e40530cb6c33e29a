// SPDX-License-Identifier: Apache-2.0
//
// A fixed set of threads for loops over independent tasks. Which thread runs a
// task never changes a result: kernels give every output element to one task.

#ifndef TORPOR_KERNELS_THREAD_POOL_H_
#define TORPOR_KERNELS_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace torpor::kernels {

class ThreadPool {
 public:
  // `n_threads` counts the caller of ParallelFor: 1 starts no thread.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int n_threads() const { return n_threads_; }

  // Calls fn(task, thread) for every task in [0, n_tasks), thread in
  // [0, n_threads()), and returns when all are done. Tasks are taken in order.
  // One caller at a time; fn must not call ParallelFor.
  void ParallelFor(int64_t n_tasks,
                   const std::function<void(int64_t task, int thread)>& fn);

 private:
  void Work(int thread);
  void RunTasks(int thread);

  const int n_threads_;
  const std::function<void(int64_t, int)>* fn_ = nullptr;
  int64_t n_tasks_ = 0;
  std::atomic<int64_t> next_task_{0};
  // Rises by one for every loop; workers wait for the change.
  std::atomic<uint64_t> epoch_{0};
  std::atomic<int> working_{0};
  std::atomic<bool> stopping_{false};
  Mutex mu_;
  CondVar wake_;
  std::vector<std::thread> threads_;
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_THREAD_POOL_H_
