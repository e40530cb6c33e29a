// SPDX-License-Identifier: Apache-2.0
//
// LmdbSessionStore::Verify: first the index against itself in one snapshot,
// then every record's bytes, one short transaction each.

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "store/codec.h"
#include "store/keys.h"
#include "store/lmdb_session_store.h"
#include "store/store_core.h"

namespace torpor::store {
namespace {

std::string HexPrefix(const Hash256& hash) {
  return absl::StrFormat("%02x%02x%02x%02x", hash[0], hash[1], hash[2],
                         hash[3]);
}

class IndexCheck {
 public:
  IndexCheck(const ReadView& view, VerifyReport* report)
      : view_(view), report_(report) {}

  absl::Status Run() {
    TORPOR_RETURN_IF_ERROR(ReadSessions());
    TORPOR_RETURN_IF_ERROR(ReadRecords());
    CheckRecords();
    CheckLayouts();
    TORPOR_RETURN_IF_ERROR(CheckSmallTables());
    return CheckParts();
  }

  [[nodiscard]] const std::map<RecordNumber, RecordEntry>& records() const {
    return records_;
  }

 private:
  template <typename... Args>
  void Problem(const absl::FormatSpec<Args...>& format, const Args&... args) {
    report_->problems.push_back(absl::StrFormat(format, args...));
  }

  absl::Status ReadSessions() {
    return view_.Scan(Table::kSessions, "", [&](const Entry& entry) {
      ++report_->sessions_checked;
      const absl::StatusOr<SessionManifest> manifest =
          DecodeManifest(entry.value);
      if (!manifest.ok()) {
        Problem("session '%s': %s", std::string(entry.key.substr(4)),
                std::string(manifest.status().message()));
        damaged_manifests_ = true;
        return true;
      }
      fingerprints_.insert(manifest->fingerprint);
      std::vector<RecordNumber> named{manifest->tip};
      for (const AttachmentRef& a : manifest->attachments) {
        named.push_back(a.record);
      }
      for (const RecordNumber number : named) {
        if (number == 0) continue;
        ++names_[number];
        ++live_[number];
      }
      tips_.emplace_back(std::string(entry.key.substr(4)), manifest->tip,
                         manifest->kv_len);
      return true;
    });
  }

  absl::Status ReadRecords() {
    return view_.Scan(Table::kRecords, "", [&](const Entry& entry) {
      const auto number = LoadBigEndian<uint64_t>(entry.key);
      absl::StatusOr<RecordEntry> record = DecodeRecordEntry(entry.value);
      if (!record.ok()) {
        Problem("record %d: %s", number,
                std::string(record.status().message()));
        return true;
      }
      if (record->parent != 0) {
        ++names_[record->parent];
        if (record->live > 0) ++live_[record->parent];
      }
      if (record->quarantined) Problem("record %d: quarantined", number);
      records_.emplace(number, *std::move(record));
      return true;
    });
  }

  void CheckRecords() {
    for (const auto& [id, tip, kv_len] : tips_) {
      if (tip == 0 ? kv_len != 0 : !records_.contains(tip)) {
        Problem("session '%s': its last record %d is not in the index", id,
                tip);
      }
    }
    for (const auto& [number, entry] : records_) {
      const auto count = [number = number](const auto& counts) {
        const auto it = counts.find(number);
        return it == counts.end() ? uint64_t{0} : it->second;
      };
      // A damaged manifest's names cannot be counted.
      if (!damaged_manifests_ &&
          (count(names_) != entry.refs || count(live_) != entry.live)) {
        Problem("record %d: has %d names, %d live; its entry says %d and %d",
                number, count(names_), count(live_), entry.refs, entry.live);
      }
      const auto trash = view_.Get(Table::kTrash, RecordKey(number));
      const bool in_trash = trash.ok() && trash->has_value();
      if (in_trash != (entry.refs == 0)) {
        Problem("record %d: %s the trash with %d names", number,
                in_trash ? "in" : "not in", entry.refs);
      }
      CheckPlace(number, entry);
    }
  }

  void CheckPlace(RecordNumber number, const RecordEntry& entry) {
    if (entry.kind != RecordKind::kBlock) return;
    uint64_t begins_at = 0;
    if (entry.parent != 0) {
      const auto parent = records_.find(entry.parent);
      if (parent == records_.end()) {
        Problem("record %d: its parent %d is not in the index", number,
                entry.parent);
        return;
      }
      begins_at = parent->second.end_pos();
      if (parent->second.chain != entry.parent_chain) {
        Problem("record %d: its chain does not continue record %d", number,
                entry.parent);
      }
    }
    if (entry.first_pos != begins_at) {
      Problem("record %d: begins at token %d, wanted %d", number,
              entry.first_pos, begins_at);
    }
    if (entry.n_tokens == 0) return;
    const auto listed = [&](const Hash256& chain, ChainRelation relation) {
      const auto key = view_.Get(
          Table::kChain, ChainKey(entry.tenant, chain, relation, number));
      return key.ok() && key->has_value();
    };
    if (!listed(entry.parent_chain, ChainRelation::kContinues) ||
        (entry.full && !listed(entry.chain, ChainRelation::kEnds))) {
      Problem("record %d: not listed under its token chain", number);
    }
  }

  void CheckLayouts() {
    for (const Hash256& fingerprint : fingerprints_) {
      const absl::StatusOr<std::optional<RecordLayout>> layout =
          FindLayout(view_, fingerprint);
      if (!layout.ok()) {
        Problem("layout of fingerprint %s: %s", HexPrefix(fingerprint),
                std::string(layout.status().message()));
      } else if (!layout->has_value()) {
        Problem("layout of fingerprint %s: gone", HexPrefix(fingerprint));
      }
    }
  }

  absl::Status CheckSmallTables() {
    TORPOR_RETURN_IF_ERROR(
        view_.Scan(Table::kBlocks, "", [&](const Entry& entry) {
          ByteReader r(entry.value);
          const auto number = r.Int<uint64_t>();
          const auto it = records_.find(number);
          if (!r.Done() || it == records_.end() || !it->second.full ||
              BlockKey(it->second.tenant, it->second.block_id) != entry.key) {
            Problem(
                "block index: an entry names record %d, which is none of "
                "its id",
                number);
          }
          return true;
        }));
    for (const Table table : {Table::kStaging, Table::kTrash}) {
      TORPOR_RETURN_IF_ERROR(view_.Scan(table, "", [&](const Entry& entry) {
        if (!DecodeExtent(entry.value).ok()) {
          Problem("record %d: its length in staging or trash is damaged",
                  LoadBigEndian<uint64_t>(entry.key));
        }
        return true;
      }));
    }
    return view_.Scan(Table::kTombstones, "", [&](const Entry& entry) {
      if (const auto tombstone = DecodeTombstone(entry.value);
          !tombstone.ok()) {
        Problem("tombstone: %s", std::string(tombstone.status().message()));
      }
      return true;
    });
  }

  absl::Status CheckParts() {
    std::optional<RecordNumber> last;
    return view_.Scan(Table::kParts, "", [&](const Entry& entry) {
      const auto number = LoadBigEndian<uint64_t>(entry.key);
      if (number == last) return true;
      last = number;
      if (records_.contains(number)) return true;
      for (const Table table : {Table::kStaging, Table::kTrash}) {
        const auto known = view_.Get(table, RecordKey(number));
        if (known.ok() && known->has_value()) return true;
      }
      Problem("record %d: parts that no table names", number);
      return true;
    });
  }

  const ReadView& view_;
  VerifyReport* const report_;
  std::map<RecordNumber, RecordEntry> records_;
  std::map<RecordNumber, uint64_t> names_;
  std::map<RecordNumber, uint64_t> live_;
  std::vector<std::tuple<std::string, RecordNumber, uint64_t>> tips_;
  std::set<Hash256> fingerprints_;
  bool damaged_manifests_ = false;
};

// What the record's own bytes say, against its entry.
absl::Status CheckBytes(StoreCore* core, RecordNumber number,
                        const RecordEntry& entry, bool deep) {
  TORPOR_ASSIGN_OR_RETURN(const RecordHeader header,
                          core->reader.ReadHeader(number));
  if (header.record_bytes != entry.record_bytes ||
      header.first_pos != entry.first_pos ||
      header.n_tokens != entry.n_tokens ||
      header.n_pending != entry.n_pending || header.tenant != entry.tenant ||
      header.kind != entry.kind) {
    return absl::DataLossError(absl::StrFormat(
        "record %d: its header and its index entry disagree", number));
  }
  TORPOR_ASSIGN_OR_RETURN(const TenantSecret secret,
                          core->Secret(entry.tenant));
  KeyedHash digest(secret);
  BlockOrigin origin;
  TokenRun tokens;
  for (const SectionEntry& section : header.sections) {
    const BufferPool::Buffer bytes = core->pool.Force(section.bytes);
    TORPOR_RETURN_IF_ERROR(
        core->reader.ReadSection(header, section, bytes.span()));
    if (!deep) continue;
    digest.Update(bytes.span());
    if (section.kind == SectionKind::kOrigin) {
      TORPOR_ASSIGN_OR_RETURN(origin, DecodeOrigin(bytes.span()));
    } else if (section.kind == SectionKind::kTokens) {
      tokens.ids = DecodeTokens(bytes.span());
    } else if (section.kind == SectionKind::kSpans) {
      TORPOR_ASSIGN_OR_RETURN(tokens.spans, DecodeSpans(bytes.span()));
    }
  }
  if (!deep) return absl::OkStatus();
  if (digest.Finish() != header.payload_digest) {
    return absl::DataLossError(
        absl::StrFormat("record %d: its payload digest differs", number));
  }
  if (header.kind != RecordKind::kBlock) return absl::OkStatus();
  tokens.ids.resize(header.n_tokens);
  tokens.spans = ClipSpans(tokens.spans, header.first_pos,
                           header.first_pos + header.n_tokens);
  if (ChainHash(secret, entry.parent_chain, header.first_pos, tokens) !=
      entry.chain) {
    return absl::DataLossError(absl::StrFormat(
        "record %d: its tokens do not hash to its chain", number));
  }
  return absl::OkStatus();
}

// The id of a block from its parts and its parent's entry.
absl::Status CheckBlockId(StoreCore* core, RecordNumber number,
                          const RecordEntry& entry,
                          const std::map<RecordNumber, RecordEntry>& records,
                          const Hash256& fingerprint) {
  TORPOR_ASSIGN_OR_RETURN(const RecordHeader header,
                          core->reader.ReadHeader(number));
  const SectionEntry* section = header.Find(SectionKind::kOrigin, 0);
  if (section == nullptr) {
    return absl::DataLossError(
        absl::StrFormat("record %d: has no origin section", number));
  }
  TORPOR_ASSIGN_OR_RETURN(const auto bytes,
                          core->reader.ReadSection(header, *section));
  TORPOR_ASSIGN_OR_RETURN(const BlockOrigin origin, DecodeOrigin(bytes));
  TORPOR_ASSIGN_OR_RETURN(const TenantSecret secret,
                          core->Secret(entry.tenant));
  const auto parent = records.find(entry.parent);
  const Hash256 id = BlockId(
      secret, {.fingerprint = fingerprint,
               .parent_id = parent == records.end() ? Hash256{}
                                                    : parent->second.block_id,
               .chain_hash = entry.chain,
               .payload_digest = header.payload_digest,
               .provenance = origin.provenance,
               .floors = origin.floors});
  if (id != entry.block_id) {
    return absl::DataLossError(
        absl::StrFormat("record %d: its block id differs", number));
  }
  return absl::OkStatus();
}

// The fingerprint whose chain root a record's chain begins with.
absl::StatusOr<std::map<std::pair<uint32_t, Hash256>, Hash256>> ChainRoots(
    StoreCore* core, const std::set<uint32_t>& tenants) {
  std::vector<Hash256> fingerprints;
  {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            core->env->BeginRead());
    const std::string prefix = "layout/";
    TORPOR_RETURN_IF_ERROR(
        txn->Scan(Table::kMeta, prefix, [&](const Entry& entry) {
          if (!entry.key.starts_with(prefix)) return false;
          Hash256 fingerprint{};
          const auto raw = AsBytes(entry.key.substr(prefix.size()));
          std::copy_n(raw.begin(), std::min(raw.size(), fingerprint.size()),
                      fingerprint.begin());
          fingerprints.push_back(fingerprint);
          return true;
        }));
  }
  std::map<std::pair<uint32_t, Hash256>, Hash256> roots;
  for (const uint32_t tenant : tenants) {
    TORPOR_ASSIGN_OR_RETURN(const TenantSecret secret, core->Secret(tenant));
    for (const Hash256& fingerprint : fingerprints) {
      roots[{tenant, ChainRoot(secret, fingerprint)}] = fingerprint;
    }
  }
  return roots;
}

}  // namespace

absl::StatusOr<VerifyReport> LmdbSessionStore::Verify(
    bool deep, const Progress<VerifyReport>& progress) {
  VerifyReport report;
  std::map<RecordNumber, RecordEntry> records;
  {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            core_->env->BeginRead());
    IndexCheck index(*txn, &report);
    TORPOR_RETURN_IF_ERROR(index.Run());
    records = index.records();
  }
  report.records_total = records.size();
  std::map<std::pair<uint32_t, Hash256>, Hash256> roots;
  if (deep) {
    std::set<uint32_t> tenants;
    for (const auto& [number, entry] : records) tenants.insert(entry.tenant);
    TORPOR_ASSIGN_OR_RETURN(roots, ChainRoots(core_.get(), tenants));
  }
  // Fingerprint of each chain, passed from parent to child.
  std::map<RecordNumber, Hash256> fingerprints;
  const std::function<std::optional<Hash256>(RecordNumber)> fingerprint_of =
      [&](RecordNumber number) -> std::optional<Hash256> {
    std::vector<RecordNumber> path;
    std::optional<Hash256> found;
    for (RecordNumber at = number;;) {
      if (const auto it = fingerprints.find(at); it != fingerprints.end()) {
        found = it->second;
        break;
      }
      const auto entry = records.find(at);
      if (entry == records.end() || path.size() > records.size()) break;
      path.push_back(at);
      if (entry->second.parent == 0) {
        const auto root =
            roots.find({entry->second.tenant, entry->second.parent_chain});
        if (root != roots.end()) found = root->second;
        break;
      }
      at = entry->second.parent;
    }
    if (found.has_value()) {
      for (const RecordNumber at : path) fingerprints[at] = *found;
    }
    return found;
  };
  for (const auto& [number, entry] : records) {
    absl::Status status;
    if (!entry.quarantined) {
      status = CheckBytes(core_.get(), number, entry, deep);
    }
    if (status.ok() && deep && !entry.quarantined &&
        entry.kind == RecordKind::kBlock) {
      const std::optional<Hash256> fingerprint = fingerprint_of(number);
      status =
          fingerprint.has_value()
              ? CheckBlockId(core_.get(), number, entry, records, *fingerprint)
              : absl::DataLossError(absl::StrFormat(
                    "record %d: its chain begins under no known "
                    "fingerprint",
                    number));
    }
    if (!status.ok()) {
      // A record that was freed meanwhile is no damage.
      TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                              core_->env->BeginRead());
      TORPOR_ASSIGN_OR_RETURN(const auto still,
                              txn->Get(Table::kRecords, RecordKey(number)));
      if (still.has_value()) {
        report.problems.emplace_back(status.message());
      }
    }
    if (!status.ok()) (void)core_->Quarantine(number, status);
    ++report.records_checked;
    if (progress && !progress(report)) {
      return absl::CancelledError("verify: cancelled");
    }
  }
  return report;
}

}  // namespace torpor::store
