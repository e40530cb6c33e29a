// SPDX-License-Identifier: Apache-2.0

#include "tests/testing/random.h"

#include <cstdio>
#include <cstdlib>

namespace torpor::testing {

uint64_t TestSeed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("TORPOR_TEST_SEED");
    const uint64_t value = text != nullptr ? std::strtoull(text, nullptr, 10)
                                           : std::random_device{}();
    std::printf("[ SEED     ] TORPOR_TEST_SEED=%llu\n",
                static_cast<unsigned long long>(value));
    std::fflush(stdout);
    return value;
  }();
  return seed;
}

}  // namespace torpor::testing
