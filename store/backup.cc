// SPDX-License-Identifier: Apache-2.0
//
// LmdbSessionStore::Backup: session by session under a lease, record by
// record in short transactions, verified on the way, into an environment of
// its own. No transaction of the live environment is held for long.

#include <dirent.h>

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "store/codec.h"
#include "store/keys.h"
#include "store/lmdb_lease.h"
#include "store/lmdb_session_store.h"
#include "store/store_core.h"

namespace torpor::store {
namespace {

absl::Status RequireEmpty(const std::string& directory) {
  DIR* dir = opendir(directory.c_str());
  if (dir == nullptr) return absl::OkStatus();  // absent: created later
  bool empty = true;
  while (const dirent* entry = readdir(dir)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") empty = false;
  }
  closedir(dir);
  if (empty) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("backup into %s: the directory is not empty", directory));
}

class BackupWriter {
 public:
  BackupWriter(StoreCore* core, Env* target) : core_(core), target_(target) {}

  BackupReport& report() { return report_; }

  // Everything that is not a session: secrets, layouts, counters, models.
  absl::Status CopyTables() {
    std::vector<std::pair<std::string, std::string>> meta;
    std::vector<std::pair<std::string, std::string>> models;
    {
      TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                              core_->env->BeginRead());
      for (auto& [table, out] : {std::pair{Table::kMeta, &meta},
                                 std::pair{Table::kModels, &models}}) {
        TORPOR_RETURN_IF_ERROR(txn->Scan(table, "", [&](const Entry& entry) {
          out->emplace_back(entry.key, AsString(entry.value));
          return true;
        }));
      }
    }
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<WriteTxn> txn,
                            target_->BeginWrite());
    for (const auto& [table, rows] :
         {std::pair{Table::kMeta, &meta}, std::pair{Table::kModels, &models}}) {
      for (const auto& [key, value] : *rows) {
        TORPOR_RETURN_IF_ERROR(txn->Put(table, key, AsBytes(value)));
      }
    }
    return txn->Commit();
  }

  absl::Status CopySession(const SessionKey& session) {
    absl::StatusOr<std::unique_ptr<LmdbLease>> lease =
        LmdbLease::OfSession(core_, session, 0);
    // Deleted meanwhile.
    if (lease.status().code() == absl::StatusCode::kNotFound) {
      return absl::OkStatus();
    }
    TORPOR_RETURN_IF_ERROR(lease.status());
    const SessionManifest& manifest = *(*lease)->manifest();
    TORPOR_RETURN_IF_ERROR(CopyChain(manifest.tip));
    for (const AttachmentRef& a : manifest.attachments) {
      TORPOR_RETURN_IF_ERROR(CopyChain(a.record));
    }
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<WriteTxn> txn,
                            target_->BeginWrite());
    TORPOR_RETURN_IF_ERROR(AddManifestNames(*txn, manifest));
    TORPOR_RETURN_IF_ERROR(PutSession(*txn, session, manifest));
    TORPOR_RETURN_IF_ERROR(txn->Commit());
    ++report_.sessions_copied;
    return absl::OkStatus();
  }

 private:
  // A record that no manifest will name goes, with its ancestors, to the
  // copy's own reaper.
  absl::Status Disown(RecordNumber number) {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<WriteTxn> txn,
                            target_->BeginWrite());
    TORPOR_RETURN_IF_ERROR(AddName(*txn, number));
    TORPOR_RETURN_IF_ERROR(DropName(*txn, number));
    return txn->Commit();
  }

  absl::Status CopyChain(RecordNumber tip) {
    std::vector<ChainLink> links;
    {
      TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                              core_->env->BeginRead());
      TORPOR_ASSIGN_OR_RETURN(links, WalkChain(*txn, tip));
    }
    RecordNumber last = 0;
    for (const ChainLink& link : links) {
      if (!copied_.contains(link.number)) {
        if (absl::Status s = CopyRecord(link.number); !s.ok()) {
          if (last != 0) TORPOR_RETURN_IF_ERROR(Disown(last));
          return s;
        }
        copied_.insert(link.number);
      }
      last = link.number;
    }
    return absl::OkStatus();
  }

  absl::Status CopyRecord(RecordNumber number) {
    TORPOR_ASSIGN_OR_RETURN(const RecordHeader header,
                            core_->reader.ReadHeader(number));
    for (const SectionEntry& section : header.sections) {
      const BufferPool::Buffer bytes = core_->pool.Force(section.bytes);
      TORPOR_RETURN_IF_ERROR(
          core_->reader.ReadSection(header, section, bytes.span()));
    }
    const BufferPool::Buffer record = core_->pool.Force(header.record_bytes);
    RecordEntry entry;
    {
      TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                              core_->env->BeginRead());
      TORPOR_RETURN_IF_ERROR(CopyRecordBytes(*txn, number, 0, record.span()));
      TORPOR_ASSIGN_OR_RETURN(entry, FindRecord(*txn, number));
    }
    entry.refs = entry.live = 0;
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<WriteTxn> txn,
                            target_->BeginWrite());
    for (uint32_t part = 0; part < PartCount(header.record_bytes); ++part) {
      TORPOR_RETURN_IF_ERROR(
          txn->Put(Table::kParts, PartKey(number, part),
                   record.span().subspan(size_t{part} * kPartBytes,
                                         PartSize(header.record_bytes, part))));
    }
    TORPOR_RETURN_IF_ERROR(PublishRecord(*txn, number, entry));
    TORPOR_RETURN_IF_ERROR(txn->Commit());
    ++report_.records_copied;
    report_.bytes_copied += header.record_bytes;
    return absl::OkStatus();
  }

  StoreCore* const core_;
  Env* const target_;
  BackupReport report_;
  std::set<RecordNumber> copied_;
};

}  // namespace

absl::StatusOr<BackupReport> LmdbSessionStore::Backup(
    const std::string& directory, const Progress<BackupReport>& progress) {
  TORPOR_RETURN_IF_ERROR(RequireEmpty(directory));
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<DataDir> dir,
                          DataDir::Acquire(directory));
  std::vector<SessionKey> sessions;
  {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            core_->env->BeginRead());
    TORPOR_RETURN_IF_ERROR(
        txn->Scan(Table::kSessions, "", [&](const Entry& entry) {
          sessions.push_back({LoadBigEndian<uint32_t>(entry.key),
                              std::string(entry.key.substr(4))});
          return true;
        }));
  }
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<Env> target,
                          Env::Open({.directory = directory}));
  BackupWriter writer(core_.get(), target.get());
  TORPOR_RETURN_IF_ERROR(writer.CopyTables());
  for (const SessionKey& session : sessions) {
    if (absl::Status s = writer.CopySession(session); !s.ok()) {
      if (s.code() != absl::StatusCode::kDataLoss) return s;
      writer.report().problems.push_back(absl::StrFormat(
          "session '%s': %s", session.id, std::string(s.message())));
    }
    if (progress && !progress(writer.report())) {
      return absl::CancelledError("backup: cancelled");
    }
  }
  // Counters and layouts may have moved on while sessions were copied.
  TORPOR_RETURN_IF_ERROR(writer.CopyTables());
  TORPOR_RETURN_IF_ERROR(dir->MarkData());
  return writer.report();
}

}  // namespace torpor::store
