// SPDX-License-Identifier: Apache-2.0
//
// A container on its way into a store: an ordinary suspend of a session that
// arrives whole, so admission, staging, the one publishing commit and sharing
// by equal block ids are those of any suspend. Block ids are computed anew
// under the tenant's own secret. Keeps the whole blocks of a transfer that
// broke. Thread-compatible; does not outlive its store.

#ifndef TORPOR_STORE_SESSION_IMPORT_H_
#define TORPOR_STORE_SESSION_IMPORT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/container_reader.h"
#include "store/session_store.h"

namespace torpor::store {

// What an outline asks for: everything but the tenant and the operation id.
SuspendSpec ImportSpec(const ContainerOutline& outline);

class SessionImport final : private ContainerVisitor {
 public:
  // Judges the outline before a row is taken; may change names, and the layout
  // for one of other block sizes.
  using Admit = std::function<absl::StatusOr<SuspendSpec>(
      const ContainerOutline& outline, SuspendSpec spec)>;
  // Judges an attachment before anything is published.
  using CheckAttachment = std::function<absl::Status(const Attachment&)>;

  // `store` outlives the import.
  SessionImport(SessionStore* store, Admit admit, CheckAttachment check)
      : store_(store), admit_(std::move(admit)), check_(std::move(check)) {}

  // Takes the next bytes; errors as ContainerReader and the store give them.
  // After the last byte, or when the operation was committed before, receipt()
  // is there. `give_up` is polled while a row waits for room.
  absl::Status Feed(std::span<const uint8_t> bytes,
                    const std::function<bool()>& give_up);
  // kDataLoss, with the place, when no receipt is there yet.
  [[nodiscard]] absl::Status Finish() const;
  [[nodiscard]] const std::optional<SuspendReceipt>& receipt() const {
    return receipt_;
  }
  // True when the receipt is of an earlier import under the operation id.
  [[nodiscard]] bool repeated() const { return repeated_; }
  // Under which name it comes in; once the outline is whole.
  [[nodiscard]] const SessionKey& session() const { return session_; }

  // Whole blocks that are kept; 0 = a broken transfer begins anew. And the
  // chain's value behind them.
  [[nodiscard]] uint64_t n_blocks() const { return reader_.n_blocks(); }
  [[nodiscard]] const Hash256& chain() const { return reader_.chain(); }
  // Forgets the rest. REQUIRES: n_blocks() > 0.
  void BackToBoundary() {
    attachments_.clear();
    reader_.BackToBoundary();
  }

 private:
  absl::Status OnOutline(ContainerOutline outline) override;
  absl::Status OnPiece(const PieceHeader& piece,
                       std::span<const uint8_t> payload) override;
  absl::Status OnBlock(uint64_t block) override;
  absl::Status OnEnd() override;
  absl::Status PutRows(const PieceHeader& piece,
                       std::span<const uint8_t> payload);

  SessionStore* const store_;
  const Admit admit_;
  const CheckAttachment check_;
  ContainerReader reader_{this};
  const std::function<bool()>* give_up_ = nullptr;

  SessionKey session_;
  std::unique_ptr<SuspendTicket> ticket_;
  std::optional<SuspendReceipt> receipt_;
  bool repeated_ = false;
  std::vector<Attachment> attachments_;
  // Checksums of pieces that were put since the last whole block: (kind, slot,
  // first row). A block that comes again must be the same.
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> put_;
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_SESSION_IMPORT_H_
