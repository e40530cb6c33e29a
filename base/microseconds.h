// SPDX-License-Identifier: Apache-2.0

#ifndef TORPOR_BASE_MICROSECONDS_H_
#define TORPOR_BASE_MICROSECONDS_H_

#include <chrono>
#include <cstdint>

namespace torpor {

inline uint64_t MicrosecondsSince(std::chrono::steady_clock::time_point begin) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(
          std::chrono::steady_clock::now() - begin)
          .count());
}

}  // namespace torpor

#endif  // TORPOR_BASE_MICROSECONDS_H_
