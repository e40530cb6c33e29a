// SPDX-License-Identifier: Apache-2.0

#include "replay/deepseek_v41/numpy_random.h"

#include <array>
#include <bit>
#include <cstddef>

namespace torpor::replay::deepseek_v41 {
namespace {

using U128 = unsigned __int128;

// SeedSequence's mixing (O'Neill's seed_seq_fe), with a pool of four words.
constexpr size_t kPool = 4;

class Hash {
 public:
  Hash(uint32_t initial, uint32_t multiplier)
      : constant_(initial), multiplier_(multiplier) {}

  uint32_t operator()(uint32_t value) {
    value ^= constant_;
    constant_ *= multiplier_;
    value *= constant_;
    return value ^ (value >> 16);
  }

 private:
  uint32_t constant_;
  const uint32_t multiplier_;
};

uint32_t Mix(uint32_t x, uint32_t y) {
  const uint32_t mixed = 0xca01f9ddu * x - 0x4973f715u * y;
  return mixed ^ (mixed >> 16);
}

std::array<uint32_t, kPool> PoolOf(uint64_t seed) {
  Hash hash(0x43b0d7e5u, 0x931e8875u);
  // Words of the seed, low first; a word that is not there hashes as 0.
  const std::array<uint32_t, kPool> entropy = {
      static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  std::array<uint32_t, kPool> pool{};
  for (size_t i = 0; i < kPool; ++i) pool[i] = hash(entropy[i]);
  for (size_t from = 0; from < kPool; ++from) {
    for (size_t to = 0; to < kPool; ++to) {
      if (from != to) pool[to] = Mix(pool[to], hash(pool[from]));
    }
  }
  return pool;
}

// Four 64-bit words of generate_state.
std::array<uint64_t, 4> StateOf(uint64_t seed) {
  const std::array<uint32_t, kPool> pool = PoolOf(seed);
  Hash hash(0x8b51f9ddu, 0x58f38dedu);
  std::array<uint64_t, 4> words{};
  for (size_t i = 0; i < 2 * words.size(); ++i) {
    const uint64_t half = hash(pool[i % kPool]);
    words[i / 2] |= half << (32 * (i % 2));
  }
  return words;
}

constexpr U128 kMultiplier =
    (U128{0x2360ed051fc65da4u} << 64) | 0x4385df649fccf645u;

}  // namespace

NumpyRandom::NumpyRandom(uint64_t seed) {
  const std::array<uint64_t, 4> words = StateOf(seed);
  const U128 initial = (U128{words[0]} << 64) | words[1];
  increment_ = (((U128{words[2]} << 64) | words[3]) << 1) | 1;
  state_ = increment_ + initial;
  state_ = state_ * kMultiplier + increment_;
}

uint64_t NumpyRandom::Next() {
  state_ = state_ * kMultiplier + increment_;
  const auto folded =
      static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
  return std::rotr(folded, static_cast<int>(state_ >> 122));
}

uint64_t NumpyRandom::Below(uint64_t n) {
  U128 product = U128{Next()} * n;
  if (static_cast<uint64_t>(product) < n) {
    const uint64_t threshold = (0 - n) % n;
    while (static_cast<uint64_t>(product) < threshold) {
      product = U128{Next()} * n;
    }
  }
  return static_cast<uint64_t>(product >> 64);
}

}  // namespace torpor::replay::deepseek_v41
