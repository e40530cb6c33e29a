// SPDX-License-Identifier: Apache-2.0

#include "tests/gpu_check/kernel_bench.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/runtime_cuda.h"
#include "tests/gpu_check/ceilings.h"
#include "tests/gpu_check/kernel_cases.h"

namespace torpor::gpu_check {
namespace {

using kernels::DeviceBuffer;
using nlohmann::json;

// Without the device nothing more can be measured.
void Must(int error, const char* what) {
  if (error == 0) return;
  std::fprintf(stderr, "%s: CUDA error %d, %s\n", what, error,
               cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::_Exit(1);
}

class Timer {
 public:
  explicit Timer(bool tiny)
      : n_rounds_(tiny ? 1 : 11),
        // Twice the largest second-level cache there is.
        flush_(tiny ? 64 : size_t{256} << 20, "flush") {
    Must(cudaEventCreateWithFlags(&begin_, 0), "event");
    Must(cudaEventCreateWithFlags(&end_, 0), "event");
  }
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // The median of launches with cold caches, which ran before.
  double Us(const std::function<int()>& launch) {
    std::vector<float> us;
    for (int round = 0; round < n_rounds_; ++round) {
      // It also keeps the device busy while the launch is on its way.
      Must(cudaMemsetAsync(flush_.data(), round, flush_.size(), nullptr),
           "flush");
      Must(cudaEventRecord(begin_, nullptr), "event");
      Must(launch(), "launch");
      Must(cudaEventRecord(end_, nullptr), "event");
      Must(cudaEventSynchronize(end_), "launch");
      float ms = 0;
      Must(cudaEventElapsedTime(&ms, begin_, end_), "event");
      us.push_back(1e3f * ms);
    }
    std::sort(us.begin(), us.end());
    // The emulator's clock may not move meanwhile.
    return std::max(1e-3f, us[us.size() / 2]);
  }

 private:
  const int n_rounds_;
  const DeviceBuffer<uint8_t> flush_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// Rates that floors are reckoned with: bytes and operations a microsecond.
struct Ceilings {
  double copy = 0;
  double f32 = 0;
  double tensor = 0;
};

double MeasureCopy(Timer* timer, const char* name, size_t bytes,
                   cudaMemcpyKind kind) {
  const DeviceBuffer<uint8_t> device(2 * bytes, "copy");
  void* host = nullptr;
  Must(cudaMallocHost(&host, bytes), "pinned memory");
  std::fill_n(static_cast<uint8_t*>(host), bytes, uint8_t{1});
  Must(cudaMemcpyAsync(device.data(), host, bytes, cudaMemcpyHostToDevice,
                       nullptr),
       "copy");
  void* to = kind == cudaMemcpyDeviceToHost ? host : device.data() + bytes;
  const void* from = kind == cudaMemcpyHostToDevice ? host : device.data();
  // Between places of the device each byte is read and written there.
  const double moved =
      static_cast<double>(bytes) * (kind == cudaMemcpyDeviceToDevice ? 2 : 1);
  const double us = timer->Us(
      [&] { return cudaMemcpyAsync(to, from, bytes, kind, nullptr); });
  cudaFreeHost(host);
  Tell("ceiling",
       {{"name", name}, {"value", moved / us / 1e3}, {"unit", "GB/s"}});
  return moved / us;
}

// `wanted`: what every thread has to give.
double MeasureCeiling(Timer* timer, const char* name,
                      const CeilingParams& params, double operations,
                      int (*launch)(const CeilingParams&, kernels::CudaStream),
                      float wanted) {
  const DeviceBuffer<float> out(
      static_cast<size_t>(params.n_blocks) * kCeilingThreads, "ceiling");
  CeilingParams p = params;
  p.out = out.data();
  Must(launch(p, nullptr), name);
  json line = {{"name", name}, {"unit", "TFLOP/s"}};
  for (const float got : out.Download()) {
    if (got != wanted) {
      line["fault"] =
          "got " + std::to_string(got) + ", wanted " + std::to_string(wanted);
    }
  }
  const double us = timer->Us([&] { return launch(p, nullptr); });
  line["value"] = operations / us / 1e6;
  Tell("ceiling", line);
  return operations / us;
}

Ceilings MeasureCeilings(Timer* timer, bool tiny) {
  const size_t bytes = tiny ? 4096 : size_t{512} << 20;
  MeasureCopy(timer, "upload from pinned memory", bytes,
              cudaMemcpyHostToDevice);
  MeasureCopy(timer, "download to pinned memory", bytes,
              cudaMemcpyDeviceToHost);
  const CeilingParams p{.n_blocks = tiny ? 1 : 2048,
                        .n_steps = tiny ? 2 : 2048};
  const auto steps = static_cast<float>(p.n_steps);
  return {
      .copy = MeasureCopy(timer, "copy on the device, read + written", bytes,
                          cudaMemcpyDeviceToDevice),
      .f32 = MeasureCeiling(timer, "f32 multiply-adds", p,
                            FmaCeilingOperations(p), FmaCeilingCuda, 8 * steps),
      .tensor =
          MeasureCeiling(timer, "bf16 products by mma.sync", p,
                         MmaCeilingOperations(p), MmaCeilingCuda, 512 * steps)};
}

json Measure(Timer* timer, const Ceilings& ceilings, const NamedCase& named,
             bool tiny) {
  const KernelCase c = named.make(tiny);
  json line = {{"name", named.name},
               {"shape", c.shape},
               {"bytes", c.floor.bytes},
               {"operations", c.floor.operations}};
  const int error = c.launch();
  const std::string fault =
      error == 0 ? c.fault()
                 : "the launch gave CUDA error " + std::to_string(error);
  if (!fault.empty()) {
    line["fault"] = fault;
    return line;
  }
  const double us = timer->Us(c.launch);
  const double memory_us = c.floor.bytes / ceilings.copy;
  const double operations_us =
      c.floor.operations /
      (c.floor.tensor_cores ? ceilings.tensor : ceilings.f32);
  const double floor_us = std::max(memory_us, operations_us);
  line["us"] = us;
  line["floor_us"] = floor_us;
  line["over_floor"] = us / floor_us;
  line["bound_by"] = operations_us < memory_us ? "memory"
                     : c.floor.tensor_cores    ? "tensor cores"
                                               : "f32";
  line["gb_per_s"] = c.floor.bytes / us / 1e3;
  line["tflop_per_s"] = c.floor.operations / us / 1e6;
  return line;
}

}  // namespace

bool BenchKernels(const BenchOptions& options) {
  Timer timer(options.tiny);
  const Ceilings ceilings = MeasureCeilings(&timer, options.tiny);
  bool right = true;
  for (const auto& cases :
       {DenseCases(), GemmCases(), AttentionCases(), CodecCases(),
        IndexerCases(), SparseCases(), ExpertCases()}) {
    for (const NamedCase& named : cases) {
      const json line = Measure(&timer, ceilings, named, options.tiny);
      right = right && !line.contains("fault");
      Tell("kernel", line);
    }
  }
  return right;
}

}  // namespace torpor::gpu_check
