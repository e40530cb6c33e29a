// SPDX-License-Identifier: Apache-2.0
//
// XXH3, for damage only (identity uses keyed BLAKE2b-256, see
// store/block_id.h). One definition, because producer, store and consumer must
// compute the same number over the same bytes.

#ifndef TORPOR_BASE_HASH_H_
#define TORPOR_BASE_HASH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace torpor {

using Digest128 = std::array<uint8_t, 16>;

// XXH3-64 with seed 0.
uint64_t Xxh3(std::span<const uint8_t> bytes);

// XXH3-128 with seed 0, as the canonical (big-endian) 16 bytes of xxHash.
Digest128 Xxh3Digest128(std::span<const uint8_t> bytes);

// XXH3-64 with seed 0 over bytes that arrive in pieces. Equal to Xxh3 over
// their concatenation. Not thread-safe.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(const Xxh3Stream&) = delete;
  Xxh3Stream& operator=(const Xxh3Stream&) = delete;

  void Update(std::span<const uint8_t> bytes);
  // The hash of everything since the construction or the last Reset.
  [[nodiscard]] uint64_t Digest() const;
  void Reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace torpor

#endif  // TORPOR_BASE_HASH_H_
