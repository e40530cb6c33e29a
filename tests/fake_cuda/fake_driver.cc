// SPDX-License-Identifier: Apache-2.0
//
// A CUDA driver without a GPU, for tests of several processes: device memory is
// a memfd, which a descriptor hands over as it is, and of which a 64-byte
// handle says process and number. A device address can be read by nobody but
// the calls below. Copies run when their stream is waited for, not before. A
// copy beyond live memory, and whatever else a real driver would let pass or
// hang on, ends the process with a message.

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/fake_cuda/fake_state.h"

namespace torpor::fake_cuda {
namespace {

void Parse(State* state, const char* words) {
  state->words.clear();
  state->copies_left = -1;
  const std::string text = words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (word.starts_with("lost_after=")) {
      state->copies_left = std::stoll(word.substr(11));
    } else {
      state->words.insert(word);
    }
    at = end + 1;
  }
}

thread_local std::vector<void*> current;

// The contexts' handles.
char contexts[kGpus];

}  // namespace

void Die(const char* what) {
  std::fprintf(stderr, "fake CUDA driver: %s\n", what);
  std::abort();
}

State& Get() {
  static State* const state = [] {
    auto* made = new State;
    const char* words = std::getenv(torpor::fake_cuda::kEnvironment);
    Parse(made, words == nullptr ? "" : words);
    return made;
  }();
  return *state;
}

int Usable(const State& state) {
  if (current.empty()) return kInvalidContext;
  const auto gpu = static_cast<char*>(current.back()) - contexts;
  if (state.retained[gpu] == 0) Die("a context that nobody holds is current");
  return state.lost ? kLaunchFailed : kCudaSuccess;
}

namespace {

// The bytes behind a device address.
uint8_t* At(State* state, CudaAddress address, size_t n) {
  auto it = state->ranges.upper_bound(address);
  if (it == state->ranges.begin()) Die("a copy outside live device memory");
  --it;
  const Range& range = it->second;
  const uint64_t offset = address - it->first;
  if (offset > range.bytes || n > range.bytes - offset) {
    Die("a copy outside live device memory");
  }
  if (!range.accessible) Die("a copy of memory without access");
  return range.data + offset;
}

int Queue(void* stream, std::function<void()> work) {
  State& state = Get();
  if (const int error = Usable(state); error != 0) return error;
  const auto it = state.streams.find(stream);
  if (it == state.streams.end()) Die("no such stream");
  it->second->queued.push_back(std::move(work));
  return kCudaSuccess;
}

int QueueCopy(void* stream, std::function<void()> work) {
  State& state = Get();
  if (state.copies_left == 0) state.lost = true;
  if (state.copies_left > 0) --state.copies_left;
  ++state.copies;
  return Queue(stream, std::move(work));
}

}  // namespace
}  // namespace torpor::fake_cuda

using namespace torpor::fake_cuda;

extern "C" {

void torpor_fake_cuda_behave(const char* words) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  Parse(&state, words);
}

uint64_t torpor_fake_cuda_live_bytes() {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  uint64_t bytes = 0;
  for (const auto& [address, range] : state.ranges) bytes += range.bytes;
  for (const auto& [allocation, fd] : state.allocations) bytes += BytesOf(fd);
  for (const auto& [host, n] : state.pinned) bytes += n;
  return bytes;
}

uint64_t torpor_fake_cuda_copies() {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  return state.copies;
}

int cuInit(unsigned int flags) {
  if (flags != 0) return kInvalidValue;
  State& state = Get();
  const std::lock_guard lock(state.mu);
  return state.words.contains("no_device") ? kNoDevice : kCudaSuccess;
}

const std::map<int, std::pair<const char*, const char*>>& Errors() {
  static const auto* const errors =
      new std::map<int, std::pair<const char*, const char*>>{
          {kCudaSuccess, {"CUDA_SUCCESS", "no error"}},
          {kInvalidValue, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
          {kCudaOutOfMemory, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
          {kNoDevice,
           {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
          {kInvalidContext,
           {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
          {kLaunchFailed,
           {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
          {kNotSupported,
           {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}}};
  return *errors;
}
int cuGetErrorName(int error, const char** name) {
  const auto it = Errors().find(error);
  if (it == Errors().end()) return kInvalidValue;
  *name = it->second.first;
  return kCudaSuccess;
}
int cuGetErrorString(int error, const char** text) {
  const auto it = Errors().find(error);
  if (it == Errors().end()) return kInvalidValue;
  *text = it->second.second;
  return kCudaSuccess;
}

int cuDeviceGetCount(int* count) {
  *count = kGpus;
  return kCudaSuccess;
}
int cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal >= kGpus) return kInvalidValue;
  *device = ordinal;
  return kCudaSuccess;
}
int cuDeviceGetUuid_v2(CudaUuid* uuid, int device) {
  uuid->bytes.fill(static_cast<uint8_t>(0xF0 + device));
  return kCudaSuccess;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (device < 0 || device >= kGpus) return kInvalidValue;
  State& state = Get();
  const std::lock_guard lock(state.mu);
  switch (attribute) {
    case kCudaAttributeVirtualMemory:
      *value = 1;
      return kCudaSuccess;
    case kCudaAttributeFdHandles:
      *value = state.words.contains("no_fd") ? 0 : 1;
      return kCudaSuccess;
    default:
      return kInvalidValue;
  }
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (device < 0 || device >= kGpus) return kInvalidValue;
  State& state = Get();
  const std::lock_guard lock(state.mu);
  ++state.retained[device];
  *context = &contexts[device];
  return kCudaSuccess;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  if (state.retained[device]-- == 0) Die("a context was released twice");
  // What was wrong with it goes along.
  if (state.retained[device] == 0) state.lost = false;
  return kCudaSuccess;
}
int cuCtxPushCurrent_v2(void* context) {
  if (context < contexts || context >= contexts + kGpus) return kInvalidContext;
  current.push_back(context);
  return kCudaSuccess;
}
int cuCtxPopCurrent_v2(void** context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kCudaSuccess;
}

int cuStreamCreate(void** stream, unsigned int flags) {
  if (flags != kCudaStreamNonBlocking) return kInvalidValue;
  State& state = Get();
  const std::lock_guard lock(state.mu);
  if (const int error = Usable(state); error != 0) return error;
  auto made = std::make_unique<Stream>();
  *stream = made.get();
  state.streams[*stream] = std::move(made);
  return kCudaSuccess;
}
int cuStreamSynchronize(void* stream) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  if (const int error = Usable(state); error != 0) return error;
  const auto it = state.streams.find(stream);
  if (it == state.streams.end()) Die("no such stream");
  for (const auto& work : it->second->queued) work();
  it->second->queued.clear();
  return kCudaSuccess;
}
int cuStreamDestroy_v2(void* stream) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  const auto it = state.streams.find(stream);
  if (it == state.streams.end()) Die("a stream was destroyed twice");
  if (!state.lost && !it->second->queued.empty()) {
    Die("a stream was destroyed before its copies ended");
  }
  state.streams.erase(it);
  return kCudaSuccess;
}

int cuMemAllocHost_v2(void** host, size_t bytes) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  if (const int error = Usable(state); error != 0) return error;
  *host = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*host == MAP_FAILED) return kCudaOutOfMemory;
  std::memset(*host, kPoison, bytes);
  state.pinned[*host] = bytes;
  return kCudaSuccess;
}
int cuMemFreeHost(void* host) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  const auto it = state.pinned.find(host);
  if (it == state.pinned.end()) Die("host memory was freed twice");
  munmap(host, it->second);
  state.pinned.erase(it);
  return kCudaSuccess;
}

int cuMemcpyHtoDAsync_v2(CudaAddress to, const void* from, size_t bytes,
                         void* stream) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  return QueueCopy(
      stream, [=, &state] { std::memcpy(At(&state, to, bytes), from, bytes); });
}
int cuMemcpyDtoHAsync_v2(void* to, CudaAddress from, size_t bytes,
                         void* stream) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  return QueueCopy(
      stream, [=, &state] { std::memcpy(to, At(&state, from, bytes), bytes); });
}
int cuMemsetD8Async(CudaAddress to, unsigned char value, size_t bytes,
                    void* stream) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  return Queue(stream, [=, &state] {
    std::memset(At(&state, to, bytes), value, bytes);
  });
}

}  // extern "C"
