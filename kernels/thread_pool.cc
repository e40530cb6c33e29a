// SPDX-License-Identifier: Apache-2.0

#include "kernels/thread_pool.h"

#include <algorithm>

namespace torpor::kernels {
namespace {

// How often a waiting thread looks before it sleeps. A decode step is a few
// hundred short loops, and a sleep costs more than most of them; the count is
// about 50 microseconds on the development machine.
constexpr int kSpins = 2'000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int n_threads) : n_threads_(std::max(1, n_threads)) {
  for (int t = 1; t < n_threads_; ++t) {
    threads_.emplace_back([this, t] { Work(t); });
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(&mu_);
    stopping_.store(true);
    epoch_.fetch_add(1);
  }
  wake_.NotifyAll();
  for (std::thread& t : threads_) t.join();
}

void ThreadPool::RunTasks(int thread) {
  for (;;) {
    const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= n_tasks_) return;
    (*fn_)(task, thread);
  }
}

void ThreadPool::Work(int thread) {
  uint64_t seen = 0;
  for (;;) {
    int spins = 0;
    while (epoch_.load(std::memory_order_acquire) == seen) {
      if (++spins < kSpins) {
        Pause();
        continue;
      }
      MutexLock lock(&mu_);
      while (epoch_.load(std::memory_order_acquire) == seen) wake_.Wait(&mu_);
    }
    ++seen;
    if (stopping_.load()) return;
    RunTasks(thread);
    working_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::ParallelFor(int64_t n_tasks,
                             const std::function<void(int64_t, int)>& fn) {
  if (n_tasks <= 0) return;
  if (n_threads_ == 1 || n_tasks == 1) {
    for (int64_t task = 0; task < n_tasks; ++task) fn(task, 0);
    return;
  }
  fn_ = &fn;
  n_tasks_ = n_tasks;
  next_task_.store(0, std::memory_order_relaxed);
  working_.store(n_threads_ - 1, std::memory_order_relaxed);
  {
    // The lock closes the gap between a worker's last look and its sleep.
    MutexLock lock(&mu_);
    epoch_.fetch_add(1, std::memory_order_release);
  }
  wake_.NotifyAll();
  RunTasks(0);
  while (working_.load(std::memory_order_acquire) != 0) Pause();
}

}  // namespace torpor::kernels
