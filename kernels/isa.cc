// SPDX-License-Identifier: Apache-2.0

#include "kernels/isa.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/status.h"

#if defined(TORPOR_X86_PATHS)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace torpor::kernels {
namespace {

#if defined(TORPOR_X86_PATHS)
// Whether the processor has tiles for bf16 and the kernel lets this process use
// them: their 8 KiB of state are allocated on request (Linux 5.16).
bool AmxIsAllowed() {
  // CPUID leaf 7: EDX bit 22 is AMX-BF16, bit 24 AMX-TILE.
  constexpr unsigned kBits = (1U << 22) | (1U << 24);
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 ||
      (edx & kBits) != kBits) {
    return false;
  }
  // ARCH_REQ_XCOMP_PERM for XTILEDATA, of <asm/prctl.h>. For all threads, once.
  constexpr int kRequestPermission = 0x1023;
  constexpr int kTileData = 18;
  static const bool allowed =
      syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return allowed;
}
#endif

}  // namespace

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
    case Isa::kAmx:
      return "amx";
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
    if (AmxIsAllowed()) out.push_back(Isa::kAmx);
  }
#endif
  return out;
}

absl::StatusOr<Isa> ParseIsa(std::string_view name) {
  const std::vector<Isa> available = AvailableIsas();
  if (name == "auto") return available.back();
  for (const Isa isa :
       {Isa::kPortable, Isa::kAvx2, Isa::kAvx512Bf16, Isa::kAmx}) {
    if (IsaName(isa) != name) continue;
    if (std::find(available.begin(), available.end(), isa) != available.end()) {
      return isa;
    }
    return absl::UnavailableError(
        absl::StrFormat("CPU path %s: this processor or build does not have it",
                        std::string(name)));
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "CPU path: got '%s', wanted auto, portable, avx2, avx512bf16 or amx",
      std::string(name)));
}

}  // namespace torpor::kernels
