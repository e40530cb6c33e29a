// SPDX-License-Identifier: Apache-2.0
//
// kernels/activation.h on a device. Element-wise: an element's bits depend on
// that element (and its row's weight) alone. Every pointer is a device pointer.
// Floor: each input read once, each output written once; ops in place read and
// write x.
//
// Launchers return 0 or CUDA's error number, and never synchronise.

#ifndef TORPOR_KERNELS_ACTIVATION_CUDA_H_
#define TORPOR_KERNELS_ACTIVATION_CUDA_H_

#include "kernels/activation.h"
#include "kernels/cuda_stream.h"

namespace torpor::kernels {

int GatedGeluCuda(const GatedGeluParams& params, CudaStream stream);
int GatedSiluCuda(const GatedSiluParams& params, CudaStream stream);
int SoftcapCuda(const SoftcapParams& params, CudaStream stream);
int ToBf16Cuda(const ToBf16Params& params, CudaStream stream);
int RoundBf16Cuda(const RoundBf16Params& params, CudaStream stream);
int ScaleCuda(const ScaleParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ACTIVATION_CUDA_H_
