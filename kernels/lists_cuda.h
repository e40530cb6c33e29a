// SPDX-License-Identifier: Apache-2.0
//
// What a kernel reads beside rows (segments, key ranges, page pointers), built
// on the host at the addresses where it will stand on the device.

#ifndef TORPOR_KERNELS_LISTS_CUDA_H_
#define TORPOR_KERNELS_LISTS_CUDA_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace torpor::kernels {

class Lists {
 public:
  // What `n` values of T take at most.
  template <typename T>
  static size_t BytesFor(int64_t n) {
    return static_cast<size_t>(n) * sizeof(T) + kAlign;
  }

  // `base`: device memory of `capacity` bytes, aligned to 16.
  Lists(uint8_t* base, size_t capacity) : base_(base) {
    bytes_.reserve(capacity);
  }

  // Copies `n` values; returns where they will stand. REQUIRES: room.
  template <typename T>
  const T* Add(const T* values, int64_t n) {
    const size_t at = (bytes_.size() + kAlign - 1) / kAlign * kAlign;
    bytes_.resize(at + static_cast<size_t>(n) * sizeof(T));
    if (n > 0) std::memcpy(bytes_.data() + at, values, bytes_.size() - at);
    return reinterpret_cast<const T*>(base_ + at);
  }
  // What is to be uploaded to the base.
  [[nodiscard]] const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  static constexpr size_t kAlign = 16;

  uint8_t* const base_;
  std::vector<uint8_t> bytes_;
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_LISTS_CUDA_H_
