// SPDX-License-Identifier: Apache-2.0
//
// Transfer memory under one limit, recycled: a fresh multi-megabyte buffer per
// block costs page faults that a kept one does not.

#ifndef TORPOR_STORE_BUFFER_POOL_H_
#define TORPOR_STORE_BUFFER_POOL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>

#include "base/mutex.h"

namespace torpor::store {

class BufferPool {
 public:
  // Move-only; gives its bytes back when destroyed. Aligned to 64 bytes.
  class Buffer {
   public:
    Buffer() = default;
    ~Buffer() { Release(); }
    Buffer(Buffer&& other) noexcept { Swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
      Buffer(std::move(other)).Swap(*this);
      return *this;
    }

    [[nodiscard]] std::span<uint8_t> span() const { return {data_, size_}; }
    [[nodiscard]] explicit operator bool() const { return data_ != nullptr; }
    void Release();

   private:
    friend class BufferPool;
    void Swap(Buffer& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(data_, other.data_);
      std::swap(size_, other.size_);
      std::swap(capacity_, other.capacity_);
    }

    BufferPool* pool_ = nullptr;
    uint8_t* data_ = nullptr;
    size_t size_ = 0;
    size_t capacity_ = 0;
  };

  explicit BufferPool(size_t limit_bytes) : limit_bytes_(limit_bytes) {}
  // Every buffer was given back.
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // A buffer of `bytes`, contents unspecified; empty when the limit does not
  // allow it now. A single request above the whole limit is allowed when
  // nothing else is out.
  Buffer TryAcquire(size_t bytes);

  // A buffer at once, limit or not: for work that others wait for.
  Buffer Force(size_t bytes);

  // Waits for room until `deadline` or until `give_up` returns true (polled);
  // empty then.
  Buffer Acquire(size_t bytes, std::chrono::steady_clock::time_point deadline,
                 const std::function<bool()>& give_up);

  [[nodiscard]] size_t bytes_out() const;

 private:
  bool FitsLocked(size_t capacity) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Buffer TakeLocked(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Return(uint8_t* data, size_t capacity);

  const size_t limit_bytes_;
  mutable Mutex mu_;
  CondVar room_;
  size_t bytes_out_ ABSL_GUARDED_BY(mu_) = 0;
  size_t bytes_idle_ ABSL_GUARDED_BY(mu_) = 0;
  std::multimap<size_t, uint8_t*> idle_ ABSL_GUARDED_BY(mu_);
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_BUFFER_POOL_H_
