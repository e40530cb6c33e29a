// SPDX-License-Identifier: Apache-2.0

#include "kernels/lane_cuda.h"

#include "base/status.h"

namespace torpor::kernels {

absl::StatusOr<std::unique_ptr<Lane>> Lane::Make(size_t staging_bytes,
                                                 int staging_pieces) {
  CUstream_st* stream = nullptr;
  cudaEvent_t event = nullptr;
  TORPOR_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream"));
  const cudaError_t made =
      cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (made != cudaSuccess) {
    cudaStreamDestroy(stream);
    return CudaStatus(made, "event");
  }
  std::unique_ptr<Lane> lane(
      new Lane(stream, event, staging_bytes, staging_pieces));
  TORPOR_RETURN_IF_ERROR(CudaStatus(lane->staging_.status(), "pinned memory"));
  return lane;
}

Lane::~Lane() {
  cudaStreamSynchronize(stream_);
  staging_.Release();
  cudaEventDestroy(event_);
  cudaStreamDestroy(stream_);
}

cudaError_t Lane::Download(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_);
}

cudaError_t Lane::Wait() { return cudaStreamSynchronize(stream_); }

cudaError_t Lane::RunAfter(const Lane& other) {
  const cudaError_t recorded = cudaEventRecord(event_, other.stream_);
  if (recorded != cudaSuccess) return recorded;
  return cudaStreamWaitEvent(stream_, event_, 0);
}

}  // namespace torpor::kernels
