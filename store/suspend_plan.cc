// SPDX-License-Identifier: Apache-2.0

#include "store/suspend_plan.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "store/codec.h"
#include "store/manifest.h"

namespace torpor::store {
namespace {

// Snapshot records are filled up to about this, like blocks.
constexpr uint64_t kSnapshotRecordBytes = uint64_t{1} << 20;

void AddSmallSection(SectionKind kind, std::string bytes,
                     PlannedRecord* record) {
  record->header.sections.push_back(
      {.kind = kind, .bytes = bytes.size(), .checksum = Xxh3(AsBytes(bytes))});
  record->small_sections.push_back(std::move(bytes));
}

void AddRowSection(SectionKind kind, uint32_t id, RowRange rows,
                   uint32_t row_bytes, PlannedRecord* record) {
  if (rows.size() == 0) return;
  record->header.sections.push_back(
      {.kind = kind,
       .id = id,
       .first_row = rows.begin,
       .n_rows = static_cast<uint32_t>(rows.size()),
       .row_bytes = row_bytes,
       .bytes = rows.size() * row_bytes});
}

// All tokens from FirstPos on: those kept, then the new ones.
TokenRun JoinTokens(const SuspendSpec& spec, const SuspendBase& base) {
  TokenRun all = base.tokens;
  all.ids.insert(all.ids.end(), spec.new_tokens.ids.begin(),
                 spec.new_tokens.ids.end());
  for (const ExtraKeySpan& span : spec.new_tokens.spans) {
    AppendSpan(span, &all.spans);
  }
  return all;
}

BlockOrigin OriginOf(const SuspendSpec& spec, const SuspendBase& base,
                     uint64_t rows_kept, uint64_t begin, uint64_t end) {
  BlockOrigin origin;
  const uint64_t kept_end = std::clamp(rows_kept, begin, end);
  if (begin < kept_end) {
    origin.provenance =
        ClipProvenance(base.cut_origin.provenance, begin, kept_end);
  }
  for (const ProvenanceRange& range :
       ClipProvenance(spec.provenance, kept_end, end)) {
    AppendProvenance(range, &origin.provenance);
  }
  // A floor stands in the block of its first later row; where that row did not
  // survive, the floor is void.
  for (const Floor& floor : base.cut_origin.floors) {
    if (floor.resume_at >= begin && floor.resume_at < kept_end) {
      origin.floors.push_back(floor);
    }
  }
  for (const Floor& floor : spec.floors) {
    if (floor.resume_at >= kept_end && floor.resume_at < end) {
      origin.floors.push_back(floor);
    }
  }
  return origin;
}

PlannedRecord PlanBlock(const SuspendSpec& spec, const SuspendBase& base,
                        uint64_t rows_kept, const TokenRun& tokens,
                        uint64_t first_pos, uint64_t end, uint64_t n_pending,
                        const Hash256& parent_chain,
                        const TenantSecret& secret) {
  const uint64_t base_pos = FirstPos(spec, base.kv_len);
  PlannedRecord record;
  record.header.kind = RecordKind::kBlock;
  record.header.tenant = spec.session.tenant;
  record.header.first_pos = first_pos;
  record.header.n_tokens = static_cast<uint32_t>(end - first_pos);
  record.header.n_pending = static_cast<uint32_t>(n_pending);
  record.full = record.header.n_tokens == spec.layout.block_size;
  record.parent_chain = parent_chain;
  record.origin = OriginOf(spec, base, rows_kept, first_pos, end);

  const auto ids = std::span(tokens.ids).subspan(first_pos - base_pos);
  const auto with_pending = ids.first(end - first_pos + n_pending);
  AddSmallSection(SectionKind::kTokens, EncodeTokens(with_pending), &record);
  const std::vector<ExtraKeySpan> spans =
      ClipSpans(tokens.spans, first_pos, end + n_pending);
  if (!spans.empty()) {
    AddSmallSection(SectionKind::kSpans, EncodeSpans(spans), &record);
  }
  AddSmallSection(SectionKind::kOrigin, EncodeOrigin(record.origin), &record);
  for (size_t i = 0; i < spec.layout.slots.size(); ++i) {
    const SlotSpec& slot = spec.layout.slots[i];
    AddRowSection(SectionKind::kRows, static_cast<uint32_t>(i),
                  {RowsOf(slot, first_pos), RowsOf(slot, end)}, slot.row_bytes,
                  &record);
  }
  PlaceSections(&record.header);

  TokenRun own;
  own.ids.assign(ids.begin(), ids.begin() + (end - first_pos));
  own.spans = ClipSpans(tokens.spans, first_pos, end);
  record.chain = ChainHash(secret, parent_chain, first_pos, own);
  return record;
}

std::vector<PlannedRecord> PlanBlocks(const SuspendSpec& spec,
                                      const SuspendBase& base,
                                      uint64_t rows_kept, uint64_t n_tokens,
                                      const TenantSecret& secret) {
  std::vector<PlannedRecord> blocks;
  const bool unchanged = rows_kept == base.kv_len && spec.kv_len == rows_kept &&
                         spec.tokens_kept == base.n_tokens &&
                         spec.new_tokens.ids.empty();
  if (unchanged) return blocks;
  const TokenRun tokens = JoinTokens(spec, base);
  const uint64_t block_size = spec.layout.block_size;
  Hash256 parent_chain = base.parent_chain;
  uint64_t pos = FirstPos(spec, base.kv_len);
  while (pos < spec.kv_len || (pos == spec.kv_len && pos < n_tokens)) {
    const uint64_t end = std::min(pos + block_size, spec.kv_len);
    const bool last = end == spec.kv_len && end - pos < block_size;
    const uint64_t n_pending = last ? n_tokens - spec.kv_len : 0;
    blocks.push_back(PlanBlock(spec, base, rows_kept, tokens, pos, end,
                               n_pending, parent_chain, secret));
    parent_chain = blocks.back().chain;
    if (last) break;
    pos = end;
  }
  return blocks;
}

std::vector<PlannedRecord> PlanSnapshots(const SuspendSpec& spec) {
  std::vector<PlannedRecord> records;
  const auto open = [&] {
    records.emplace_back();
    records.back().header.kind = RecordKind::kAttachment;
    records.back().header.tenant = spec.session.tenant;
  };
  uint64_t room = 0;
  for (const SnapshotSlot& slot : spec.snapshot) {
    uint64_t row = slot.rows.begin;
    while (row < slot.rows.end) {
      if (room < slot.row_bytes || records.empty()) {
        open();
        room = std::max<uint64_t>(kSnapshotRecordBytes, slot.row_bytes);
      }
      const uint64_t n = std::min(slot.rows.end - row, room / slot.row_bytes);
      AddRowSection(SectionKind::kSnapshotRows, slot.id, {row, row + n},
                    slot.row_bytes, &records.back());
      row += n;
      room -= n * slot.row_bytes;
    }
  }
  for (PlannedRecord& record : records) PlaceSections(&record.header);
  return records;
}

}  // namespace

uint64_t RowsKept(const SuspendSpec& spec, uint64_t base_kv_len) {
  return std::min({spec.tokens_kept, base_kv_len, spec.kv_len});
}

uint64_t FirstPos(const SuspendSpec& spec, uint64_t base_kv_len) {
  const uint64_t block_size = spec.layout.block_size;
  return RowsKept(spec, base_kv_len) / block_size * block_size;
}

uint64_t SuspendPlan::page_bytes() const {
  uint64_t total = 0;
  for (const auto* records : {&blocks, &snapshots}) {
    for (const PlannedRecord& record : *records) {
      total += RecordPageBytes(record.header.record_bytes);
    }
  }
  return total;
}

SuspendPlan PlanSuspend(const SuspendSpec& spec, const SuspendBase& base,
                        const TenantSecret& secret) {
  SuspendPlan plan;
  plan.rows_kept = RowsKept(spec, base.kv_len);
  plan.n_tokens = spec.tokens_kept + spec.new_tokens.ids.size();
  plan.blocks = PlanBlocks(spec, base, plan.rows_kept, plan.n_tokens, secret);
  plan.snapshots = PlanSnapshots(spec);
  const uint64_t first_pos = FirstPos(spec, base.kv_len);
  for (const SlotSpec& slot : spec.layout.slots) {
    const uint64_t kept = RowsOf(slot, plan.rows_kept);
    plan.wanted.push_back({kept, RowsOf(slot, spec.kv_len)});
    plan.copied.push_back(plan.blocks.empty()
                              ? RowRange{kept, kept}
                              : RowRange{RowsOf(slot, first_pos), kept});
    plan.wanted_bytes += plan.wanted.back().size() * slot.row_bytes;
    plan.copied_bytes += plan.copied.back().size() * slot.row_bytes;
  }
  for (const PlannedRecord& record : plan.blocks) {
    plan.token_bytes +=
        uint64_t{4} * (record.header.n_tokens + record.header.n_pending);
  }
  for (const SnapshotSlot& slot : spec.snapshot) {
    plan.snapshot_bytes += slot.rows.size() * slot.row_bytes;
  }
  return plan;
}

}  // namespace torpor::store
