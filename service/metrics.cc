// SPDX-License-Identifier: Apache-2.0

#include "service/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <exception>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

namespace torpor::service {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;

// Seconds, from a tenth of a millisecond to a minute.
const std::vector<double>& Buckets() {
  static const auto* const buckets = new std::vector<double>{
      0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 60};
  return *buckets;
}

}  // namespace

struct Metrics::Impl {
  std::shared_ptr<prometheus::Registry> registry =
      std::make_shared<prometheus::Registry>();
  std::unique_ptr<prometheus::Exposer> exposer;

  Family<Counter>& CounterFamily(const char* name, const char* help) {
    return BuildCounter().Name(name).Help(help).Register(*registry);
  }
  Family<Gauge>& GaugeFamily(const char* name, const char* help) {
    return BuildGauge().Name(name).Help(help).Register(*registry);
  }

  Family<Counter>& calls =
      CounterFamily("torpor_calls_total", "Calls by method and code.");
  Family<Histogram>& call_seconds = BuildHistogram()
                                        .Name("torpor_call_seconds")
                                        .Help("Duration of calls.")
                                        .Register(*registry);
  Family<Counter>& suspends =
      CounterFamily("torpor_suspends_total", "Suspends committed.");
  Family<Counter>& suspend_bytes =
      CounterFamily("torpor_suspend_bytes_total", "Bytes of suspends by kind.");
  Family<Counter>& resumes =
      CounterFamily("torpor_resumes_total", "Resumes by mode and verdict.");
  Family<Counter>& resume_tokens =
      CounterFamily("torpor_resume_tokens_total",
                    "Tokens of resumes: loaded, replayed, "
                    "recomputed.");
  Family<Counter>& recomputes =
      CounterFamily("torpor_resume_full_recompute_total",
                    "Resumes that reused nothing, by reason.");
  Family<Histogram>& phase_seconds = BuildHistogram()
                                         .Name("torpor_resume_phase_seconds")
                                         .Help("Phases of resumes.")
                                         .Register(*registry);
  Family<Counter>& row_bytes = CounterFamily(
      "torpor_row_bytes_total", "Row bytes by direction and data plane.");
  Family<Counter>& prefetches =
      CounterFamily("torpor_prefetches_total",
                    "What was asked ahead of resumes, and what came of it.");
  Family<Gauge>& prefetched = GaugeFamily(
      "torpor_prefetched", "Sessions that are prefetched, and their memory.");
  Family<Gauge>& store = GaugeFamily("torpor_store", "State of the store.");
  Gauge& replay_queue =
      GaugeFamily("torpor_replay_queue", "Replays that wait.").Add({});
  Family<Gauge>& segments = GaugeFamily(
      "torpor_segments", "Segments of shared and device memory that are open.");
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

absl::Status Metrics::Listen(const std::string& address) {
  try {
    impl_->exposer = std::make_unique<prometheus::Exposer>(address, 1);
  } catch (const std::exception& e) {
    // The one library here that throws.
    return absl::UnavailableError(
        absl::StrFormat("metrics on %s: %s", address, e.what()));
  }
  impl_->exposer->RegisterCollectable(impl_->registry);
  return absl::OkStatus();
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(impl_->registry->Collect());
}

void Metrics::CountCall(std::string_view method, const absl::Status& status,
                        double seconds) {
  const std::string name(method);
  impl_->calls
      .Add(
          {{"method", name}, {"code", absl::StatusCodeToString(status.code())}})
      .Increment();
  impl_->call_seconds.Add({{"method", name}}, Buckets()).Observe(seconds);
}

void Metrics::CountSuspend(const v1::SuspendReceipt& receipt) {
  impl_->suspends.Add({}).Increment();
  const std::map<const char*, uint64_t> bytes = {
      {"rows", receipt.row_bytes_received()},
      {"copied", receipt.row_bytes_copied()},
      {"stored", receipt.stored_bytes()},
      {"snapshot", receipt.snapshot_bytes()}};
  for (const auto& [kind, n] : bytes) {
    impl_->suspend_bytes.Add({{"kind", kind}})
        .Increment(static_cast<double>(n));
  }
}

void Metrics::CountResume(const v1::ResumeReceipt& receipt) {
  impl_->resumes
      .Add({{"mode", v1::ReplayMode_Name(receipt.mode_used())},
            {"verdict", v1::WitnessVerdict_Name(receipt.verdict())}})
      .Increment();
  const std::map<const char*, uint64_t> tokens = {
      {"loaded", receipt.loaded_tokens()},
      {"replayed", receipt.replayed_tokens()},
      {"recomputed", receipt.recomputed_tokens()}};
  for (const auto& [kind, n] : tokens) {
    impl_->resume_tokens.Add({{"kind", kind}})
        .Increment(static_cast<double>(n));
  }
  const v1::PhaseTimes& times = receipt.times();
  const std::map<const char*, uint64_t> phases = {
      {"queue", times.queue_us()},       {"index", times.index_us()},
      {"read", times.read_us()},         {"verify", times.verify_us()},
      {"transfer", times.transfer_us()}, {"replay", times.replay_us()}};
  for (const auto& [phase, us] : phases) {
    impl_->phase_seconds.Add({{"phase", phase}}, Buckets())
        .Observe(static_cast<double>(us) * 1e-6);
  }
}

void Metrics::CountFullRecompute(std::string_view reason) {
  impl_->recomputes.Add({{"reason", std::string(reason)}}).Increment();
}

void Metrics::SetStore(const store::StoreStats& s) {
  const std::map<const char*, uint64_t> values = {
      {"sessions", s.sessions},
      {"records", s.records},
      {"live_bytes", s.live_bytes},
      {"reserved_bytes", s.reserved_bytes},
      {"max_bytes", s.max_bytes},
      {"file_bytes", s.file_bytes},
      {"disk_free_bytes", s.disk_free_bytes},
      {"staged_records", s.staged_records},
      {"trashed_records", s.trashed_records},
      {"quarantined_records", s.quarantined_records},
      {"open_tickets", s.open_tickets},
      {"open_leases", s.open_leases},
      {"commits", s.commits}};
  for (const auto& [field, value] : values) {
    impl_->store.Add({{"field", field}}).Set(static_cast<double>(value));
  }
}

void Metrics::CountRowBytes(const char* direction, const char* plane,
                            uint64_t bytes) {
  if (bytes == 0) return;
  impl_->row_bytes.Add({{"direction", direction}, {"plane", plane}})
      .Increment(static_cast<double>(bytes));
}

void Metrics::CountPrefetch(const char* event) {
  impl_->prefetches.Add({{"event", event}}).Increment();
}

void Metrics::SetPrefetched(size_t sessions, uint64_t held_bytes) {
  const std::map<const char*, uint64_t> values = {{"sessions", sessions},
                                                  {"held_bytes", held_bytes}};
  for (const auto& [field, value] : values) {
    impl_->prefetched.Add({{"field", field}}).Set(static_cast<double>(value));
  }
}

void Metrics::SetReplayQueue(size_t waiting) {
  impl_->replay_queue.Set(static_cast<double>(waiting));
}

void Metrics::SetSegments(const SegmentBroker::Stats& stats) {
  const std::map<const char*, uint64_t> values = {
      {"count", stats.segments},
      {"bytes", stats.bytes},
      {"device_count", stats.device_segments},
      {"device_bytes", stats.device_bytes}};
  for (const auto& [field, value] : values) {
    impl_->segments.Add({{"field", field}}).Set(static_cast<double>(value));
  }
}

}  // namespace torpor::service
