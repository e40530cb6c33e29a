// SPDX-License-Identifier: Apache-2.0
//
// One suspend in the LMDB store: rows are gathered into records, full records
// go to the writer as staged payload, and Commit publishes them. Internal to
// store/; docs/ARCHITECTURE.md draws the walk.

#ifndef TORPOR_STORE_LMDB_TICKET_H_
#define TORPOR_STORE_LMDB_TICKET_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "store/lmdb_lease.h"
#include "store/row_set.h"
#include "store/store_core.h"
#include "store/suspend_plan.h"

namespace torpor::store {

// Record numbers that a ticket draws for attachments, beyond its planned
// records.
inline constexpr uint64_t kSpareNumbers = 4;

class LmdbTicket final : public SuspendTicket {
 public:
  static absl::StatusOr<BeginResult> Begin(StoreCore* core, SuspendSpec spec);
  ~LmdbTicket() override;

  RowRange wanted(uint32_t slot) const override;
  using SuspendTicket::Put;
  absl::Status Put(const RowPiece& piece, std::span<const uint8_t> bytes,
                   const std::function<bool()>& give_up) override;
  absl::StatusOr<SuspendReceipt> Commit(
      std::vector<Attachment> attachments) override;
  void Cancel() override;

 private:
  enum class Stage {
    kUntouched,
    kFilling,
    // All rows are there; a sealer hashes them.
    kSealing,
    kComplete,
    kWriting,
    kWritten
  };

  // A planned record on its way. `planned` is changed only by the thread that
  // completes the record.
  struct Record {
    PlannedRecord planned;
    Stage stage = Stage::kUntouched;
    BufferPool::Buffer buffer;
    // Row bytes still to come, and rows seen per (section, shard).
    uint64_t bytes_missing = 0;
    std::map<std::pair<size_t, uint32_t>, RowSet> seen;
    // Row bytes of all records before this one.
    uint64_t bytes_before = 0;
  };

  // A run of rows inside one section of one record.
  struct Target {
    size_t record = 0;
    size_t section = 0;
    RowRange rows;
  };

  // What the publishing transaction found; filled anew by each attempt.
  struct Published {
    SessionManifest manifest;
    // Records of ours that the version does not use: equal ones were stored,
    // or an earlier witness stays.
    std::vector<bool> unused;
    uint64_t blocks_shared = 0;
  };

  LmdbTicket(StoreCore* core, SuspendSpec spec)
      : core_(core), spec_(std::move(spec)) {}

  // ---- begin
  absl::StatusOr<SuspendBase> ReadBase(const TenantSecret& secret);
  absl::Status Prepare();

  // ---- put
  absl::Status CheckPiece(const RowPiece& piece, size_t bytes) const;
  [[nodiscard]] std::vector<Target> Locate(const RowPiece& piece) const;
  // Gives record `i` its buffer, waiting where the limits say so.
  absl::Status Activate(size_t i, const std::function<bool()>& give_up)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status PutTarget(const RowPiece& piece, const Target& target,
                         std::span<const uint8_t> bytes,
                         const std::function<bool()>& give_up);
  absl::Status CopyKeptRows();
  // Counts rows; the last of a record sends it to a sealer.
  absl::Status RowsArrived(size_t i, uint64_t bytes);
  void Seal(Record* record) const;
  // Completes a sealed record, and sends payload when enough waits.
  void Sealed(size_t i);
  void SubmitPayloadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Records that a sealer or the writer has: their buffers come back without
  // more rows.
  [[nodiscard]] bool InFlightLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return sealing_ + writing_ > 0;
  }
  size_t OldestIncompleteLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Every piece of a slot is cut into the same number of shards.
  absl::Status CheckShardsLocked(const RowPiece& piece)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Names up to a few missing (slot, shard, rows).
  std::string MissingLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckAliveLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- commit
  absl::Status WaitForRows() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AddAttachments(std::vector<Attachment> attachments);
  absl::Status Publish(WriteTxn& txn, Published* published);
  absl::Status PublishBlocks(WriteTxn& txn, Published* published,
                             RecordNumber* tip);
  absl::Status PublishAttachments(WriteTxn& txn, const SessionManifest* base,
                                  Published* published);
  // Leaves record `i` out of the version.
  absl::Status LeaveOut(WriteTxn& txn, size_t i, Published* published) const;
  SessionManifest NewManifest(const SessionManifest* base) const;
  SuspendReceipt Receipt(const Published& published) const;

  StoreCore* const core_;
  const SuspendSpec spec_;
  TenantSecret secret_{};
  std::unique_ptr<LmdbLease> base_;  // null when the session is created
  RecordNumber parent_ = 0;
  // Pages and blocks of the previous version that stay.
  uint64_t kept_page_bytes_ = 0;
  uint64_t kept_blocks_ = 0;
  SuspendPlan plan_;

  mutable Mutex mu_;
  uint64_t reserved_ ABSL_GUARDED_BY(mu_) = 0;
  CondVar changed_;
  // Blocks, then snapshot records, then (at Commit) attachments. The vector
  // itself does not grow while Put may run.
  std::vector<std::unique_ptr<Record>> records_;
  size_t n_blocks_ = 0;
  // One past the last snapshot record.
  size_t n_row_records_ = 0;
  size_t oldest_ ABSL_GUARDED_BY(mu_) = 0;
  // (snapshot, slot) -> n_shards of its pieces.
  std::map<std::pair<bool, uint32_t>, uint32_t> shards_ ABSL_GUARDED_BY(mu_);
  std::vector<size_t> complete_ ABSL_GUARDED_BY(mu_);
  uint64_t complete_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  size_t sealing_ ABSL_GUARDED_BY(mu_) = 0;
  size_t writing_ ABSL_GUARDED_BY(mu_) = 0;
  size_t puts_running_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool committing_ ABSL_GUARDED_BY(mu_) = false;
  // Attachments of this commit: kind, first and end index into records_.
  struct AttachmentRecords {
    AttachmentKind kind;
    size_t begin;
    size_t end;
    uint64_t bytes;
  };
  std::vector<AttachmentRecords> attachments_;
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_LMDB_TICKET_H_
