// SPDX-License-Identifier: Apache-2.0

#include "base/worker_pool.h"

#include <utility>

namespace torpor {

WorkerPool::~WorkerPool() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    threads.swap(threads_);
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads) thread.join();
}

void WorkerPool::Post(std::function<void()> work) {
  MutexLock lock(&mu_);
  queue_.push_back(std::move(work));
  if (idle_ < queue_.size() && threads_.size() < max_threads_) {
    threads_.emplace_back([this] { Loop(); });
  }
  wake_.NotifyOne();
}

void WorkerPool::Loop() {
  for (;;) {
    std::function<void()> work;
    {
      MutexLock lock(&mu_);
      ++idle_;
      while (queue_.empty() && !stopping_) wake_.Wait(&mu_);
      --idle_;
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace torpor
