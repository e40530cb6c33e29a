// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda_emulation/kernel_bounds.h"

// The linker's names for both ends of the section; null when no kernel is
// there.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
[[gnu::weak,
  gnu::visibility(
      "hidden")]] extern const uintptr_t __start___patchable_function_entries[];
[[gnu::weak,
  gnu::visibility(
      "hidden")]] extern const uintptr_t __stop___patchable_function_entries[];
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
}

namespace torpor::kernels::emulation {

uint32_t KernelBounds(const void* kernel) {
  constexpr uintptr_t kThreadsMax = 1024;
  const auto entry = reinterpret_cast<uintptr_t>(kernel);
  uintptr_t nearest = 0;
  for (const uintptr_t* at = __start___patchable_function_entries;
       at != __stop___patchable_function_entries; ++at) {
    if (*at<entry&& * at> nearest) nearest = *at;
  }
  const uintptr_t n = entry - nearest;
  return nearest != 0 && n <= kThreadsMax ? static_cast<uint32_t>(n) : 0;
}

}  // namespace torpor::kernels::emulation
