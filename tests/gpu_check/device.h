// SPDX-License-Identifier: Apache-2.0

#ifndef TORPOR_TESTS_GPU_CHECK_DEVICE_H_
#define TORPOR_TESTS_GPU_CHECK_DEVICE_H_

#include <nlohmann/json.hpp>

namespace torpor::gpu_check {

// The first device: name, compute_major, compute_minor, memory_bytes,
// multiprocessors, l2_bytes, driver and runtime (CUDA's version numbers). Or
// `error`: no driver, an old one, no device, one that the kernels have no code
// for.
nlohmann::json DescribeDevice();

}  // namespace torpor::gpu_check

#endif  // TORPOR_TESTS_GPU_CHECK_DEVICE_H_
