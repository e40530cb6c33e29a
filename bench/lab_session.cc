// SPDX-License-Identifier: Apache-2.0

#include "bench/lab_session.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::bench {

absl::StatusOr<std::unique_ptr<KeptRows>> KeptRows::Of(
    const replay::ModelLayout& layout, const replay::Sequence& sequence,
    uint64_t n_tokens) {
  auto out = std::make_unique<KeptRows>();
  out->slots_.resize(layout.slots.size());
  for (const uint32_t index : layout.CompactSlots()) {
    const replay::Slot& slot = layout.slots[index];
    SlotBytes& kept = out->slots_[index];
    kept.row_bytes = slot.row_bytes;
    const uint64_t n = n_tokens / slot.tokens_per_row;
    kept.bytes.resize(n * slot.row_bytes);
    TORPOR_RETURN_IF_ERROR(
        sequence.ExportRows(index, {0, n}, std::span(kept.bytes)));
  }
  return out;
}

absl::Status KeptRows::ReadRows(uint32_t slot, replay::Rows rows,
                                std::span<uint8_t> out) {
  const SlotBytes& kept = slots_[slot];
  std::memcpy(out.data(), kept.bytes.data() + rows.begin * kept.row_bytes,
              out.size());
  return absl::OkStatus();
}

std::span<const uint8_t> KeptRows::Row(uint32_t slot, uint64_t row) const {
  const SlotBytes& kept = slots_[slot];
  return std::span(kept.bytes).subspan(row * kept.row_bytes, kept.row_bytes);
}

uint64_t KeptRows::n_rows(uint32_t slot) const {
  const SlotBytes& kept = slots_[slot];
  return kept.row_bytes == 0 ? 0 : kept.bytes.size() / kept.row_bytes;
}

absl::StatusOr<LabSession> LabSession::Wake(replay::Model* model,
                                            std::span<const uint32_t> text,
                                            KeptRows* rows,
                                            const replay::WindowState& window) {
  if (text.size() < window.resume_at) {
    return absl::InvalidArgumentError(
        absl::StrFormat("wake at %d: got the ids of %d tokens, wanted all that "
                        "stand before it",
                        window.resume_at, text.size()));
  }
  LabSession session(model);
  TORPOR_RETURN_IF_ERROR(
      replay::LoadCompactRows(model->layout(), window.resume_at, rows,
                              session.sequence_.get(), nullptr)
          .status());
  TORPOR_RETURN_IF_ERROR(replay::ImportWindow(window, session.sequence_.get()));
  const std::span<const uint32_t> before = text.first(window.resume_at);
  session.ids_.assign(before.begin(), before.end());
  return session;
}

absl::StatusOr<std::vector<float>> LabSession::Run(
    std::span<const uint32_t> text, uint64_t end, uint64_t logits_begin) {
  const uint64_t begin = at();
  const std::span<const uint32_t> more = text.subspan(begin, end - begin);
  ids_.insert(ids_.end(), more.begin(), more.end());
  replay::Segment segment =
      replay::SegmentOf(sequence_.get(), ids_, begin, end);
  segment.logits_begin = logits_begin;
  return replay::RunTokens(model_, segment, 0, {});
}

replay::Segment LabSession::Step(uint32_t token) {
  ids_.push_back(token);
  replay::Segment segment =
      replay::SegmentOf(sequence_.get(), ids_, at() - 1, at());
  segment.logits_begin = segment.begin;
  return segment;
}

absl::StatusOr<Asleep> LabSession::Suspend() const {
  Asleep out;
  out.at = at();
  TORPOR_ASSIGN_OR_RETURN(out.rows,
                          KeptRows::Of(model_->layout(), *sequence_, at()));
  TORPOR_ASSIGN_OR_RETURN(
      out.window, replay::ExportWindow(model_->layout(), *sequence_, at()));
  return out;
}

absl::StatusOr<replay::WindowState> Rebuild(replay::Model* model,
                                            const replay::ReplayPlan& plan,
                                            std::span<const uint32_t> text,
                                            KeptRows* rows) {
  const std::unique_ptr<replay::Replayer> replayer =
      replay::MakeReplayer(model);
  const replay::ReplayJob job{
      .plan = &plan, .ids = text.first(plan.resume_at), .reader = rows};
  TORPOR_ASSIGN_OR_RETURN(
      std::vector<replay::ReplayResult> results,
      replayer->Rebuild(std::span(&job, 1), [] { return false; }));
  return std::move(results.front().window);
}

}  // namespace torpor::bench
