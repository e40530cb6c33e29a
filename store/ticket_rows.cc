// SPDX-License-Identifier: Apache-2.0
//
// The rows of an LmdbTicket: from pieces into records, and full records to the
// sealers and to the writer.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/hash.h"
#include "base/status.h"
#include "store/lmdb_ticket.h"
#include "store/record.h"
#include "store/record_writer.h"

namespace torpor::store {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(20);

uint64_t PieceBytes(const SectionEntry& section, const RowPiece& piece,
                    RowRange rows) {
  return rows.size() * (section.row_bytes / piece.n_shards);
}

}  // namespace

absl::Status LmdbTicket::CheckAliveLocked() const {
  if (cancelled_) return absl::CancelledError("suspend: cancelled");
  return error_;
}

absl::Status LmdbTicket::CheckPiece(const RowPiece& piece, size_t bytes) const {
  RowRange all;
  uint64_t row_bytes = 0;
  if (piece.snapshot) {
    const auto it = std::find_if(
        spec_.snapshot.begin(), spec_.snapshot.end(),
        [&](const SnapshotSlot& slot) { return slot.id == piece.slot; });
    if (it == spec_.snapshot.end()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "rows of snapshot slot %d: the suspend declared none", piece.slot));
    }
    all = it->rows;
    row_bytes = it->row_bytes;
  } else {
    if (piece.slot >= spec_.layout.slots.size()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("rows of slot %d: the layout has %d slots",
                          piece.slot, spec_.layout.slots.size()));
    }
    all = plan_.wanted[piece.slot];
    row_bytes = spec_.layout.slots[piece.slot].row_bytes;
  }
  // Written so that no lying row number overflows.
  if (piece.n_rows == 0 || piece.row_begin < all.begin ||
      piece.row_begin > all.end || piece.n_rows > all.end - piece.row_begin) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d rows from %d of slot %d: wanted some of [%d, %d)", piece.n_rows,
        piece.row_begin, piece.slot, all.begin, all.end));
  }
  const uint64_t end = piece.row_begin + piece.n_rows;
  if ((piece.n_shards != 1 && piece.n_shards != spec_.n_shards) ||
      piece.shard >= piece.n_shards || row_bytes % piece.n_shards != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "rows of slot %d: got shard %d of %d, wanted a shard of %d that "
        "divides rows of %d bytes",
        piece.slot, piece.shard, piece.n_shards, spec_.n_shards, row_bytes));
  }
  const uint64_t wanted_bytes = piece.n_rows * (row_bytes / piece.n_shards);
  if (bytes != wanted_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "rows [%d, %d) of slot %d shard %d: got %d bytes, wanted %d",
        piece.row_begin, end, piece.slot, piece.shard, bytes, wanted_bytes));
  }
  return absl::OkStatus();
}

std::vector<LmdbTicket::Target> LmdbTicket::Locate(
    const RowPiece& piece) const {
  std::vector<Target> targets;
  size_t i = piece.snapshot ? n_blocks_ : 0;
  const size_t end = piece.snapshot ? n_row_records_ : n_blocks_;
  uint64_t row = piece.row_begin;
  const uint64_t row_end = piece.row_begin + piece.n_rows;
  if (!piece.snapshot && n_blocks_ > 0) {
    const uint64_t token = row * spec_.layout.slots[piece.slot].tokens_per_row;
    i = (token - records_[0]->planned.header.first_pos) /
        spec_.layout.block_size;
  }
  const SectionKind kind =
      piece.snapshot ? SectionKind::kSnapshotRows : SectionKind::kRows;
  for (; i < end && row < row_end; ++i) {
    const auto& sections = records_[i]->planned.header.sections;
    for (size_t s = 0; s < sections.size(); ++s) {
      if (sections[s].kind != kind || sections[s].id != piece.slot) continue;
      const uint64_t to =
          std::min(row_end, sections[s].first_row + sections[s].n_rows);
      if (row >= sections[s].first_row && row < to) {
        targets.push_back({i, s, {row, to}});
        row = to;
      }
    }
  }
  return targets;
}

size_t LmdbTicket::OldestIncompleteLocked() {
  while (oldest_ < n_row_records_ &&
         records_[oldest_]->stage >= Stage::kSealing) {
    ++oldest_;
  }
  return oldest_;
}

absl::Status LmdbTicket::CheckShardsLocked(const RowPiece& piece) {
  const uint32_t n_shards =
      shards_.try_emplace({piece.snapshot, piece.slot}, piece.n_shards)
          .first->second;
  if (n_shards == piece.n_shards) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "rows of slot %d: got a shard of %d, earlier ones were of %d", piece.slot,
      piece.n_shards, n_shards));
}

std::string LmdbTicket::MissingLocked() const {
  constexpr size_t kNamed = 4;
  std::vector<std::string> named;
  for (size_t i = oldest_; i < n_row_records_; ++i) {
    const Record& record = *records_[i];
    if (record.stage >= Stage::kSealing) continue;
    const auto& sections = record.planned.header.sections;
    for (size_t s = 0; s < sections.size(); ++s) {
      const SectionEntry& section = sections[s];
      const bool snapshot = section.kind == SectionKind::kSnapshotRows;
      if (!snapshot && section.kind != SectionKind::kRows) continue;
      RowRange all{section.first_row, section.first_row + section.n_rows};
      if (!snapshot) {
        all.begin =
            std::clamp(plan_.wanted[section.id].begin, all.begin, all.end);
      }
      const auto n = shards_.find({snapshot, section.id});
      const uint32_t n_shards = n == shards_.end() ? 1 : n->second;
      for (uint32_t shard = 0; shard < n_shards; ++shard) {
        const auto it = record.seen.find({s, shard});
        const uint64_t first =
            it == record.seen.end() ? all.begin : it->second.FirstMissing(all);
        if (first >= all.end) continue;
        named.push_back(absl::StrFormat(
            "%sslot %d shard %d of %d rows from %d (block of tokens from %d)",
            snapshot ? "snapshot " : "", section.id, shard, n_shards, first,
            record.planned.header.first_pos));
        if (named.size() == kNamed) return absl::StrJoin(named, ", ");
      }
    }
  }
  return absl::StrJoin(named, ", ");
}

absl::Status LmdbTicket::Activate(size_t i,
                                  const std::function<bool()>& give_up) {
  MutexLock lock(&mu_);
  auto deadline = std::chrono::steady_clock::now() + core_->options.put_timeout;
  size_t oldest = OldestIncompleteLocked();
  for (;;) {
    TORPOR_RETURN_IF_ERROR(CheckAliveLocked());
    Record& record = *records_[i];
    if (record.stage != Stage::kUntouched) return absl::OkStatus();
    const size_t now_oldest = OldestIncompleteLocked();
    if (now_oldest != oldest) {
      oldest = now_oldest;
      deadline = std::chrono::steady_clock::now() + core_->options.put_timeout;
    }
    const uint64_t bytes = record.planned.header.record_bytes;
    const bool too_far = record.bytes_before - records_[oldest]->bytes_before >
                         core_->options.ahead_bytes;
    // What is in flight gives its buffers back by itself: rows may wait for it
    // as long as it takes.
    if (InFlightLocked()) {
      deadline = std::chrono::steady_clock::now() + core_->options.put_timeout;
    }
    if (!too_far) record.buffer = core_->pool.TryAcquire(bytes);
    if (!record.buffer && i == oldest && !InFlightLocked()) {
      // All rows wait for this record: it never waits itself.
      record.buffer = core_->pool.Force(bytes);
    }
    if (record.buffer) {
      record.stage = Stage::kFilling;
      return absl::OkStatus();
    }
    if (give_up && give_up()) return absl::CancelledError("put rows");
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "rows ahead of the oldest incomplete block waited %d ms; missing: %s",
          core_->options.put_timeout.count(), MissingLocked()));
    }
    changed_.WaitUntil(
        &mu_, std::min(deadline, std::chrono::steady_clock::now() + kPoll));
  }
}

absl::Status LmdbTicket::PutTarget(const RowPiece& piece, const Target& target,
                                   std::span<const uint8_t> bytes,
                                   const std::function<bool()>& give_up) {
  Record& record = *records_[target.record];
  const SectionEntry& section = record.planned.header.sections[target.section];
  {
    MutexLock lock(&mu_);
    if (record.stage >= Stage::kSealing) return absl::OkStatus();
  }
  TORPOR_RETURN_IF_ERROR(Activate(target.record, give_up));
  {
    MutexLock lock(&mu_);
    if (record.stage >= Stage::kSealing) return absl::OkStatus();
    switch (record.seen[{target.section, piece.shard}].Add(target.rows)) {
      case RowSet::Added::kNew:
        break;
      case RowSet::Added::kAlready:
        return absl::OkStatus();
      case RowSet::Added::kOverlaps:
        return absl::InvalidArgumentError(absl::StrFormat(
            "rows [%d, %d) of slot %d shard %d: overlap rows that came before; "
            "repeat pieces whole",
            target.rows.begin, target.rows.end, piece.slot, piece.shard));
    }
  }
  const uint64_t shard_bytes = section.row_bytes / piece.n_shards;
  uint8_t* out = record.buffer.span().data() + section.offset +
                 (target.rows.begin - section.first_row) * section.row_bytes +
                 piece.shard * shard_bytes;
  if (piece.n_shards == 1) {
    std::memcpy(out, bytes.data(), bytes.size());
  } else {
    for (uint64_t r = 0; r < target.rows.size(); ++r) {
      std::memcpy(out + r * section.row_bytes, bytes.data() + r * shard_bytes,
                  shard_bytes);
    }
  }
  return RowsArrived(target.record, bytes.size());
}

absl::Status LmdbTicket::Put(const RowPiece& piece,
                             std::span<const uint8_t> bytes,
                             const std::function<bool()>& give_up) {
  TORPOR_RETURN_IF_ERROR(CheckPiece(piece, bytes.size()));
  if (const uint64_t got = Xxh3(bytes); got != piece.checksum) {
    return absl::DataLossError(absl::StrFormat(
        "rows [%d, %d) of slot %d shard %d: have checksum %016x, their sender "
        "says %016x",
        piece.row_begin, piece.row_begin + piece.n_rows, piece.slot,
        piece.shard, got, piece.checksum));
  }
  {
    MutexLock lock(&mu_);
    TORPOR_RETURN_IF_ERROR(CheckAliveLocked());
    if (committing_) {
      return absl::FailedPreconditionError("suspend: committed already");
    }
    TORPOR_RETURN_IF_ERROR(CheckShardsLocked(piece));
    ++puts_running_;
  }
  absl::Status status;
  for (const Target& target : Locate(piece)) {
    const SectionEntry& section =
        records_[target.record]->planned.header.sections[target.section];
    const size_t n = PieceBytes(section, piece, target.rows);
    status = PutTarget(piece, target, bytes.first(n), give_up);
    if (!status.ok()) break;
    bytes = bytes.subspan(n);
  }
  MutexLock lock(&mu_);
  --puts_running_;
  changed_.NotifyAll();
  return status;
}

absl::Status LmdbTicket::RowsArrived(size_t i, uint64_t bytes) {
  bool last = false;
  Record& record = *records_[i];
  {
    MutexLock lock(&mu_);
    record.bytes_missing -= bytes;
    if (record.bytes_missing != 0 || record.stage != Stage::kFilling) {
      return error_;
    }
    // Only the thread that brought the last rows comes here.
    record.stage = Stage::kSealing;
    ++sealing_;
    changed_.NotifyAll();
    last = OldestIncompleteLocked() == n_row_records_;
  }
  const auto seal = [this, i] {
    Seal(records_[i].get());
    Sealed(i);
  };
  // No row is left to receive meanwhile: handing the last block over would cost
  // two wakes and win nothing.
  if (last) {
    seal();
  } else {
    core_->sealers.Post(seal);
  }
  return absl::OkStatus();
}

void LmdbTicket::Sealed(size_t i) {
  MutexLock lock(&mu_);
  Record& record = *records_[i];
  record.stage = Stage::kComplete;
  --sealing_;
  complete_.push_back(i);
  complete_bytes_ += record.planned.header.record_bytes;
  if (complete_bytes_ >= core_->options.publish_bytes) SubmitPayloadLocked();
  changed_.NotifyAll();
}

void LmdbTicket::Seal(Record* record) const {
  RecordHeader& header = record->planned.header;
  const std::span<uint8_t> out = record->buffer.span();
  KeyedHash digest(secret_);
  uint64_t at = header.prefix_bytes();
  for (size_t i = 0; i < header.sections.size(); ++i) {
    SectionEntry& section = header.sections[i];
    // Padding is zeroed: buffers are recycled, and other tenants' rows must
    // not leak to disk.
    std::memset(out.data() + at, 0, section.offset - at);
    const std::span<uint8_t> bytes = out.subspan(section.offset, section.bytes);
    if (i < record->planned.small_sections.size()) {
      const std::string& small = record->planned.small_sections[i];
      std::memcpy(bytes.data(), small.data(), small.size());
    }
    section.checksum = Xxh3(bytes);
    digest.Update(bytes);
    at = section.offset + section.bytes;
  }
  header.payload_digest = digest.Finish();
  const std::string prefix = EncodeRecordPrefix(header);
  std::memcpy(out.data(), prefix.data(), prefix.size());
}

void LmdbTicket::SubmitPayloadLocked() {
  if (complete_.empty()) return;
  std::vector<Record*> batch;
  for (const size_t i : complete_) {
    records_[i]->stage = Stage::kWriting;
    batch.push_back(records_[i].get());
  }
  ++writing_;
  core_->writer.Submit(
      complete_bytes_,
      [batch](WriteTxn& txn) -> absl::Status {
        for (const Record* record : batch) {
          const RecordHeader& h = record->planned.header;
          TORPOR_RETURN_IF_ERROR(
              WriteParts(txn, h.number, record->buffer.span()));
          TORPOR_RETURN_IF_ERROR(
              PutStaged(txn, h.number, {h.tenant, h.record_bytes}));
        }
        return absl::OkStatus();
      },
      [this, batch](const absl::Status& status) {
        uint64_t live = 0;
        MutexLock lock(&mu_);
        for (Record* record : batch) {
          record->buffer.Release();
          if (status.ok()) {
            record->stage = Stage::kWritten;
            live += RecordPageBytes(record->planned.header.record_bytes);
          }
        }
        core_->budget.AddLive(spec_.session.tenant, live, live);
        reserved_ -= live;
        if (!status.ok() && error_.ok()) error_ = status;
        --writing_;
        changed_.NotifyAll();
      });
  complete_.clear();
  complete_bytes_ = 0;
}

}  // namespace torpor::store
