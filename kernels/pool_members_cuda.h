// SPDX-License-Identifier: Apache-2.0
//
// kernels/pool_members.h on a GPU: a thread has a channel of a group. All
// pointers are the device's, the list of members too.
// Floor: every member read once (the gates twice), every output written once.

#ifndef TORPOR_KERNELS_POOL_MEMBERS_CUDA_H_
#define TORPOR_KERNELS_POOL_MEMBERS_CUDA_H_

#include "kernels/cuda_stream.h"
#include "kernels/pool_members.h"

namespace torpor::kernels {

// Launched on `stream`; 0, or CUDA's error number. REQUIRES: members aligned
// to 4 bytes.
int PoolMembersCuda(const PoolMembersParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_POOL_MEMBERS_CUDA_H_
