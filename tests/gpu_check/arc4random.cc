// SPDX-License-Identifier: Apache-2.0
//
// The one function that a static libstdc++ of Debian 12 wants of glibc 2.36,
// for machines that have 2.35.

#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

extern "C" uint32_t arc4random() noexcept {
  uint32_t bits = 0;
  if (getrandom(&bits, sizeof(bits), 0) != sizeof(bits)) std::abort();
  return bits;
}
