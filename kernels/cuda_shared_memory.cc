// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda_shared_memory.h"

#include <unistd.h>

#include <cassert>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace torpor::kernels {
namespace {

// The context current for this thread while it lives.
class Current {
 public:
  explicit Current(const CudaContext& context)
      : driver_(context.driver()),
        status_(driver_.Check(driver_.context_push(context.handle()),
                              "cuCtxPushCurrent")) {}
  ~Current() {
    void* popped = nullptr;
    if (status_.ok()) driver_.context_pop(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

  [[nodiscard]] const absl::Status& status() const { return status_; }

 private:
  const CudaDriver& driver_;
  const absl::Status status_;
};

CudaAllocationProperties PropertiesOn(int device) {
  return {.type = kCudaAllocationPinned,
          .handle_types = kCudaHandleFd,
          .location = {kCudaLocationDevice, device}};
}

// kFailedPrecondition when the GPU hands out no descriptors.
absl::Status CheckFdHandles(const CudaContext& context) {
  const CudaDriver& driver = context.driver();
  for (const int attribute :
       {kCudaAttributeVirtualMemory, kCudaAttributeFdHandles}) {
    int value = 0;
    TORPOR_RETURN_IF_ERROR(driver.Check(
        driver.device_get_attribute(&value, attribute, context.device()),
        "cuDeviceGetAttribute"));
    if (value == 0) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s serves no memory by file descriptor", ToText(context.gpu())));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string ToText(const CudaUuid& uuid) {
  std::string text = "GPU-";
  for (size_t i = 0; i < uuid.bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    absl::StrAppendFormat(&text, "%02x", uuid.bytes[i]);
  }
  return text;
}

absl::StatusOr<std::vector<CudaUuid>> CudaGpus(const CudaDriver& driver) {
  int n = 0;
  TORPOR_RETURN_IF_ERROR(
      driver.Check(driver.device_get_count(&n), "cuDeviceGetCount"));
  std::vector<CudaUuid> gpus(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    int device = 0;
    TORPOR_RETURN_IF_ERROR(
        driver.Check(driver.device_get(&device, i), "cuDeviceGet"));
    TORPOR_RETURN_IF_ERROR(driver.Check(
        driver.device_get_uuid(&gpus[static_cast<size_t>(i)], device),
        "cuDeviceGetUuid"));
  }
  return gpus;
}

absl::StatusOr<std::shared_ptr<const CudaContext>> CudaContext::Open(
    const CudaDriver& driver, const CudaUuid& gpu) {
  TORPOR_ASSIGN_OR_RETURN(const std::vector<CudaUuid> gpus, CudaGpus(driver));
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (gpus[i] != gpu) continue;
    int device = 0;
    TORPOR_RETURN_IF_ERROR(driver.Check(
        driver.device_get(&device, static_cast<int>(i)), "cuDeviceGet"));
    std::shared_ptr<CudaContext> context(new CudaContext(driver, gpu, device));
    TORPOR_RETURN_IF_ERROR(
        driver.Check(driver.primary_context_retain(&context->handle_, device),
                     "cuDevicePrimaryCtxRetain"));
    return context;
  }
  return absl::UnavailableError(absl::StrFormat(
      "CUDA driver: got %s, there are: %s", ToText(gpu),
      absl::StrJoin(gpus, ", ", [](std::string* out, const CudaUuid& uuid) {
        out->append(ToText(uuid));
      })));
}

absl::StatusOr<std::shared_ptr<const CudaContext>> CudaContext::OpenFirst(
    const CudaDriver& driver) {
  TORPOR_ASSIGN_OR_RETURN(const std::vector<CudaUuid> gpus, CudaGpus(driver));
  if (gpus.empty()) return absl::UnavailableError("CUDA driver: no GPU");
  return Open(driver, gpus.front());
}

CudaContext::~CudaContext() {
  if (handle_ != nullptr) driver_.primary_context_release(device_);
}

absl::StatusOr<std::unique_ptr<CudaSharedMemory>> CudaSharedMemory::Create(
    const std::shared_ptr<const CudaContext>& context, CudaHandleKind kind,
    uint64_t bytes) {
  assert(bytes > 0 && bytes % kUnit == 0);
  const Current current(*context);
  TORPOR_RETURN_IF_ERROR(current.status());
  const CudaDriver& driver = context->driver();
  std::unique_ptr<CudaSharedMemory> made(
      new CudaSharedMemory(context, kind, bytes));
  TORPOR_RETURN_IF_ERROR(kind == CudaHandleKind::kFd ? made->CreateFd()
                                                     : made->CreateLegacy());
  TORPOR_RETURN_IF_ERROR(made->Prepare());
  // A driver clears what another process had, not what this one freed.
  TORPOR_RETURN_IF_ERROR(driver.Check(
      driver.fill(made->address_, 0, bytes, made->stream_), "cuMemsetD8Async"));
  TORPOR_RETURN_IF_ERROR(driver.Check(driver.stream_synchronize(made->stream_),
                                      "cuStreamSynchronize"));
  return made;
}

absl::Status CudaSharedMemory::CreateFd() {
  const CudaDriver& driver = context_->driver();
  TORPOR_RETURN_IF_ERROR(CheckFdHandles(*context_));
  const CudaAllocationProperties properties = PropertiesOn(context_->device());
  size_t granularity = 0;
  TORPOR_RETURN_IF_ERROR(driver.Check(
      driver.granularity(&granularity, &properties, kCudaGranularityMinimum),
      "cuMemGetAllocationGranularity"));
  if (granularity == 0 || bytes_ % granularity != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s allocates multiples of %d bytes, wanted %d of them",
                        ToText(context_->gpu()), granularity, bytes_));
  }
  CudaAllocation allocation = 0;
  TORPOR_RETURN_IF_ERROR(driver.Check(
      driver.create(&allocation, bytes_, &properties, 0), "cuMemCreate"));
  absl::Status status =
      driver.Check(driver.export_handle(&fd_, allocation, kCudaHandleFd, 0),
                   "cuMemExportToShareableHandle");
  if (status.ok()) status = Map(allocation);
  // Its mapping and its descriptors keep the memory.
  driver.release(allocation);
  return status;
}

absl::Status CudaSharedMemory::CreateLegacy() {
  const CudaDriver& driver = context_->driver();
  TORPOR_RETURN_IF_ERROR(
      driver.Check(driver.allocate(&address_, bytes_), "cuMemAlloc"));
  CudaAddress base = 0;
  size_t range = 0;
  TORPOR_RETURN_IF_ERROR(driver.Check(
      driver.address_range(&base, &range, address_), "cuMemGetAddressRange"));
  // Multiples of kUnit should be blocks of their own; a handle opens a whole
  // one.
  if (base != address_ || range != bytes_) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "CUDA driver: a handle of %d bytes opens a block of %d, wanted one of "
        "its own",
        bytes_, range));
  }
  return driver.Check(driver.ipc_get_handle(&handle_, address_),
                      "cuIpcGetMemHandle");
}

absl::StatusOr<std::unique_ptr<CudaSharedMemory>> CudaSharedMemory::OpenFd(
    const std::shared_ptr<const CudaContext>& context, int fd, uint64_t bytes) {
  const Current current(*context);
  TORPOR_RETURN_IF_ERROR(current.status());
  const CudaDriver& driver = context->driver();
  std::unique_ptr<CudaSharedMemory> opened(
      new CudaSharedMemory(context, CudaHandleKind::kFd, bytes));
  CudaAllocation allocation = 0;
  // The driver wants the number itself.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* const number = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  TORPOR_RETURN_IF_ERROR(
      driver.Check(driver.import_handle(&allocation, number, kCudaHandleFd),
                   "cuMemImportFromShareableHandle"));
  // The driver maps no more than there is.
  const absl::Status mapped = opened->Map(allocation);
  driver.release(allocation);
  TORPOR_RETURN_IF_ERROR(mapped);
  TORPOR_RETURN_IF_ERROR(opened->Prepare());
  return opened;
}

absl::StatusOr<std::unique_ptr<CudaSharedMemory>> CudaSharedMemory::OpenLegacy(
    const std::shared_ptr<const CudaContext>& context,
    const CudaIpcHandle& handle, uint64_t bytes) {
  const Current current(*context);
  TORPOR_RETURN_IF_ERROR(current.status());
  const CudaDriver& driver = context->driver();
  std::unique_ptr<CudaSharedMemory> opened(
      new CudaSharedMemory(context, CudaHandleKind::kLegacy, bytes));
  TORPOR_RETURN_IF_ERROR(driver.Check(
      driver.ipc_open_handle(&opened->address_, handle, kCudaIpcLazyPeerAccess),
      "cuIpcOpenMemHandle"));
  opened->opened_ = true;
  CudaAddress base = 0;
  size_t range = 0;
  TORPOR_RETURN_IF_ERROR(
      driver.Check(driver.address_range(&base, &range, opened->address_),
                   "cuMemGetAddressRange"));
  if (base != opened->address_ || range < bytes) {
    return absl::DataLossError(absl::StrFormat(
        "device memory of another process: got %d bytes, wanted %d", range,
        bytes));
  }
  TORPOR_RETURN_IF_ERROR(opened->Prepare());
  return opened;
}

absl::Status CudaSharedMemory::Map(CudaAllocation allocation) {
  const CudaDriver& driver = context_->driver();
  TORPOR_RETURN_IF_ERROR(driver.Check(
      driver.reserve(&reserved_, bytes_, 0, 0, 0), "cuMemAddressReserve"));
  TORPOR_RETURN_IF_ERROR(driver.Check(
      driver.map(reserved_, bytes_, 0, allocation, 0), "cuMemMap"));
  mapped_ = true;
  address_ = reserved_;
  const CudaAccess access = {{kCudaLocationDevice, context_->device()},
                             kCudaAccessReadWrite};
  return driver.Check(driver.set_access(address_, bytes_, &access, 1),
                      "cuMemSetAccess");
}

absl::Status CudaSharedMemory::Prepare() {
  const CudaDriver& driver = context_->driver();
  // One that waits for nothing of the process's other streams.
  TORPOR_RETURN_IF_ERROR(
      driver.Check(driver.stream_create(&stream_, kCudaStreamNonBlocking),
                   "cuStreamCreate"));
  void* host = nullptr;
  TORPOR_RETURN_IF_ERROR(
      driver.Check(driver.host_allocate(&host, bytes_), "cuMemAllocHost"));
  host_ = static_cast<uint8_t*>(host);
  return absl::OkStatus();
}

CudaSharedMemory::~CudaSharedMemory() {
  if (fd_ >= 0) close(fd_);
  const Current current(*context_);
  if (!current.status().ok()) return;
  const CudaDriver& driver = context_->driver();
  if (stream_ != nullptr) driver.stream_destroy(stream_);
  if (host_ != nullptr) driver.host_free(host_);
  if (kind_ == CudaHandleKind::kFd) {
    if (mapped_) driver.unmap(reserved_, bytes_);
    if (reserved_ != 0) driver.unreserve(reserved_, bytes_);
  } else if (opened_) {
    driver.ipc_close_handle(address_);
  } else if (address_ != 0) {
    driver.free(address_);
  }
}

absl::Status CudaSharedMemory::ToDevice(uint64_t offset, uint64_t n) {
  assert(offset <= bytes_ && n <= bytes_ - offset);
  const Current current(*context_);
  TORPOR_RETURN_IF_ERROR(current.status());
  const CudaDriver& driver = context_->driver();
  TORPOR_RETURN_IF_ERROR(driver.Check(
      driver.copy_to_device(address_ + offset, host_ + offset, n, stream_),
      "cuMemcpyHtoDAsync"));
  return driver.Check(driver.stream_synchronize(stream_),
                      "cuStreamSynchronize");
}

absl::Status CudaSharedMemory::ToHost(uint64_t offset, uint64_t n) {
  assert(offset <= bytes_ && n <= bytes_ - offset);
  const Current current(*context_);
  TORPOR_RETURN_IF_ERROR(current.status());
  const CudaDriver& driver = context_->driver();
  TORPOR_RETURN_IF_ERROR(driver.Check(
      driver.copy_to_host(host_ + offset, address_ + offset, n, stream_),
      "cuMemcpyDtoHAsync"));
  return driver.Check(driver.stream_synchronize(stream_),
                      "cuStreamSynchronize");
}

}  // namespace torpor::kernels
