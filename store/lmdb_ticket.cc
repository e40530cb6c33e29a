// SPDX-License-Identifier: Apache-2.0

#include "store/lmdb_ticket.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "store/record.h"

namespace torpor::store {
namespace {

// Index pages that a commit rewrites, for the budget.
constexpr uint64_t kCommitOverheadBytes = uint64_t{64} << 10;

}  // namespace

absl::StatusOr<BeginResult> LmdbTicket::Begin(StoreCore* core,
                                              SuspendSpec spec) {
  TORPOR_RETURN_IF_ERROR(ValidateSuspend(spec));
  std::unique_ptr<LmdbTicket> ticket(new LmdbTicket(core, std::move(spec)));
  core->open_tickets.fetch_add(1);
  const SuspendSpec& s = ticket->spec_;
  TORPOR_RETURN_IF_ERROR(core->DropIfExpired(s.session));
  {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            core->env->BeginRead());
    const absl::StatusOr<std::optional<SessionManifest>> manifest =
        FindSession(*txn, s.session);
    if (manifest.ok() && manifest->has_value()) {
      if (const Operation* done =
              (*manifest)->FindOperation(s.operation_id, s.verb())) {
        return BeginResult{nullptr, done->receipt};
      }
    }
    TORPOR_RETURN_IF_ERROR(CheckBase(*txn, s.session, s.expected_version,
                                     /*keeps_none=*/s.tokens_kept == 0));
    if (manifest.ok() && manifest->has_value() &&
        (*manifest)->fingerprint != s.layout.fingerprint) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "session '%s': its rows have another model fingerprint than this "
          "suspend",
          s.session.id));
    }
    TORPOR_ASSIGN_OR_RETURN(const std::optional<RecordLayout> layout,
                            FindLayout(*txn, s.layout.fingerprint));
    if (layout.has_value()) {
      TORPOR_RETURN_IF_ERROR(RequireSameLayout(*layout, s.layout));
    }
  }
  TORPOR_ASSIGN_OR_RETURN(ticket->secret_, core->Secret(s.session.tenant));
  TORPOR_ASSIGN_OR_RETURN(const SuspendBase base,
                          ticket->ReadBase(ticket->secret_));
  for (const Floor& floor : s.floors) {
    if (floor.resume_at < RowsKept(s, base.kv_len)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "floor at %d: below the %d tokens whose rows are kept; rows after a "
          "wake are new",
          floor.resume_at, RowsKept(s, base.kv_len)));
    }
  }
  ticket->plan_ = PlanSuspend(s, base, ticket->secret_);
  TORPOR_RETURN_IF_ERROR(ticket->Prepare());
  return BeginResult{std::move(ticket), std::nullopt};
}

absl::StatusOr<SuspendBase> LmdbTicket::ReadBase(const TenantSecret& secret) {
  SuspendBase base;
  base.parent_chain = ChainRoot(secret, spec_.layout.fingerprint);
  // What keeps nothing needs nothing of the version before, damaged or not.
  if (spec_.expected_version == 0 || spec_.tokens_kept == 0) return base;

  TORPOR_ASSIGN_OR_RETURN(base_, LmdbLease::OfSession(core_, spec_.session,
                                                      spec_.expected_version));
  const SessionManifest& manifest = *base_->manifest();
  if (spec_.tokens_kept > manifest.n_tokens) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tokens kept: got %d, version %d of session '%s' has %d",
        spec_.tokens_kept, manifest.version, spec_.session.id,
        manifest.n_tokens));
  }
  TORPOR_RETURN_IF_ERROR(base_->CheckCut(spec_.tokens_kept));
  if (spec_.kv_len < spec_.tokens_kept) {
    TORPOR_RETURN_IF_ERROR(base_->CheckCut(spec_.kv_len));
  }
  base.kv_len = manifest.kv_len;
  base.n_tokens = manifest.n_tokens;
  const uint64_t rows_kept = RowsKept(spec_, base.kv_len);
  const uint64_t first_pos = FirstPos(spec_, base.kv_len);
  if (rows_kept > base_->info().usable_len) {
    return absl::DataLossError(absl::StrFormat(
        "session '%s': rows of tokens from %d on are damaged, %d were to be "
        "kept",
        spec_.session.id, base_->info().usable_len, rows_kept));
  }
  for (const ChainLink& link : base_->links()) {
    if (link.end_pos() <= first_pos && link.n_tokens > 0) {
      base.parent = link.number;
      kept_page_bytes_ += StoredBytes(link.record_bytes);
      ++kept_blocks_;
    } else if (link.first_pos == first_pos && rows_kept > first_pos) {
      base.cut_record = link.number;
      TORPOR_ASSIGN_OR_RETURN(base.cut_origin, base_->ReadOrigin(link));
    }
  }
  parent_ = base.parent;
  if (base.parent != 0) {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            core_->env->BeginRead());
    TORPOR_ASSIGN_OR_RETURN(const RecordEntry entry,
                            FindRecord(*txn, base.parent));
    base.parent_chain = entry.chain;
  }
  TORPOR_ASSIGN_OR_RETURN(
      base.tokens,
      base_->ReadTokens(first_pos, std::max(first_pos, spec_.tokens_kept)));
  return base;
}

absl::Status LmdbTicket::Prepare() {
  const uint64_t reserve = plan_.page_bytes() + kCommitOverheadBytes;
  TORPOR_RETURN_IF_ERROR(core_->Admit(spec_.session.tenant, reserve));
  {
    MutexLock lock(&mu_);
    reserved_ = reserve;
  }
  TORPOR_ASSIGN_OR_RETURN(
      RecordNumber number,
      core_->DrawRecords(plan_.blocks.size() + plan_.snapshots.size() +
                         kSpareNumbers));
  n_blocks_ = plan_.blocks.size();
  uint64_t before = 0;
  for (auto* planned : {&plan_.blocks, &plan_.snapshots}) {
    for (PlannedRecord& p : *planned) {
      auto record = std::make_unique<Record>();
      record->planned = std::move(p);
      record->planned.header.number = number++;
      record->bytes_before = before;
      for (const SectionEntry& s : record->planned.header.sections) {
        if (s.kind == SectionKind::kRows) {
          const uint64_t end = s.first_row + s.n_rows;
          const uint64_t from =
              std::clamp(plan_.wanted[s.id].begin, s.first_row, end);
          record->bytes_missing += (end - from) * s.row_bytes;
        } else if (s.kind == SectionKind::kSnapshotRows) {
          record->bytes_missing += s.bytes;
        }
      }
      before += record->planned.header.record_bytes;
      records_.push_back(std::move(record));
    }
  }
  n_row_records_ = records_.size();
  TORPOR_RETURN_IF_ERROR(CopyKeptRows());
  // Records that want no rows are complete already. They hold tokens at most:
  // no reason to wait for a buffer.
  for (size_t i = 0; i < n_row_records_; ++i) {
    Record& record = *records_[i];
    if (record.bytes_missing != 0) continue;
    {
      MutexLock lock(&mu_);
      if (record.stage == Stage::kUntouched) {
        record.buffer = core_->pool.Force(record.planned.header.record_bytes);
        record.stage = Stage::kFilling;
      }
    }
    TORPOR_RETURN_IF_ERROR(RowsArrived(i, 0));
  }
  return absl::OkStatus();
}

absl::Status LmdbTicket::CopyKeptRows() {
  if (n_blocks_ == 0 || plan_.copied_bytes == 0) return absl::OkStatus();
  TORPOR_RETURN_IF_ERROR(Activate(0, nullptr));
  Record& record = *records_[0];
  for (const SectionEntry& s : record.planned.header.sections) {
    if (s.kind != SectionKind::kRows) continue;
    const RowRange rows = plan_.copied[s.id];
    if (rows.size() == 0) continue;
    TORPOR_RETURN_IF_ERROR(base_->ReadRows(
        s.id, rows,
        record.buffer.span().subspan(s.offset, rows.size() * s.row_bytes)));
  }
  return absl::OkStatus();
}

LmdbTicket::~LmdbTicket() {
  std::vector<std::pair<RecordNumber, RecordExtent>> staged;
  uint64_t reserved = 0;
  {
    MutexLock lock(&mu_);
    cancelled_ = true;
    changed_.NotifyAll();
    while (puts_running_ > 0 || InFlightLocked()) changed_.Wait(&mu_);
    for (const auto& record : records_) {
      if (record->stage != Stage::kWritten) continue;
      const RecordHeader& h = record->planned.header;
      staged.push_back({h.number, {h.tenant, h.record_bytes}});
    }
    reserved = reserved_;
  }
  if (!staged.empty()) core_->AddOrphans(std::move(staged));
  core_->budget.Unreserve(spec_.session.tenant, reserved);
  core_->open_tickets.fetch_sub(1);
}

RowRange LmdbTicket::wanted(uint32_t slot) const {
  return slot < plan_.wanted.size() ? plan_.wanted[slot] : RowRange{};
}

void LmdbTicket::Cancel() {
  MutexLock lock(&mu_);
  cancelled_ = true;
  changed_.NotifyAll();
}

}  // namespace torpor::store
