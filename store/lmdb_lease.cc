// SPDX-License-Identifier: Apache-2.0

#include "store/lmdb_lease.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"
#include "store/record.h"

namespace torpor::store {
namespace {

// Decoded directories that a lease keeps: slot-major reads come back to each
// block once per slot.
constexpr size_t kHeaderCacheBytes = size_t{16} << 20;

// How far in front of a reader the disk is kept busy. Without hints every page
// of a cold record is a fault of its own: the map has no readahead of LMDB's or
// the kernel's (MDB_NORDAHEAD), which hints beat by 1.5 to 4 times.
constexpr uint64_t kReadAheadBytes = uint64_t{8} << 20;
// Header, directory and token ids of most records.
constexpr uint64_t kPrefixHintBytes = uint64_t{8} << 10;

}  // namespace

absl::StatusOr<std::unique_ptr<LmdbLease>> LmdbLease::OfSession(
    StoreCore* core, const SessionKey& session, uint64_t version) {
  TORPOR_RETURN_IF_ERROR(ValidateSession(session));
  std::unique_ptr<LmdbLease> lease(new LmdbLease(core));
  {
    MutexLock lock(&core->pins.mu());
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            core->env->BeginRead());
    TORPOR_ASSIGN_OR_RETURN(lease->manifest_, FindSession(*txn, session));
    if (!lease->manifest_.has_value() || core->Expired(*lease->manifest_)) {
      return absl::NotFoundError(
          absl::StrFormat("session '%s': unknown", session.id));
    }
    const SessionManifest& manifest = *lease->manifest_;
    if (version != 0) {
      TORPOR_RETURN_IF_ERROR(RequireVersion(*txn, session, version).status());
    }
    core->pins.PinLocked(manifest.tip);
    lease->pinned_.push_back(manifest.tip);
    for (const AttachmentRef& a : manifest.attachments) {
      core->pins.PinLocked(a.record);
      lease->pinned_.push_back(a.record);
    }
  }
  core->open_leases.fetch_add(1);
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                          core->env->BeginRead());
  TORPOR_ASSIGN_OR_RETURN(lease->info_,
                          core->InfoOf(*txn, session, *lease->manifest_));
  TORPOR_ASSIGN_OR_RETURN(const std::optional<RecordLayout> layout,
                          FindLayout(*txn, lease->manifest_->fingerprint));
  lease->layout_ = *layout;
  TORPOR_RETURN_IF_ERROR(lease->TakeChain(*txn, lease->manifest_->tip));
  if (lease->info_.session_class == SessionClass::kCache) {
    core->last_use.Set(session, core->Now());
  }
  return lease;
}

absl::StatusOr<std::unique_ptr<LmdbLease>> LmdbLease::OfChain(
    StoreCore* core, const RecordLayout& layout, RecordNumber tip,
    uint64_t hit_len) {
  std::unique_ptr<LmdbLease> lease(new LmdbLease(core));
  lease->layout_ = layout;
  {
    MutexLock lock(&core->pins.mu());
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            core->env->BeginRead());
    const absl::StatusOr<RecordEntry> entry = FindRecord(*txn, tip);
    // What no session reaches is the reaper's already.
    if (!entry.ok() || entry->live == 0) return std::unique_ptr<LmdbLease>();
    core->pins.PinLocked(tip);
    lease->pinned_.push_back(tip);
  }
  core->open_leases.fetch_add(1);
  lease->info_.fingerprint = layout.fingerprint;
  lease->info_.n_tokens = lease->info_.kv_len = lease->info_.usable_len =
      hit_len;
  lease->info_.token_bytes = uint64_t{4} * hit_len;
  for (const SlotSpec& slot : layout.slots) {
    lease->info_.compact_bytes += RowsOf(slot, hit_len) * slot.row_bytes;
  }
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                          core->env->BeginRead());
  TORPOR_RETURN_IF_ERROR(lease->TakeChain(*txn, tip));
  lease->info_.n_blocks = lease->links_.size();
  for (const ChainLink& link : lease->links_) {
    lease->info_.stored_bytes += StoredBytes(link.record_bytes);
    TORPOR_ASSIGN_OR_RETURN(const BlockOrigin origin, lease->ReadOrigin(link));
    for (const ProvenanceRange& range :
         ClipProvenance(origin.provenance, link.first_pos,
                        std::min(link.end_pos(), hit_len))) {
      AppendProvenance(range, &lease->info_.provenance);
    }
  }
  return lease;
}

LmdbLease::~LmdbLease() {
  if (pinned_.empty()) return;
  core_->pins.Unpin(pinned_);
  core_->open_leases.fetch_sub(1);
}

absl::Status LmdbLease::TakeChain(const ReadView& view, RecordNumber tip) {
  TORPOR_ASSIGN_OR_RETURN(links_, WalkChain(view, tip));
  uint64_t pos = 0;
  for (const ChainLink& link : links_) {
    if (link.first_pos != pos) {
      return absl::DataLossError(
          absl::StrFormat("record %d: begins at token %d, wanted %d",
                          link.number, link.first_pos, pos));
    }
    pos = link.end_pos();
    if (link.quarantined) {
      info_.usable_len = std::min(info_.usable_len, link.first_pos);
    }
  }
  HintPrefixes();
  if (pos < info_.kv_len) {
    return absl::DataLossError(absl::StrFormat(
        "chain of record %d: ends at token %d, wanted at least %d", tip, pos,
        info_.kv_len));
  }
  return absl::OkStatus();
}

std::vector<ChainLink>::const_iterator LmdbLease::FirstLink(
    uint64_t token) const {
  return std::partition_point(links_.begin(), links_.end(),
                              [&](const ChainLink& link) {
                                return link.end_pos() + link.n_pending <= token;
                              });
}

std::vector<ChainLink> LmdbLease::Overlapping(uint64_t begin,
                                              uint64_t end) const {
  std::vector<ChainLink> out;
  auto it = FirstLink(begin);
  for (; it != links_.end() && it->first_pos < end; ++it) out.push_back(*it);
  return out;
}

absl::StatusOr<std::shared_ptr<const RecordHeader>> LmdbLease::Header(
    RecordNumber number) {
  {
    MutexLock lock(&mu_);
    const auto it = headers_.find(number);
    if (it != headers_.end()) return it->second;
  }
  absl::StatusOr<RecordHeader> read = core_->reader.ReadHeader(number);
  if (!read.ok()) return core_->Quarantine(number, read.status());
  auto header = std::make_shared<const RecordHeader>(*std::move(read));
  MutexLock lock(&mu_);
  if (header_bytes_ > kHeaderCacheBytes) {
    headers_.clear();
    header_bytes_ = 0;
  }
  header_bytes_ += header->prefix_bytes();
  headers_[number] = header;
  return header;
}

absl::StatusOr<std::vector<uint8_t>> LmdbLease::ReadWhole(
    const RecordHeader& header, const SectionEntry& section) {
  auto bytes = core_->reader.ReadSection(header, section);
  if (!bytes.ok()) return core_->Quarantine(header.number, bytes.status());
  return bytes;
}

absl::Status LmdbLease::ReadSectionRows(const RecordHeader& header,
                                        const SectionEntry& section,
                                        RowRange rows, std::span<uint8_t> out) {
  absl::Status status;
  if (rows.size() == section.n_rows) {
    status = core_->reader.ReadSection(header, section, out);
  } else {
    // The checksum covers the section: verify all of it, hand out a part.
    const BufferPool::Buffer whole = core_->pool.Force(section.bytes);
    status = core_->reader.ReadSection(header, section, whole.span());
    if (status.ok()) {
      std::memcpy(out.data(),
                  whole.span().data() +
                      (rows.begin - section.first_row) * section.row_bytes,
                  out.size());
    }
  }
  return status.ok() ? status : core_->Quarantine(header.number, status);
}

absl::StatusOr<TokenRun> LmdbLease::ReadTokens(uint64_t begin, uint64_t end) {
  if (begin > end || end > info_.n_tokens) {
    return absl::OutOfRangeError(absl::StrFormat(
        "tokens [%d, %d): the session has %d", begin, end, info_.n_tokens));
  }
  TokenRun out;
  out.ids.reserve(end - begin);
  for (const ChainLink& link : Overlapping(begin, end)) {
    TORPOR_ASSIGN_OR_RETURN(const auto header, Header(link.number));
    const SectionEntry* tokens = header->Find(SectionKind::kTokens, 0);
    if (tokens == nullptr ||
        tokens->bytes != uint64_t{4} * (link.n_tokens + link.n_pending)) {
      return core_->Quarantine(
          link.number, absl::DataLossError(absl::StrFormat(
                           "record %d: its tokens do not fit its index entry",
                           link.number)));
    }
    TORPOR_ASSIGN_OR_RETURN(const auto bytes, ReadWhole(*header, *tokens));
    const std::vector<uint32_t> ids = DecodeTokens(bytes);
    const uint64_t from = std::max(begin, link.first_pos);
    const uint64_t to = std::min(end, link.first_pos + ids.size());
    if (from >= to) continue;
    const std::span part =
        std::span(ids).subspan(from - link.first_pos, to - from);
    out.ids.insert(out.ids.end(), part.begin(), part.end());
    if (const SectionEntry* s = header->Find(SectionKind::kSpans, 0)) {
      TORPOR_ASSIGN_OR_RETURN(const auto span_bytes, ReadWhole(*header, *s));
      TORPOR_ASSIGN_OR_RETURN(const std::vector<ExtraKeySpan> spans,
                              DecodeSpans(span_bytes));
      // A span that crosses a block edge was cut there: joined again.
      for (const ExtraKeySpan& span : ClipSpans(spans, from, to)) {
        AppendSpan(span, &out.spans);
      }
    }
  }
  if (out.ids.size() != end - begin) {
    return absl::DataLossError(absl::StrFormat("tokens [%d, %d): %d are stored",
                                               begin, end, out.ids.size()));
  }
  return out;
}

absl::Status LmdbLease::ReadRows(uint32_t slot, RowRange rows,
                                 std::span<uint8_t> out) {
  return ReadVerified(slot, rows, out).status();
}

absl::StatusOr<uint64_t> LmdbLease::ReadRowsAndHash(uint32_t slot,
                                                    RowRange rows,
                                                    std::span<uint8_t> out) {
  TORPOR_ASSIGN_OR_RETURN(const std::optional<uint64_t> known,
                          ReadVerified(slot, rows, out));
  return known.has_value() ? *known : Xxh3(out);
}

absl::StatusOr<std::optional<uint64_t>> LmdbLease::ReadVerified(
    uint32_t slot, RowRange rows, std::span<uint8_t> out) {
  if (slot >= layout_.slots.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "slot: got %d, the layout has %d", slot, layout_.slots.size()));
  }
  const SlotSpec& spec = layout_.slots[slot];
  const uint64_t n_rows = RowsOf(spec, info_.kv_len);
  if (rows.begin > rows.end || rows.end > n_rows) {
    return absl::OutOfRangeError(
        absl::StrFormat("slot %d rows [%d, %d): the session has %d", slot,
                        rows.begin, rows.end, n_rows));
  }
  if (out.size() != rows.size() * spec.row_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "slot %d rows [%d, %d): got a buffer of %d bytes, wanted %d", slot,
        rows.begin, rows.end, out.size(), rows.size() * spec.row_bytes));
  }
  const uint64_t first_token = rows.begin * spec.tokens_per_row;
  const uint64_t end_token = rows.end * spec.tokens_per_row;
  std::optional<uint64_t> known;
  uint64_t row = rows.begin;
  for (const ChainLink& link : Overlapping(first_token, end_token)) {
    if (row == rows.end) break;
    if (link.quarantined) {
      return absl::DataLossError(absl::StrFormat(
          "record %d (tokens from %d): quarantined after damage", link.number,
          link.first_pos));
    }
    HintSections(slot, link.first_pos);
    TORPOR_ASSIGN_OR_RETURN(const auto header, Header(link.number));
    const SectionEntry* section = header->Find(SectionKind::kRows, slot);
    if (section == nullptr) continue;
    if (section->row_bytes != spec.row_bytes || row < section->first_row) {
      return core_->Quarantine(
          link.number,
          absl::DataLossError(absl::StrFormat(
              "record %d slot %d: rows of %d bytes from row %d, wanted %d "
              "bytes from row %d",
              link.number, slot, section->row_bytes, section->first_row,
              spec.row_bytes, row)));
    }
    const uint64_t to =
        std::min(rows.end, section->first_row + section->n_rows);
    if (row >= to) continue;
    const auto part = out.subspan((row - rows.begin) * spec.row_bytes,
                                  (to - row) * spec.row_bytes);
    TORPOR_RETURN_IF_ERROR(ReadSectionRows(*header, *section, {row, to}, part));
    if (part.size() == out.size() && to - row == section->n_rows) {
      known = section->checksum;
    }
    row = to;
  }
  if (row != rows.end) {
    return absl::DataLossError(
        absl::StrFormat("slot %d rows [%d, %d): rows from %d on are not stored",
                        slot, rows.begin, rows.end, row));
  }
  return known;
}

absl::StatusOr<std::vector<ChainLink>> LmdbLease::AttachmentLinks(
    AttachmentKind kind) {
  const AttachmentRef* ref =
      manifest_.has_value() ? manifest_->Find(kind) : nullptr;
  if (ref == nullptr) return std::vector<ChainLink>();
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                          core_->env->BeginRead());
  return WalkChain(*txn, ref->record);
}

absl::Status LmdbLease::ReadSnapshot(uint32_t id, RowRange rows,
                                     std::span<uint8_t> out) {
  TORPOR_ASSIGN_OR_RETURN(const std::vector<ChainLink> links,
                          AttachmentLinks(AttachmentKind::kSnapshot));
  if (links.empty()) {
    return absl::NotFoundError(absl::StrFormat(
        "session '%s': stored without a snapshot", info_.key.id));
  }
  uint64_t row = rows.begin;
  bool found = false;
  for (const ChainLink& link : links) {
    TORPOR_ASSIGN_OR_RETURN(const auto header, Header(link.number));
    const SectionEntry* section = header->Find(SectionKind::kSnapshotRows, id);
    found = found || section != nullptr;
    if (section == nullptr || row == rows.end) continue;
    const uint64_t end = section->first_row + section->n_rows;
    const uint64_t to = std::min(rows.end, end);
    if (row < section->first_row || row >= end) continue;
    if (out.size() != rows.size() * section->row_bytes) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "snapshot slot %d rows [%d, %d): got a buffer of %d bytes, wanted "
          "%d",
          id, rows.begin, rows.end, out.size(),
          rows.size() * section->row_bytes));
    }
    const auto part = out.subspan((row - rows.begin) * section->row_bytes,
                                  (to - row) * section->row_bytes);
    TORPOR_RETURN_IF_ERROR(ReadSectionRows(*header, *section, {row, to}, part));
    row = to;
  }
  if (row != rows.end || !found) {
    return absl::OutOfRangeError(absl::StrFormat(
        "snapshot slot %d rows [%d, %d): rows from %d on are not stored", id,
        rows.begin, rows.end, row));
  }
  return absl::OkStatus();
}

std::vector<Operation> LmdbLease::operations() const {
  return manifest_.has_value() ? manifest_->operations
                               : std::vector<Operation>();
}

absl::StatusOr<std::vector<SnapshotSlot>> LmdbLease::SnapshotSlots() {
  TORPOR_ASSIGN_OR_RETURN(const std::vector<ChainLink> links,
                          AttachmentLinks(AttachmentKind::kSnapshot));
  // A slot may be spread over several records, in row order.
  std::vector<SnapshotSlot> slots;
  for (const ChainLink& link : links) {
    TORPOR_ASSIGN_OR_RETURN(const auto header, Header(link.number));
    for (const SectionEntry& section : header->sections) {
      if (section.kind != SectionKind::kSnapshotRows) continue;
      const uint64_t end = section.first_row + section.n_rows;
      if (!slots.empty() && slots.back().id == section.id) {
        slots.back().rows.end = end;
      } else {
        slots.push_back(
            {section.id, section.row_bytes, {section.first_row, end}});
      }
    }
  }
  return slots;
}

absl::StatusOr<std::vector<AttachmentSection>> LmdbLease::ReadAttachment(
    AttachmentKind kind) {
  TORPOR_ASSIGN_OR_RETURN(const std::vector<ChainLink> links,
                          AttachmentLinks(kind));
  if (links.empty()) {
    return absl::NotFoundError(
        absl::StrFormat("session '%s': has no attachment of kind %d",
                        info_.key.id, static_cast<int>(kind)));
  }
  std::vector<AttachmentSection> sections;
  for (const ChainLink& link : links) {
    TORPOR_ASSIGN_OR_RETURN(const auto header, Header(link.number));
    for (const SectionEntry& section : header->sections) {
      if (section.kind != SectionKind::kAttachment) continue;
      TORPOR_ASSIGN_OR_RETURN(std::vector<uint8_t> bytes,
                              ReadWhole(*header, section));
      sections.push_back({section.id, std::move(bytes)});
    }
  }
  return sections;
}

absl::StatusOr<BlockOrigin> LmdbLease::ReadOrigin(const ChainLink& link) {
  TORPOR_ASSIGN_OR_RETURN(const auto header, Header(link.number));
  const SectionEntry* section = header->Find(SectionKind::kOrigin, 0);
  if (section == nullptr) {
    return core_->Quarantine(
        link.number, absl::DataLossError(absl::StrFormat(
                         "record %d: has no origin section", link.number)));
  }
  TORPOR_ASSIGN_OR_RETURN(const auto bytes, ReadWhole(*header, *section));
  return DecodeOrigin(bytes);
}

absl::StatusOr<std::vector<Floor>> LmdbLease::Floors(uint64_t begin,
                                                     uint64_t end) {
  std::vector<Floor> floors;
  for (const ChainLink& link :
       Overlapping(begin, std::min(end, info_.kv_len))) {
    TORPOR_ASSIGN_OR_RETURN(const BlockOrigin origin, ReadOrigin(link));
    for (const Floor& floor : origin.floors) {
      // A rewind voids floors whose later rows it cut off.
      if (floor.resume_at >= begin && floor.resume_at < end &&
          floor.resume_at < info_.kv_len) {
        floors.push_back(floor);
      }
    }
  }
  return floors;
}

absl::Status LmdbLease::CheckCut(uint64_t at) {
  if (at > info_.n_tokens) {
    return absl::OutOfRangeError(
        absl::StrFormat("cut at %d: session '%s' has %d tokens", at,
                        info_.key.id, info_.n_tokens));
  }
  if (at == 0) return absl::OkStatus();
  TORPOR_ASSIGN_OR_RETURN(const TokenRun last, ReadTokens(at - 1, at));
  return ValidateCut(last.spans, at);
}

void LmdbLease::HintPrefixes() {
  for (const ChainLink& link : links_) {
    core_->reader.WillNeed(
        link.number, 0,
        std::min<uint64_t>(link.record_bytes, kPrefixHintBytes));
  }
}

void LmdbLease::HintSections(uint32_t slot, uint64_t first_token) {
  std::vector<size_t> wanted;
  {
    MutexLock lock(&mu_);
    if (hinted_.empty()) hinted_.resize(layout_.slots.size());
    // Sections of a slot are hinted once a lease, in runs of at least half the
    // distance.
    size_t& hinted = hinted_[slot];
    uint64_t ahead = 0;
    for (auto it = FirstLink(first_token); it != links_.end(); ++it) {
      const auto index = static_cast<size_t>(it - links_.begin());
      const uint64_t rows = RowsOf(layout_.slots[slot], it->n_tokens);
      ahead += rows * layout_.slots[slot].row_bytes;
      if (ahead > kReadAheadBytes) break;
      if (index < hinted) {
        if (ahead > kReadAheadBytes / 2) return;
        continue;
      }
      hinted = index + 1;
      wanted.push_back(index);
    }
  }
  for (const size_t index : wanted) {
    if (Resident(index)) continue;
    const RecordNumber number = links_[index].number;
    const auto header = Header(number);
    if (!header.ok()) continue;  // The read itself will say so.
    const SectionEntry* section = (*header)->Find(SectionKind::kRows, slot);
    if (section == nullptr) continue;
    core_->reader.WillNeed(number, section->offset,
                           section->offset + section->bytes);
  }
}

bool LmdbLease::Resident(size_t index) {
  {
    MutexLock lock(&mu_);
    if (resident_.empty()) resident_.resize(links_.size());
    if (resident_[index].has_value()) return *resident_[index];
  }
  const bool resident =
      core_->reader.Resident(links_[index].number, links_[index].record_bytes);
  MutexLock lock(&mu_);
  resident_[index] = resident;
  return resident;
}

}  // namespace torpor::store
