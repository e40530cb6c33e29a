// SPDX-License-Identifier: Apache-2.0
//
// The shared memory of the block that a runner runs: the dynamic part, then
// each shared array when a thread first reaches it, with zones between that
// belong to nobody. A new block finds everything unwritten.

#ifndef TORPOR_KERNELS_CUDA_EMULATION_SHARED_MEMORY_H_
#define TORPOR_KERNELS_CUDA_EMULATION_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda_emulation/shadow.h"

namespace torpor::kernels::emulation {

struct SharedArray;

// CUDA's limits: of arrays in kernels, and of a block altogether (sm_90).
inline constexpr size_t kSharedArraysMax = 48 * 1024;
inline constexpr size_t kSharedMax = 227 * 1024;

class BlockSharedMemory {
 public:
  BlockSharedMemory();
  ~BlockSharedMemory();
  BlockSharedMemory(const BlockSharedMemory&) = delete;
  BlockSharedMemory& operator=(const BlockSharedMemory&) = delete;

  // REQUIRES: dynamic_bytes <= kSharedMax.
  void BeginBlock(size_t dynamic_bytes);

  void* dynamic() const { return parts_[0].begin; }
  // Null when the block's arrays would pass a limit.
  void* Find(const SharedArray& array);

  bool Contains(uintptr_t address) const {
    return address - reinterpret_cast<uintptr_t>(memory_) < kRange;
  }
  struct Part {
    const SharedArray* array = nullptr;
    std::string name;
    uint8_t* begin = nullptr;
    size_t bytes = 0;
  };
  // The part whose bytes hold the address or come nearest to it.
  const Part& Nearest(uintptr_t address) const;
  // REQUIRES: within a part.
  Conflict Touch(uintptr_t address, size_t n, AccessKind kind, Who who) {
    // What former epochs touched lies behind a barrier, or was another block's.
    who.launch_epoch = who.epoch;
    return shadow_.Touch(address - reinterpret_cast<uintptr_t>(memory_), n,
                         kind, who);
  }

 private:
  static constexpr size_t kRange = 512 * 1024;
  static constexpr size_t kZoneBytes = 256;

  void* Add(const SharedArray* array, std::string name, size_t bytes,
            size_t alignment);

  uint8_t* memory_;
  size_t used_ = 0;
  size_t array_bytes_ = 0;
  std::vector<Part> parts_;
  Shadow shadow_;
};

}  // namespace torpor::kernels::emulation

#endif  // TORPOR_KERNELS_CUDA_EMULATION_SHARED_MEMORY_H_
