// SPDX-License-Identifier: Apache-2.0
//
// What the daemon counts, as Prometheus metrics. Thread-safe.

#ifndef TORPOR_SERVICE_METRICS_H_
#define TORPOR_SERVICE_METRICS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "service/segment_broker.h"
#include "store/types.h"
#include "torpor/v1/types.pb.h"

namespace torpor::service {

class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Serves http://<address>/metrics, for example on 127.0.0.1:9464.
  absl::Status Listen(const std::string& address);
  // The exposition text, as served.
  [[nodiscard]] std::string Text() const;

  void CountCall(std::string_view method, const absl::Status& status,
                 double seconds);
  void CountSuspend(const v1::SuspendReceipt& receipt);
  void CountResume(const v1::ResumeReceipt& receipt);
  // A resume that reused nothing, with its reason.
  void CountFullRecompute(std::string_view reason);
  // Row bytes of a stream, "in" or "out", by the plane that carried them.
  void CountRowBytes(const char* direction, const char* plane, uint64_t bytes);
  // asked, read, held, used, expired, cancelled, refused, failed.
  void CountPrefetch(const char* event);
  void SetStore(const store::StoreStats& stats);
  void SetReplayQueue(size_t waiting);
  // Segments that are open, of shared memory and of GPUs.
  void SetSegments(const SegmentBroker::Stats& stats);
  // Sessions that are prefetched, and the memory of their windows.
  void SetPrefetched(size_t sessions, uint64_t held_bytes);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_METRICS_H_
