// SPDX-License-Identifier: Apache-2.0
//
// A stream with the pinned memory that feeds it. Not thread-safe.

#ifndef TORPOR_KERNELS_LANE_CUDA_H_
#define TORPOR_KERNELS_LANE_CUDA_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/memory_cuda.h"
#include "kernels/runtime_cuda.h"

namespace torpor::kernels {

class Lane {
 public:
  // kUnavailable. The calling thread's device is the lane's.
  static absl::StatusOr<std::unique_ptr<Lane>> Make(size_t staging_bytes,
                                                    int staging_pieces);
  // Waits for the stream.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  [[nodiscard]] CUstream_st* stream() const { return stream_; }
  cudaError_t Upload(void* to, const void* from, size_t bytes) {
    return staging_.Upload(to, from, bytes);
  }
  cudaError_t Download(void* to, const void* from, size_t bytes);
  cudaError_t Wait();
  // What is given to it from now on runs after what `other` has now.
  cudaError_t RunAfter(const Lane& other);

 private:
  Lane(CUstream_st* stream, cudaEvent_t event, size_t staging_bytes,
       int staging_pieces)
      : stream_(stream),
        event_(event),
        staging_(stream, staging_bytes, staging_pieces) {}

  CUstream_st* const stream_;
  // Recorded in the other's stream.
  cudaEvent_t const event_;
  PinnedStaging staging_;
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_LANE_CUDA_H_
