// SPDX-License-Identifier: Apache-2.0

#include "service/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::service {

absl::Status MemoryRefused(const char* what) {
  return absl::UnavailableError(
      absl::StrFormat("shared memory: %s: %s", what, std::strerror(errno)));
}

absl::StatusOr<UniqueFd> NewMemory(const char* name, uint64_t bytes) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return MemoryRefused("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return MemoryRefused("ftruncate");
  }
  return fd;
}

absl::StatusOr<uint8_t*> MapMemory(int fd, uint64_t bytes, int protection,
                                   int flags) {
  void* at = mmap(nullptr, bytes, protection, MAP_SHARED | flags, fd, 0);
  if (at == MAP_FAILED) return MemoryRefused("mmap");
  return static_cast<uint8_t*>(at);
}

absl::Status CheckMemory(int fd, uint64_t bytes) {
  struct stat st;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &st) != 0 ||
      static_cast<uint64_t>(st.st_size) != bytes) {
    return absl::DataLossError(absl::StrFormat(
        "shared memory: got a descriptor that is no sealed memory of %d bytes",
        bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<ControlPage> ControlPage::Create() {
  ControlPage made;
  TORPOR_ASSIGN_OR_RETURN(made.fd_, NewMemory("torpor-control", kControlBytes));
  if (fcntl(made.fd(), F_ADD_SEALS,
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return MemoryRefused("F_ADD_SEALS");
  }
  TORPOR_ASSIGN_OR_RETURN(uint8_t* const page,
                          MapMemory(made.fd(), kControlBytes,
                                    PROT_READ | PROT_WRITE, MAP_POPULATE));
  made.page_ = reinterpret_cast<ShmControl*>(page);
  return made;
}

absl::StatusOr<ControlPage> ControlPage::Map(UniqueFd fd) {
  TORPOR_RETURN_IF_ERROR(CheckMemory(fd.get(), kControlBytes));
  ControlPage mapped;
  mapped.fd_ = std::move(fd);
  TORPOR_ASSIGN_OR_RETURN(
      uint8_t* const page,
      MapMemory(mapped.fd(), kControlBytes, PROT_READ | PROT_WRITE, 0));
  mapped.page_ = reinterpret_cast<ShmControl*>(page);
  return mapped;
}

ControlPage::ControlPage(ControlPage&& other) noexcept
    : fd_(std::move(other.fd_)), page_(std::exchange(other.page_, nullptr)) {}

ControlPage& ControlPage::operator=(ControlPage&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(page_, other.page_);
  return *this;
}

ControlPage::~ControlPage() {
  if (page_ != nullptr) munmap(page_, kControlBytes);
}

}  // namespace torpor::service
