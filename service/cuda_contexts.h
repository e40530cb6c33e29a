// SPDX-License-Identifier: Apache-2.0
//
// The daemon's contexts on the GPUs that clients name. The driver is loaded
// with the first. Thread-safe.

#ifndef TORPOR_SERVICE_CUDA_CONTEXTS_H_
#define TORPOR_SERVICE_CUDA_CONTEXTS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/cuda_shared_memory.h"

namespace torpor::service {

class CudaContexts {
 public:
  // Held from here on. kUnavailable, with the reason: no driver, no such GPU.
  absl::StatusOr<std::shared_ptr<const kernels::CudaContext>> On(
      const kernels::CudaUuid& gpu);
  // No longer held: a GPU that was lost comes back when nobody holds its
  // context.
  void Forget(const kernels::CudaContext& context);

 private:
  Mutex mu_;
  std::vector<std::shared_ptr<const kernels::CudaContext>> contexts_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_CUDA_CONTEXTS_H_
