// SPDX-License-Identifier: Apache-2.0

#include "base/hash.h"

#include <xxhash.h>

#include <algorithm>
#include <iterator>

#include "base/xxh3_paths.h"

namespace torpor {
namespace {

using Xxh3Fn = uint64_t (*)(const uint8_t* data, size_t n);

uint64_t Xxh3Library(const uint8_t* data, size_t n) {
  return XXH3_64bits(data, n);
}

// The fastest path that this processor runs.
Xxh3Fn PickXxh3() {
#if defined(TORPOR_X86_PATHS)
  if (__builtin_cpu_supports("avx512f")) return &Xxh3Avx512;
  if (__builtin_cpu_supports("avx2")) return &Xxh3Avx2;
#endif
  return &Xxh3Library;
}

}  // namespace

uint64_t Xxh3(std::span<const uint8_t> bytes) {
  static const Xxh3Fn xxh3 = PickXxh3();
  return xxh3(bytes.data(), bytes.size());
}

Digest128 Xxh3Digest128(std::span<const uint8_t> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Digest128 out;
  std::copy(std::begin(canonical.digest), std::end(canonical.digest),
            out.begin());
  return out;
}

struct Xxh3Stream::State {
  // xxHash asks for 64-byte alignment; its own allocator provides it.
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) { Reset(); }
Xxh3Stream::~Xxh3Stream() = default;

void Xxh3Stream::Update(std::span<const uint8_t> bytes) {
  XXH3_64bits_update(state_->xxh, bytes.data(), bytes.size());
}

uint64_t Xxh3Stream::Digest() const { return XXH3_64bits_digest(state_->xxh); }

void Xxh3Stream::Reset() { XXH3_64bits_reset(state_->xxh); }

}  // namespace torpor
