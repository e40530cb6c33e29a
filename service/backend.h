// SPDX-License-Identifier: Apache-2.0
//
// What the daemon's services share: the store, models, replay, tickets and
// leases, and how a call is taken in: draining, tenant, metrics, log.

#ifndef TORPOR_SERVICE_BACKEND_H_
#define TORPOR_SERVICE_BACKEND_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/worker_pool.h"
#include "service/data_plane.h"
#include "service/handles.h"
#include "service/import_tickets.h"
#include "service/lease.h"
#include "service/metrics.h"
#include "service/model_registry.h"
#include "service/prefetcher.h"
#include "service/replay_executor.h"
#include "service/rpc.h"
#include "service/tenants.h"
#include "store/session_store.h"
#include "torpor/v1/types.pb.h"

namespace torpor::service {

// A suspend between its calls.
struct Ticket {
  std::string session;
  std::shared_ptr<const RegisteredModel> model;
  uint64_t kv_len = 0;
  uint32_t n_shards = 1;
  std::unique_ptr<store::SuspendTicket> stored;
  // Rows that it wants, whole.
  uint64_t row_bytes = 0;
  // Shared-memory segments that its clients hold.
  PlaneSet planes;
  std::chrono::steady_clock::time_point begun;
};

struct BackendOptions {
  ModelRegistryOptions models;
  ReplayExecutorOptions replay;
  SegmentOptions segments;
  PrefetcherOptions prefetch;
  // Calls that run at once.
  size_t max_calls = 256;
  size_t max_tickets = 256;
  size_t max_leases = 1024;
  std::chrono::seconds idle_limit{600};
};

class Backend {
 public:
  // `store` and `tenants` are taken over.
  Backend(std::unique_ptr<store::SessionStore> store, Tenants tenants,
          const BackendOptions& options);
  ~Backend();

  store::SessionStore& store() { return *store_; }
  ModelRegistry& models() { return models_; }
  ReplayExecutor& replay() { return replay_; }
  Metrics& metrics() { return metrics_; }
  WorkerPool& workers() { return workers_; }
  SegmentBroker& segments() { return segments_; }
  Handles<Ticket>& tickets() { return tickets_; }
  Handles<Lease>& leases() { return leases_; }
  ImportTickets& imports() { return imports_; }
  Prefetcher& prefetcher() { return prefetcher_; }

  // Runs the body of a call: kUnavailable while draining, kResourceExhausted
  // when too many run, kUnauthenticated; then counts and logs how it ended.
  absl::Status Serve(std::string_view method, Call& call,
                     const std::function<absl::Status(uint32_t tenant)>& body);
  // The same for what concerns every tenant, or the node: kPermissionDenied
  // unless the caller is an operator.
  absl::Status ServeOperator(std::string_view method, Call& call,
                             const std::function<absl::Status()>& body);

  // Counts and logs what a suspend stored, and what a resume served.
  void Account(const v1::SuspendReceipt& receipt);
  void Account(const v1::ResumeReceipt& receipt);

  // New calls are refused from now on, and what was prefetched is dropped.
  void Drain() {
    draining_.store(true);
    prefetcher_.Stop();
  }
  [[nodiscard]] bool draining() const { return draining_.load(); }
  [[nodiscard]] size_t running_calls() const { return running_.load(); }

  // One round of upkeep: store maintenance, idle handles, gauges.
  void Maintain();

 private:
  const BackendOptions options_;
  std::unique_ptr<store::SessionStore> store_;
  const Tenants tenants_;
  ModelRegistry models_;
  ReplayExecutor replay_;
  Metrics metrics_;
  SegmentBroker segments_;
  Handles<Ticket> tickets_;
  Handles<Lease> leases_;
  ImportTickets imports_;
  // Its threads use what stands above.
  Prefetcher prefetcher_;
  std::atomic<bool> draining_{false};
  std::atomic<size_t> running_{0};
  // Last: its threads end before anything they use is gone.
  WorkerPool workers_;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_BACKEND_H_
