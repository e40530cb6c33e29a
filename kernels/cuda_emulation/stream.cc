// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda_emulation/stream.h"

#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "kernels/cuda_emulation/device_memory.h"
#include "kernels/cuda_emulation/launch.h"
#include "kernels/cuda_emulation/runtime.h"

// An event counts how often it was recorded, and how often that was reached.
struct CUevent_st {
  uint64_t recorded = 0;
  uint64_t reached = 0;
  std::chrono::steady_clock::time_point reached_at;
  CUstream_st* stream = nullptr;
};

struct CUstream_st {
  // One of: work, reaching an event, waiting until it was reached so often.
  struct Task {
    std::function<int()> work;
    CUevent_st* reaches = nullptr;
    CUevent_st* awaits = nullptr;
    uint64_t count = 0;
  };
  std::deque<Task> tasks;
};

namespace torpor::kernels::emulation {
namespace {

// Everything of the emulated device, under one mutex: what a stream runs, it
// runs on the thread that asks for it.
class Device {
 public:
  static Device& Get() {
    static Device device;
    return device;
  }

  std::recursive_mutex mu;
  bool late = false;
  bool lost = false;
  uint64_t memory_bytes = UINT64_MAX;
  uint64_t bytes_allocated = 0;
  std::map<void*, size_t> allocations;
  std::set<CUstream_st*> streams;
  int error = 0;

  int status() const { return lost ? cudaErrorIllegalAddress : error; }

  int Submit(CUstream_st* stream, CUstream_st::Task task) {
    if (stream == nullptr) {
      RunAll();
      Do(task);
      return status();
    }
    stream->tasks.push_back(std::move(task));
    if (!late) RunAll();
    return status();
  }

  // Runs a stream until nothing is left of it.
  void Drain(CUstream_st* stream) {
    while (!stream->tasks.empty()) Step(stream);
  }
  void RunAll() {
    for (CUstream_st* stream : streams) Drain(stream);
  }
  void WaitFor(const CUevent_st& event, uint64_t count) {
    while (event.reached < count && !event.stream->tasks.empty()) {
      Step(event.stream);
    }
  }

 private:
  void Step(CUstream_st* stream) {
    const CUstream_st::Task task = std::move(stream->tasks.front());
    stream->tasks.pop_front();
    Do(task);
  }
  void Do(const CUstream_st::Task& task) {
    if (task.awaits != nullptr) WaitFor(*task.awaits, task.count);
    if (task.reaches != nullptr) {
      task.reaches->reached = task.count;
      task.reaches->reached_at = std::chrono::steady_clock::now();
    }
    if (task.work && status() == 0) error = task.work();
  }
};

std::lock_guard<std::recursive_mutex> Lock() {
  return std::lock_guard(Device::Get().mu);
}

cudaError_t Status() {
  return static_cast<cudaError_t>(Device::Get().status());
}

}  // namespace

int Submit(CudaStream stream, std::function<int()> work) {
  const auto lock = Lock();
  return Device::Get().Submit(stream, {.work = std::move(work)});
}

int Submit(CudaStream stream, const Grid& grid, const KernelCall& call) {
  if (stream == nullptr) return Run(grid, call);
  const std::shared_ptr<const void> kept(call.clone(call.call), call.destroy);
  KernelCall later = call;
  later.call = kept.get();
  return Submit(stream, [grid, later, kept] { return Run(grid, later); });
}

DeviceControl::DeviceControl(const Options& options) {
  const auto lock = Lock();
  Device::Get().late = options.late;
  Device::Get().memory_bytes = options.memory_bytes;
}

DeviceControl::~DeviceControl() {
  const auto lock = Lock();
  Device& device = Device::Get();
  device.lost = false;
  device.RunAll();
  device.error = 0;
  device.late = false;
  device.memory_bytes = UINT64_MAX;
}

void DeviceControl::SetMemoryBytes(uint64_t bytes) {
  const auto lock = Lock();
  Device::Get().memory_bytes = bytes;
}

void DeviceControl::LoseDevice() {
  const auto lock = Lock();
  Device::Get().lost = true;
}

uint64_t DeviceControl::bytes_allocated() const {
  const auto lock = Lock();
  return Device::Get().bytes_allocated;
}

}  // namespace torpor::kernels::emulation

// ---- CUDA's calls ----------------------------------------------------------

using torpor::kernels::emulation::Device;
using torpor::kernels::emulation::DeviceMemory;
using torpor::kernels::emulation::Lock;
using torpor::kernels::emulation::Status;

// NOLINTBEGIN(readability-identifier-naming)

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    default:
      return "unrecognized error code";
  }
}

cudaError_t cudaGetLastError() {
  const auto lock = Lock();
  return Status();
}

cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const auto lock = Lock();
  const Device& device = Device::Get();
  *total_bytes = device.memory_bytes;
  *free_bytes = device.memory_bytes - device.bytes_allocated;
  return Status();
}

cudaError_t cudaMalloc(void** p, size_t bytes) {
  const auto lock = Lock();
  Device& device = Device::Get();
  if (device.status() != 0) return Status();
  if (device.bytes_allocated + bytes > device.memory_bytes) {
    return cudaErrorMemoryAllocation;
  }
  *p = DeviceMemory::Get().Allocate(bytes, "");
  device.allocations[*p] = bytes;
  device.bytes_allocated += bytes;
  return cudaSuccess;
}

cudaError_t cudaFree(void* p) {
  const auto lock = Lock();
  Device& device = Device::Get();
  // As CUDA's: it waits for the device.
  device.RunAll();
  const auto found = device.allocations.find(p);
  if (found == device.allocations.end()) return cudaErrorInvalidValue;
  device.bytes_allocated -= found->second;
  device.allocations.erase(found);
  DeviceMemory::Get().Free(p);
  return Status();
}

cudaError_t cudaMallocHost(void** p, size_t bytes) {
  *p = std::malloc(bytes);
  return *p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFreeHost(void* p) {
  std::free(p);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream,
                                      unsigned /*flags*/) {
  const auto lock = Lock();
  *stream = new CUstream_st;
  Device::Get().streams.insert(*stream);
  return Status();
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const auto lock = Lock();
  Device::Get().Drain(stream);
  Device::Get().streams.erase(stream);
  delete stream;
  return Status();
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const auto lock = Lock();
  Device::Get().Drain(stream);
  return Status();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned /*flags*/) {
  const auto lock = Lock();
  Device::Get().Submit(stream, {.awaits = event, .count = event->recorded});
  return Status();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const auto lock = Lock();
  Device::Get().WaitFor(*event, event->recorded);
  delete event;
  return Status();
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const auto lock = Lock();
  event->stream = stream;
  const uint64_t count = ++event->recorded;
  Device::Get().Submit(stream, {.reaches = event, .count = count});
  return Status();
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const auto lock = Lock();
  Device::Get().WaitFor(*event, event->recorded);
  return Status();
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin,
                                 cudaEvent_t end) {
  const auto lock = Lock();
  *ms = std::chrono::duration<float, std::milli>(end->reached_at -
                                                 begin->reached_at)
            .count();
  return Status();
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes,
                            cudaStream_t stream) {
  return static_cast<cudaError_t>(
      torpor::kernels::emulation::Submit(stream, [to, value, bytes] {
        const std::vector<uint8_t> from(bytes, static_cast<uint8_t>(value));
        DeviceMemory::Get().Upload(to, from.data(), bytes);
        return 0;
      }));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  if (kind == cudaMemcpyDeviceToDevice) {
    return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
  }
  const bool up = kind == cudaMemcpyHostToDevice;
  if (!up && kind != cudaMemcpyDeviceToHost) return cudaErrorInvalidValue;
  return static_cast<cudaError_t>(
      torpor::kernels::emulation::Submit(stream, [to, from, bytes, up] {
        up ? DeviceMemory::Get().Upload(to, from, bytes)
           : DeviceMemory::Get().Download(to, from, bytes);
        return 0;
      }));
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from,
                              size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  if (kind != cudaMemcpyDeviceToDevice || width > to_pitch ||
      width > from_pitch) {
    return cudaErrorInvalidValue;
  }
  return static_cast<cudaError_t>(
      torpor::kernels::emulation::Submit(stream, [=] {
        std::vector<uint8_t> row(width);
        for (size_t i = 0; i < height; ++i) {
          DeviceMemory::Get().Download(
              row.data(), static_cast<const uint8_t*>(from) + i * from_pitch,
              width);
          DeviceMemory::Get().Upload(static_cast<uint8_t*>(to) + i * to_pitch,
                                     row.data(), width);
        }
        return 0;
      }));
}

// NOLINTEND(readability-identifier-naming)
