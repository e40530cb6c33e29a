// SPDX-License-Identifier: Apache-2.0
//
// Which of the CPU paths runs. A path's bits differ from another's, so its name
// is part of the numerics id.

#ifndef TORPOR_KERNELS_ISA_H_
#define TORPOR_KERNELS_ISA_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace torpor::kernels {

enum class Isa { kPortable, kAvx2, kAvx512Bf16, kAmx };

// "portable", "avx2", "avx512bf16", "amx".
std::string_view IsaName(Isa isa);

// Paths that this build has and this processor runs, slowest first.
std::vector<Isa> AvailableIsas();

// "auto" is the fastest available. kInvalidArgument for another name;
// kUnavailable for a path that this processor or build lacks.
absl::StatusOr<Isa> ParseIsa(std::string_view name);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ISA_H_
