// SPDX-License-Identifier: Apache-2.0

#include "store/lmdb_session_store.h"

#include <sodium.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "store/codec.h"
#include "store/keys.h"
#include "store/lmdb_lease.h"
#include "store/lmdb_ticket.h"
#include "store/maintenance.h"
#include "store/store_core.h"

namespace torpor::store {
namespace {

// Bytes that a verb which only moves names writes, for the group commit.
constexpr uint64_t kNameBytes = 4096;

// Candidates compared token by token when no full block matches further. More
// sessions than this that part ways inside one block may hide a longer match.
constexpr size_t kCandidatesMax = 256;

// A map that is given must hold `wanted` bytes: else the first suspend that it
// has no room for would tell.
absl::Status CheckMap(const LmdbStoreOptions& options, uint64_t wanted,
                      const char* what) {
  if (options.map_bytes == 0 || options.map_bytes >= wanted) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("store.map_bytes: got %d, wanted at least %d, %s",
                      options.map_bytes, wanted, what));
}

// Beside the records of a budget a map holds their index and pages that are not
// free yet. For records of one page each a tenth more is too little
// (tests/store/map_size_test.cc).
uint64_t MapBytesFor(uint64_t max_bytes) { return max_bytes + max_bytes / 4; }

absl::StatusOr<BudgetOptions> BudgetOf(const LmdbStoreOptions& options,
                                       const DataDir& dir) {
  BudgetOptions budget{options.max_bytes, options.tenant_max_bytes};
  if (budget.max_bytes == 0) {
    TORPOR_ASSIGN_OR_RETURN(const uint64_t disk, dir.DiskBytes());
    budget.max_bytes = disk / 10 * 9;
    if (options.map_bytes != 0) {
      budget.max_bytes = std::min(budget.max_bytes, options.map_bytes / 5 * 4);
    }
  }
  return budget;
}

// The receipt of a repeated operation, if the manifest remembers it.
std::optional<SuspendReceipt> Repeated(
    const std::optional<SessionManifest>& manifest, const MutateSpec& spec,
    Verb verb) {
  if (!manifest.has_value()) return std::nullopt;
  const Operation* done = manifest->FindOperation(spec.operation_id, verb);
  if (done == nullptr) return std::nullopt;
  return done->receipt;
}

// A lease on the first `hit_len` tokens of a chain, or on the nearest shorter
// prefix that is sound and a legal cut.
absl::StatusOr<PrefixHit> PrefixHitOf(StoreCore* core,
                                      const RecordLayout& layout,
                                      RecordNumber tip, uint64_t hit_len) {
  while (hit_len > 0) {
    TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<LmdbLease> lease,
                            LmdbLease::OfChain(core, layout, tip, hit_len));
    // Freed under our eyes: as if it had never been there.
    if (lease == nullptr) break;
    TORPOR_ASSIGN_OR_RETURN(const TokenRun last,
                            lease->ReadTokens(hit_len - 1, hit_len));
    uint64_t legal = lease->info().usable_len;
    for (const ExtraKeySpan& span : last.spans) {
      if (span.bidirectional && hit_len < span.end) {
        legal = std::min(legal, span.begin);
      }
    }
    if (legal == hit_len) return PrefixHit{hit_len, std::move(lease)};
    hit_len = legal;
  }
  return PrefixHit{};
}

// Cuts a manifest back to `at` tokens whose last record is `tip`.
void CutManifest(uint64_t at, const std::vector<ChainLink>& links,
                 SessionManifest* manifest) {
  if (at >= manifest->n_tokens) return;
  const uint64_t kv_len = std::min(at, manifest->kv_len);
  manifest->tip = 0;
  manifest->page_bytes = 0;
  manifest->n_blocks = 0;
  for (const ChainLink& link : links) {
    if (link.first_pos >= at) break;
    manifest->tip = link.number;
    manifest->page_bytes += StoredBytes(link.record_bytes);
    ++manifest->n_blocks;
  }
  const bool rows_cut = kv_len < manifest->kv_len;
  manifest->n_tokens = at;
  manifest->kv_len = kv_len;
  manifest->provenance = ClipProvenance(manifest->provenance, 0, kv_len);
  // They speak of the old cut. Without rows cut off, the witness still holds.
  std::erase_if(manifest->attachments, [&](const AttachmentRef& a) {
    return rows_cut || a.kind == AttachmentKind::kClientState;
  });
}

}  // namespace

LmdbSessionStore::LmdbSessionStore(std::unique_ptr<StoreCore> core)
    : core_(std::move(core)) {}
LmdbSessionStore::~LmdbSessionStore() = default;

absl::StatusOr<std::unique_ptr<LmdbSessionStore>> LmdbSessionStore::Open(
    LmdbStoreOptions options) {
  if (sodium_init() < 0) {
    return absl::InternalError("open store: libsodium does not start");
  }
  TORPOR_RETURN_IF_ERROR(CheckMap(options, kMinMapBytes, "the smallest map"));
  TORPOR_RETURN_IF_ERROR(CheckMap(options, MapBytesFor(options.max_bytes),
                                  "1.25 x store.max_bytes"));
  if (!options.clock) options.clock = SystemClock();
  TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<DataDir> dir,
                          DataDir::Acquire(options.data_dir));
  TORPOR_RETURN_IF_ERROR(dir->CheckData());
  TORPOR_ASSIGN_OR_RETURN(
      std::unique_ptr<Env> env,
      Env::Open({.directory = options.data_dir,
                 .map_bytes = options.map_bytes,
                 .no_sync_for_test = options.no_sync_for_test}));
  // LMDB itself would take a map that just holds the file.
  TORPOR_RETURN_IF_ERROR(
      CheckMap(options, env->Info().used_bytes, "what data.mdb has"));
  TORPOR_ASSIGN_OR_RETURN(const BudgetOptions budget, BudgetOf(options, *dir));
  auto core = std::make_unique<StoreCore>(std::move(options), std::move(dir),
                                          std::move(env), budget);
  TORPOR_RETURN_IF_ERROR(StartUp(core.get()));
  TORPOR_RETURN_IF_ERROR(core->dir->MarkData());
  return std::unique_ptr<LmdbSessionStore>(
      new LmdbSessionStore(std::move(core)));
}

absl::StatusOr<BeginResult> LmdbSessionStore::Begin(SuspendSpec spec) {
  return LmdbTicket::Begin(core_.get(), std::move(spec));
}

absl::StatusOr<std::unique_ptr<SessionLease>> LmdbSessionStore::Open(
    const SessionKey& session, uint64_t version) {
  return LmdbLease::OfSession(core_.get(), session, version);
}

absl::StatusOr<PrefixHit> LmdbSessionStore::Lookup(uint32_t tenant,
                                                   const RecordLayout& layout,
                                                   const TokenRun& tokens) {
  TORPOR_ASSIGN_OR_RETURN(const TenantSecret secret, core_->Secret(tenant));
  const uint64_t n_tokens = tokens.ids.size();
  Hash256 chain = ChainRoot(secret, layout.fingerprint);
  uint64_t pos = 0;
  RecordNumber best = 0;
  std::vector<RecordNumber> candidates;
  {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            core_->env->BeginRead());
    const auto sound = [&](RecordNumber number) {
      const absl::StatusOr<RecordEntry> entry = FindRecord(*txn, number);
      return entry.ok() && !entry->quarantined && entry->live > 0;
    };
    const auto listed = [&](const Hash256& hash, ChainRelation relation,
                            size_t limit) {
      std::vector<RecordNumber> out;
      const std::string prefix = ChainPrefix(tenant, hash, relation);
      // An error here reads as "nothing found": a lookup is advice.
      (void)txn->Scan(Table::kChain, prefix, [&](const Entry& entry) {
        if (!entry.key.starts_with(prefix)) return false;
        const RecordNumber number = RecordOfChainKey(entry.key);
        if (sound(number)) out.push_back(number);
        return out.size() < limit;
      });
      return out;
    };
    while (pos + layout.block_size <= n_tokens) {
      TokenRun block;
      const auto first = tokens.ids.begin() + static_cast<ptrdiff_t>(pos);
      block.ids.assign(first, first + layout.block_size);
      block.spans = ClipSpans(tokens.spans, pos, pos + layout.block_size);
      const Hash256 next = ChainHash(secret, chain, pos, block);
      const std::vector<RecordNumber> ends =
          listed(next, ChainRelation::kEnds, 1);
      if (ends.empty()) break;
      best = ends.front();
      chain = next;
      pos += layout.block_size;
    }
    candidates = listed(chain, ChainRelation::kContinues, kCandidatesMax);
  }
  // The next block of some chains begins like the rest of the prompt.
  uint64_t hit_len = pos;
  for (const RecordNumber candidate : candidates) {
    const absl::StatusOr<RecordHeader> header =
        core_->reader.ReadHeader(candidate);
    if (!header.ok()) continue;
    const SectionEntry* ids = header->Find(SectionKind::kTokens, 0);
    if (ids == nullptr) continue;
    const auto bytes = core_->reader.ReadSection(*header, *ids);
    if (!bytes.ok()) continue;
    TokenRun stored{DecodeTokens(*bytes), {}};
    if (const SectionEntry* s = header->Find(SectionKind::kSpans, 0)) {
      const auto span_bytes = core_->reader.ReadSection(*header, *s);
      if (!span_bytes.ok()) continue;
      absl::StatusOr<std::vector<ExtraKeySpan>> spans =
          DecodeSpans(*span_bytes);
      if (!spans.ok()) continue;
      stored.spans = *std::move(spans);
    }
    stored.ids.resize(header->n_tokens);
    const uint64_t len = pos + CommonLength(stored, tokens, pos);
    if (len > hit_len) {
      hit_len = len;
      best = candidate;
    }
  }
  return PrefixHitOf(core_.get(), layout, best, hit_len);
}

absl::StatusOr<SessionInfo> LmdbSessionStore::Describe(
    const SessionKey& session) {
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<LmdbLease> lease,
                          LmdbLease::OfSession(core_.get(), session, 0));
  return lease->info();
}

absl::StatusOr<ListResult> LmdbSessionStore::List(uint32_t tenant,
                                                  std::string_view prefix,
                                                  std::string_view after,
                                                  size_t limit) {
  const std::string tenant_prefix = TenantPrefix(tenant);
  const std::string wanted = tenant_prefix + std::string(prefix);
  std::string from = wanted;
  if (!after.empty()) {
    // The first key above `after`.
    from = std::max(from, tenant_prefix + std::string(after) + '\0');
  }
  ListResult result;
  absl::Status failed;
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                          core_->env->BeginRead());
  TORPOR_RETURN_IF_ERROR(
      txn->Scan(Table::kSessions, from, [&](const Entry& entry) {
        if (!entry.key.starts_with(wanted)) return false;
        const absl::StatusOr<SessionManifest> manifest =
            DecodeManifest(entry.value);
        if (manifest.ok() && core_->Expired(*manifest)) return true;
        if (result.sessions.size() == limit) {
          result.next = result.sessions.back().key.id;
          return false;
        }
        const SessionKey key{tenant,
                             std::string(entry.key.substr(sizeof(tenant)))};
        SessionInfo info;
        info.key = key;
        if (manifest.ok()) {
          absl::StatusOr<SessionInfo> full =
              core_->InfoOf(*txn, key, *manifest);
          if (full.ok()) info = *std::move(full);
        }
        // A damaged session is listed by its name alone, version 0.
        result.sessions.push_back(std::move(info));
        return true;
      }));
  return result;
}

absl::StatusOr<SessionInfo> LmdbSessionStore::Fork(const ForkSpec& spec) {
  TORPOR_RETURN_IF_ERROR(ValidateFork(spec));
  TORPOR_RETURN_IF_ERROR(core_->DropIfExpired(spec.target.session));
  {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            core_->env->BeginRead());
    TORPOR_ASSIGN_OR_RETURN(const std::optional<SessionManifest> target,
                            FindSession(*txn, spec.target.session));
    if (Repeated(target, spec.target, Verb::kFork).has_value()) {
      return core_->InfoOf(*txn, spec.target.session, *target);
    }
  }
  // The lease keeps the source's records while the cut is checked.
  TORPOR_ASSIGN_OR_RETURN(
      const std::unique_ptr<LmdbLease> lease,
      LmdbLease::OfSession(core_.get(), spec.source, spec.source_version));
  const uint64_t at = spec.at.value_or(lease->info().n_tokens);
  TORPOR_RETURN_IF_ERROR(lease->CheckCut(at));
  const uint64_t source_version = lease->info().version;

  SessionManifest manifest;
  TORPOR_RETURN_IF_ERROR(core_->writer.Run(
      kNameBytes,
      [&](WriteTxn& txn) -> absl::Status {
        TORPOR_ASSIGN_OR_RETURN(
            manifest, RequireVersion(txn, spec.source, source_version));
        const int64_t now = core_->Now();
        CutManifest(at, lease->links(), &manifest);
        manifest.operations.clear();
        manifest.created_at_us = manifest.updated_at_us = now;
        manifest.expires_at_us = manifest.pinned_until_us = 0;
        std::optional<SessionManifest> replaced;
        if (spec.target.expected_version == 0) {
          TORPOR_RETURN_IF_ERROR(RequireAbsent(txn, spec.target.session));
          TORPOR_ASSIGN_OR_RETURN(manifest.version, FirstVersion(txn));
        } else {
          TORPOR_ASSIGN_OR_RETURN(replaced,
                                  RequireVersion(txn, spec.target.session,
                                                 spec.target.expected_version));
          manifest.version = replaced->version + 1;
          manifest.operations = replaced->operations;
          manifest.created_at_us = replaced->created_at_us;
        }
        manifest.AddOperation({spec.target.operation_id,
                               Verb::kFork,
                               {.version = manifest.version}});
        TORPOR_RETURN_IF_ERROR(AddManifestNames(txn, manifest));
        if (replaced.has_value()) {
          TORPOR_RETURN_IF_ERROR(DropManifestNames(txn, *replaced));
        }
        return PutSession(txn, spec.target.session, manifest);
      },
      Room::kTakes, [&] { core_->Track(spec.target.session, manifest); }));
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                          core_->env->BeginRead());
  return core_->InfoOf(*txn, spec.target.session, manifest);
}

absl::StatusOr<SessionInfo> LmdbSessionStore::Rewind(const MutateSpec& spec,
                                                     uint64_t at) {
  TORPOR_RETURN_IF_ERROR(ValidateMutation(spec));
  TORPOR_RETURN_IF_ERROR(core_->DropIfExpired(spec.session));
  {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            core_->env->BeginRead());
    TORPOR_ASSIGN_OR_RETURN(const std::optional<SessionManifest> current,
                            FindSession(*txn, spec.session));
    if (Repeated(current, spec, Verb::kRewind).has_value()) {
      return core_->InfoOf(*txn, spec.session, *current);
    }
    TORPOR_RETURN_IF_ERROR(
        RequireVersion(*txn, spec.session, spec.expected_version).status());
  }
  TORPOR_ASSIGN_OR_RETURN(
      const std::unique_ptr<LmdbLease> lease,
      LmdbLease::OfSession(core_.get(), spec.session, spec.expected_version));
  TORPOR_RETURN_IF_ERROR(lease->CheckCut(at));
  SessionManifest manifest;
  TORPOR_RETURN_IF_ERROR(core_->writer.Run(
      kNameBytes,
      [&](WriteTxn& txn) -> absl::Status {
        TORPOR_ASSIGN_OR_RETURN(
            const SessionManifest before,
            RequireVersion(txn, spec.session, spec.expected_version));
        manifest = before;
        CutManifest(at, lease->links(), &manifest);
        ++manifest.version;
        manifest.updated_at_us = core_->Now();
        manifest.AddOperation(
            {spec.operation_id, Verb::kRewind, {.version = manifest.version}});
        TORPOR_RETURN_IF_ERROR(AddManifestNames(txn, manifest));
        TORPOR_RETURN_IF_ERROR(DropManifestNames(txn, before));
        return PutSession(txn, spec.session, manifest);
      },
      Room::kTakes, [&] { core_->Track(spec.session, manifest); }));
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                          core_->env->BeginRead());
  return core_->InfoOf(*txn, spec.session, manifest);
}

absl::StatusOr<uint64_t> LmdbSessionStore::Erase(const MutateSpec& spec) {
  TORPOR_RETURN_IF_ERROR(ValidateMutation(spec));
  TORPOR_RETURN_IF_ERROR(core_->DropIfExpired(spec.session));
  uint64_t version = 0;
  bool repeated = false;
  TORPOR_RETURN_IF_ERROR(core_->writer.Run(
      kNameBytes,
      [&](WriteTxn& txn) -> absl::Status {
        const std::string tombstone_key =
            TombstoneKey(spec.session, spec.operation_id);
        TORPOR_ASSIGN_OR_RETURN(const auto done,
                                txn.Get(Table::kTombstones, tombstone_key));
        repeated = done.has_value();
        if (repeated) {
          TORPOR_ASSIGN_OR_RETURN(const Tombstone tombstone,
                                  DecodeTombstone(*done));
          version = tombstone.operation.receipt.version;
          return absl::OkStatus();
        }
        const absl::StatusOr<SessionManifest> manifest =
            RequireVersion(txn, spec.session, spec.expected_version);
        version = spec.expected_version;
        // A damaged session can still be deleted.
        if (absl::IsDataLoss(manifest.status())) {
          TORPOR_RETURN_IF_ERROR(DeleteDamagedSession(
              txn, spec.session, std::min(version, kMaxGivenVersion)));
        } else {
          TORPOR_RETURN_IF_ERROR(manifest.status());
          TORPOR_RETURN_IF_ERROR(DeleteSession(txn, spec.session, *manifest));
        }
        const Tombstone tombstone{
            core_->Now(),
            {spec.operation_id, Verb::kErase, {.version = version}}};
        return txn.Put(Table::kTombstones, tombstone_key,
                       AsBytes(EncodeTombstone(tombstone)));
      },
      Room::kMakes,
      [&] {
        // The name may be another session's by now.
        if (!repeated) core_->Untrack(spec.session);
      }));
  return version;
}

absl::StatusOr<SessionInfo> LmdbSessionStore::Touch(const TouchSpec& spec) {
  TORPOR_RETURN_IF_ERROR(ValidateSession(spec.session));
  SessionManifest manifest;
  TORPOR_RETURN_IF_ERROR(core_->writer.Run(
      kNameBytes,
      [&](WriteTxn& txn) -> absl::Status {
        TORPOR_ASSIGN_OR_RETURN(const std::optional<SessionManifest> current,
                                FindSession(txn, spec.session));
        if (!current.has_value() || core_->Expired(*current)) {
          return absl::NotFoundError(
              absl::StrFormat("session '%s': unknown", spec.session.id));
        }
        manifest = *current;
        return ApplyTouch(*core_, spec, txn, &manifest);
      },
      Room::kTakes, [&] { core_->Track(spec.session, manifest); }));
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                          core_->env->BeginRead());
  return core_->InfoOf(*txn, spec.session, manifest);
}

absl::Status LmdbSessionStore::PutModel(std::string_view name,
                                        std::string_view value) {
  return core_->writer.Run(value.size(), [&](WriteTxn& txn) {
    return txn.Put(Table::kModels, name, AsBytes(value));
  });
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>>
LmdbSessionStore::Models() {
  std::vector<std::pair<std::string, std::string>> models;
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                          core_->env->BeginRead());
  TORPOR_RETURN_IF_ERROR(txn->Scan(Table::kModels, "", [&](const Entry& entry) {
    models.emplace_back(entry.key, AsString(entry.value));
    return true;
  }));
  return models;
}

absl::StatusOr<bool> LmdbSessionStore::Maintain() {
  return RunMaintenance(core_.get());
}

StoreStats LmdbSessionStore::Stats() {
  StoreStats stats;
  if (const auto txn = core_->env->BeginRead(); txn.ok()) {
    stats.sessions = (*txn)->Count(Table::kSessions);
    stats.records = (*txn)->Count(Table::kRecords);
    stats.staged_records = (*txn)->Count(Table::kStaging);
    stats.trashed_records = (*txn)->Count(Table::kTrash);
  }
  stats.live_bytes = core_->budget.live_bytes();
  stats.reserved_bytes = core_->budget.reserved_bytes();
  stats.max_bytes = core_->budget.max_bytes();
  const EnvInfo file = core_->env->Info();
  stats.file_bytes = file.used_bytes;
  stats.disk_free_bytes =
      core_->dir->FreeBytes().value_or(0) + file.allocated_bytes;
  stats.quarantined_records = core_->quarantined.load();
  stats.open_tickets = core_->open_tickets.load();
  stats.open_leases = core_->open_leases.load();
  stats.commits = core_->writer.commits();
  return stats;
}

}  // namespace torpor::store
