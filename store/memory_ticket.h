// SPDX-License-Identifier: Apache-2.0
//
// A suspend in a MemorySessionStore.

#ifndef TORPOR_STORE_MEMORY_TICKET_H_
#define TORPOR_STORE_MEMORY_TICKET_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "store/memory_sessions.h"
#include "store/session_store.h"

namespace torpor::store {

class MemoryTicket final : public SuspendTicket {
 public:
  MemoryTicket(MemoryCore* core, SuspendSpec spec, MemorySession base);
  ~MemoryTicket() override;

  RowRange wanted(uint32_t slot) const override;

  using SuspendTicket::Put;
  absl::Status Put(const RowPiece& piece, std::span<const uint8_t> bytes,
                   const std::function<bool()>&) override;

  absl::StatusOr<SuspendReceipt> Commit(
      std::vector<Attachment> attachments) override;

  void Cancel() override;

 private:
  void Apply(bool created, bool no_new_rows,
             std::vector<Attachment> attachments)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

  void ApplyAttachments(bool no_new_rows, std::vector<Attachment> attachments);

  [[nodiscard]] SuspendReceipt ReceiptOf() const;

  MemoryCore* const core_;
  const SuspendSpec spec_;
  MemorySession next_;
  uint64_t rows_kept_ = 0;
  std::vector<RowRange> wanted_;
  std::vector<Bytes> incoming_snapshot_;
  Mutex mu_;
  std::vector<Bytes> incoming_;
  std::vector<std::vector<bool>> seen_;
  std::vector<std::vector<bool>> seen_snapshot_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool spent_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_MEMORY_TICKET_H_
