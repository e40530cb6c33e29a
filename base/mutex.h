// SPDX-License-Identifier: Apache-2.0
//
// std::mutex and std::condition_variable with clang's thread-safety
// annotations. Not absl::Mutex: Debian's absl is not instrumented, so
// ThreadSanitizer reports races on data that it guards correctly.

#ifndef TORPOR_BASE_MUTEX_H_
#define TORPOR_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace torpor {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

// Holds `mu` for its own lifetime.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) {
    mu_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

// Waits return with the mutex held again; spurious wake-ups happen, so callers
// loop on their condition.
class CondVar {
 public:
  void Wait(Mutex* mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }

  // Returns false when `deadline` passed without a notification. Waits on the
  // system clock: libstdc++'s steady-clock wait uses pthread_cond_clockwait,
  // which ThreadSanitizer of g++ 12 does not know.
  bool WaitUntil(Mutex* mu, std::chrono::steady_clock::time_point deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    const auto left = deadline - std::chrono::steady_clock::now();
    const bool notified =
        left > std::chrono::steady_clock::duration::zero() &&
        cv_.wait_until(lock, std::chrono::system_clock::now() + left) ==
            std::cv_status::no_timeout;
    lock.release();
    return notified;
  }

  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace torpor

#endif  // TORPOR_BASE_MUTEX_H_
