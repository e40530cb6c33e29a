// SPDX-License-Identifier: Apache-2.0
//
// What the benchmark of kernels runs: a line of the tables for each launcher
// and shape.

#ifndef TORPOR_TESTS_GPU_CHECK_KERNEL_CASES_H_
#define TORPOR_TESTS_GPU_CHECK_KERNEL_CASES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/row_codec.h"
#include "tests/kernels/cuda_testing.h"

namespace torpor::gpu_check {

// What a launch cannot do without, as the kernel's header states it.
struct Floor {
  double bytes = 0;
  double operations = 0;
  // The operations are products of bf16 on tensor cores, else of f32.
  bool tensor_cores = false;
};

// Inputs and outputs stand on the device for as long as it lives.
struct KernelCase {
  std::string shape;
  Floor floor;
  // On the default stream; 0 or CUDA's error number.
  std::function<int()> launch;
  // After exactly one launch: what differs from the reference; empty = nothing.
  std::function<std::string()> fault;
};

struct NamedCase {
  // The launcher's, without "Cuda".
  const char* name;
  std::function<KernelCase(bool tiny)> make;
};

std::vector<NamedCase> DenseCases();
std::vector<NamedCase> GemmCases();
std::vector<NamedCase> AttentionCases();
std::vector<NamedCase> CodecCases();
std::vector<NamedCase> IndexerCases();
std::vector<NamedCase> SparseCases();
std::vector<NamedCase> ExpertCases();

// ---- for their definitions -------------------------------------------------

template <typename T>
using Device = std::shared_ptr<kernels::DeviceBuffer<T>>;

template <typename T>
Device<T> OnDevice(const std::vector<T>& values) {
  return std::make_shared<kernels::DeviceBuffer<T>>(values, "input");
}
template <typename T>
Device<T> OnDevice(int64_t n) {
  return std::make_shared<kernels::DeviceBuffer<T>>(static_cast<size_t>(n),
                                                    "output");
}

// n numbers of a normal distribution, the same in every run; those beyond 2^20
// come again.
std::vector<float> Normals(int64_t n, uint64_t stream);

inline std::vector<float> Zeros(int64_t n) {
  return std::vector<float>(static_cast<size_t>(n));
}
// n encoded rows of `dim` channels.
std::vector<uint8_t> Records(kernels::RowFormat format, int64_t n, int64_t dim,
                             uint64_t stream);
// Pointers to pages of one buffer.
template <typename T>
std::vector<T*> PagesOf(T* base, int64_t n, int64_t bytes) {
  std::vector<T*> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(base + i * bytes);
  return out;
}

// What differs, empty = nothing.
std::string Differ(std::span<const float> got, std::span<const float> wanted,
                   double tolerance);
template <typename T>
std::string Differ(const std::vector<T>& got, const std::vector<T>& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (i >= got.size() || got[i] != wanted[i]) {
      return "element " + std::to_string(i) + " differs from the reference";
    }
  }
  return "";
}

}  // namespace torpor::gpu_check

#endif  // TORPOR_TESTS_GPU_CHECK_KERNEL_CASES_H_
