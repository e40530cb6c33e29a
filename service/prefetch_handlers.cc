// SPDX-License-Identifier: Apache-2.0
//
// Prefetch: a lease of its own is begun as the resume to come would begin one;
// the prefetcher reads its rows and rebuilds its window behind the answer.

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "service/convert.h"
#include "service/row_sender.h"
#include "service/session_service.h"

namespace torpor::service {
namespace {

constexpr std::chrono::seconds kDefaultHold{60};

v1::BeginResumeHeader HeaderOf(const v1::PrefetchRequest& request) {
  v1::BeginResumeHeader header;
  header.set_session(request.session());
  header.set_version(request.version());
  header.set_cut(request.cut());
  header.set_mode(request.mode());
  *header.mutable_limits() = request.limits();
  header.set_want_logits(request.want_logits());
  return header;
}

// Rows that nobody takes: what they leave is the page cache.
class NoOutlet final : public RowOutlet {
 public:
  explicit NoOutlet(const Prefetcher::Cancelled& cancelled)
      : RowOutlet(nullptr), cancelled_(cancelled) {}

  absl::StatusOr<std::span<uint8_t>> Append(size_t bytes) override {
    if (cancelled_()) return absl::CancelledError("prefetch: cancelled");
    buffer_.resize(bytes);
    return std::span<uint8_t>(buffer_);
  }
  void Describe(v1::RowPiece) override {}
  absl::Status Flush() override { return absl::OkStatus(); }
  [[nodiscard]] bool shared() const override { return false; }

 private:
  const Prefetcher::Cancelled& cancelled_;
  std::vector<uint8_t> buffer_;
};

uint64_t WindowMemory(Lease& lease) {
  const uint64_t logits = lease.header().want_logits()
                              ? lease.model()->layout.vocab_size * sizeof(float)
                              : 0;
  return WindowBytes(lease) + logits;
}

// Why the window cannot be rebuilt here, whatever else is held; empty when it
// can.
std::string WhyNoWindow(Backend& backend, Lease& lease) {
  if (const absl::Status s = lease.CheckReplayable(); !s.ok()) {
    return std::string(s.message());
  }
  const replay::ReplayPlan plan = lease.plan();
  if (WindowBytes(lease) == 0) return "the plan has no window to rebuild";
  if (plan.replay_tokens() == 0) return "";
  return std::string(backend.replay().Admits(*lease.model(), plan).message());
}

Prefetcher::Work WorkOf(Backend& backend, const v1::PrefetchRequest& request,
                        const std::shared_ptr<Lease>& lease) {
  Prefetcher::Work work{
      .window = lease->Planned(),
      .read =
          [lease](const Prefetcher::Cancelled& cancelled) {
            NoOutlet outlet(cancelled);
            return SendCompact(*lease, lease->model()->compact_slots, 0,
                               lease->plan().resume_at, {}, &outlet);
          },
      .window_bytes = WindowMemory(*lease),
      .hold = request.hold_seconds() == 0
                  ? std::min(kDefaultHold, backend.prefetcher().hold_limit())
                  : std::chrono::seconds(request.hold_seconds())};
  if (!request.replay()) return work;
  work.refused = WhyNoWindow(backend, *lease);
  if (work.refused.empty()) {
    work.rebuild = [lease, &replay = backend.replay()](
                       const Prefetcher::Cancelled& cancelled) {
      return lease->RebuildApart(&replay, cancelled);
    };
  }
  return work;
}

}  // namespace

grpc::ServerUnaryReactor* SessionServiceImpl::Prefetch(
    grpc::CallbackServerContext* context, const v1::PrefetchRequest* request,
    v1::PrefetchResponse* response) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.Serve(
        "Prefetch", call, [&](uint32_t tenant) -> absl::Status {
          if (request->session().empty()) {
            return absl::InvalidArgumentError(
                "session: got none, wanted the one that will be resumed");
          }
          TORPOR_ASSIGN_OR_RETURN(
              std::shared_ptr<Lease> lease,
              Lease::Begin(&backend_.store(), backend_.models(), tenant,
                           HeaderOf(*request), nullptr));
          Prefetcher::Work work = WorkOf(backend_, *request, lease);
          const uint64_t held_bytes = work.window_bytes;
          const auto until = std::chrono::system_clock::now() + work.hold;
          TORPOR_ASSIGN_OR_RETURN(const Prefetcher::Begun begun,
                                  backend_.prefetcher().Begin(std::move(work)));
          // What changed the session before this was known cancelled nothing.
          const store::SessionInfo& info = lease->stored().info();
          const auto now = backend_.store().Describe(info.key);
          if (!now.ok() || now->version != info.version ||
              now->updated_at_us != info.updated_at_us) {
            backend_.prefetcher().Cancel(info.key);
          }
          response->set_version(info.version);
          response->set_resume_at(lease->plan().resume_at);
          response->set_read_bytes(CompactBytes(*lease));
          response->set_reason(begun.refused);
          if (!request->replay() || !begun.refused.empty()) {
            return absl::OkStatus();
          }
          response->set_replaying(true);
          response->set_renewed(begun.renewed);
          *response->mutable_plan() = ToProto(lease->plan());
          response->set_held_bytes(held_bytes);
          response->set_held_until(std::chrono::system_clock::to_time_t(until));
          return absl::OkStatus();
        });
  });
}

}  // namespace torpor::service
