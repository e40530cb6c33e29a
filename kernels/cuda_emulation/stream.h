// SPDX-License-Identifier: Apache-2.0
//
// Emulated streams and events, and what a test may do to the emulated device.
//
// A stream runs what it is given in order. When it runs it, the test chooses:
// at once, or as late as it may: when something waits for it. Late work finds
// missing waits, since a copy then reads its source long after the call, and
// two streams run in the order that only events give them. Thread-safe.

#ifndef TORPOR_KERNELS_CUDA_EMULATION_STREAM_H_
#define TORPOR_KERNELS_CUDA_EMULATION_STREAM_H_

#include <cstdint>
#include <functional>

#include "kernels/cuda_stream.h"

namespace torpor::kernels::emulation {

// Gives a stream work that answers 0 or CUDA's error number; the null stream
// runs it at once. Returns the device's error so far: like CUDA's, those of
// work show up at later calls.
int Submit(CudaStream stream, std::function<int()> work);

// The emulated device for the life of one; there is one at a time.
class DeviceControl {
 public:
  struct Options {
    // Streams run as late as they may.
    bool late = false;
    // Bytes that cudaMalloc gives at most.
    uint64_t memory_bytes = UINT64_MAX;
  };
  explicit DeviceControl(const Options& options);
  // Runs what is left, forgets every error.
  ~DeviceControl();
  DeviceControl(const DeviceControl&) = delete;
  DeviceControl& operator=(const DeviceControl&) = delete;

  void SetMemoryBytes(uint64_t bytes);
  // From now on every call fails, as after a fault of the device.
  void LoseDevice();
  // Bytes that were allocated and not freed.
  [[nodiscard]] uint64_t bytes_allocated() const;
};

}  // namespace torpor::kernels::emulation

#endif  // TORPOR_KERNELS_CUDA_EMULATION_STREAM_H_
