// SPDX-License-Identifier: Apache-2.0
//
// The source line of an address of this program, by addr2line (binutils).

#ifndef TORPOR_KERNELS_CUDA_EMULATION_SOURCE_LINE_H_
#define TORPOR_KERNELS_CUDA_EMULATION_SOURCE_LINE_H_

#include <string>

namespace torpor::kernels::emulation {

// file:line of the call that returns to `pc`; module+offset where there is no
// debug information or no addr2line.
std::string SourceLine(const void* pc);

}  // namespace torpor::kernels::emulation

#endif  // TORPOR_KERNELS_CUDA_EMULATION_SOURCE_LINE_H_
