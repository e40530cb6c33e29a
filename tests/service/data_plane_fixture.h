// SPDX-License-Identifier: Apache-2.0
//
// A daemon with small segments, and sessions that are longer than one.

#ifndef TORPOR_TESTS_SERVICE_DATA_PLANE_FIXTURE_H_
#define TORPOR_TESTS_SERVICE_DATA_PLANE_FIXTURE_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/service/plane_client.h"
#include "tests/service/service_fixture.h"

namespace torpor::service {

inline constexpr auto kShm = v1::DATA_PLANE_SHARED_MEMORY;
// Of 64 bytes each: three times a segment, no whole number of blocks.
inline constexpr size_t kLong = 50'003;

class DataPlaneTest : public ServiceTest {
 protected:
  void Configure(ServerOptions* options) override {
    options->backend.segments.segment_bytes = 1 << 20;
    options->backend.segments.max_bytes = 3 << 20;
    options->backend.segments.take_limit = std::chrono::milliseconds(10'000);
    options->listen.push_back("127.0.0.1:0");
    if (configure_) configure_(options);
  }
  void RestartWith(std::function<void(ServerOptions*)> configure) {
    configure_ = std::move(configure);
    ASSERT_NO_FATAL_FAILURE(Restart());
  }
  std::string SocketPath() const { return dir().File("s"); }
  static ToySuspend Long(const std::string& session = "s") {
    return {.session = session, .ids = ToyIds(1, kLong)};
  }
  static v1::BeginSuspendHeader HeaderOf(
      const ToySuspend& s, const std::vector<v1::DataPlane>& planes) {
    v1::BeginSuspendHeader header = s.Header();
    *header.mutable_planes() = Offer(planes);
    return header;
  }
  // The plane of a resume offered these.
  v1::DataPlaneChoice Choose(const std::vector<v1::DataPlane>& planes,
                             bool suspend) {
    if (suspend) {
      const ToySuspend s{.session = "new" + std::to_string(n_++),
                         .operation_id = "op" + std::to_string(n_),
                         .ids = ToyIds(1, 50)};
      const auto begun = BeginSuspend(HeaderOf(s, planes), s.ids);
      EXPECT_OK(begun.status());
      EXPECT_OK(Abandon(begun->ticket()));
      return begun->plane();
    }
    v1::BeginResumeHeader header = EngineResume("s");
    *header.mutable_planes() = Offer(planes);
    const auto begun = BeginResume(header);
    EXPECT_OK(begun.status());
    EXPECT_OK(Release(begun->lease()));
    return begun->plane();
  }
  absl::Status Abandon(const std::string& ticket) {
    v1::AbandonSuspendRequest request;
    request.set_ticket(ticket);
    return Ask(sessions(), &v1::SessionService::Stub::AbandonSuspend, request)
        .status();
  }
  absl::StatusOr<v1::DataPlaneChoice> OpenPlane(const std::string& ticket,
                                                const std::string& lease) {
    v1::OpenPlaneRequest request;
    if (!ticket.empty()) request.set_ticket(ticket);
    if (!lease.empty()) request.set_lease(lease);
    *request.mutable_planes() = Offer({kShm});
    return Ask(sessions(), &v1::SessionService::Stub::OpenPlane, request);
  }
  absl::StatusOr<std::unique_ptr<SegmentLink>> Take(
      const v1::DataPlaneChoice& choice, Flow flow) {
    return SegmentLink::Take(SocketPath(), choice, flow);
  }
  SegmentBroker::Stats Segments() {
    return server().backend().segments().stats();
  }
  void ExpectNoSegments() {
    ExpectIdle();
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (Segments().segments != 0 &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_EQ(Segments().segments, 0);
    EXPECT_EQ(Segments().bytes, 0);
  }

  std::function<void(ServerOptions*)> configure_;
  int n_ = 0;
};

}  // namespace torpor::service

#endif  // TORPOR_TESTS_SERVICE_DATA_PLANE_FIXTURE_H_
