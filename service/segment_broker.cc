// SPDX-License-Identifier: Apache-2.0

#include "service/segment_broker.h"

#include <poll.h>
#include <sodium.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "service/cuda_contexts.h"
#include "service/device_segment.h"
#include "service/fd_socket.h"
#include "service/segment_budget.h"
#include "service/segment_table.h"
#include "service/shm_segment.h"

namespace torpor::service {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kNonceBytes = 16;
constexpr uint64_t kLeastBytes = uint64_t{1} << 20;
constexpr uint64_t kMostBytes = uint64_t{1} << 30;
constexpr uint64_t kGranularity = uint64_t{64} << 10;
// Connections that have not shown a nonce yet.
constexpr size_t kMostGreeting = 64;
constexpr std::chrono::seconds kGreetingLimit{5};
// After accept failed, for want of descriptors for example.
constexpr std::chrono::milliseconds kAcceptPause{100};

constexpr uint64_t kDeviceUnit = kernels::CudaSharedMemory::kUnit;

std::string RandomBytes(size_t n) {
  std::string out(n, '\0');
  randombytes_buf(out.data(), n);
  return out;
}

}  // namespace

absl::Status SegmentOptions::Validate() const {
  if (segment_bytes < kLeastBytes || segment_bytes > kMostBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("plane.segment_bytes: got %d, wanted %d to %d",
                        segment_bytes, kLeastBytes, kMostBytes));
  }
  if (max_bytes < segment_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "plane.max_bytes: got %d, wanted at least plane.segment_bytes, %d",
        max_bytes, segment_bytes));
  }
  if (device_bytes != 0 && device_bytes < kDeviceUnit) {
    return absl::InvalidArgumentError(
        absl::StrFormat("plane.device_bytes: got %d, wanted 0 or at least %d",
                        device_bytes, kDeviceUnit));
  }
  for (const auto& [name, limit] :
       {std::pair{"plane.take_limit_ms", take_limit},
        std::pair{"plane.keep_limit_ms", keep_limit},
        std::pair{"plane.stall_limit_ms", stall_limit}}) {
    if (limit.count() == 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: got 0, wanted at least 1", name));
    }
  }
  return absl::OkStatus();
}

// What segments, callers and the thread share.
struct ServerSegment::Shared {
  explicit Shared(const SegmentOptions& o)
      : options(o),
        wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        shared_memory(
            std::make_shared<SegmentBudget>(o.max_bytes, "plane.max_bytes")),
        device(std::make_shared<SegmentBudget>(o.device_bytes,
                                               "plane.device_bytes")) {}

  [[nodiscard]] absl::Status CheckServes() const {
    MutexLock lock(&mu);
    if (listening && !stopping) return absl::OkStatus();
    return absl::UnavailableError("no descriptor socket is served");
  }

  void Wake() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(wake.get(), &one, sizeof(one));
  }

  const SegmentOptions options;
  const UniqueFd wake;
  mutable Mutex mu;
  bool stopping ABSL_GUARDED_BY(mu) = false;
  std::vector<UniqueFd> new_listeners ABSL_GUARDED_BY(mu);
  bool listening ABSL_GUARDED_BY(mu) = false;
  SegmentTable table;
  const std::shared_ptr<SegmentBudget> shared_memory;
  const std::shared_ptr<SegmentBudget> device;
  CudaContexts cuda;
};

ServerSegment::ServerSegment(std::shared_ptr<Shared> shared,
                             std::shared_ptr<ChargedSegment> memory,
                             std::string nonce, bool keep, OnLost on_lost)
    : shared_(std::move(shared)),
      memory_(std::move(memory)),
      nonce_(std::move(nonce)),
      id_(absl::BytesToHexString(RandomBytes(8))),
      keep_(keep),
      on_lost_(std::move(on_lost)) {}

ServerSegment::~ServerSegment() {
  shared_->table.Free(nonce_, std::move(memory_), keep_,
                      SteadyClock::now() + shared_->options.keep_limit);
  // The thread looks after its connection.
  shared_->Wake();
}

Segment& ServerSegment::memory() { return *memory_->segment; }

void ServerSegment::Lose() {
  lost_.store(true);
  if (on_lost_) on_lost_(*this);
}

std::chrono::milliseconds ServerSegment::stall_limit() const {
  return shared_->options.stall_limit;
}

// The broker's thread: listeners, connections that greet, connections that
// hold a segment.
class SegmentBroker::Loop {
 public:
  explicit Loop(std::shared_ptr<ServerSegment::Shared> shared)
      : shared_(std::move(shared)) {}

  void Run() {
    while (Wait()) {
      Accept();
      Greet();
      Expire();
      Watch();
    }
  }

 private:
  struct Greeting {
    UniqueFd fd;
    SteadyClock::time_point deadline;
    std::string said;
    bool done = false;
  };
  // A client's hold on a segment.
  struct Holding {
    UniqueFd fd;
    std::string nonce;
  };

  // Until something happens or is due; false to stop.
  bool Wait() {
    SteadyClock::time_point due =
        shared_->table.Due(SteadyClock::now() + std::chrono::hours(1));
    {
      MutexLock lock(&shared_->mu);
      if (shared_->stopping) return false;
      for (UniqueFd& fd : shared_->new_listeners) {
        listeners_.push_back(std::move(fd));
      }
      shared_->new_listeners.clear();
    }
    std::vector<pollfd> fds = {{shared_->wake.get(), POLLIN, 0}};
    if (SteadyClock::now() < accept_after_) {
      due = std::min(due, accept_after_);
    } else if (greeting_.size() < kMostGreeting) {
      for (const UniqueFd& fd : listeners_)
        fds.push_back({fd.get(), POLLIN, 0});
    }
    for (const Greeting& g : greeting_) {
      fds.push_back({g.fd.get(), POLLIN, 0});
      due = std::min(due, g.deadline);
    }
    for (const Holding& h : holding_) {
      fds.push_back({h.fd.get(), POLLIN | POLLRDHUP, 0});
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        due - SteadyClock::now());
    poll(fds.data(), fds.size(),
         static_cast<int>(std::max<int64_t>(0, left.count() + 1)));
    uint64_t woken = 0;
    [[maybe_unused]] const ssize_t n =
        read(shared_->wake.get(), &woken, sizeof(woken));
    return true;
  }

  void Accept() {
    if (SteadyClock::now() < accept_after_) return;
    for (const UniqueFd& listener : listeners_) {
      while (greeting_.size() < kMostGreeting) {
        UniqueFd fd(accept4(listener.get(), nullptr, nullptr,
                            SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!fd.valid()) {
          if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
            accept_after_ = SteadyClock::now() + kAcceptPause;
          }
          break;
        }
        greeting_.push_back(
            {std::move(fd), SteadyClock::now() + kGreetingLimit, {}});
      }
    }
  }

  void Greet() {
    for (Greeting& g : greeting_) {
      std::array<char, kNonceBytes> part;
      const ssize_t n =
          recv(g.fd.get(), part.data(), kNonceBytes - g.said.size(), 0);
      if (n > 0) g.said.append(part.data(), static_cast<size_t>(n));
      if (g.said.size() == kNonceBytes) {
        HandOver(&g);
      } else if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR) ||
                 SteadyClock::now() >= g.deadline) {
        g.done = true;
      }
    }
    std::erase_if(greeting_, [](const Greeting& g) { return g.done; });
  }

  [[nodiscard]] bool MayTake(int fd) const {
    const absl::StatusOr<ucred> peer = PeerOf(fd);
    if (!peer.ok()) return false;
    if (peer->uid == geteuid() || peer->uid == 0) return true;
    const std::optional<gid_t>& group = shared_->options.group;
    return group.has_value() && PeerInGroup(fd, *peer, *group);
  }

  // Somebody showed a nonce: the segment, or why not.
  void HandOver(Greeting* g) {
    g->done = true;
    if (!MayTake(g->fd.get())) {
      SendDescriptors(g->fd.get(),
                      static_cast<uint8_t>(absl::StatusCode::kPermissionDenied),
                      {});
      return;
    }
    std::shared_ptr<ServerSegment> segment = shared_->table.Take(g->said);
    if (segment == nullptr) {
      SendDescriptors(g->fd.get(),
                      static_cast<uint8_t>(absl::StatusCode::kNotFound), {});
      return;
    }
    // From here on the client may see the owner end: it must not end later,
    // with a reference of ours.
    const std::shared_ptr<ChargedSegment> memory = segment->memory_;
    segment.reset();
    if (!SendDescriptors(g->fd.get(), 0, memory->segment->descriptors())) {
      Drop(g->said);
      return;
    }
    holding_.push_back({std::move(g->fd), g->said});
  }

  void Expire() {
    for (const auto& untaken : shared_->table.Expire(SteadyClock::now())) {
      untaken->Lose();
    }
  }

  // Connections that ended, and those whose segment is gone.
  void Watch() {
    std::erase_if(holding_, [&](const Holding& h) {
      const SegmentTable::State state = shared_->table.Look(h.nonce);
      if (state == SegmentTable::State::kUntilClosed) {
        // Tells the client, which answers by closing its end.
        shutdown(h.fd.get(), SHUT_WR);
      }
      if (state != SegmentTable::State::kGone && !HungUp(h.fd.get())) {
        return false;
      }
      Drop(h.nonce);
      return true;
    });
  }

  // Nobody holds it any more.
  void Drop(const std::string& nonce) {
    const std::shared_ptr<ServerSegment> owner = shared_->table.Drop(nonce);
    if (owner != nullptr) owner->Lose();
  }

  const std::shared_ptr<ServerSegment::Shared> shared_;
  std::vector<UniqueFd> listeners_;
  std::vector<Greeting> greeting_;
  std::vector<Holding> holding_;
  SteadyClock::time_point accept_after_;
};

SegmentBroker::SegmentBroker(const SegmentOptions& options)
    : shared_(std::make_shared<ServerSegment::Shared>(options)),
      loop_(std::make_unique<Loop>(shared_)) {}

SegmentBroker::~SegmentBroker() { Stop(); }

absl::Status SegmentBroker::Listen(const std::string& path) {
  if (!shared_->options.enabled) return absl::OkStatus();
  TORPOR_ASSIGN_OR_RETURN(
      std::unique_ptr<UnixSocketPath> taken,
      UnixSocketPath::Take(FdSocketPath(path), shared_->options.group));
  TORPOR_ASSIGN_OR_RETURN(UniqueFd listener, ListenUnix(taken->path()));
  TORPOR_RETURN_IF_ERROR(taken->Share());
  paths_.push_back(std::move(taken));
  {
    MutexLock lock(&shared_->mu);
    shared_->new_listeners.push_back(std::move(listener));
    shared_->listening = true;
  }
  shared_->Wake();
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { loop_->Run(); });
  }
  return absl::OkStatus();
}

absl::StatusOr<SegmentBroker::Made> SegmentBroker::Make(
    uint64_t wanted, Flow flow, std::function<void(ServerSegment&)> on_lost,
    const Keeping& keeping) {
  const SegmentOptions& options = shared_->options;
  if (!options.enabled) {
    return absl::UnavailableError("disabled by plane.shared_memory");
  }
  TORPOR_RETURN_IF_ERROR(shared_->CheckServes());
  const uint64_t rounded =
      (std::min(wanted, options.segment_bytes) + kGranularity - 1) /
      kGranularity * kGranularity;
  const uint64_t bytes =
      std::clamp(rounded, kLeastBytes, options.segment_bytes);
  if (!keeping.kept.empty()) {
    std::shared_ptr<ServerSegment> kept = shared_->table.Reuse(
        keeping.kept, flow, bytes, [&](std::shared_ptr<ChargedSegment> memory) {
          return std::shared_ptr<ServerSegment>(new ServerSegment(
              shared_, std::move(memory), keeping.kept, keeping.keep, on_lost));
        });
    if (kept != nullptr) return Made{std::move(kept), ""};
  }
  TORPOR_ASSIGN_OR_RETURN(std::shared_ptr<ChargedSegment> charged,
                          MakeShared(bytes, flow, keeping.kept));
  return Offer(std::move(charged), keeping.keep, std::move(on_lost));
}

absl::StatusOr<std::shared_ptr<ChargedSegment>> SegmentBroker::MakeShared(
    uint64_t bytes, Flow flow, const std::string& replaced) {
  auto charged = std::make_shared<ChargedSegment>();
  charged->flow = flow;
  auto charge = SegmentBudget::Take(shared_->shared_memory, bytes);
  while (!charge.ok() && shared_->table.EvictKept(replaced)) {
    charge = SegmentBudget::Take(shared_->shared_memory, bytes);
  }
  // Closes the connections of what was evicted.
  shared_->Wake();
  TORPOR_RETURN_IF_ERROR(charge.status());
  charged->charge = *std::move(charge);
  TORPOR_ASSIGN_OR_RETURN(charged->segment, ShmSegment::Create(bytes, flow));
  return charged;
}

absl::StatusOr<SegmentBroker::Made> SegmentBroker::MakeOnDevice(
    uint64_t wanted, const kernels::CudaUuid& gpu,
    std::span<const kernels::CudaHandleKind> kinds,
    std::function<void(ServerSegment&)> on_lost) {
  const SegmentOptions& options = shared_->options;
  if (options.device_bytes == 0) {
    return absl::UnavailableError("disabled by plane.device_bytes");
  }
  TORPOR_RETURN_IF_ERROR(shared_->CheckServes());
  const uint64_t units =
      (std::min(wanted, options.segment_bytes) + kDeviceUnit - 1) / kDeviceUnit;
  const uint64_t bytes =
      std::clamp<uint64_t>(units, 1, options.device_bytes / kDeviceUnit) *
      kDeviceUnit;
  auto charged = std::make_shared<ChargedSegment>();
  TORPOR_ASSIGN_OR_RETURN(charged->charge,
                          SegmentBudget::Take(shared_->device, bytes));
  TORPOR_ASSIGN_OR_RETURN(const auto context, shared_->cuda.On(gpu));
  bool lost = false;
  std::string refused;
  for (const kernels::CudaHandleKind kind : kinds) {
    absl::StatusOr<std::unique_ptr<Segment>> segment =
        DeviceSegment::Create(context, kind, bytes);
    if (segment.ok()) {
      charged->segment = *std::move(segment);
      return Offer(std::move(charged), /*keep=*/false, std::move(on_lost));
    }
    lost = lost || absl::IsUnavailable(segment.status());
    if (!refused.empty()) refused += "; ";
    refused += std::string(segment.status().message());
  }
  if (lost) shared_->cuda.Forget(*context);
  return absl::UnavailableError(
      refused.empty() ? "cuda.handle_kinds: got none that is known here"
                      : refused);
}

SegmentBroker::Made SegmentBroker::Offer(
    std::shared_ptr<ChargedSegment> charged, bool keep,
    std::function<void(ServerSegment&)> on_lost) {
  Made made;
  made.nonce = RandomBytes(kNonceBytes);
  made.segment = std::shared_ptr<ServerSegment>(new ServerSegment(
      shared_, std::move(charged), made.nonce, keep, std::move(on_lost)));
  shared_->table.Offer(made.nonce, made.segment,
                       SteadyClock::now() + shared_->options.take_limit);
  shared_->Wake();
  return made;
}

void SegmentBroker::Stop() {
  {
    MutexLock lock(&shared_->mu);
    shared_->stopping = true;
  }
  shared_->Wake();
  if (thread_.joinable()) thread_.join();
  // Descriptors first: the paths are removed only when nobody answers there.
  loop_.reset();
  shared_->table.Clear();
  {
    MutexLock lock(&shared_->mu);
    shared_->new_listeners.clear();
  }
  paths_.clear();
}

SegmentBroker::Stats SegmentBroker::stats() const {
  const SegmentBudget::Held shared_memory = shared_->shared_memory->held();
  const SegmentBudget::Held device = shared_->device->held();
  return {shared_memory.segments, shared_memory.bytes, device.segments,
          device.bytes};
}

}  // namespace torpor::service
