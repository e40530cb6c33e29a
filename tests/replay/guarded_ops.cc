// SPDX-License-Identifier: Apache-2.0

#include "tests/replay/guarded_ops.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

namespace torpor::kernels {
namespace {

// Address space, not memory.
constexpr size_t kReserved = size_t{8} << 30;
constexpr size_t kAlign = 64;
constexpr int kNanByte = 0xff;

void Check(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "guarded arena: %s\n", what);
  std::abort();
}

}  // namespace

GuardedArena::GuardedArena() {
  void* p = mmap(nullptr, kReserved, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  Check(p != MAP_FAILED, "no address space");
  base_ = static_cast<uint8_t*>(p);
  // Opening and closing it walks its pages: the fewer the better.
  madvise(p, kReserved, MADV_HUGEPAGE);
}

GuardedArena::~GuardedArena() {
  Check(held_.empty(), "memory was not freed");
  munmap(base_, kReserved);
}

void GuardedArena::Open() {
  const std::lock_guard<std::mutex> lock(mu_);
  if (open_++ == 0) {
    Check(mprotect(base_, kReserved, PROT_READ | PROT_WRITE) == 0, "mprotect");
  }
}

void GuardedArena::Close() {
  const std::lock_guard<std::mutex> lock(mu_);
  if (--open_ == 0) {
    Check(mprotect(base_, kReserved, PROT_NONE) == 0, "mprotect");
  }
}

void* GuardedArena::Allocate(size_t bytes) {
  const Opened opened(this);
  const std::lock_guard<std::mutex> lock(mu_);
  const size_t n = std::max(kAlign, (bytes + kAlign - 1) / kAlign * kAlign);
  uint8_t* p = nullptr;
  if (const auto it = free_.find(n); it != free_.end()) {
    p = it->second;
    free_.erase(it);
  } else {
    Check(used_ + n <= kReserved, "no room");
    p = base_ + used_;
    used_ += n;
  }
  std::memset(p, kNanByte, n);
  held_[p] = n;
  bytes_ += n;
  peak_ = std::max(peak_, bytes_);
  return p;
}

void GuardedArena::Free(void* p) {
  if (p == nullptr) return;
  const Opened opened(this);
  const std::lock_guard<std::mutex> lock(mu_);
  const auto it = held_.find(static_cast<uint8_t*>(p));
  Check(it != held_.end(), "free of what was not allocated");
  std::memset(it->first, kNanByte, it->second);
  free_.emplace(it->second, it->first);
  bytes_ -= it->second;
  held_.erase(it);
}

bool GuardedArena::Has(const void* p) const {
  const auto* at = static_cast<const uint8_t*>(p);
  return at >= base_ && at < base_ + kReserved;
}

size_t GuardedArena::bytes() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return bytes_;
}

size_t GuardedArena::peak() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return peak_;
}

void GuardedArena::ResetPeak() {
  const std::lock_guard<std::mutex> lock(mu_);
  peak_ = bytes_;
}

GuardedOps::GuardedOps(Isa isa, int n_threads) : cpu_(isa, n_threads) {}

void GuardedOps::Upload(void* to, const void* from, size_t bytes) {
  const GuardedArena::Opened opened(&arena_);
  Check(bytes == 0 || (arena_.Has(to) && !arena_.Has(from)),
        "upload wants the host's memory, then the backend's");
  cpu_.Upload(to, from, bytes);
}

void GuardedOps::Download(void* to, const void* from, size_t bytes) {
  const GuardedArena::Opened opened(&arena_);
  Check(bytes == 0 || (arena_.Has(from) && !arena_.Has(to)),
        "download wants the backend's memory, then the host's");
  cpu_.Download(to, from, bytes);
}

std::shared_ptr<uint8_t> GuardedOps::Copy(const uint8_t* bytes, size_t n) {
  auto* p = static_cast<uint8_t*>(Allocate(n));
  Upload(p, bytes, n);
  return {p, [this](uint8_t* held) { Free(held); }};
}

std::shared_ptr<const uint8_t> GuardedOps::Place(
    std::span<const uint8_t> bytes) {
  return Copy(bytes.data(), bytes.size());
}

PackedMatrix GuardedOps::Place(PackedMatrix matrix) {
  return matrix.At(Copy(matrix.data(), matrix.bytes()));
}

void GuardedOps::LatentAttention(const PagedLatentAttentionParams& params) {
  const GuardedArena::Opened opened(&arena_);
  ++n_calls_;
  cpu_.LatentAttention(params);
}

uint8_t* GuardedOps::NewPage(size_t bytes) {
  return static_cast<uint8_t*>(Allocate(bytes));
}

absl::Status GuardedOps::ImportKv(const KvRowBytes& to,
                                  std::span<const uint8_t> from) {
  const GuardedArena::Opened opened(&arena_);
  return cpu_.ImportKv(to, from);
}

absl::Status GuardedOps::ExportKv(const KvRowBytes& from,
                                  std::span<uint8_t> to) {
  const GuardedArena::Opened opened(&arena_);
  return cpu_.ExportKv(from, to);
}

absl::Status GuardedOps::ImportRecords(const RecordRange& to,
                                       std::span<const uint8_t> from) {
  const GuardedArena::Opened opened(&arena_);
  return cpu_.ImportRecords(to, from);
}

absl::Status GuardedOps::ExportRecords(const RecordRange& from,
                                       std::span<uint8_t> to) {
  const GuardedArena::Opened opened(&arena_);
  return cpu_.ExportRecords(from, to);
}

}  // namespace torpor::kernels
