// SPDX-License-Identifier: Apache-2.0

#include "service/lease.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/microseconds.h"
#include "base/status.h"
#include "service/convert.h"

namespace torpor::service {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr auto kPoll = std::chrono::milliseconds(20);

}  // namespace

absl::StatusOr<v1::BeginResumeResponse> Lease::Response() {
  v1::BeginResumeResponse response;
  const replay::ReplayPlan current = plan();
  *response.mutable_plan() = ToProto(current);
  if (model_->replayer != nullptr) {
    response.mutable_plan()->set_replay_memory_bytes(
        model_->replayer->MemoryFor(current));
  }
  *response.mutable_state() = ToProto(stored_->info());
  // Found by its tokens, it is no session's: the model alone is known.
  if (header_.session().empty()) {
    response.mutable_state()->set_model(model_->name);
    *response.mutable_state()->mutable_fingerprint() =
        ToProto(model_->fingerprint);
  }
  for (const replay::Floor& floor : floors_) {
    *response.mutable_state()->add_floors() = ToProto(floor);
  }
  if (divergence_.has_value()) {
    *response.mutable_divergence() = *divergence_;
  }
  if (stored_->info().client_state_bytes != 0) {
    TORPOR_ASSIGN_OR_RETURN(
        const auto sections,
        stored_->ReadAttachment(store::AttachmentKind::kClientState));
    response.set_client_state(sections.front().bytes.data(),
                              sections.front().bytes.size());
  }
  if (header_.engine_replays()) {
    TORPOR_ASSIGN_OR_RETURN(const std::optional<replay::Witness> witness,
                            ReadWitness(Inputs()));
    if (witness.has_value()) *response.mutable_witness() = ToProto(*witness);
  }
  response.set_recompute_from(current.resume_at);
  return response;
}

RebuildInputs Lease::Inputs() const {
  return {.model = model_,
          .stored = stored_,
          .header = header_,
          .cut = cut_,
          .ids = ids_,
          .spans = spans_,
          .floors = floors_};
}

// ---- rows and windows -----------------------------------------------------

absl::StatusOr<uint64_t> Lease::ReadRows(uint32_t slot, replay::Rows rows,
                                         std::span<uint8_t> out) {
  const SteadyClock::time_point begin = SteadyClock::now();
  TORPOR_ASSIGN_OR_RETURN(
      const uint64_t hash,
      stored_->ReadRowsAndHash(model_->compact_index.at(slot),
                               {rows.begin, rows.end}, out));
  MutexLock lock(&mu_);
  bytes_read_ += out.size();
  read_us_ += MicrosecondsSince(begin);
  return hash;
}

absl::StatusOr<const replay::WindowState*> Lease::Window(
    ReplayExecutor* executor, Prefetcher* prefetcher,
    const std::function<bool()>& cancelled) {
  if (header_.engine_replays()) {
    return absl::FailedPreconditionError(
        "window: this lease was begun with engine_replays");
  }
  {
    MutexLock lock(&mu_);
    // Rows travel meanwhile; another call for the window waits for this one.
    while (rebuilding_) {
      if (cancelled && cancelled()) {
        return absl::CancelledError("window: cancelled");
      }
      rebuilt_changed_.WaitUntil(&mu_, SteadyClock::now() + kPoll);
    }
    if (rebuilt_) return &window_;
    rebuilding_ = true;
  }
  const SteadyClock::time_point begin = SteadyClock::now();
  std::optional<Rebuilt> held = TakePrefetched(prefetcher, cancelled);
  const uint64_t waited_us = MicrosecondsSince(begin);
  const bool prefetched = held.has_value();
  Rebuilt result =
      prefetched ? *std::move(held) : RebuildApart(executor, cancelled);
  MutexLock lock(&mu_);
  rebuilding_ = false;
  rebuilt_changed_.NotifyAll();
  prefetched_ = prefetched;
  queue_us_ += waited_us;
  plan_ = result.plan;
  report_ = std::move(result.report);
  rung_ = result.rung;
  bytes_read_ += result.bytes_read;
  queue_us_ += result.queue_us;
  read_us_ += result.read_us;
  verify_us_ += result.verify_us;
  replay_us_ += result.replay_us;
  token_layers_ += result.token_layers;
  replay_numerics_ = std::move(result.numerics_id);
  fallback_reason_ = std::move(result.fallback_reason);
  if (plan_.mode == replay::ReplayMode::kCold) {
    v1::TokenReason reason;
    reason.set_tokens(cut_);
    reason.set_reason("every rung below cold missed max_error");
    reasons_.push_back(std::move(reason));
  }
  TORPOR_RETURN_IF_ERROR(result.status);
  window_ = std::move(result.window);
  rebuilt_ = true;
  return &window_;
}

PlannedWindow Lease::Planned() {
  const store::SessionInfo& info = stored_->info();
  return {.session = info.key,
          .version = info.version,
          .updated_at_us = info.updated_at_us,
          .model = model_,
          .plan = plan(),
          .want_logits = header_.want_logits(),
          .max_error = header_.limits().max_error(),
          .allow_cold = header_.limits().allow_cold()};
}

Rebuilt Lease::RebuildApart(ReplayExecutor* executor,
                            const std::function<bool()>& cancelled) {
  return RebuildWindow(Inputs(), plan(), executor, cancelled);
}

std::optional<Rebuilt> Lease::TakePrefetched(
    Prefetcher* prefetcher, const std::function<bool()>& cancelled) {
  // A resume by tokens is no session's.
  if (header_.session().empty()) return std::nullopt;
  std::optional<Rebuilt> held = prefetcher->Take(Planned(), cancelled);
  if (!held.has_value()) return std::nullopt;
  held->bytes_read = 0;
  held->queue_us = held->read_us = held->verify_us = held->replay_us = 0;
  return held;
}

v1::WindowHeader Lease::WindowHeader() {
  MutexLock lock(&mu_);
  v1::WindowHeader header;
  header.set_verdict(static_cast<v1::WitnessVerdict>(report_.verdict));
  for (const replay::LayerError& error : report_.layers) {
    v1::LayerError* e = header.add_errors();
    e->set_layer(error.layer);
    e->set_max_relative(error.max_relative);
    e->set_mean_relative(error.mean_relative);
    e->set_digest_equal(error.digest_equal);
  }
  *header.mutable_plan() = ToProto(plan_);
  header.set_logits(window_.logits.data(),
                    window_.logits.size() * sizeof(float));
  return header;
}

// ---- account --------------------------------------------------------------

void Lease::AddReason(uint64_t tokens, std::string reason) {
  MutexLock lock(&mu_);
  v1::TokenReason entry;
  entry.set_tokens(tokens);
  entry.set_reason(std::move(reason));
  reasons_.push_back(std::move(entry));
}

absl::Status Lease::AddEngineReplay(const v1::EngineReplay& replay) {
  if (!header_.engine_replays()) {
    return absl::InvalidArgumentError(
        "release: got what an engine ran, and this lease was begun without "
        "engine_replays");
  }
  const replay::ModelLayout& layout = model_->layout;
  TORPOR_RETURN_IF_ERROR(CheckWitness(replay.witness(), layout, cut_));
  TORPOR_ASSIGN_OR_RETURN(const replay::Witness got,
                          FromProto(replay.witness(), cut_));
  TORPOR_ASSIGN_OR_RETURN(const std::optional<replay::Witness> wanted,
                          ReadWitness(Inputs()));
  replay::WitnessReport report;
  if (wanted.has_value()) {
    TORPOR_ASSIGN_OR_RETURN(report,
                            replay::CompareWitnesses(layout, got, *wanted));
  }
  MutexLock lock(&mu_);
  report_ = std::move(report);
  token_layers_ = replay.token_layers();
  replay_numerics_ = got.numerics_id;
  replay_us_ = replay.replay_us();
  return absl::OkStatus();
}

void Lease::AddSent(uint64_t bytes, uint64_t transfer_us) {
  MutexLock lock(&mu_);
  bytes_sent_ += bytes;
  transfer_us_ += transfer_us;
}

v1::ResumeReceipt Lease::Receipt() {
  MutexLock lock(&mu_);
  v1::ResumeReceipt receipt;
  const store::SessionInfo& info = stored_->info();
  receipt.set_session(header_.session());
  receipt.set_version(info.version);
  receipt.set_prompt_tokens(prompt_tokens_);
  receipt.set_loaded_tokens(plan_.replay_start);
  receipt.set_replayed_tokens(plan_.replay_tokens());
  receipt.set_recomputed_tokens(prompt_tokens_ -
                                std::min(prompt_tokens_, plan_.resume_at));
  receipt.set_replayed_token_layers(token_layers_);
  receipt.set_bytes_read(bytes_read_);
  receipt.set_bytes_sent(bytes_sent_);
  receipt.set_shared_memory_bytes(planes_.bytes());
  receipt.set_mode_asked(ToProto(mode_asked_));
  receipt.set_mode_used(ToProto(plan_.mode));
  receipt.set_exact(plan_.exact && plan_.mode != replay::ReplayMode::kCold);
  receipt.set_rung(rung_);
  receipt.set_prefetched(prefetched_);
  receipt.set_verdict(static_cast<v1::WitnessVerdict>(report_.verdict));
  receipt.set_replay_numerics_id(replay_numerics_);
  receipt.set_fallback_reason(fallback_reason_);
  for (const replay::LayerError& error : report_.layers) {
    v1::LayerError* e = receipt.add_errors();
    e->set_layer(error.layer);
    e->set_max_relative(error.max_relative);
    e->set_mean_relative(error.mean_relative);
    e->set_digest_equal(error.digest_equal);
  }
  for (const v1::TokenReason& reason : reasons_) {
    *receipt.add_reasons() = reason;
  }
  v1::PhaseTimes* times = receipt.mutable_times();
  times->set_queue_us(queue_us_);
  times->set_index_us(index_us_);
  times->set_read_us(read_us_);
  times->set_verify_us(verify_us_);
  times->set_transfer_us(transfer_us_);
  times->set_replay_us(replay_us_);
  if (!plan_.exact) *receipt.mutable_floor() = ToProto(plan_.floor());
  return receipt;
}

}  // namespace torpor::service
