// SPDX-License-Identifier: Apache-2.0

#include "service/cuda_contexts.h"

#include "base/status.h"

namespace torpor::service {

absl::StatusOr<std::shared_ptr<const kernels::CudaContext>> CudaContexts::On(
    const kernels::CudaUuid& gpu) {
  MutexLock lock(&mu_);
  for (const auto& context : contexts_) {
    if (context->gpu() == gpu) return context;
  }
  TORPOR_ASSIGN_OR_RETURN(const kernels::CudaDriver driver,
                          kernels::CudaDriver::Load());
  TORPOR_ASSIGN_OR_RETURN(auto context,
                          kernels::CudaContext::Open(driver, gpu));
  contexts_.push_back(context);
  return context;
}

void CudaContexts::Forget(const kernels::CudaContext& context) {
  MutexLock lock(&mu_);
  std::erase_if(contexts_, [&](const auto& c) { return c.get() == &context; });
}

}  // namespace torpor::service
