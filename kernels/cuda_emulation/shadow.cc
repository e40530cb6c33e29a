// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda_emulation/shadow.h"

#include <cstdlib>
#include <cstring>

namespace torpor::kernels::emulation {
namespace {

using Kind = Conflict::Kind;

// How `earlier` and an access of `who` now are to each other.
Kind Relation(const Toucher& earlier, const Who& who) {
  if (earlier.epoch < who.launch_epoch) return Kind::kNone;
  if ((earlier.flags & Toucher::kManyBlocks) != 0) return Kind::kBlockRace;
  if (earlier.epoch != who.epoch) {
    return earlier.block == who.block ? Kind::kNone : Kind::kBlockRace;
  }
  if ((earlier.flags & Toucher::kManyWarps) != 0 || earlier.warp != who.warp) {
    return Kind::kRace;
  }
  for (uint32_t others = earlier.lanes & ~(1u << who.lane); others != 0;
       others &= others - 1) {
    if (who.seen[__builtin_ctz(others)] <= earlier.clock) return Kind::kRace;
  }
  return Kind::kNone;
}

Toucher Now(const Who& who, bool is_atomic) {
  Toucher now;
  now.epoch = who.epoch;
  now.block = who.block;
  now.warp = who.warp;
  now.is_atomic = is_atomic ? 1 : 0;
  now.lanes = 1u << who.lane;
  now.clock = who.clock;
  return now;
}

// `at` has happened, and now the same by `who` without an order.
void Join(const Who& who, Kind relation, Toucher& at) {
  if (relation == Kind::kBlockRace) {
    at.flags |= Toucher::kManyBlocks;
  } else if (at.warp != who.warp) {
    at.flags |= Toucher::kManyWarps;
  } else {
    at.lanes |= 1u << who.lane;
    if (who.clock > at.clock) at.clock = who.clock;
  }
}

// Replaces what lies behind, joins what does not.
void Enter(const Who& who, bool is_atomic, Toucher& at) {
  const Kind relation = Relation(at, who);
  if (relation == Kind::kNone) {
    at = Now(who, is_atomic);
  } else {
    Join(who, relation, at);
  }
}

// Whether n bytes of 0 and 1 are 1.
bool AllSet(const uint8_t* bytes, size_t n) {
  constexpr uint32_t kOnes = 0x01010101u;
  uint32_t word = 0;
  if (n == sizeof(word)) {
    std::memcpy(&word, bytes, sizeof(word));
    return word == kOnes;
  }
  return std::memchr(bytes, 0, n) == nullptr;
}

bool IsCurrent(const Toucher& at, const Who& who) {
  return at.epoch == who.epoch && at.warp == who.warp &&
         at.clock == who.clock && (at.lanes >> who.lane & 1u) != 0;
}

}  // namespace

void Shadow::Free::operator()(void* p) const { std::free(p); }

Shadow::Shadow(size_t bytes)
    : bytes_(bytes),
      initialised_(static_cast<uint8_t*>(std::calloc(bytes + 1, 1))),
      cells_(static_cast<Cell*>(
          std::calloc(bytes / kCellBytesMax + 1, sizeof(Cell)))) {}

void Shadow::Split() {
  const size_t n = (bytes_ >> shift_) + 1;
  auto* cells = static_cast<Cell*>(std::calloc(2 * n, sizeof(Cell)));
  for (size_t i = 0; i < n; ++i) {
    // Leaves pages of zeros alone.
    if (cells_[i].write.epoch == 0 && cells_[i].read.epoch == 0) continue;
    cells[2 * i] = cells_[i];
    cells[2 * i + 1] = cells_[i];
  }
  cells_.reset(cells);
  --shift_;
}

Conflict Shadow::Touch(size_t offset, size_t n, AccessKind kind,
                       const Who& who) {
  while (((offset | n) & ((size_t{1} << shift_) - 1)) != 0) Split();
  Conflict conflict;
  if (kind != AccessKind::kWrite && !AllSet(initialised_.get() + offset, n)) {
    conflict.kind = Kind::kUninitialised;
  }
  const auto note = [&](Kind relation, AccessKind other_kind,
                        const Toucher& other) {
    if (relation == Kind::kNone || conflict.kind != Kind::kNone) return;
    conflict = {relation, other_kind, other};
  };
  const bool is_atomic = kind == AccessKind::kAtomic;
  const size_t end = (offset + n) >> shift_;
  for (size_t i = offset >> shift_; i < end; ++i) {
    Cell& cell = cells_[i];
    const Kind after_write = is_atomic && cell.write.is_atomic != 0
                                 ? Kind::kNone
                                 : Relation(cell.write, who);
    note(after_write,
         cell.write.is_atomic != 0 ? AccessKind::kAtomic : AccessKind::kWrite,
         cell.write);
    if (kind == AccessKind::kRead) {
      if (!IsCurrent(cell.read, who)) Enter(who, false, cell.read);
      continue;
    }
    note(Relation(cell.read, who), AccessKind::kRead, cell.read);
    if (is_atomic && cell.write.is_atomic != 0) {
      Enter(who, true, cell.write);
    } else {
      cell.write = Now(who, is_atomic);
    }
  }
  if (kind != AccessKind::kRead) {
    std::memset(initialised_.get() + offset, 1, n);
  }
  return conflict;
}

void Shadow::SetInitialised(size_t offset, size_t n, bool initialised) {
  std::memset(initialised_.get() + offset, initialised ? 1 : 0, n);
}

}  // namespace torpor::kernels::emulation
