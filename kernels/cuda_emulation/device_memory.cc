// SPDX-License-Identifier: Apache-2.0
//
// A buffer takes pages of its own with a page before and after it, so a table
// by page finds it. The bytes next to the buffer on those pages hold a pattern:
// a write there is noticed after the launch even where accesses go unseen.

#include "kernels/cuda_emulation/device_memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace torpor::kernels::emulation {
namespace {

constexpr uint8_t kZone = 0xa5;
constexpr size_t kZoneBytes = 256;

void* Reserve(size_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    std::perror("emulation: reserve device memory");
    std::abort();
  }
  return mapped;
}

uint8_t* Bytes(uintptr_t address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<uint8_t*>(address);
}

void FillZones(const DeviceMemory::Buffer& buffer) {
  std::memset(Bytes(buffer.begin - kZoneBytes), kZone, kZoneBytes);
  std::memset(Bytes(buffer.begin + buffer.bytes), kZone, kZoneBytes);
}

bool IsZone(uintptr_t begin) {
  static const std::vector<uint8_t> zone(kZoneBytes, kZone);
  return std::memcmp(Bytes(begin), zone.data(), kZoneBytes) == 0;
}

}  // namespace

DeviceMemory& DeviceMemory::Get() {
  static auto* const memory = new DeviceMemory;
  return *memory;
}

DeviceMemory::DeviceMemory()
    : base_(reinterpret_cast<uintptr_t>(Reserve(kRange))),
      end_(base_),
      pages_(
          static_cast<uint32_t*>(Reserve(kRange / kPage * sizeof(uint32_t)))) {}

void* DeviceMemory::Allocate(size_t bytes, std::string name) {
  MutexLock lock(&mutex_);
  const size_t n_pages = (bytes + kZoneBytes + kPage - 1) / kPage + 2;
  if (end_ + n_pages * kPage > base_ + kRange) {
    std::fprintf(stderr, "emulation: no device addresses left for %zu bytes\n",
                 bytes);
    std::abort();
  }
  auto buffer = std::make_unique<Buffer>();
  buffer->name = name.empty() ? "buffer " + std::to_string(buffers_.size())
                              : "'" + std::move(name) + "'";
  buffer->begin = end_ + kPage;
  buffer->bytes = bytes;
  buffer->is_live = true;
  buffer->shadow = std::make_unique<Shadow>(bytes);
  live_.insert(buffer.get());
  buffers_.push_back(std::move(buffer));
  const size_t first = (end_ - base_) / kPage;
  for (size_t i = 0; i < n_pages; ++i) {
    pages_[first + i] = static_cast<uint32_t>(buffers_.size());
  }
  end_ += n_pages * kPage;
  const Buffer& made = *buffers_.back();
  FillZones(made);
  std::memset(Bytes(made.begin), kPoison, bytes);
  return Bytes(made.begin);
}

void DeviceMemory::Free(void* begin) {
  MutexLock lock(&mutex_);
  Buffer* buffer = FindLive(begin);
  buffer->is_live = false;
  live_.erase(buffer);
  buffer->shadow.reset();
  // Its pages are not used again; the first and last belong to it alone.
  const uintptr_t first = buffer->begin - kPage;
  const size_t n_pages = (buffer->bytes + kZoneBytes + kPage - 1) / kPage + 2;
  madvise(Bytes(first), n_pages * kPage, MADV_DONTNEED);
}

DeviceMemory::Buffer* DeviceMemory::FindLive(const void* begin) {
  Buffer* buffer = Find(reinterpret_cast<uintptr_t>(begin));
  if (buffer == nullptr || !buffer->is_live) {
    std::fprintf(stderr, "emulation: %p is in no live device buffer\n", begin);
    std::abort();
  }
  return buffer;
}

void DeviceMemory::Upload(void* to, const void* from, size_t bytes) {
  MutexLock lock(&mutex_);
  Buffer* buffer = FindLive(to);
  const size_t at = reinterpret_cast<uintptr_t>(to) - buffer->begin;
  if (at > buffer->bytes || bytes > buffer->bytes - at) {
    std::fprintf(stderr,
                 "emulation: upload of %zu bytes to offset %zu of %s, which "
                 "has %zu\n",
                 bytes, at, buffer->name.c_str(), buffer->bytes);
    std::abort();
  }
  if (bytes == 0) return;
  std::memcpy(to, from, bytes);
  buffer->shadow->SetInitialised(at, bytes, true);
}

void DeviceMemory::Download(void* to, const void* from, size_t bytes) {
  MutexLock lock(&mutex_);
  FindLive(from);
  if (bytes != 0) std::memcpy(to, from, bytes);
}

void DeviceMemory::Poison(void* begin) {
  MutexLock lock(&mutex_);
  Buffer* buffer = FindLive(begin);
  std::memset(begin, kPoison, buffer->bytes);
  buffer->shadow->SetInitialised(0, buffer->bytes, false);
}

DeviceMemory::Buffer* DeviceMemory::Find(uintptr_t address) {
  if (!Contains(address)) return nullptr;
  const uint32_t number = pages_[(address - base_) / kPage];
  return number == 0 ? nullptr : buffers_[number - 1].get();
}

std::vector<std::string> DeviceMemory::DamagedZones() {
  MutexLock lock(&mutex_);
  std::vector<std::string> out;
  for (Buffer* buffer : live_) {
    if (IsZone(buffer->begin - kZoneBytes) &&
        IsZone(buffer->begin + buffer->bytes)) {
      continue;
    }
    out.push_back(buffer->name);
    FillZones(*buffer);
  }
  return out;
}

}  // namespace torpor::kernels::emulation
