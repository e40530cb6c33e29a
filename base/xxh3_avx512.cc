// SPDX-License-Identifier: Apache-2.0
//
// Compiled for AVX-512; xxhash.h picks its own kernel by that.

#include "base/xxh3_paths.h"

// Every function of xxHash static to this file: none may be linked elsewhere.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace torpor {

uint64_t Xxh3Avx512(const uint8_t* data, size_t n) {
  return XXH3_64bits(data, n);
}

}  // namespace torpor
