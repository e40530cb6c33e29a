// SPDX-License-Identifier: Apache-2.0
//
// The daemon's segments, of shared memory and of GPU memory: made within
// budgets, each handed once to the process that shows its nonce and runs as the
// daemon's user, as root or in the group of the options, over `<listen>.fd`.
// That connection is the sign of life: when it closes, the segment is lost and
// its owner is told. A client may ask that a segment stays when its owner ends,
// for a later call of its own. One thread serves all connections; everything
// here is thread-safe.

#ifndef TORPOR_SERVICE_SEGMENT_BROKER_H_
#define TORPOR_SERVICE_SEGMENT_BROKER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/cuda_shared_memory.h"
#include "service/segment.h"
#include "service/unix_socket.h"

namespace torpor::service {

struct SegmentOptions {
  bool enabled = true;
  // Most of one segment, 1 MiB to 1 GiB. Short sessions get less. It is a ring
  // of two batches; more memory takes longer to make (8 ms for 16 MiB) and does
  // not stay in the cache.
  uint64_t segment_bytes = uint64_t{4} << 20;
  // Of all segments of shared memory at once; each counts at least 1 MiB.
  uint64_t max_bytes = uint64_t{128} << 20;
  // Of all segments of GPU memory at once, and of the pinned host memory beside
  // them; each counts at least 2 MiB. 0: no CUDA IPC.
  uint64_t device_bytes = uint64_t{64} << 20;
  // How long a segment waits to be taken.
  std::chrono::milliseconds take_limit{10'000};
  // How long one that its client keeps waits for its next call.
  std::chrono::milliseconds keep_limit{60'000};
  // How long a stream waits for its consumer to get on.
  std::chrono::milliseconds stall_limit{30'000};
  // May connect beside the daemon's own user.
  std::optional<gid_t> group;

  // kInvalidArgument names the option.
  [[nodiscard]] absl::Status Validate() const;
};

class SegmentBroker;
struct ChargedSegment;

// Belongs to a ticket or lease; freed with the last reference.
class ServerSegment {
 public:
  ~ServerSegment();
  ServerSegment(const ServerSegment&) = delete;
  ServerSegment& operator=(const ServerSegment&) = delete;

  Segment& memory();
  [[nodiscard]] const std::string& id() const { return id_; }
  [[nodiscard]] std::chrono::milliseconds stall_limit() const;
  // Whether its client is gone, or never came.
  [[nodiscard]] bool lost() const { return lost_.load(); }

  // One stream at a time: false when there is one.
  bool BeginUse() { return !in_use_.exchange(true); }
  void EndUse() { in_use_.store(false); }

 private:
  friend class SegmentBroker;
  struct Shared;
  using OnLost = std::function<void(ServerSegment&)>;
  ServerSegment(std::shared_ptr<Shared> shared,
                std::shared_ptr<ChargedSegment> memory, std::string nonce,
                bool keep, OnLost on_lost);
  // The client is gone, or never came.
  void Lose();

  const std::shared_ptr<Shared> shared_;
  // It may outlive this object, which is the only one to let it go.
  std::shared_ptr<ChargedSegment> memory_;
  const std::string nonce_;
  const std::string id_;
  const bool keep_;
  const OnLost on_lost_;
  std::atomic<bool> lost_{false};
  std::atomic<bool> in_use_{false};
};

class SegmentBroker {
 public:
  explicit SegmentBroker(const SegmentOptions& options);
  ~SegmentBroker();
  SegmentBroker(const SegmentBroker&) = delete;
  SegmentBroker& operator=(const SegmentBroker&) = delete;

  // Serves `<path>.fd` beside a socket of the daemon. Errors as those of
  // UnixSocketPath::Take.
  absl::Status Listen(const std::string& path);

  struct Made {
    std::shared_ptr<ServerSegment> segment;
    // Empty for one that the client holds already.
    std::string nonce;
  };
  // What a client says of segments that outlive their owners.
  struct Keeping {
    // This one is to stay.
    bool keep = false;
    // The nonce of one that stayed.
    std::string kept;
  };
  // Room for `wanted` bytes as far as a segment may have them. `on_lost` runs
  // once, on the broker's thread, when the client is gone or never came, unless
  // the segment was freed before; it must not wait. kUnavailable when no
  // segments are served here, kResourceExhausted when there are too many.
  absl::StatusOr<Made> Make(uint64_t wanted, Flow flow,
                            std::function<void(ServerSegment&)> on_lost,
                            const Keeping& keeping);
  // Likewise on a GPU, by the first of these kinds that it serves. kUnavailable
  // also when the driver does not show the GPU, or it is lost.
  absl::StatusOr<Made> MakeOnDevice(
      uint64_t wanted, const kernels::CudaUuid& gpu,
      std::span<const kernels::CudaHandleKind> kinds,
      std::function<void(ServerSegment&)> on_lost);

  // Ends the thread, closes connections and removes the sockets; on_lost does
  // not run any more when it returns. Idempotent.
  void Stop();

  struct Stats {
    size_t segments = 0;
    uint64_t bytes = 0;
    size_t device_segments = 0;
    uint64_t device_bytes = 0;
  };
  [[nodiscard]] Stats stats() const;

 private:
  class Loop;

  // One more segment of shared memory. Kept ones go where there is no room,
  // that of the nonce `replaced` first.
  absl::StatusOr<std::shared_ptr<ChargedSegment>> MakeShared(
      uint64_t bytes, Flow flow, const std::string& replaced);
  // Waits for the client from now on.
  Made Offer(std::shared_ptr<ChargedSegment> charged, bool keep,
             std::function<void(ServerSegment&)> on_lost);

  const std::shared_ptr<ServerSegment::Shared> shared_;
  std::vector<std::unique_ptr<UnixSocketPath>> paths_;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_SEGMENT_BROKER_H_
