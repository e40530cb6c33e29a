// SPDX-License-Identifier: Apache-2.0
//
// The catalog's counts made anew from what manifests and records say.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "store/catalog.h"
#include "store/codec.h"
#include "store/keys.h"
#include "store/record.h"

namespace torpor::store {

absl::StatusOr<bool> RecountIsDue(const ReadView& view) {
  TORPOR_ASSIGN_OR_RETURN(const auto value,
                          view.Get(Table::kMeta, kMetaRecount));
  return value.has_value();
}

absl::Status AskForRecount(WriteTxn& txn) {
  return txn.Put(Table::kMeta, kMetaRecount, {});
}

absl::StatusOr<bool> Recount(WriteTxn& txn) {
  bool damaged_manifest = false;
  std::vector<RecordNumber> named;
  TORPOR_RETURN_IF_ERROR(
      txn.Scan(Table::kSessions, "", [&](const Entry& entry) {
        const absl::StatusOr<SessionManifest> manifest =
            DecodeManifest(entry.value);
        damaged_manifest = !manifest.ok();
        if (damaged_manifest) return false;
        named.push_back(manifest->tip);
        for (const AttachmentRef& a : manifest->attachments) {
          named.push_back(a.record);
        }
        return true;
      }));
  if (damaged_manifest) return false;

  struct Counts {
    uint64_t refs = 0;
    uint64_t live = 0;
  };
  std::map<RecordNumber, Counts> counts;
  std::map<RecordNumber, std::optional<RecordEntry>> records;
  TORPOR_RETURN_IF_ERROR(txn.Scan(Table::kRecords, "", [&](const Entry& entry) {
    const auto number = LoadBigEndian<uint64_t>(entry.key);
    const absl::StatusOr<RecordEntry> record = DecodeRecordEntry(entry.value);
    if (record.ok()) {
      records[number] = *record;
      ++counts[record->parent].refs;
    } else {
      records[number] = std::nullopt;
    }
    return true;
  }));
  for (const RecordNumber tip : named) {
    ++counts[tip].refs;
    // Up the chain until an ancestor was live already.
    for (RecordNumber at = tip; at != 0;) {
      if (counts[at].live++ > 0) break;
      const auto it = records.find(at);
      if (it == records.end() || !it->second.has_value()) break;
      at = it->second->parent;
    }
  }
  bool corrected = false;
  for (auto& [number, record] : records) {
    const Counts& right = counts[number];
    const std::string key = RecordKey(number);
    if (record.has_value() &&
        (record->refs != right.refs || record->live != right.live)) {
      record->refs = static_cast<uint32_t>(right.refs);
      record->live = static_cast<uint32_t>(right.live);
      TORPOR_RETURN_IF_ERROR(PutRecord(txn, number, *record));
      corrected = true;
    }
    TORPOR_ASSIGN_OR_RETURN(const auto trash, txn.Get(Table::kTrash, key));
    if (trash.has_value() == (right.refs == 0)) continue;
    corrected = true;
    if (right.refs == 0) {
      const RecordExtent extent =
          record.has_value()
              ? RecordExtent{record->tenant, record->record_bytes}
              : RecordExtent{};
      TORPOR_RETURN_IF_ERROR(
          txn.Put(Table::kTrash, key, AsBytes(EncodeExtent(extent))));
    } else {
      TORPOR_RETURN_IF_ERROR(txn.Delete(Table::kTrash, key).status());
    }
  }
  std::vector<std::string> nowhere;
  TORPOR_RETURN_IF_ERROR(txn.Scan(Table::kChain, "", [&](const Entry& entry) {
    if (!records.contains(RecordOfChainKey(entry.key))) {
      nowhere.emplace_back(entry.key);
    }
    return true;
  }));
  for (const std::string& key : nowhere) {
    TORPOR_RETURN_IF_ERROR(txn.Delete(Table::kChain, key).status());
  }
  corrected = corrected || !nowhere.empty();
  nowhere.clear();
  TORPOR_RETURN_IF_ERROR(txn.Scan(Table::kBlocks, "", [&](const Entry& entry) {
    ByteReader r(entry.value);
    const auto number = r.Int<uint64_t>();
    if (!r.Done() || !records.contains(number)) nowhere.emplace_back(entry.key);
    return true;
  }));
  for (const std::string& key : nowhere) {
    TORPOR_RETURN_IF_ERROR(txn.Delete(Table::kBlocks, key).status());
  }
  corrected = corrected || !nowhere.empty();
  TORPOR_RETURN_IF_ERROR(txn.Delete(Table::kMeta, kMetaRecount).status());
  return corrected;
}

}  // namespace torpor::store
