// SPDX-License-Identifier: Apache-2.0
//
// What is known of the bytes of a device buffer or of a block's shared memory:
// which were written at all, and who last wrote and read each cell. Two
// accesses of a cell, one of them writing and not both atomic, race unless
// something orders them:
//   launches and barriers   each stretch between barriers of each block is an
//                           epoch of its own, numbered through the process
//   __syncwarp              each lane counts its own and knows how many of each
//                           other lane's it has seen (a vector clock)
// Blocks of one launch are never ordered. Cells are as wide as the narrowest
// access so far, at most 4 bytes. Not thread-safe.

#ifndef TORPOR_KERNELS_CUDA_EMULATION_SHADOW_H_
#define TORPOR_KERNELS_CUDA_EMULATION_SHADOW_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace torpor::kernels::emulation {

enum class AccessKind : uint8_t { kRead, kWrite, kAtomic };

inline constexpr uint32_t kWarpLanes = 32;

// Who accesses, and what that thread knows to lie behind it.
struct Who {
  uint32_t epoch = 0;
  // Epochs before this belong to former launches.
  uint32_t launch_epoch = 0;
  uint32_t block = 0;
  uint32_t warp = 0;
  uint32_t lane = 0;
  // Calls of __syncwarp since the last barrier.
  uint32_t clock = 0;
  // [kWarpLanes]: accesses of lane l at clocks below seen[l] lie behind.
  const uint32_t* seen = nullptr;
};

// One or, with the flags, several threads that touched a cell.
struct Toucher {
  static constexpr uint32_t kManyWarps = 1;
  static constexpr uint32_t kManyBlocks = 2;

  uint32_t epoch = 0;
  uint32_t block : 24 = 0;
  uint32_t warp : 5 = 0;
  uint32_t flags : 2 = 0;
  uint32_t is_atomic : 1 = 0;
  uint32_t lanes = 0;
  uint32_t clock = 0;
};

struct Conflict {
  enum class Kind : uint8_t { kNone, kUninitialised, kRace, kBlockRace };
  Kind kind = Kind::kNone;
  // The earlier access of a race.
  AccessKind other_kind = AccessKind::kRead;
  Toucher other;
};

class Shadow {
 public:
  static constexpr size_t kCellBytesMax = 4;

  explicit Shadow(size_t bytes);

  // Enters the access of [offset, offset + n) and says with what it conflicts.
  // REQUIRES: the range lies in the memory; n > 0.
  Conflict Touch(size_t offset, size_t n, AccessKind kind, const Who& who);

  void SetInitialised(size_t offset, size_t n, bool initialised);

 private:
  struct Cell {
    Toucher write;
    Toucher read;
  };
  struct Free {
    void operator()(void* p) const;
  };

  void Split();

  size_t bytes_;
  // Cells are 1 << shift_ bytes wide.
  unsigned shift_ = 2;
  // Untouched pages of both cost nothing.
  std::unique_ptr<uint8_t[], Free> initialised_;  // [bytes_]
  std::unique_ptr<Cell[], Free> cells_;
};

}  // namespace torpor::kernels::emulation

#endif  // TORPOR_KERNELS_CUDA_EMULATION_SHADOW_H_
