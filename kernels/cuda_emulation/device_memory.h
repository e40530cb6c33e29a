// SPDX-License-Identifier: Apache-2.0
//
// Device memory of the emulator: buffers in a range of addresses of their own,
// each between zones that no kernel may touch, so that a kernel's address can
// be judged. Fresh buffers hold 0xff bytes (NaN as float and bf16), which
// nobody wrote; freed ones are known as such for the rest of the process.

#ifndef TORPOR_KERNELS_CUDA_EMULATION_DEVICE_MEMORY_H_
#define TORPOR_KERNELS_CUDA_EMULATION_DEVICE_MEMORY_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/mutex.h"
#include "kernels/cuda_emulation/shadow.h"

namespace torpor::kernels::emulation {

inline constexpr uint8_t kPoison = 0xff;

class DeviceMemory {
 public:
  // Of a buffer's first byte, as cudaMalloc's.
  static constexpr size_t kAlignment = 256;

  struct Buffer {
    std::string name;
    uintptr_t begin = 0;
    size_t bytes = 0;
    bool is_live = false;
    std::unique_ptr<Shadow> shadow;
  };

  static DeviceMemory& Get();

  // `name` stands in reports; an empty one becomes the buffer's number.
  void* Allocate(size_t bytes, std::string name);
  void Free(void* begin);
  // Writes as a copy from the host does. REQUIRES: within one live buffer.
  void Upload(void* to, const void* from, size_t bytes);
  void Download(void* to, const void* from, size_t bytes);
  // Makes a buffer as it was when fresh.
  void Poison(void* begin);

  bool Contains(uintptr_t address) const { return address - base_ < kRange; }
  // The buffer whose bytes or zones hold `address`, else null.
  Buffer* Find(uintptr_t address);
  // The names of the buffers whose zones were written, which are then mended.
  std::vector<std::string> DamagedZones();

  // Held around Touch while blocks run on several host threads.
  Mutex& touch_mutex() { return touch_mutex_; }

 private:
  static constexpr size_t kPage = 4096;
  static constexpr size_t kRange = size_t{64} << 30;

  DeviceMemory();
  Buffer* FindLive(const void* begin);

  uintptr_t base_ = 0;
  uintptr_t end_ = 0;
  Mutex mutex_;
  Mutex touch_mutex_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  // Those that are, of all that ever were.
  std::unordered_set<Buffer*> live_;
  // [kRange / kPage]: 1 + the number of the page's buffer.
  uint32_t* pages_ = nullptr;
};

// n elements of device memory. Not copyable.
template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t n, std::string name = "")
      : n_(n),
        data_(static_cast<T*>(
            DeviceMemory::Get().Allocate(n * sizeof(T), std::move(name)))) {}
  explicit DeviceBuffer(std::span<const T> values, std::string name = "")
      : DeviceBuffer(values.size(), std::move(name)) {
    Upload(values);
  }
  explicit DeviceBuffer(const std::vector<T>& values, std::string name = "")
      : DeviceBuffer(std::span<const T>(values), std::move(name)) {}
  ~DeviceBuffer() { DeviceMemory::Get().Free(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  // REQUIRES: at + values.size() <= size().
  void Upload(std::span<const T> values, size_t at = 0) const {
    DeviceMemory::Get().Upload(data_ + at, values.data(), values.size_bytes());
  }
  std::vector<T> Download() const {
    std::vector<T> out(n_);
    DeviceMemory::Get().Download(out.data(), data_, n_ * sizeof(T));
    return out;
  }
  void Poison() const { DeviceMemory::Get().Poison(data_); }

  T* data() const { return data_; }
  size_t size() const { return n_; }

 private:
  size_t n_;
  T* data_;
};

}  // namespace torpor::kernels::emulation

#endif  // TORPOR_KERNELS_CUDA_EMULATION_DEVICE_MEMORY_H_
