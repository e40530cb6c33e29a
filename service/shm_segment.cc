// SPDX-License-Identifier: Apache-2.0

#include "service/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <utility>

#include "base/status.h"

namespace torpor::service {

absl::StatusOr<std::unique_ptr<ShmSegment>> ShmSegment::Create(uint64_t bytes,
                                                               Flow flow) {
  TORPOR_ASSIGN_OR_RETURN(UniqueFd fd, NewMemory("torpor-rows", bytes));
  TORPOR_ASSIGN_OR_RETURN(ControlPage control, ControlPage::Create());
  std::unique_ptr<ShmSegment> made(
      new ShmSegment(bytes, std::move(fd), std::move(control)));
  int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (flow == Flow::kToClient) {
    // Taken now, so that no later write of ours can run out of memory.
    if (fallocate(made->segment_fd(), 0, 0, static_cast<off_t>(bytes)) != 0) {
      return MemoryRefused("fallocate");
    }
    TORPOR_ASSIGN_OR_RETURN(made->data_,
                            MapMemory(made->segment_fd(), bytes,
                                      PROT_READ | PROT_WRITE, MAP_POPULATE));
    made->may_write_ = true;
    // Our mapping stays; nobody gets another that writes.
    seals |= F_SEAL_FUTURE_WRITE;
  }
  if (fcntl(made->segment_fd(), F_ADD_SEALS, seals) != 0) {
    return MemoryRefused("F_ADD_SEALS");
  }
  return made;
}

absl::StatusOr<std::unique_ptr<ShmSegment>> ShmSegment::Map(UniqueFd segment,
                                                            UniqueFd control,
                                                            uint64_t bytes,
                                                            Flow flow) {
  TORPOR_RETURN_IF_ERROR(CheckMemory(segment.get(), bytes));
  TORPOR_ASSIGN_OR_RETURN(ControlPage page,
                          ControlPage::Map(std::move(control)));
  std::unique_ptr<ShmSegment> mapped(
      new ShmSegment(bytes, std::move(segment), std::move(page)));
  mapped->may_write_ = flow == Flow::kToServer;
  TORPOR_ASSIGN_OR_RETURN(
      mapped->data_,
      MapMemory(mapped->segment_fd(), bytes,
                mapped->may_write_ ? PROT_READ | PROT_WRITE : PROT_READ, 0));
  return mapped;
}

ShmSegment::~ShmSegment() {
  if (data_ != nullptr) munmap(data_, bytes());
}

std::span<uint8_t> ShmSegment::writable() {
  assert(may_write_);
  return {data_, bytes()};
}

absl::StatusOr<std::span<const uint8_t>> ShmSegment::Read(uint64_t offset,
                                                          uint64_t n) {
  assert(offset <= bytes() && n <= bytes() - offset);
  if (data_ != nullptr) return mapped().subspan(offset, n);
  if (copy_.size() < n) copy_.resize(n);
  const std::span<uint8_t> out = std::span(copy_).first(n);
  for (size_t done = 0; done < n;) {
    const ssize_t got = pread(segment_fd(), out.data() + done, n - done,
                              static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return MemoryRefused("pread");
    done += static_cast<size_t>(got);
  }
  return out;
}

}  // namespace torpor::service
