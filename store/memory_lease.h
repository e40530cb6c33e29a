// SPDX-License-Identifier: Apache-2.0
//
// A lease of a MemorySessionStore: a copy of the session as it was.

#ifndef TORPOR_STORE_MEMORY_LEASE_H_
#define TORPOR_STORE_MEMORY_LEASE_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "store/block_id.h"
#include "store/memory_sessions.h"
#include "store/session_store.h"

namespace torpor::store {

class MemoryLease final : public SessionLease {
 public:
  MemoryLease(MemoryCore* core, MemorySession session)
      : core_(core), session_(std::move(session)) {}
  ~MemoryLease() override {
    MutexLock lock(&core_->mu);
    --core_->open_leases;
  }

  const SessionInfo& info() const override { return session_.info; }
  const RecordLayout& layout() const override { return session_.layout; }
  std::vector<Operation> operations() const override {
    return session_.operations;
  }
  absl::StatusOr<std::vector<SnapshotSlot>> SnapshotSlots() override {
    std::vector<SnapshotSlot> slots = session_.snapshot_slots;
    // A slot without rows leaves no trace in a store on disk.
    std::erase_if(slots, [](const auto& s) { return s.rows.size() == 0; });
    return slots;
  }

  absl::StatusOr<TokenRun> ReadTokens(uint64_t begin, uint64_t end) override {
    if (begin > end || end > session_.info.n_tokens) {
      return absl::OutOfRangeError(
          absl::StrFormat("tokens [%d, %d): the session has %d", begin, end,
                          session_.info.n_tokens));
    }
    const auto first = session_.tokens.ids.begin();
    return TokenRun{{first + static_cast<ptrdiff_t>(begin),
                     first + static_cast<ptrdiff_t>(end)},
                    ClipSpans(session_.tokens.spans, begin, end)};
  }

  absl::Status ReadRows(uint32_t slot, RowRange rows,
                        std::span<uint8_t> out) override {
    if (slot >= session_.rows.size()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "slot: got %d, the layout has %d", slot, session_.rows.size()));
    }
    const uint64_t row_bytes = session_.layout.slots[slot].row_bytes;
    return Copy(session_.rows[slot], row_bytes, 0, rows, out);
  }

  absl::Status ReadSnapshot(uint32_t id, RowRange rows,
                            std::span<uint8_t> out) override {
    if (session_.snapshot_slots.empty()) {
      return absl::NotFoundError("stored without a snapshot");
    }
    for (size_t i = 0; i < session_.snapshot_slots.size(); ++i) {
      const SnapshotSlot& slot = session_.snapshot_slots[i];
      if (slot.id != id) continue;
      return Copy(session_.snapshot_rows[i], slot.row_bytes, slot.rows.begin,
                  rows, out);
    }
    return absl::OutOfRangeError(
        absl::StrFormat("snapshot slot %d: not stored", id));
  }

  absl::StatusOr<std::vector<AttachmentSection>> ReadAttachment(
      AttachmentKind kind) override {
    const auto it = session_.attachments.find(kind);
    if (it == session_.attachments.end()) {
      return absl::NotFoundError(
          absl::StrFormat("no attachment of kind %d", static_cast<int>(kind)));
    }
    return it->second;
  }

  absl::StatusOr<std::vector<Floor>> Floors(uint64_t begin,
                                            uint64_t end) override {
    std::vector<Floor> out;
    for (const Floor& floor : session_.floors) {
      if (floor.resume_at >= begin && floor.resume_at < end) {
        out.push_back(floor);
      }
    }
    return out;
  }

 private:
  static absl::Status Copy(const Bytes& bytes, uint64_t row_bytes,
                           uint64_t first_row, RowRange rows,
                           std::span<uint8_t> out) {
    const uint64_t end_row = first_row + bytes.size() / row_bytes;
    if (rows.begin > rows.end || rows.begin < first_row || rows.end > end_row) {
      return absl::OutOfRangeError(
          absl::StrFormat("rows [%d, %d): there are [%d, %d)", rows.begin,
                          rows.end, first_row, end_row));
    }
    if (out.size() != rows.size() * row_bytes) {
      return absl::InvalidArgumentError(
          absl::StrFormat("rows: got a buffer of %d bytes, wanted %d",
                          out.size(), rows.size() * row_bytes));
    }
    const auto from = bytes.begin() + static_cast<ptrdiff_t>(
                                          (rows.begin - first_row) * row_bytes);
    std::copy_n(from, out.size(), out.begin());
    return absl::OkStatus();
  }

  MemoryCore* const core_;
  const MemorySession session_;
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_MEMORY_LEASE_H_
