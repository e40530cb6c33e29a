// SPDX-License-Identifier: Apache-2.0
//
// Seeded randomness for tests. The seed is printed once per test program and
// can be set with TORPOR_TEST_SEED, so that a failure can be repeated.

#ifndef TORPOR_TESTS_TESTING_RANDOM_H_
#define TORPOR_TESTS_TESTING_RANDOM_H_

#include <cstdint>
#include <random>
#include <span>

namespace torpor::testing {

// The seed of this test program.
uint64_t TestSeed();

class Random {
 public:
  // `stream` tells generators of one test apart.
  explicit Random(uint64_t stream = 0)
      : engine_(TestSeed() + stream * 0x9e37) {}

  // Uniform in [low, high].
  uint64_t Between(uint64_t low, uint64_t high) {
    return std::uniform_int_distribution<uint64_t>(low, high)(engine_);
  }
  bool OneIn(uint64_t n) { return Between(1, n) == 1; }
  float Normal() { return normal_(engine_); }
  void Fill(std::span<uint8_t> bytes) {
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(engine_());
  }
  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
};

}  // namespace torpor::testing

#endif  // TORPOR_TESTS_TESTING_RANDOM_H_
