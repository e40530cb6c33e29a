// SPDX-License-Identifier: Apache-2.0

#include "service/cli/engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/microseconds.h"
#include "base/status.h"
#include "replay/witness.h"
#include "service/convert.h"

namespace torpor::service::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;

}  // namespace

void Engine::Start(const SamplerOptions& options) {
  floors_.clear();
  sequence_ = model_->NewSequence();
  ids_.clear();
  logits_.clear();
  kv_len_ = 0;
  sampler_.emplace(options);
}

void Engine::Append(std::span<const uint32_t> ids) {
  if (ids.empty()) return;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  logits_.clear();
}

absl::Status Engine::RunPending(uint64_t keep, std::vector<float>* logits) {
  const uint64_t end = ids_.size() - std::min<uint64_t>(keep, ids_.size());
  if (kv_len_ >= end) return absl::OkStatus();
  replay::Segment segment =
      replay::SegmentOf(sequence_.get(), ids_, kv_len_, end);
  if (logits != nullptr) segment.logits_begin = end - 1;
  std::optional<replay::TailPrefill> tail;
  if (decoder_tail_) {
    tail = replay::PlanTailPrefill(model_->layout(), kv_len_, end);
  }
  if (tail) segment.plan = &tail->plan;
  TORPOR_ASSIGN_OR_RETURN(std::vector<float> out,
                          replay::RunTokens(model_, segment, 0, {}));
  if (tail) floors_.push_back(ToProto(tail->floor));
  if (logits != nullptr) *logits = std::move(out);
  kv_len_ = end;
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> Engine::Next() {
  std::vector<float> logits = std::exchange(logits_, {});
  if (kv_len_ < ids_.size()) {
    TORPOR_RETURN_IF_ERROR(RunPending(0, &logits));
  }
  if (logits.empty()) {
    return absl::FailedPreconditionError(
        "generate: no token is pending; give a prompt");
  }
  ids_.push_back(sampler_->Next(logits));
  return ids_.back();
}

absl::StatusOr<std::vector<float>> Engine::Feed(std::span<const uint32_t> ids) {
  TORPOR_RETURN_IF_ERROR(RunPending(0, nullptr));
  Append(ids);
  replay::Segment segment =
      replay::SegmentOf(sequence_.get(), ids_, kv_len_, ids_.size());
  segment.logits_begin = kv_len_;
  TORPOR_ASSIGN_OR_RETURN(std::vector<float> logits,
                          replay::RunTokens(model_, segment, 0, {}));
  kv_len_ = ids_.size();
  return logits;
}

absl::StatusOr<WakeReport> Engine::Wake(Client* client,
                                        const std::string& session,
                                        const WakeOptions& options) {
  const SteadyClock::time_point begin = SteadyClock::now();
  sequence_ = model_->NewSequence();
  ResumeCall call;
  call.header.set_session(session);
  call.header.set_model(model_name_);
  *call.header.mutable_fingerprint() = ToProto(model_->fingerprint());
  call.header.set_numerics_id(model_->numerics_id());
  call.header.set_mode(options.mode);
  *call.header.mutable_limits() = options.limits;
  call.header.set_cut(options.cut);
  call.header.set_send_tokens(true);
  call.header.set_want_logits(options.want_logits);
  if (options.mode == v1::REPLAY_MODE_COLD) {
    call.header.mutable_limits()->set_allow_cold(true);
  }
  const RowSink import = [&](uint32_t slot, uint64_t row,
                             std::span<const uint8_t> bytes) {
    return sequence_->ImportRows(slot, row, bytes);
  };
  call.compact = import;
  call.window = import;
  TORPOR_ASSIGN_OR_RETURN(const ResumeAnswer answer, client->Resume(call));

  WakeReport report;
  report.receipt = answer.receipt;
  const uint64_t resume_at = answer.window.has_plan()
                                 ? answer.window.plan().resume_at()
                                 : answer.begin.plan().resume_at();
  const v1::SessionState& state = answer.begin.state();
  ids_ = answer.ids;
  version_ = state.version();
  stored_tokens_ = state.n_tokens();
  stored_kv_len_ = state.kv_len();
  if (options.cut != 0 && options.cut < ids_.size()) {
    // Cut back: what follows is forgotten, its last token pends.
    ids_.resize(options.cut);
    stored_tokens_ = options.cut;
    stored_kv_len_ = std::min(stored_kv_len_, options.cut);
  }
  sampler_.emplace(options.sampler);
  // What is cut off takes the client state along.
  if (const std::string& saved = answer.begin.client_state(); !saved.empty()) {
    TORPOR_ASSIGN_OR_RETURN(
        sampler_, Sampler::Load(nlohmann::json::parse(saved, nullptr, false)));
  }
  floors_.clear();
  exact_ = true;
  for (const v1::ProvenanceRange& range : state.provenance()) {
    exact_ = exact_ && range.provenance() == v1::PROVENANCE_EXACT;
  }
  if (answer.receipt.has_floor()) {
    floors_.push_back(answer.receipt.floor());
    exact_ = false;
  }
  kv_len_ = resume_at;
  const std::string& logits = answer.window.logits();
  logits_.resize(logits.size() / sizeof(float));
  if (!logits_.empty()) {
    std::memcpy(logits_.data(), logits.data(), logits_.size() * sizeof(float));
  }
  // Cold: everything again. Otherwise only a cut between has left rows to run.
  const SteadyClock::time_point prefill = SteadyClock::now();
  if (kv_len_ + 1 < ids_.size()) {
    report.prefilled_tokens = ids_.size() - 1 - kv_len_;
    TORPOR_RETURN_IF_ERROR(RunPending(1, nullptr));
    report.prefill_us = MicrosecondsSince(prefill);
  }
  if (answer.receipt.mode_used() == v1::REPLAY_MODE_COLD) {
    // These rows are new; none of the stored ones is kept by a suspend.
    stored_tokens_ = stored_kv_len_ = 0;
    exact_ = true;
  }
  report.resume_us = MicrosecondsSince(begin);
  return report;
}

absl::StatusOr<v1::SuspendReceipt> Engine::Sleep(Client* client,
                                                 const std::string& session,
                                                 uint32_t block_size,
                                                 bool with_snapshot) {
  TORPOR_RETURN_IF_ERROR(RunPending(1, nullptr));
  const replay::ModelLayout& layout = model_->layout();
  SuspendCall call;
  v1::BeginSuspendHeader& header = call.header;
  header.set_session(session);
  header.set_expected_version(version_);
  header.set_operation_id(NewOperationId());
  header.set_model(model_name_);
  *header.mutable_fingerprint() = ToProto(model_->fingerprint());
  header.set_numerics_id(model_->numerics_id());
  header.set_tokens_kept(stored_tokens_);
  header.set_kv_len(kv_len_);
  header.set_with_snapshot(with_snapshot);
  header.set_holder(absl::StrFormat("torpor run, pid %d", getpid()));
  const uint64_t rows_kept =
      std::min({stored_tokens_, stored_kv_len_, kv_len_});
  for (const v1::Floor& floor : floors_) *header.add_floors() = floor;
  v1::ProvenanceRange* range = header.add_provenance();
  range->set_begin(rows_kept);
  range->set_end(kv_len_);
  range->set_provenance(exact_ ? v1::PROVENANCE_EXACT
                               : v1::PROVENANCE_APPROXIMATE);
  call.ids = std::span(ids_).subspan(stored_tokens_);
  call.block_size = block_size;
  for (const uint32_t index : layout.CompactSlots()) {
    const replay::Slot& slot = layout.slots[index];
    const auto [begin, end] = replay::RowsOf(slot, rows_kept, kv_len_);
    call.slots.push_back(
        {index, slot.row_bytes, slot.tokens_per_row, begin, end});
  }
  TORPOR_ASSIGN_OR_RETURN(const replay::WindowState window,
                          replay::ExportWindow(layout, *sequence_, kv_len_));
  if (with_snapshot) {
    for (const replay::SlotRows& rows : window.slots) {
      call.snapshot.push_back({rows.slot, layout.slots[rows.slot].row_bytes, 1,
                               rows.first, rows.end});
    }
  }
  call.rows = [&](uint32_t slot, uint64_t begin, uint64_t end,
                  std::span<uint8_t> out) {
    return sequence_->ExportRows(slot, {begin, end}, out);
  };
  call.witness =
      ToProto(replay::MakeWitness(layout, model_->numerics_id(), window));
  call.client_state = sampler_->Save().dump();
  TORPOR_ASSIGN_OR_RETURN(const v1::SuspendReceipt receipt,
                          client->Suspend(call));
  version_ = receipt.version();
  stored_tokens_ = receipt.n_tokens();
  stored_kv_len_ = receipt.kv_len();
  floors_.clear();
  return receipt;
}

}  // namespace torpor::service::cli
