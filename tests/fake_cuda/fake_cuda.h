// SPDX-License-Identifier: Apache-2.0
//
// What tests ask of the driver that fake_driver.cc stands for. Programs find it
// as libcuda.so.1 by their run path (target torpor_fake_cuda), or by
// LD_LIBRARY_PATH. It behaves as these words say, comma-separated, first those
// of the environment (TORPOR_FAKE_CUDA):
//
//   no_device      cuInit finds no GPU
//   no_fd          no memory by file descriptor
//   out_of_memory  no room for anything on the device
//   open_fails     memory of another process cannot be opened
//   shared_block   small allocations are cut from a larger one
//   lost_after=N   the GPU is lost behind N copies, until its context is let go

#ifndef TORPOR_TESTS_FAKE_CUDA_FAKE_CUDA_H_
#define TORPOR_TESTS_FAKE_CUDA_FAKE_CUDA_H_

#include <cstdint>

#include "kernels/cuda_driver.h"

namespace torpor::fake_cuda {

inline constexpr char kEnvironment[] = "TORPOR_FAKE_CUDA";
inline constexpr int kGpus = 2;
// That of GPU `ordinal`.
kernels::CudaUuid Uuid(int ordinal);
// What new device memory is full of.
inline constexpr uint8_t kPoison = 0xA5;

// From here on, in this process. REQUIRES: no call of the driver is running.
void Behave(const char* words);
// Device memory and pinned host memory that this process has and did not free.
uint64_t LiveBytes();
// Copies so far.
uint64_t Copies();

}  // namespace torpor::fake_cuda

#endif  // TORPOR_TESTS_FAKE_CUDA_FAKE_CUDA_H_
