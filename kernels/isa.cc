// SPDX-License-Identifier: Apache-2.0

#include "kernels/isa.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::kernels {

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
  }
  return "unknown";
}

std::vector<Isa> AvailableIsas() {
  std::vector<Isa> out{Isa::kPortable};
#if defined(TORPOR_X86_PATHS)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    out.push_back(Isa::kAvx2);
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bf16")) {
    out.push_back(Isa::kAvx512Bf16);
  }
#endif
  return out;
}

absl::StatusOr<Isa> ParseIsa(std::string_view name) {
  const std::vector<Isa> available = AvailableIsas();
  if (name == "auto") return available.back();
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512Bf16}) {
    if (IsaName(isa) != name) continue;
    if (std::find(available.begin(), available.end(), isa) != available.end()) {
      return isa;
    }
    return absl::UnavailableError(
        absl::StrFormat("CPU path %s: this processor or build does not have it",
                        std::string(name)));
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "CPU path: got '%s', wanted auto, portable, avx2 or avx512bf16",
      std::string(name)));
}

}  // namespace torpor::kernels
