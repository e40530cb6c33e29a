// SPDX-License-Identifier: Apache-2.0

#include "store/buffer_pool.h"

#include <cassert>
#include <new>

namespace torpor::store {
namespace {

// Capacities are rounded to this, so that tails of near sizes share buffers.
constexpr size_t kGranule = 64 * 1024;
constexpr size_t kIdleBytesMax = size_t{32} << 20;
constexpr std::align_val_t kAlign{64};

constexpr size_t Capacity(size_t bytes) {
  return (bytes + kGranule - 1) / kGranule * kGranule;
}

}  // namespace

void BufferPool::Buffer::Release() {
  if (data_ != nullptr) pool_->Return(data_, capacity_);
  pool_ = nullptr;
  data_ = nullptr;
  size_ = capacity_ = 0;
}

BufferPool::~BufferPool() {
  MutexLock lock(&mu_);
  assert(bytes_out_ == 0);
  for (const auto& [capacity, data] : idle_) operator delete(data, kAlign);
}

bool BufferPool::FitsLocked(size_t capacity) const {
  return bytes_out_ == 0 || bytes_out_ + capacity <= limit_bytes_;
}

BufferPool::Buffer BufferPool::TakeLocked(size_t bytes) {
  const size_t wanted = Capacity(bytes);
  Buffer buffer;
  buffer.pool_ = this;
  buffer.size_ = bytes;
  // An idle buffer up to twice the size serves; a larger one stays for larger
  // requests.
  const auto it = idle_.lower_bound(wanted);
  if (it != idle_.end() && it->first <= 2 * wanted) {
    buffer.capacity_ = it->first;
    buffer.data_ = it->second;
    bytes_idle_ -= it->first;
    idle_.erase(it);
  } else {
    buffer.capacity_ = wanted;
    buffer.data_ = static_cast<uint8_t*>(operator new(wanted, kAlign));
  }
  bytes_out_ += buffer.capacity_;
  return buffer;
}

BufferPool::Buffer BufferPool::TryAcquire(size_t bytes) {
  MutexLock lock(&mu_);
  if (!FitsLocked(Capacity(bytes))) return {};
  return TakeLocked(bytes);
}

BufferPool::Buffer BufferPool::Force(size_t bytes) {
  MutexLock lock(&mu_);
  return TakeLocked(bytes);
}

BufferPool::Buffer BufferPool::Acquire(
    size_t bytes, std::chrono::steady_clock::time_point deadline,
    const std::function<bool()>& give_up) {
  constexpr auto kPoll = std::chrono::milliseconds(20);
  MutexLock lock(&mu_);
  while (!FitsLocked(Capacity(bytes))) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline || give_up()) return {};
    room_.WaitUntil(&mu_, std::min(deadline, now + kPoll));
  }
  return TakeLocked(bytes);
}

void BufferPool::Return(uint8_t* data, size_t capacity) {
  {
    MutexLock lock(&mu_);
    bytes_out_ -= capacity;
    if (bytes_idle_ + capacity <= kIdleBytesMax) {
      idle_.emplace(capacity, data);
      bytes_idle_ += capacity;
      data = nullptr;
    }
  }
  room_.NotifyAll();
  if (data != nullptr) operator delete(data, kAlign);
}

size_t BufferPool::bytes_out() const {
  MutexLock lock(&mu_);
  return bytes_out_;
}

}  // namespace torpor::store
