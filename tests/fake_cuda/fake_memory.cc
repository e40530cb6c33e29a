// SPDX-License-Identifier: Apache-2.0
//
// Device memory of the fake driver: memfds.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "tests/fake_cuda/fake_state.h"

namespace torpor::fake_cuda {

size_t BytesOf(int fd) {
  struct stat st = {};
  return fstat(fd, &st) == 0 ? static_cast<size_t>(st.st_size) : 0;
}

namespace {

constexpr size_t kGranularity = size_t{2} << 20;
// In front of an allocation that is cut from a block.
constexpr size_t kInBlock = 4096;

struct Handle {
  char magic[8];
  pid_t pid;
  int fd;
  uint64_t bytes;
};
static_assert(sizeof(Handle) <= sizeof(CudaIpcHandle));
constexpr char kMagic[8] = "fakeipc";

CudaAddress NewAddress(size_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) Die("no address space");
  return reinterpret_cast<CudaAddress>(at);
}
void DropAddress(CudaAddress address, size_t bytes) {
  munmap(reinterpret_cast<void*>(address), bytes);
}

uint8_t* MapData(int fd, size_t bytes) {
  void* const at =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) Die("mmap");
  return static_cast<uint8_t*>(at);
}

int NewMemory(size_t bytes) {
  const int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) Die("memfd");
  uint8_t* const data = MapData(fd, bytes);
  std::memset(data, kPoison, bytes);
  munmap(data, bytes);
  return fd;
}

void Drop(State* state, std::map<CudaAddress, Range>::iterator it) {
  munmap(it->second.data, it->second.bytes);
  if (it->second.fd >= 0) close(it->second.fd);
  if (it->second.how != Range::kMapped) {
    DropAddress(it->first, it->second.bytes);
  }
  state->ranges.erase(it);
}

}  // namespace
}  // namespace torpor::fake_cuda

using namespace torpor::fake_cuda;

extern "C" {

int cuMemAlloc_v2(CudaAddress* address, size_t bytes) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  if (const int error = Usable(state); error != 0) return error;
  if (state.words.contains("out_of_memory")) return kCudaOutOfMemory;
  const size_t before = state.words.contains("shared_block") ? kInBlock : 0;
  Range range{.bytes = before + bytes, .accessible = true};
  range.fd = NewMemory(range.bytes);
  range.data = MapData(range.fd, range.bytes);
  const CudaAddress base = NewAddress(range.bytes);
  state.ranges[base] = range;
  *address = base + before;
  return kCudaSuccess;
}
int cuMemFree_v2(CudaAddress address) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  auto it = state.ranges.find(address);
  if (it == state.ranges.end()) it = state.ranges.find(address - kInBlock);
  if (it == state.ranges.end() || it->second.how != Range::kAllocated) {
    Die("device memory was freed that was not allocated");
  }
  Drop(&state, it);
  return kCudaSuccess;
}
int cuMemGetAddressRange_v2(CudaAddress* base, size_t* bytes,
                            CudaAddress address) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  auto it = state.ranges.upper_bound(address);
  if (it == state.ranges.begin()) return kInvalidValue;
  --it;
  if (address - it->first >= it->second.bytes) return kInvalidValue;
  *base = it->first;
  *bytes = it->second.bytes;
  return kCudaSuccess;
}

int cuIpcGetMemHandle(CudaIpcHandle* handle, CudaAddress address) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  const auto it = state.ranges.find(address);
  if (it == state.ranges.end() || it->second.how != Range::kAllocated) {
    return kInvalidValue;
  }
  Handle said = {{}, getpid(), it->second.fd, it->second.bytes};
  std::memcpy(said.magic, kMagic, sizeof(kMagic));
  std::memcpy(handle->bytes.data(), &said, sizeof(said));
  return kCudaSuccess;
}
int cuIpcOpenMemHandle_v2(CudaAddress* address, CudaIpcHandle handle,
                          unsigned int flags) {
  if (flags != kCudaIpcLazyPeerAccess) return kInvalidValue;
  State& state = Get();
  const std::lock_guard lock(state.mu);
  if (const int error = Usable(state); error != 0) return error;
  Handle said = {};
  std::memcpy(&said, handle.bytes.data(), sizeof(said));
  if (std::memcmp(said.magic, kMagic, sizeof(kMagic)) != 0 ||
      state.words.contains("open_fails")) {
    return kInvalidContext;
  }
  const std::string path =
      "/proc/" + std::to_string(said.pid) + "/fd/" + std::to_string(said.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0 || BytesOf(fd) != said.bytes) return kInvalidValue;
  Range range{.bytes = said.bytes, .accessible = true, .how = Range::kOpened};
  range.data = MapData(fd, range.bytes);
  close(fd);
  *address = NewAddress(range.bytes);
  state.ranges[*address] = range;
  return kCudaSuccess;
}
int cuIpcCloseMemHandle(CudaAddress address) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  const auto it = state.ranges.find(address);
  if (it == state.ranges.end() || it->second.how != Range::kOpened) {
    Die("memory was closed that was not opened");
  }
  Drop(&state, it);
  return kCudaSuccess;
}

int cuMemGetAllocationGranularity(size_t* bytes,
                                  const CudaAllocationProperties* properties,
                                  int option) {
  if (properties->type != kCudaAllocationPinned ||
      option != kCudaGranularityMinimum) {
    return kInvalidValue;
  }
  *bytes = kGranularity;
  return kCudaSuccess;
}
int cuMemCreate(CudaAllocation* allocation, size_t bytes,
                const CudaAllocationProperties* properties,
                unsigned long long flags) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  if (const int error = Usable(state); error != 0) return error;
  if (bytes == 0 || bytes % kGranularity != 0 || flags != 0 ||
      properties->type != kCudaAllocationPinned ||
      properties->handle_types != kCudaHandleFd ||
      properties->location.type != kCudaLocationDevice ||
      properties->location.device < 0 || properties->location.device >= kGpus) {
    return kInvalidValue;
  }
  if (state.words.contains("no_fd")) return kNotSupported;
  if (state.words.contains("out_of_memory")) return kCudaOutOfMemory;
  *allocation = state.next_allocation++;
  state.allocations[*allocation] = NewMemory(bytes);
  return kCudaSuccess;
}
int cuMemRelease(CudaAllocation allocation) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  const auto it = state.allocations.find(allocation);
  if (it == state.allocations.end()) Die("an allocation was released twice");
  close(it->second);
  state.allocations.erase(it);
  return kCudaSuccess;
}
int cuMemExportToShareableHandle(void* handle, CudaAllocation allocation,
                                 int type, unsigned long long flags) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  const auto it = state.allocations.find(allocation);
  if (it == state.allocations.end() || type != kCudaHandleFd || flags != 0) {
    return kInvalidValue;
  }
  const int fd = fcntl(it->second, F_DUPFD_CLOEXEC, 0);
  std::memcpy(handle, &fd, sizeof(fd));
  return kCudaSuccess;
}
int cuMemImportFromShareableHandle(CudaAllocation* allocation, void* handle,
                                   int type) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  if (const int error = Usable(state); error != 0) return error;
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(handle));
  if (type != kCudaHandleFd || state.words.contains("open_fails") ||
      BytesOf(fd) == 0 || BytesOf(fd) % kGranularity != 0) {
    return kInvalidValue;
  }
  *allocation = state.next_allocation++;
  state.allocations[*allocation] = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  return kCudaSuccess;
}

int cuMemAddressReserve(CudaAddress* address, size_t bytes, size_t alignment,
                        CudaAddress hint, unsigned long long flags) {
  if (bytes == 0 || bytes % kGranularity != 0 || alignment != 0 || hint != 0 ||
      flags != 0) {
    return kInvalidValue;
  }
  State& state = Get();
  const std::lock_guard lock(state.mu);
  *address = NewAddress(bytes);
  state.reserved[*address] = bytes;
  return kCudaSuccess;
}
int cuMemAddressFree(CudaAddress address, size_t bytes) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  const auto it = state.reserved.find(address);
  if (it == state.reserved.end() || it->second != bytes) {
    Die("an address was freed that was not reserved");
  }
  if (state.ranges.contains(address)) Die("an address was freed while mapped");
  state.reserved.erase(it);
  DropAddress(address, bytes);
  return kCudaSuccess;
}
int cuMemMap(CudaAddress address, size_t bytes, size_t offset,
             CudaAllocation allocation, unsigned long long flags) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  const auto reserved = state.reserved.find(address);
  const auto it = state.allocations.find(allocation);
  if (reserved == state.reserved.end() || reserved->second != bytes ||
      it == state.allocations.end() || BytesOf(it->second) < bytes ||
      offset != 0 || flags != 0) {
    return kInvalidValue;
  }
  state.ranges[address] = {.bytes = bytes,
                           .data = MapData(it->second, bytes),
                           .how = Range::kMapped};
  return kCudaSuccess;
}
int cuMemUnmap(CudaAddress address, size_t bytes) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  const auto it = state.ranges.find(address);
  if (it == state.ranges.end() || it->second.how != Range::kMapped ||
      it->second.bytes != bytes) {
    Die("memory was unmapped that was not mapped");
  }
  Drop(&state, it);
  return kCudaSuccess;
}
int cuMemSetAccess(CudaAddress address, size_t bytes, const CudaAccess* access,
                   size_t n) {
  State& state = Get();
  const std::lock_guard lock(state.mu);
  const auto it = state.ranges.find(address);
  if (it == state.ranges.end() || it->second.bytes != bytes || n != 1 ||
      access->location.type != kCudaLocationDevice ||
      access->flags != kCudaAccessReadWrite) {
    return kInvalidValue;
  }
  it->second.accessible = true;
  return kCudaSuccess;
}

}  // extern "C"
