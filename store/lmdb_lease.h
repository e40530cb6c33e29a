// SPDX-License-Identifier: Apache-2.0
//
// A pinned view of a chain of records. Internal to store/.

#ifndef TORPOR_STORE_LMDB_LEASE_H_
#define TORPOR_STORE_LMDB_LEASE_H_

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "store/session_store.h"
#include "store/store_core.h"

namespace torpor::store {

class LmdbLease final : public SessionLease {
 public:
  // Pins the current version of a session. `version` 0 = whatever is current.
  static absl::StatusOr<std::unique_ptr<LmdbLease>> OfSession(
      StoreCore* core, const SessionKey& session, uint64_t version);
  // Pins the first `hit_len` tokens of a chain that a lookup found. Null when
  // the record is being freed.
  static absl::StatusOr<std::unique_ptr<LmdbLease>> OfChain(
      StoreCore* core, const RecordLayout& layout, RecordNumber tip,
      uint64_t hit_len);
  ~LmdbLease() override;

  const SessionInfo& info() const override { return info_; }
  const RecordLayout& layout() const override { return layout_; }
  std::vector<Operation> operations() const override;
  absl::StatusOr<TokenRun> ReadTokens(uint64_t begin, uint64_t end) override;
  absl::Status ReadRows(uint32_t slot, RowRange rows,
                        std::span<uint8_t> out) override;
  absl::StatusOr<uint64_t> ReadRowsAndHash(uint32_t slot, RowRange rows,
                                           std::span<uint8_t> out) override;
  absl::Status ReadSnapshot(uint32_t id, RowRange rows,
                            std::span<uint8_t> out) override;
  absl::StatusOr<std::vector<SnapshotSlot>> SnapshotSlots() override;
  absl::StatusOr<std::vector<AttachmentSection>> ReadAttachment(
      AttachmentKind kind) override;
  absl::StatusOr<std::vector<Floor>> Floors(uint64_t begin,
                                            uint64_t end) override;

  // For the suspend that builds on this version.
  [[nodiscard]] const std::vector<ChainLink>& links() const { return links_; }
  [[nodiscard]] const std::optional<SessionManifest>& manifest() const {
    return manifest_;
  }
  // kOutOfRange beyond the tokens, kInvalidArgument inside a bidirectional
  // span.
  absl::Status CheckCut(uint64_t at);
  // Provenance and floors of one of its records.
  absl::StatusOr<BlockOrigin> ReadOrigin(const ChainLink& link);

 private:
  // ReadRows; with the checksum that was verified when `out` is one section.
  absl::StatusOr<std::optional<uint64_t>> ReadVerified(uint32_t slot,
                                                       RowRange rows,
                                                       std::span<uint8_t> out);
  explicit LmdbLease(StoreCore* core) : core_(core) {}

  // Fills links_ and usable_len from the chain that ends at `tip`.
  absl::Status TakeChain(const ReadView& view, RecordNumber tip);
  // The first link whose tokens, pending ones included, end after `token`.
  [[nodiscard]] std::vector<ChainLink>::const_iterator FirstLink(
      uint64_t token) const;
  // Links whose tokens, pending ones included, overlap [begin, end).
  [[nodiscard]] std::vector<ChainLink> Overlapping(uint64_t begin,
                                                   uint64_t end) const;
  // Asks the disk for the directories of all records, and for the sections of
  // a slot from `first_token` on, a bounded way ahead.
  void HintPrefixes();
  void HintSections(uint32_t slot, uint64_t first_token);
  // Whether the record of links_[index] was in memory when it was first wanted.
  bool Resident(size_t index);
  absl::StatusOr<std::shared_ptr<const RecordHeader>> Header(
      RecordNumber number);
  // The wanted part of one section into `out`; damage is quarantined.
  absl::Status ReadSectionRows(const RecordHeader& header,
                               const SectionEntry& section, RowRange rows,
                               std::span<uint8_t> out);
  absl::StatusOr<std::vector<uint8_t>> ReadWhole(const RecordHeader& header,
                                                 const SectionEntry& section);
  // Records of an attachment, oldest first; empty when there is none.
  absl::StatusOr<std::vector<ChainLink>> AttachmentLinks(AttachmentKind kind);

  StoreCore* const core_;
  SessionInfo info_;
  RecordLayout layout_;
  std::optional<SessionManifest> manifest_;
  std::vector<ChainLink> links_;
  std::vector<RecordNumber> pinned_;

  Mutex mu_;
  std::map<RecordNumber, std::shared_ptr<const RecordHeader>> headers_
      ABSL_GUARDED_BY(mu_);
  size_t header_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Per slot, links below this were hinted.
  std::vector<size_t> hinted_ ABSL_GUARDED_BY(mu_);
  // Per link, once asked.
  std::vector<std::optional<bool>> resident_ ABSL_GUARDED_BY(mu_);
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_LMDB_LEASE_H_
