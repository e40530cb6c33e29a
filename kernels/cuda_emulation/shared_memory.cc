// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda_emulation/shared_memory.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/cuda_emulation/device_memory.h"
#include "kernels/cuda_emulation/simt.h"

namespace torpor::kernels::emulation {
namespace {

size_t Distance(const BlockSharedMemory::Part& part, uintptr_t address) {
  const auto begin = reinterpret_cast<uintptr_t>(part.begin);
  if (address < begin) return begin - address;
  return address < begin + part.bytes ? 0 : address - begin - part.bytes + 1;
}

}  // namespace

BlockSharedMemory::BlockSharedMemory()
    : memory_(static_cast<uint8_t*>(std::aligned_alloc(1024, kRange))),
      shadow_(kRange) {}

BlockSharedMemory::~BlockSharedMemory() { std::free(memory_); }

void BlockSharedMemory::BeginBlock(size_t dynamic_bytes) {
  shadow_.SetInitialised(0, used_, false);
  parts_.clear();
  used_ = kZoneBytes;
  array_bytes_ = 0;
  Add(nullptr, "dynamic shared memory", dynamic_bytes, 1024);
}

void* BlockSharedMemory::Add(const SharedArray* array, std::string name,
                             size_t bytes, size_t alignment) {
  const size_t at = (used_ + alignment - 1) / alignment * alignment;
  uint8_t* begin = memory_ + at;
  std::memset(begin, kPoison, bytes);
  used_ = at + bytes + kZoneBytes;
  parts_.push_back({array, std::move(name), begin, bytes});
  return begin;
}

void* BlockSharedMemory::Find(const SharedArray& array) {
  for (const Part& part : parts_) {
    if (part.array == &array) return part.begin;
  }
  array_bytes_ += array.bytes;
  if (array_bytes_ > kSharedArraysMax ||
      array_bytes_ + parts_[0].bytes > kSharedMax) {
    return nullptr;
  }
  return Add(&array, "shared '" + std::string(array.name) + "'", array.bytes,
             array.alignment);
}

const BlockSharedMemory::Part& BlockSharedMemory::Nearest(
    uintptr_t address) const {
  for (const Part& part : parts_) {
    if (address - reinterpret_cast<uintptr_t>(part.begin) < part.bytes) {
      return part;
    }
  }
  const Part* nearest = parts_.data();
  for (const Part& part : parts_) {
    if (Distance(part, address) < Distance(*nearest, address)) nearest = &part;
  }
  return *nearest;
}

}  // namespace torpor::kernels::emulation
