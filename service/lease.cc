// SPDX-License-Identifier: Apache-2.0

#include "service/lease.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "service/convert.h"

namespace torpor::service {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr auto kPoll = std::chrono::milliseconds(20);
constexpr char kNoKvYet[] = "no KV yet when suspended";

uint64_t MicrosecondsSince(SteadyClock::time_point begin) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(SteadyClock::now() -
                                                            begin)
          .count());
}

// Whether a window of the cut has any row that is not stored with the others.
bool OwesRows(const replay::ModelLayout& layout, uint64_t cut) {
  const std::vector<replay::SlotRows> owed = replay::WindowRowsAt(layout, cut);
  return std::any_of(owed.begin(), owed.end(),
                     [](const auto& rows) { return rows.first < rows.end; });
}

}  // namespace

// ---- begin ----------------------------------------------------------------

absl::StatusOr<std::unique_ptr<Lease>> Lease::Begin(
    store::SessionStore* store, const ModelRegistry& models, uint32_t tenant,
    const v1::BeginResumeHeader& header, const store::TokenRun* prompt) {
  const SteadyClock::time_point begin = SteadyClock::now();
  std::unique_ptr<Lease> lease(new Lease);
  lease->header_ = header;
  TORPOR_ASSIGN_OR_RETURN(lease->mode_asked_, FromProto(header.mode()));
  // Not below 0, and no NaN.
  if (!(header.limits().max_error() >= 0)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "max_error: got %g, wanted 0 or more", header.limits().max_error()));
  }
  if (lease->mode_asked_ == replay::ReplayMode::kCold &&
      !header.limits().allow_cold()) {
    return absl::FailedPreconditionError(
        "resume: cold was asked, and limits.allow_cold is not set");
  }
  if (header.session().empty()) {
    if (prompt == nullptr || prompt->ids.empty()) {
      return absl::InvalidArgumentError(
          "resume: got neither a session nor tokens, wanted one of them");
    }
    TORPOR_RETURN_IF_ERROR(lease->TakePrefix(store, models, tenant, *prompt));
  } else {
    TORPOR_RETURN_IF_ERROR(lease->TakeSession(store, models, tenant, prompt));
  }
  TORPOR_RETURN_IF_ERROR(lease->TakeCut());
  TORPOR_RETURN_IF_ERROR(lease->MakePlan());
  lease->index_us_ = MicrosecondsSince(begin);
  return lease;
}

absl::Status Lease::TakeSession(store::SessionStore* store,
                                const ModelRegistry& models, uint32_t tenant,
                                const store::TokenRun* prompt) {
  TORPOR_ASSIGN_OR_RETURN(
      stored_, store->Open({tenant, header_.session()}, header_.version()));
  const store::SessionInfo& info = stored_->info();
  TORPOR_ASSIGN_OR_RETURN(
      model_,
      models.Get(header_.model().empty() ? info.model : header_.model()));
  v1::Fingerprint stored_fields;
  stored_fields.ParseFromString(info.fingerprint_fields);
  for (const auto& difference :
       {FirstContradiction(header_.fingerprint(), model_->fingerprint),
        replay::FirstDifference(model_->fingerprint,
                                FromProto(stored_fields))}) {
    if (difference.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrFormat("session '%s': %s", header_.session(), *difference));
    }
  }
  prompt_tokens_ = info.n_tokens;
  cut_ = info.kv_len;
  if (info.n_tokens > info.kv_len) {
    AddReason(info.n_tokens - info.kv_len, kNoKvYet);
  }
  if (prompt != nullptr && !prompt->ids.empty()) {
    prompt_tokens_ = prompt->ids.size();
    return CompareWithPrompt(*prompt);
  }
  return absl::OkStatus();
}

absl::Status Lease::TakePrefix(store::SessionStore* store,
                               const ModelRegistry& models, uint32_t tenant,
                               const store::TokenRun& prompt) {
  TORPOR_ASSIGN_OR_RETURN(model_, models.Get(header_.model()));
  if (const auto difference =
          FirstContradiction(header_.fingerprint(), model_->fingerprint)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("model '%s': %s", header_.model(), *difference));
  }
  prompt_tokens_ = prompt.ids.size();
  TORPOR_ASSIGN_OR_RETURN(
      store::PrefixHit hit,
      store->Lookup(tenant, model_->record_layout(), prompt));
  if (hit.hit_len == 0) {
    return absl::FailedPreconditionError(
        "resume: reuse 0: no stored session begins with these tokens; prefill "
        "cold");
  }
  stored_ = std::move(hit.lease);
  cut_ = hit.hit_len;
  if (cut_ < prompt_tokens_) {
    AddReason(prompt_tokens_ - cut_, "not stored under this prefix");
  }
  return absl::OkStatus();
}

absl::Status Lease::CompareWithPrompt(const store::TokenRun& prompt) {
  const store::SessionInfo& info = stored_->info();
  TORPOR_ASSIGN_OR_RETURN(const store::TokenRun tokens,
                          stored_->ReadTokens(0, info.n_tokens));
  const uint64_t common = store::CommonLength(tokens, prompt, 0);
  if (common < std::min<uint64_t>(tokens.ids.size(), prompt.ids.size())) {
    v1::Divergence divergence;
    divergence.set_position(common);
    divergence.set_stored_id(tokens.ids[common]);
    divergence.set_prompt_id(prompt.ids[common]);
    divergence.set_extra_key_differs(tokens.ids[common] == prompt.ids[common]);
    divergence_ = divergence;
  }
  // The prompt may end before the tokens that are pending.
  {
    MutexLock lock(&mu_);
    reasons_.clear();
  }
  cut_ = std::min(cut_, common);
  if (common > cut_) AddReason(common - cut_, kNoKvYet);
  // A cut inside a two-way span is none.
  for (const store::ExtraKeySpan& span : tokens.spans) {
    if (span.bidirectional && span.begin < cut_ && cut_ < span.end) {
      AddReason(cut_ - span.begin, "inside a bidirectional span that differs");
      cut_ = span.begin;
    }
  }
  if (prompt.ids.size() > common) {
    AddReason(prompt.ids.size() - common, divergence_.has_value()
                                              ? "differs from the stored tokens"
                                              : "after the stored tokens");
  }
  return absl::OkStatus();
}

absl::Status Lease::TakeCut() {
  const store::SessionInfo& info = stored_->info();
  if (header_.cut() > info.n_tokens) {
    return absl::OutOfRangeError(
        absl::StrFormat("cut: got %d, the session has %d tokens", header_.cut(),
                        info.n_tokens));
  }
  if (header_.cut() != 0 && header_.cut() < cut_) {
    AddReason(cut_ - header_.cut(), "after the cut that was asked");
    cut_ = header_.cut();
  }
  if (info.usable_len < cut_) {
    if (!header_.limits().allow_shorter()) {
      return absl::DataLossError(absl::StrFormat(
          "session '%s': rows of tokens from %d on are damaged; resume at most "
          "%d of them with allow_shorter",
          header_.session(), info.usable_len, info.usable_len));
    }
    AddReason(cut_ - info.usable_len, "damaged");
    cut_ = info.usable_len;
  }
  if (cut_ == 0 && mode_asked_ != replay::ReplayMode::kCold) {
    std::string why = "the session holds no KV";
    MutexLock lock(&mu_);
    if (!reasons_.empty()) why = reasons_.front().reason();
    return absl::FailedPreconditionError(
        absl::StrFormat("resume: reuse 0: %s; prefill cold", why));
  }
  TORPOR_ASSIGN_OR_RETURN(const store::TokenRun tokens,
                          stored_->ReadTokens(0, cut_));
  TORPOR_RETURN_IF_ERROR(store::ValidateCut(tokens.spans, cut_));
  ids_ = std::make_shared<std::vector<uint32_t>>(tokens.ids);
  spans_ = TwoWaySpans(tokens.spans);
  return absl::OkStatus();
}

absl::Status Lease::MakePlan() {
  const store::SessionInfo& info = stored_->info();
  // A floor only shortens what is read: those further back than an exact replay
  // of this cut reaches without any, its open groups and spans included, bind
  // nothing. Where no replay can be, no floor is asked for.
  const absl::StatusOr<replay::ReplayPlan> furthest =
      PlanCut(Inputs(), replay::ReplayMode::kExact, 0);
  TORPOR_ASSIGN_OR_RETURN(
      const std::vector<store::Floor> floors,
      stored_->Floors(furthest.ok() ? furthest->replay_start : cut_, cut_));
  floors_ = ToReplay(floors);
  const bool at_tip = cut_ == info.kv_len && !header_.session().empty();
  const bool has_snapshot = info.has_snapshot() && at_tip;
  replay::ReplayMode mode = mode_asked_;
  const v1::ResumeLimits& limits = header_.limits();
  if (mode == replay::ReplayMode::kAuto) {
    TORPOR_ASSIGN_OR_RETURN(
        mode,
        replay::ChooseMode(model_->layout,
                           {.resume_at = cut_,
                            .replay_tokens = limits.replay_tokens(),
                            .floors = floors_,
                            .spans = spans_,
                            .want_logits = header_.want_logits()},
                           {.max_replay_tokens = limits.max_replay_tokens(),
                            .max_error = limits.max_error(),
                            .allow_cold = limits.allow_cold(),
                            .has_snapshot = has_snapshot,
                            .has_witness = info.has_witness() && at_tip}));
  }
  if (mode == replay::ReplayMode::kSnapshot && !has_snapshot &&
      OwesRows(model_->layout, cut_)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("snapshot: session '%s' has none at token %d",
                        header_.session(), cut_));
  }
  if (mode != replay::ReplayMode::kCold) {
    TORPOR_RETURN_IF_ERROR(CheckSnapshotSlots(has_snapshot));
  }
  TORPOR_ASSIGN_OR_RETURN(const replay::ReplayPlan plan,
                          PlanCut(Inputs(), mode, limits.replay_tokens()));
  if (mode == replay::ReplayMode::kCold && cut_ > 0) {
    AddReason(cut_, "cold was asked");
  }
  {
    MutexLock lock(&mu_);
    plan_ = plan;
    // Cold has nothing to rebuild.
    rebuilt_ = mode == replay::ReplayMode::kCold;
  }
  return absl::OkStatus();
}

absl::Status Lease::CheckReplayable() {
  if (header_.engine_replays() || plan().replay_tokens() == 0 ||
      model_->replayer != nullptr) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "model '%s': this daemon cannot replay it: %s; resume with "
      "engine_replays, from a snapshot, or cold",
      model_->name, model_->no_replay_reason));
}

absl::Status Lease::CheckSnapshotSlots(bool has_snapshot) const {
  const replay::Slot* const owed =
      replay::SlotOwedBySnapshot(model_->layout, cut_);
  if (owed == nullptr) return absl::OkStatus();
  if (!has_snapshot) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "resume: slot '%s' comes back from a snapshot alone, and %s has none "
        "at token %d; resume cold",
        owed->name,
        header_.session().empty()
            ? "a resume by tokens"
            : absl::StrFormat("session '%s'", header_.session()),
        cut_));
  }
  if (header_.engine_replays()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "resume: slot '%s' comes back with the window, which engine_replays "
        "leaves out; resume without it",
        owed->name));
  }
  return absl::OkStatus();
}

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
