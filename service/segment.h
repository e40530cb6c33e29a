// SPDX-License-Identifier: Apache-2.0
//
// A segment that daemon and client share, whatever memory it is of, and the
// control page beside it, a memfd without a name. One side produces rows, the
// other consumes them (shm_ring.h). The layout is in
// proto/torpor/v1/session_service.proto (DataPlaneChoice). One thread uses a
// segment at a time.

#ifndef TORPOR_SERVICE_SEGMENT_H_
#define TORPOR_SERVICE_SEGMENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda_driver.h"
#include "service/unique_fd.h"

namespace torpor::service {

// Which way rows go.
enum class Flow { kToClient, kToServer };

inline constexpr size_t kControlBytes = 4096;

// The control page. Either side may hold any value: check what is read.
struct ShmControl {
  std::atomic<uint64_t> consumed;
  std::atomic<uint32_t> wake;
  alignas(64) std::atomic<uint32_t> waiting;
  // Of a segment that is taken by one.
  alignas(64) kernels::CudaIpcHandle cuda_handle;
};
static_assert(offsetof(ShmControl, wake) == 8);
static_assert(offsetof(ShmControl, waiting) == 64);
static_assert(offsetof(ShmControl, cuda_handle) == 128);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// kUnavailable with what the system says (errno).
absl::Status MemoryRefused(const char* what);
// A memfd of `bytes` bytes, all zero. kUnavailable names what the system
// refused.
absl::StatusOr<UniqueFd> NewMemory(const char* name, uint64_t bytes);
// As mmap; likewise.
absl::StatusOr<uint8_t*> MapMemory(int fd, uint64_t bytes, int protection,
                                   int flags);
// What a client asks of memory before it touches it: kDataLoss when it is not
// sealed memory of this size.
absl::Status CheckMemory(int fd, uint64_t bytes);

class ControlPage {
 public:
  // The daemon's side.
  static absl::StatusOr<ControlPage> Create();
  // The client's side; kDataLoss when it is none.
  static absl::StatusOr<ControlPage> Map(UniqueFd fd);
  ControlPage() = default;
  ControlPage(ControlPage&& other) noexcept;
  ControlPage& operator=(ControlPage&& other) noexcept;
  ~ControlPage();

  [[nodiscard]] int fd() const { return fd_.get(); }
  ShmControl& operator*() const { return *page_; }

 private:
  UniqueFd fd_;
  ShmControl* page_ = nullptr;
};

class Segment {
 public:
  virtual ~Segment() = default;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  ShmControl& control() { return *control_; }
  [[nodiscard]] int control_fd() const { return control_.fd(); }
  // What the client takes over, the control page last.
  [[nodiscard]] virtual std::vector<int> descriptors() const = 0;

  // The plane's name, for metrics.
  [[nodiscard]] virtual const char* plane() const = 0;
  // Whether it is to stay until the client has let go of it.
  [[nodiscard]] virtual bool outlives_owner() const = 0;

  // Where this side lays rows. REQUIRES: it produces.
  virtual std::span<uint8_t> writable() = 0;
  // The other side may be told of bytes [offset, offset + n) of writable().
  virtual absl::Status Publish(uint64_t offset, uint64_t n) = 0;
  // n bytes from `offset` on, read once; valid until the next call. The daemon
  // gets bytes that the client cannot change any more. REQUIRES: within the
  // segment, and this side consumes.
  virtual absl::StatusOr<std::span<const uint8_t>> Read(uint64_t offset,
                                                        uint64_t n) = 0;

 protected:
  Segment(uint64_t bytes, ControlPage control)
      : bytes_(bytes), control_(std::move(control)) {}

 private:
  const uint64_t bytes_;
  const ControlPage control_;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_SEGMENT_H_
