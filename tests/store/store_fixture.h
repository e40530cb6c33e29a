// SPDX-License-Identifier: Apache-2.0
//
// Shared by the store's tests: layouts, row contents that name their place,
// one-call suspends and whole-session comparisons.

#ifndef TORPOR_TESTS_STORE_STORE_FIXTURE_H_
#define TORPOR_TESTS_STORE_STORE_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "store/session_store.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"

namespace torpor::store {

inline SessionKey Key(const std::string& id, uint32_t tenant = 0) {
  return {tenant, id};
}

// Two token slots, one pooled by 2, one pooled by 4; blocks of 16 tokens.
inline RecordLayout SmallLayout() {
  RecordLayout layout;
  layout.fingerprint.fill(0x5a);
  layout.block_size = 16;
  layout.slots = {{24, 1}, {8, 1}, {40, 2}, {16, 4}};
  return layout;
}

// Bytes of one row: they depend on who computed it and on its place, so that a
// row from anywhere else differs.
inline std::vector<uint8_t> RowBytes(uint64_t writer, uint32_t slot,
                                     uint64_t row, uint64_t row_bytes) {
  std::vector<uint8_t> out(row_bytes);
  std::mt19937_64 engine(writer * 1'000'003 + slot * 7919 + row);
  for (uint8_t& b : out) b = static_cast<uint8_t>(engine() >> 24);
  return out;
}

inline std::vector<uint8_t> Rows(uint64_t writer, uint32_t slot, RowRange rows,
                                 uint64_t row_bytes) {
  std::vector<uint8_t> out;
  for (uint64_t row = rows.begin; row < rows.end; ++row) {
    const auto one = RowBytes(writer, slot, row, row_bytes);
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

inline TokenRun Tokens(uint64_t first, uint64_t n, uint32_t salt = 0) {
  TokenRun run;
  for (uint64_t i = 0; i < n; ++i) {
    run.ids.push_back(static_cast<uint32_t>((first + i) * 31 + salt));
  }
  return run;
}

inline RowPiece Piece(uint32_t slot, RowRange rows,
                      std::span<const uint8_t> bytes) {
  return {.slot = slot,
          .row_begin = rows.begin,
          .n_rows = static_cast<uint32_t>(rows.size()),
          .checksum = Xxh3(bytes)};
}

// A spec that continues version `version` at `kept` tokens by `n_new` more.
inline SuspendSpec Spec(const std::string& id, uint64_t version, uint64_t kept,
                        uint64_t n_new, const std::string& operation) {
  SuspendSpec spec;
  spec.session = Key(id);
  spec.expected_version = version;
  spec.operation_id = operation;
  spec.model = "test";
  spec.holder = "holder of " + operation;
  spec.numerics_id = "cpu/test";
  spec.layout = SmallLayout();
  spec.tokens_kept = kept;
  spec.new_tokens = Tokens(kept, n_new);
  spec.kv_len = kept + n_new;
  spec.provenance = {{kept, spec.kv_len, Provenance::kExact}};
  return spec;
}

// Puts every wanted row, a block's worth at a time, slots innermost.
inline absl::Status PutAll(SuspendTicket* ticket, const RecordLayout& layout,
                           uint64_t writer) {
  uint64_t begin = UINT64_MAX;
  uint64_t end = 0;
  for (uint32_t slot = 0; slot < layout.slots.size(); ++slot) {
    const uint64_t per_row = layout.slots[slot].tokens_per_row;
    begin = std::min(begin, ticket->wanted(slot).begin * per_row);
    end = std::max(end, ticket->wanted(slot).end * per_row);
  }
  const uint64_t step = layout.block_size;
  for (uint64_t at = begin / step * step; at < end; at += step) {
    for (uint32_t slot = 0; slot < layout.slots.size(); ++slot) {
      const SlotSpec& spec = layout.slots[slot];
      const RowRange wanted = ticket->wanted(slot);
      RowRange rows{std::max(at / spec.tokens_per_row, wanted.begin),
                    std::min((at + step) / spec.tokens_per_row, wanted.end)};
      if (rows.begin >= rows.end) continue;
      const auto bytes = Rows(writer, slot, rows, spec.row_bytes);
      TORPOR_RETURN_IF_ERROR(ticket->Put(Piece(slot, rows, bytes), bytes));
    }
  }
  return absl::OkStatus();
}

inline absl::StatusOr<SuspendReceipt> Suspend(
    SessionStore* store, SuspendSpec spec, uint64_t writer,
    std::vector<Attachment> attachments = {}) {
  const RecordLayout layout = spec.layout;
  const std::vector<SnapshotSlot> snapshot = spec.snapshot;
  TORPOR_ASSIGN_OR_RETURN(BeginResult begin, store->Begin(std::move(spec)));
  if (begin.receipt.has_value()) return *begin.receipt;
  TORPOR_RETURN_IF_ERROR(PutAll(begin.ticket.get(), layout, writer));
  for (const SnapshotSlot& slot : snapshot) {
    const auto bytes = Rows(writer, 1000 + slot.id, slot.rows, slot.row_bytes);
    RowPiece piece = Piece(slot.id, slot.rows, bytes);
    piece.snapshot = true;
    TORPOR_RETURN_IF_ERROR(begin.ticket->Put(piece, bytes));
  }
  return begin.ticket->Commit(std::move(attachments));
}

// What a session holds, in full.
struct Content {
  TokenRun tokens;
  std::vector<std::vector<uint8_t>> rows;
  std::vector<Floor> floors;
  std::vector<ProvenanceRange> provenance;
  std::vector<std::vector<AttachmentSection>> attachments;

  friend bool operator==(const Content&, const Content&) = default;
};

inline absl::StatusOr<Content> ReadAll(SessionLease* lease,
                                       const RecordLayout& layout) {
  Content content;
  const SessionInfo& info = lease->info();
  TORPOR_ASSIGN_OR_RETURN(content.tokens, lease->ReadTokens(0, info.n_tokens));
  for (uint32_t slot = 0; slot < layout.slots.size(); ++slot) {
    const SlotSpec& spec = layout.slots[slot];
    const RowRange rows{0, RowsOf(spec, info.kv_len)};
    content.rows.emplace_back(rows.size() * spec.row_bytes);
    TORPOR_RETURN_IF_ERROR(lease->ReadRows(slot, rows, content.rows.back()));
  }
  TORPOR_ASSIGN_OR_RETURN(content.floors, lease->Floors(0, UINT64_MAX));
  content.provenance = info.provenance;
  for (const AttachmentKind kind :
       {AttachmentKind::kWitness, AttachmentKind::kClientState}) {
    auto sections = lease->ReadAttachment(kind);
    if (!sections.ok() &&
        sections.status().code() != absl::StatusCode::kNotFound) {
      return sections.status();
    }
    content.attachments.push_back(sections.ok()
                                      ? *std::move(sections)
                                      : std::vector<AttachmentSection>());
  }
  return content;
}

inline absl::StatusOr<Content> ReadAll(SessionStore* store,
                                       const SessionKey& key,
                                       const RecordLayout& layout) {
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<SessionLease> lease,
                          store->Open(key));
  return ReadAll(lease.get(), layout);
}

// Runs maintenance until it has nothing left to do.
inline absl::Status Settle(SessionStore* store) {
  for (;;) {
    TORPOR_ASSIGN_OR_RETURN(const bool more, store->Maintain());
    if (!more) return absl::OkStatus();
  }
}

inline Attachment Bytes(AttachmentKind kind, const std::string& text) {
  return {kind, {{7, {text.begin(), text.end()}}}};
}

}  // namespace torpor::store

#endif  // TORPOR_TESTS_STORE_STORE_FIXTURE_H_
