// SPDX-License-Identifier: Apache-2.0

#include "service/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::service {
namespace {

absl::Status Refused(const char* what) {
  return absl::UnavailableError(
      absl::StrFormat("shared memory: %s: %s", what, std::strerror(errno)));
}

absl::StatusOr<UniqueFd> NewMemory(const char* name, uint64_t bytes) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Refused("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return Refused("ftruncate");
  }
  return fd;
}

absl::StatusOr<uint8_t*> MapMemory(int fd, uint64_t bytes, int protection,
                                   int flags) {
  void* at = mmap(nullptr, bytes, protection, MAP_SHARED | flags, fd, 0);
  if (at == MAP_FAILED) return Refused("mmap");
  return static_cast<uint8_t*>(at);
}

// What a client asks of memory before it touches it.
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

}  // namespace

absl::StatusOr<std::unique_ptr<ShmSegment>> ShmSegment::Create(uint64_t bytes,
                                                               Flow flow) {
  std::unique_ptr<ShmSegment> made(new ShmSegment);
  made->bytes_ = bytes;
  TORPOR_ASSIGN_OR_RETURN(made->segment_fd_, NewMemory("torpor-rows", bytes));
  int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (flow == Flow::kToClient) {
    // Taken now, so that no later write of ours can run out of memory.
    if (fallocate(made->segment_fd_.get(), 0, 0, static_cast<off_t>(bytes)) !=
        0) {
      return Refused("fallocate");
    }
    TORPOR_ASSIGN_OR_RETURN(made->data_,
                            MapMemory(made->segment_fd_.get(), bytes,
                                      PROT_READ | PROT_WRITE, MAP_POPULATE));
    made->may_write_ = true;
    // Our mapping stays; nobody gets another that writes.
    seals |= F_SEAL_FUTURE_WRITE;
  }
  if (fcntl(made->segment_fd_.get(), F_ADD_SEALS, seals) != 0) {
    return Refused("F_ADD_SEALS");
  }
  TORPOR_ASSIGN_OR_RETURN(made->control_fd_,
                          NewMemory("torpor-control", kControlBytes));
  if (fcntl(made->control_fd_.get(), F_ADD_SEALS,
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Refused("F_ADD_SEALS");
  }
  TORPOR_ASSIGN_OR_RETURN(uint8_t* const control,
                          MapMemory(made->control_fd_.get(), kControlBytes,
                                    PROT_READ | PROT_WRITE, MAP_POPULATE));
  made->control_ = reinterpret_cast<ShmControl*>(control);
  return made;
}

absl::StatusOr<std::unique_ptr<ShmSegment>> ShmSegment::Map(UniqueFd segment,
                                                            UniqueFd control,
                                                            uint64_t bytes,
                                                            Flow flow) {
  TORPOR_RETURN_IF_ERROR(CheckMemory(segment.get(), bytes));
  TORPOR_RETURN_IF_ERROR(CheckMemory(control.get(), kControlBytes));
  std::unique_ptr<ShmSegment> mapped(new ShmSegment);
  mapped->bytes_ = bytes;
  mapped->segment_fd_ = std::move(segment);
  mapped->control_fd_ = std::move(control);
  mapped->may_write_ = flow == Flow::kToServer;
  TORPOR_ASSIGN_OR_RETURN(
      mapped->data_,
      MapMemory(mapped->segment_fd_.get(), bytes,
                mapped->may_write_ ? PROT_READ | PROT_WRITE : PROT_READ, 0));
  TORPOR_ASSIGN_OR_RETURN(uint8_t* const page,
                          MapMemory(mapped->control_fd_.get(), kControlBytes,
                                    PROT_READ | PROT_WRITE, 0));
  mapped->control_ = reinterpret_cast<ShmControl*>(page);
  return mapped;
}

ShmSegment::~ShmSegment() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (control_ != nullptr) munmap(control_, kControlBytes);
}

std::span<uint8_t> ShmSegment::writable() {
  assert(may_write_);
  return {data_, bytes_};
}

std::span<const uint8_t> ShmSegment::readable() const {
  return {data_, data_ == nullptr ? 0 : bytes_};
}

absl::Status ShmSegment::CopyOut(uint64_t offset,
                                 std::span<uint8_t> out) const {
  assert(offset <= bytes_ && out.size() <= bytes_ - offset);
  while (!out.empty()) {
    const ssize_t n = pread(segment_fd_.get(), out.data(), out.size(),
                            static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Refused("pread");
    offset += static_cast<uint64_t>(n);
    out = out.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

}  // namespace torpor::service
