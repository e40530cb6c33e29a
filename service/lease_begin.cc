// SPDX-License-Identifier: Apache-2.0
//
// How a lease begins: what it resumes, up to which cut, by which plan.

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/microseconds.h"
#include "base/status.h"
#include "service/convert.h"
#include "service/lease.h"

namespace torpor::service {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr char kNoKvYet[] = "no KV yet when suspended";

// Whether a window of the cut has any row that is not stored with the others.
bool OwesRows(const replay::ModelLayout& layout, uint64_t cut) {
  const std::vector<replay::SlotRows> owed = replay::WindowRowsAt(layout, cut);
  return std::any_of(owed.begin(), owed.end(),
                     [](const auto& rows) { return rows.first < rows.end; });
}

}  // namespace

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

}  // namespace torpor::service
