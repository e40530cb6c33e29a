// SPDX-License-Identifier: Apache-2.0
//
// Which records a suspend writes, what stands in them, and which rows it still
// wants: arithmetic only, no I/O.

#ifndef TORPOR_STORE_SUSPEND_PLAN_H_
#define TORPOR_STORE_SUSPEND_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "store/block_id.h"
#include "store/record.h"
#include "store/session_store.h"
#include "store/types.h"

namespace torpor::store {

// What the previous version contributes.
struct SuspendBase {
  uint64_t kv_len = 0;
  uint64_t n_tokens = 0;
  // The record whose rows [FirstPos, RowsKept) survive, when the cut falls
  // inside it; else 0.
  RecordNumber cut_record = 0;
  BlockOrigin cut_origin;
  // The record that ends at FirstPos; 0 at the start of the session.
  RecordNumber parent = 0;
  Hash256 parent_chain{};
  // Tokens [FirstPos, tokens_kept).
  TokenRun tokens;
};

// Tokens whose rows stay, and the position where the first new record begins.
uint64_t RowsKept(const SuspendSpec& spec, uint64_t base_kv_len);
uint64_t FirstPos(const SuspendSpec& spec, uint64_t base_kv_len);

struct PlannedRecord {
  // Placed; number, digest and row checksums are still to come.
  RecordHeader header;
  // Contents of the leading sections that are not rows.
  std::vector<std::string> small_sections;
  // Blocks only:
  bool full = false;
  Hash256 parent_chain{};
  Hash256 chain{};
  BlockOrigin origin;
};

struct SuspendPlan {
  uint64_t rows_kept = 0;
  uint64_t n_tokens = 0;
  // Rows to copy from SuspendBase::cut_record into blocks[0], per slot.
  std::vector<RowRange> copied;
  // Rows that the client brings, per slot.
  std::vector<RowRange> wanted;
  // In chain order.
  std::vector<PlannedRecord> blocks;
  std::vector<PlannedRecord> snapshots;
  uint64_t token_bytes = 0;
  uint64_t copied_bytes = 0;
  uint64_t wanted_bytes = 0;
  uint64_t snapshot_bytes = 0;

  // Page bytes of every planned record.
  [[nodiscard]] uint64_t page_bytes() const;
};

// REQUIRES: ValidateSuspend(spec) is OK and `base` fits it.
SuspendPlan PlanSuspend(const SuspendSpec& spec, const SuspendBase& base,
                        const TenantSecret& secret);

}  // namespace torpor::store

#endif  // TORPOR_STORE_SUSPEND_PLAN_H_
