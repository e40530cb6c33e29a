// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend, on one device. Ops go to one stream, in their order; rows
// that are imported or exported travel on another, beside them. Nothing waits
// for the device but Download, Finish, imports and exports, and an upload that
// is far ahead of it. An op whose shape is beyond what a kernel's shared memory
// holds is kResourceExhausted.

#ifndef TORPOR_KERNELS_OPS_CUDA_H_
#define TORPOR_KERNELS_OPS_CUDA_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace torpor::kernels {

struct CudaOpsOptions {
  int device = 0;
  // Ops::name(); with tensor_cores, "/tensor" follows.
  std::string name;
  // Gemm and GroupedGemm multiply on the tensor cores wherever the matrix fits
  // them (kernels/gemm_cuda.h), for one row as for many. Needs sm_80.
  bool tensor_cores = false;
  // Device memory that it holds at most.
  uint64_t memory_bytes = UINT64_MAX;
  // Freed memory serves later calls; false gives it back at once.
  bool keep_memory = true;
  // Pinned memory: pieces of each of the two streams.
  size_t staging_bytes = size_t{4} << 20;
  int staging_pieces = 4;
};

// kUnavailable with the runtime's text.
absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(const CudaOpsOptions& options);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_OPS_CUDA_H_
