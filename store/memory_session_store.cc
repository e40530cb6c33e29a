// SPDX-License-Identifier: Apache-2.0

#include "store/memory_session_store.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "base/status.h"
#include "store/block_id.h"
#include "store/manifest.h"

namespace torpor::store {
namespace {

using Bytes = std::vector<uint8_t>;

struct Session {
  SessionInfo info;
  RecordLayout layout;
  TokenRun tokens;
  std::vector<Bytes> rows;  // per slot, rows [0, RowsOf(kv_len))
  std::vector<Floor> floors;
  std::map<AttachmentKind, std::vector<AttachmentSection>> attachments;
  std::vector<SnapshotSlot> snapshot_slots;
  std::vector<Bytes> snapshot_rows;
  std::vector<Operation> operations;

  [[nodiscard]] const Operation* Find(std::string_view id, Verb verb) const {
    for (const Operation& o : operations) {
      if (o.id == id && o.verb == verb) return &o;
    }
    return nullptr;
  }

  void Remember(Operation operation) {
    operations.push_back(std::move(operation));
    if (operations.size() > kOperationsKept) {
      operations.erase(operations.begin());
    }
  }

  // Attachments speak of the cut they were made at.
  void DropAttachments(bool client_state_only) {
    attachments.erase(AttachmentKind::kClientState);
    if (client_state_only) return;
    attachments.clear();
    snapshot_slots.clear();
    snapshot_rows.clear();
  }

  void Truncate(uint64_t at) {
    if (at >= info.n_tokens) return;
    tokens.ids.resize(at);
    tokens.spans = ClipSpans(tokens.spans, 0, at);
    info.n_tokens = at;
    const uint64_t kv_len = std::min(at, info.kv_len);
    DropAttachments(/*client_state_only=*/kv_len == info.kv_len);
    info.kv_len = kv_len;
    info.provenance = ClipProvenance(info.provenance, 0, kv_len);
    std::erase_if(floors,
                  [&](const Floor& f) { return f.resume_at >= kv_len; });
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].resize(RowsOf(layout.slots[i], kv_len) *
                     layout.slots[i].row_bytes);
    }
    Recount();
  }

  void Recount() {
    info.usable_len = info.kv_len;
    info.token_bytes = uint64_t{4} * info.n_tokens;
    info.compact_bytes = 0;
    for (const Bytes& slot : rows) info.compact_bytes += slot.size();
    const auto bytes_of = [&](AttachmentKind kind) {
      uint64_t bytes = 0;
      const auto it = attachments.find(kind);
      if (it == attachments.end()) return bytes;
      for (const AttachmentSection& s : it->second) bytes += s.bytes.size();
      return bytes;
    };
    info.witness_bytes = bytes_of(AttachmentKind::kWitness);
    info.client_state_bytes = bytes_of(AttachmentKind::kClientState);
    info.snapshot_bytes = 0;
    for (const Bytes& slot : snapshot_rows) info.snapshot_bytes += slot.size();
    const uint64_t block = layout.block_size;
    info.n_blocks = (info.kv_len + block - 1) / block;
    // Tokens without rows stand in a tail of their own after a full block.
    if (info.n_tokens > info.kv_len && info.kv_len % block == 0) {
      ++info.n_blocks;
    }
    info.stored_bytes = info.compact_bytes + info.token_bytes +
                        info.witness_bytes + info.client_state_bytes +
                        info.snapshot_bytes;
  }
};

struct Core {
  Clock clock;
  Mutex mu;
  std::map<SessionKey, Session> sessions ABSL_GUARDED_BY(mu);
  std::map<std::pair<SessionKey, std::string>, uint64_t> erased
      ABSL_GUARDED_BY(mu);
  std::map<Hash256, RecordLayout> layouts ABSL_GUARDED_BY(mu);
  std::map<std::string, std::string> models ABSL_GUARDED_BY(mu);
  uint64_t version_floor ABSL_GUARDED_BY(mu) = 0;
  uint64_t commits ABSL_GUARDED_BY(mu) = 0;
  uint64_t open_tickets ABSL_GUARDED_BY(mu) = 0;
  uint64_t open_leases ABSL_GUARDED_BY(mu) = 0;

  Session* FindLocked(const SessionKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto it = sessions.find(key);
    if (it == sessions.end()) return nullptr;
    const SessionInfo& info = it->second.info;
    if (info.expires_at_us != 0 && info.expires_at_us <= clock()) {
      return nullptr;
    }
    return &it->second;
  }

  // A session whose time is over is gone; a write to its name finds none.
  void DropIfExpiredLocked(const SessionKey& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto it = sessions.find(key);
    if (it == sessions.end() || FindLocked(key) != nullptr) return;
    version_floor = std::max(version_floor, it->second.info.version);
    sessions.erase(it);
  }

  absl::StatusOr<Session*> RequireLocked(const SessionKey& key,
                                         uint64_t expected)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Session* session = FindLocked(key);
    if (session == nullptr) {
      return absl::NotFoundError(
          absl::StrFormat("session '%s': unknown", key.id));
    }
    if (session->info.version != expected) {
      return absl::AbortedError(absl::StrFormat(
          "session '%s': expected version %d, it is at version %d, held by "
          "'%s'",
          key.id, expected, session->info.version, session->info.holder));
    }
    return session;
  }

  absl::Status RequireAbsentLocked(const SessionKey& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const Session* session = FindLocked(key);
    if (session == nullptr) return absl::OkStatus();
    return absl::AbortedError(absl::StrFormat(
        "session '%s': expected version 0, it is at version %d, held by '%s'",
        key.id, session->info.version, session->info.holder));
  }
};

class MemoryLease final : public SessionLease {
 public:
  MemoryLease(Core* core, Session session)
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

  Core* const core_;
  const Session session_;
};

class MemoryTicket final : public SuspendTicket {
 public:
  MemoryTicket(Core* core, SuspendSpec spec, Session base)
      : core_(core), spec_(std::move(spec)), next_(std::move(base)) {
    rows_kept_ = std::min({spec_.tokens_kept, next_.info.kv_len, spec_.kv_len});
    for (const SlotSpec& slot : spec_.layout.slots) {
      wanted_.push_back({RowsOf(slot, rows_kept_), RowsOf(slot, spec_.kv_len)});
      incoming_.emplace_back(wanted_.back().size() * slot.row_bytes);
      seen_.emplace_back(incoming_.back().size());
    }
    for (const SnapshotSlot& slot : spec_.snapshot) {
      incoming_snapshot_.emplace_back(slot.rows.size() * slot.row_bytes);
      seen_snapshot_.emplace_back(incoming_snapshot_.back().size());
    }
  }
  ~MemoryTicket() override {
    MutexLock lock(&core_->mu);
    --core_->open_tickets;
  }

  RowRange wanted(uint32_t slot) const override {
    return slot < wanted_.size() ? wanted_[slot] : RowRange{};
  }

  using SuspendTicket::Put;
  absl::Status Put(const RowPiece& piece, std::span<const uint8_t> bytes,
                   const std::function<bool()>&) override {
    MutexLock lock(&mu_);
    if (cancelled_) return absl::CancelledError("suspend: cancelled");
    if (spent_) return absl::FailedPreconditionError("suspend: committed");
    RowRange all;
    uint64_t row_bytes = 0;
    Bytes* out = nullptr;
    std::vector<bool>* seen = nullptr;
    if (!piece.snapshot && piece.slot < wanted_.size()) {
      all = wanted_[piece.slot];
      row_bytes = spec_.layout.slots[piece.slot].row_bytes;
      out = &incoming_[piece.slot];
      seen = &seen_[piece.slot];
    }
    for (size_t i = 0; piece.snapshot && i < spec_.snapshot.size(); ++i) {
      if (spec_.snapshot[i].id != piece.slot) continue;
      all = spec_.snapshot[i].rows;
      row_bytes = spec_.snapshot[i].row_bytes;
      out = &incoming_snapshot_[i];
      seen = &seen_snapshot_[i];
    }
    if (out == nullptr || piece.n_rows == 0 || piece.row_begin < all.begin ||
        piece.row_begin > all.end || piece.n_rows > all.end - piece.row_begin) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%d rows from %d of slot %d: wanted some of [%d, %d)", piece.n_rows,
          piece.row_begin, piece.slot, all.begin, all.end));
    }
    if ((piece.n_shards != 1 && piece.n_shards != spec_.n_shards) ||
        piece.shard >= piece.n_shards || row_bytes % piece.n_shards != 0 ||
        bytes.size() != piece.n_rows * (row_bytes / piece.n_shards)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "rows of slot %d: impossible shard or size", piece.slot));
    }
    if (Xxh3(bytes) != piece.checksum) {
      return absl::DataLossError(
          absl::StrFormat("rows of slot %d: checksum differs", piece.slot));
    }
    const uint64_t shard_bytes = row_bytes / piece.n_shards;
    for (uint64_t r = 0; r < piece.n_rows; ++r) {
      const uint64_t at = (piece.row_begin - all.begin + r) * row_bytes +
                          piece.shard * shard_bytes;
      if ((*seen)[at]) continue;
      std::memcpy(out->data() + at, bytes.data() + r * shard_bytes,
                  shard_bytes);
      std::fill_n(seen->begin() + static_cast<ptrdiff_t>(at), shard_bytes,
                  true);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<SuspendReceipt> Commit(
      std::vector<Attachment> attachments) override {
    {
      MutexLock lock(&mu_);
      if (cancelled_) return absl::CancelledError("suspend: cancelled");
      if (spent_) return absl::FailedPreconditionError("suspend: committed");
      for (const auto* all : {&seen_, &seen_snapshot_}) {
        for (const std::vector<bool>& slot : *all) {
          if (std::find(slot.begin(), slot.end(), false) != slot.end()) {
            return absl::FailedPreconditionError("commit: rows are missing");
          }
        }
      }
      spent_ = true;
    }
    MutexLock lock(&core_->mu);
    if (spec_.expected_version == 0) {
      TORPOR_RETURN_IF_ERROR(core_->RequireAbsentLocked(spec_.session));
    } else {
      TORPOR_RETURN_IF_ERROR(
          core_->RequireLocked(spec_.session, spec_.expected_version).status());
    }
    const bool created = spec_.expected_version == 0;
    const bool no_new_rows = !created && rows_kept_ == spec_.kv_len &&
                             next_.info.kv_len == spec_.kv_len;
    Apply(created, no_new_rows, std::move(attachments));
    const SuspendReceipt receipt = ReceiptOf();
    next_.Remember({spec_.operation_id, spec_.verb(), receipt});
    core_->layouts[spec_.layout.fingerprint] = spec_.layout;
    core_->sessions[spec_.session] = next_;
    ++core_->commits;
    return receipt;
  }

  void Cancel() override {
    MutexLock lock(&mu_);
    cancelled_ = true;
  }

 private:
  void Apply(bool created, bool no_new_rows,
             std::vector<Attachment> attachments)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu) {
    const int64_t now = core_->clock();
    next_.layout = spec_.layout;
    next_.rows.resize(spec_.layout.slots.size());
    // Keep the rows, then the tokens, that stay.
    const uint64_t tokens_kept = spec_.tokens_kept;
    for (size_t i = 0; i < next_.rows.size(); ++i) {
      const SlotSpec& slot = spec_.layout.slots[i];
      next_.rows[i].resize(RowsOf(slot, rows_kept_) * slot.row_bytes);
      next_.rows[i].insert(next_.rows[i].end(), incoming_[i].begin(),
                           incoming_[i].end());
    }
    next_.tokens.ids.resize(tokens_kept);
    next_.tokens.spans = ClipSpans(next_.tokens.spans, 0, tokens_kept);
    next_.tokens.ids.insert(next_.tokens.ids.end(),
                            spec_.new_tokens.ids.begin(),
                            spec_.new_tokens.ids.end());
    for (const ExtraKeySpan& span : spec_.new_tokens.spans) {
      AppendSpan(span, &next_.tokens.spans);
    }
    std::erase_if(next_.floors,
                  [&](const Floor& f) { return f.resume_at >= rows_kept_; });
    for (const Floor& floor : spec_.floors) {
      if (floor.resume_at < spec_.kv_len) next_.floors.push_back(floor);
    }
    std::vector<ProvenanceRange> provenance;
    if (rows_kept_ > 0) {
      provenance = ClipProvenance(next_.info.provenance, 0, rows_kept_);
    }
    for (const ProvenanceRange& range :
         ClipProvenance(spec_.provenance, rows_kept_, spec_.kv_len)) {
      AppendProvenance(range, &provenance);
    }
    ApplyAttachments(no_new_rows, std::move(attachments));

    SessionInfo& info = next_.info;
    info.key = spec_.session;
    info.version = created ? core_->version_floor + 1 : info.version + 1;
    info.n_tokens = next_.tokens.ids.size();
    info.kv_len = spec_.kv_len;
    info.model = spec_.model;
    info.fingerprint = spec_.layout.fingerprint;
    info.fingerprint_fields = spec_.fingerprint_fields;
    info.numerics_id = spec_.numerics_id;
    info.holder = spec_.holder;
    info.provenance = std::move(provenance);
    if (spec_.session_class.has_value()) {
      info.session_class = *spec_.session_class;
    }
    if (spec_.ttl_seconds.has_value()) {
      info.expires_at_us = DeadlineAfter(now, *spec_.ttl_seconds);
    }
    if (!spec_.labels.empty()) info.labels = spec_.labels;
    if (created) info.created_at_us = now;
    info.updated_at_us = now;
    if (spec_.arrival.has_value()) {
      info.version = spec_.arrival->version;
      info.created_at_us = spec_.arrival->created_at_us;
      info.updated_at_us = spec_.arrival->updated_at_us;
      info.expires_at_us = spec_.arrival->expires_at_us;
      next_.operations = spec_.arrival->operations;
    }
    next_.Recount();
  }

  void ApplyAttachments(bool no_new_rows, std::vector<Attachment> attachments) {
    const bool keeps_snapshot =
        no_new_rows && (!next_.snapshot_slots.empty() || !spec_.floors.empty());
    std::map<AttachmentKind, std::vector<AttachmentSection>> kept;
    if (no_new_rows && next_.attachments.contains(AttachmentKind::kWitness)) {
      kept[AttachmentKind::kWitness] =
          next_.attachments[AttachmentKind::kWitness];
    }
    for (Attachment& a : attachments) {
      if (a.sections.empty()) continue;
      const bool first_counts =
          no_new_rows && a.kind == AttachmentKind::kWitness &&
          (kept.contains(a.kind) || !spec_.floors.empty());
      if (!first_counts) kept[a.kind] = std::move(a.sections);
    }
    next_.attachments = std::move(kept);
    if (keeps_snapshot) return;
    next_.snapshot_slots = spec_.snapshot;
    next_.snapshot_rows = incoming_snapshot_;
  }

  [[nodiscard]] SuspendReceipt ReceiptOf() const {
    SuspendReceipt receipt;
    receipt.version = next_.info.version;
    receipt.n_tokens = next_.info.n_tokens;
    receipt.kv_len = next_.info.kv_len;
    receipt.tokens_kept = spec_.tokens_kept;
    for (const Bytes& slot : incoming_) {
      receipt.row_bytes_received += slot.size();
    }
    receipt.token_bytes = uint64_t{4} * spec_.new_tokens.ids.size();
    receipt.snapshot_bytes = next_.info.snapshot_bytes;
    receipt.witness_bytes = next_.info.witness_bytes;
    receipt.client_state_bytes = next_.info.client_state_bytes;
    receipt.stored_bytes = receipt.row_bytes_received + receipt.token_bytes +
                           receipt.snapshot_bytes + receipt.witness_bytes +
                           receipt.client_state_bytes;
    return receipt;
  }

  Core* const core_;
  const SuspendSpec spec_;
  Session next_;
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

class MemorySessionStore final : public SessionStore {
 public:
  explicit MemorySessionStore(Clock clock) {
    core_.clock = clock ? std::move(clock) : SystemClock();
  }

  absl::StatusOr<BeginResult> Begin(SuspendSpec spec) override {
    TORPOR_RETURN_IF_ERROR(ValidateSuspend(spec));
    MutexLock lock(&core_.mu);
    core_.DropIfExpiredLocked(spec.session);
    const Session* found = core_.FindLocked(spec.session);
    if (found != nullptr) {
      if (const Operation* done = found->Find(spec.operation_id, spec.verb())) {
        return BeginResult{nullptr, done->receipt};
      }
    }
    Session base;
    if (spec.expected_version == 0) {
      TORPOR_RETURN_IF_ERROR(core_.RequireAbsentLocked(spec.session));
    } else {
      TORPOR_ASSIGN_OR_RETURN(
          const Session* session,
          core_.RequireLocked(spec.session, spec.expected_version));
      base = *session;
      if (base.info.fingerprint != spec.layout.fingerprint) {
        return absl::FailedPreconditionError("another model fingerprint");
      }
      if (spec.tokens_kept > base.info.n_tokens) {
        return absl::InvalidArgumentError("more tokens kept than there are");
      }
      TORPOR_RETURN_IF_ERROR(CheckCut(base, spec.tokens_kept));
      if (spec.kv_len < spec.tokens_kept) {
        TORPOR_RETURN_IF_ERROR(CheckCut(base, spec.kv_len));
      }
    }
    const auto layout = core_.layouts.find(spec.layout.fingerprint);
    if (layout != core_.layouts.end() &&
        (layout->second.block_size != spec.layout.block_size ||
         layout->second.slots != spec.layout.slots)) {
      return absl::FailedPreconditionError(
          "another layout under this fingerprint");
    }
    const uint64_t rows_kept =
        std::min({spec.tokens_kept, base.info.kv_len, spec.kv_len});
    for (const Floor& floor : spec.floors) {
      if (floor.resume_at < rows_kept) {
        return absl::InvalidArgumentError("floor below the rows that stay");
      }
    }
    ++core_.open_tickets;
    return BeginResult{std::make_unique<MemoryTicket>(&core_, std::move(spec),
                                                      std::move(base)),
                       std::nullopt};
  }

  absl::StatusOr<std::unique_ptr<SessionLease>> Open(
      const SessionKey& key, uint64_t version) override {
    TORPOR_RETURN_IF_ERROR(ValidateSession(key));
    MutexLock lock(&core_.mu);
    const Session* session = core_.FindLocked(key);
    if (session == nullptr) {
      return absl::NotFoundError(
          absl::StrFormat("session '%s': unknown", key.id));
    }
    if (version != 0) {
      TORPOR_RETURN_IF_ERROR(core_.RequireLocked(key, version).status());
    }
    ++core_.open_leases;
    return std::unique_ptr<SessionLease>(
        std::make_unique<MemoryLease>(&core_, *session));
  }

  absl::StatusOr<PrefixHit> Lookup(uint32_t tenant, const RecordLayout& layout,
                                   const TokenRun& tokens) override {
    MutexLock lock(&core_.mu);
    PrefixHit hit;
    const Session* best = nullptr;
    for (const auto& [key, session] : core_.sessions) {
      if (key.tenant != tenant ||
          session.info.fingerprint != layout.fingerprint) {
        continue;
      }
      TokenRun stored = session.tokens;
      stored.ids.resize(session.info.kv_len);
      uint64_t len = CommonLength(stored, tokens, 0);
      for (const ExtraKeySpan& span : stored.spans) {
        if (span.bidirectional && span.begin < len && len < span.end) {
          len = span.begin;
        }
      }
      if (len > hit.hit_len) {
        hit.hit_len = len;
        best = &session;
      }
    }
    if (best == nullptr) return hit;
    Session prefix = *best;
    prefix.Truncate(hit.hit_len);
    prefix.info.key = {};
    prefix.operations.clear();
    ++core_.open_leases;
    hit.lease = std::make_unique<MemoryLease>(&core_, std::move(prefix));
    return hit;
  }

  absl::StatusOr<SessionInfo> Describe(const SessionKey& key) override {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<SessionLease> lease,
                            Open(key, 0));
    return lease->info();
  }

  absl::StatusOr<ListResult> List(uint32_t tenant, std::string_view prefix,
                                  std::string_view after,
                                  size_t limit) override {
    MutexLock lock(&core_.mu);
    ListResult result;
    for (const auto& [key, session] : core_.sessions) {
      if (key.tenant != tenant || !key.id.starts_with(prefix) ||
          (!after.empty() && key.id <= after) ||
          core_.FindLocked(key) == nullptr) {
        continue;
      }
      if (result.sessions.size() == limit) {
        result.next = result.sessions.back().key.id;
        break;
      }
      result.sessions.push_back(session.info);
    }
    return result;
  }

  absl::StatusOr<SessionInfo> Fork(const ForkSpec& spec) override {
    TORPOR_RETURN_IF_ERROR(ValidateFork(spec));
    MutexLock lock(&core_.mu);
    core_.DropIfExpiredLocked(spec.target.session);
    if (const Session* target = core_.FindLocked(spec.target.session)) {
      if (target->Find(spec.target.operation_id, Verb::kFork) != nullptr) {
        return target->info;
      }
    }
    const Session* source = core_.FindLocked(spec.source);
    if (source == nullptr) {
      return absl::NotFoundError(
          absl::StrFormat("session '%s': unknown", spec.source.id));
    }
    if (spec.source_version != 0) {
      TORPOR_RETURN_IF_ERROR(
          core_.RequireLocked(spec.source, spec.source_version).status());
    }
    const uint64_t at = spec.at.value_or(source->info.n_tokens);
    TORPOR_RETURN_IF_ERROR(CheckCut(*source, at));
    Session fork = *source;
    fork.Truncate(at);
    fork.operations.clear();
    fork.info.created_at_us = core_.clock();
    if (spec.target.expected_version == 0) {
      TORPOR_RETURN_IF_ERROR(core_.RequireAbsentLocked(spec.target.session));
      fork.info.version = core_.version_floor + 1;
    } else {
      TORPOR_ASSIGN_OR_RETURN(
          const Session* replaced,
          core_.RequireLocked(spec.target.session,
                              spec.target.expected_version));
      fork.info.version = replaced->info.version + 1;
      fork.info.created_at_us = replaced->info.created_at_us;
      fork.operations = replaced->operations;
    }
    fork.info.key = spec.target.session;
    fork.info.updated_at_us = core_.clock();
    fork.info.expires_at_us = fork.info.pinned_until_us = 0;
    fork.Remember({spec.target.operation_id,
                   Verb::kFork,
                   {.version = fork.info.version}});
    ++core_.commits;
    return (core_.sessions[spec.target.session] = std::move(fork)).info;
  }

  absl::StatusOr<SessionInfo> Rewind(const MutateSpec& spec,
                                     uint64_t at) override {
    TORPOR_RETURN_IF_ERROR(ValidateMutation(spec));
    MutexLock lock(&core_.mu);
    core_.DropIfExpiredLocked(spec.session);
    if (const Session* session = core_.FindLocked(spec.session)) {
      if (session->Find(spec.operation_id, Verb::kRewind) != nullptr) {
        return session->info;
      }
    }
    TORPOR_ASSIGN_OR_RETURN(
        Session * session,
        core_.RequireLocked(spec.session, spec.expected_version));
    TORPOR_RETURN_IF_ERROR(CheckCut(*session, at));
    session->Truncate(at);
    ++session->info.version;
    session->info.updated_at_us = core_.clock();
    session->Remember(
        {spec.operation_id, Verb::kRewind, {.version = session->info.version}});
    ++core_.commits;
    return session->info;
  }

  absl::StatusOr<uint64_t> Erase(const MutateSpec& spec) override {
    TORPOR_RETURN_IF_ERROR(ValidateMutation(spec));
    MutexLock lock(&core_.mu);
    core_.DropIfExpiredLocked(spec.session);
    const auto key = std::pair(spec.session, spec.operation_id);
    if (const auto it = core_.erased.find(key); it != core_.erased.end()) {
      return it->second;
    }
    TORPOR_RETURN_IF_ERROR(
        core_.RequireLocked(spec.session, spec.expected_version).status());
    const uint64_t version = spec.expected_version;
    core_.version_floor = std::max(core_.version_floor, version);
    core_.erased[key] = version;
    core_.sessions.erase(spec.session);
    ++core_.commits;
    return version;
  }

  absl::StatusOr<SessionInfo> Touch(const TouchSpec& spec) override {
    TORPOR_RETURN_IF_ERROR(ValidateSession(spec.session));
    MutexLock lock(&core_.mu);
    Session* session = core_.FindLocked(spec.session);
    if (session == nullptr) {
      return absl::NotFoundError(
          absl::StrFormat("session '%s': unknown", spec.session.id));
    }
    const int64_t now = core_.clock();
    const auto from_now = [&](int64_t seconds) {
      return DeadlineAfter(now, seconds);
    };
    SessionInfo& info = session->info;
    TORPOR_RETURN_IF_ERROR(MergeLabels(spec.labels, &info.labels));
    if (spec.session_class.has_value())
      info.session_class = *spec.session_class;
    if (spec.ttl_seconds.has_value()) {
      info.expires_at_us = from_now(*spec.ttl_seconds);
    }
    if (spec.pin_seconds.has_value()) {
      info.pinned_until_us = from_now(*spec.pin_seconds);
    }
    return info;
  }

  absl::Status PutModel(std::string_view name,
                        std::string_view value) override {
    MutexLock lock(&core_.mu);
    core_.models[std::string(name)] = std::string(value);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Models()
      override {
    MutexLock lock(&core_.mu);
    return std::vector<std::pair<std::string, std::string>>(
        core_.models.begin(), core_.models.end());
  }

  absl::StatusOr<bool> Maintain() override {
    MutexLock lock(&core_.mu);
    for (auto it = core_.sessions.begin(); it != core_.sessions.end();) {
      const SessionInfo& info = it->second.info;
      const bool expired =
          info.expires_at_us != 0 && info.expires_at_us <= core_.clock();
      if (expired) {
        core_.version_floor = std::max(core_.version_floor, info.version);
      }
      it = expired ? core_.sessions.erase(it) : std::next(it);
    }
    return false;
  }

  StoreStats Stats() override {
    MutexLock lock(&core_.mu);
    StoreStats stats;
    stats.sessions = core_.sessions.size();
    stats.open_tickets = core_.open_tickets;
    stats.open_leases = core_.open_leases;
    stats.commits = core_.commits;
    for (const auto& [key, session] : core_.sessions) {
      stats.live_bytes += session.info.stored_bytes;
    }
    return stats;
  }

  absl::StatusOr<VerifyReport> Verify(bool,
                                      const Progress<VerifyReport>&) override {
    MutexLock lock(&core_.mu);
    VerifyReport report;
    report.sessions_checked = core_.sessions.size();
    return report;
  }

  absl::StatusOr<BackupReport> Backup(const std::string&,
                                      const Progress<BackupReport>&) override {
    return absl::UnimplementedError("backup: this store is in memory");
  }

 private:
  static absl::Status CheckCut(const Session& session, uint64_t at) {
    if (at > session.info.n_tokens) {
      return absl::OutOfRangeError(absl::StrFormat(
          "cut at %d: the session has %d tokens", at, session.info.n_tokens));
    }
    return ValidateCut(session.tokens.spans, at);
  }

  Core core_;
};

}  // namespace

std::unique_ptr<SessionStore> MakeMemorySessionStore(Clock clock) {
  return std::make_unique<MemorySessionStore>(std::move(clock));
}

}  // namespace torpor::store
