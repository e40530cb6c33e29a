// SPDX-License-Identifier: Apache-2.0
//
// Keys of the tables: fixed-width big-endian fields, so that byte order is the
// order wanted of a scan (docs/FORMAT.md). All under LMDB's 511 bytes.

#ifndef TORPOR_STORE_KEYS_H_
#define TORPOR_STORE_KEYS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "store/codec.h"
#include "store/types.h"

namespace torpor::store {

// kMeta keys.
inline constexpr std::string_view kMetaFormat = "format";
inline constexpr std::string_view kMetaNextRecord = "next_record";
inline constexpr std::string_view kMetaVersionFloor = "version_floor";
// Present: counts of records may be too high, Recount is due.
inline constexpr std::string_view kMetaRecount = "recount";
// Of no meaning; a commit that changes next to nothing writes it.
inline constexpr std::string_view kMetaTick = "tick";

inline std::string TenantSecretKey(uint32_t tenant) {
  std::string key = "secret/";
  AppendBigEndian(tenant, &key);
  return key;
}

inline std::string TenantPrefix(uint32_t tenant) {
  std::string key;
  AppendBigEndian(tenant, &key);
  return key;
}

inline std::string LayoutKey(const Hash256& fingerprint) {
  return std::string("layout/").append(AsString(fingerprint));
}

// kSessions: tenant u32, id.
inline std::string SessionTableKey(const SessionKey& session) {
  return TenantPrefix(session.tenant) + session.id;
}

// kRecords, kStaging, kTrash: record u64.
inline std::string RecordKey(RecordNumber number) {
  std::string key;
  AppendBigEndian(number, &key);
  return key;
}

// kParts: record u64, part u32.
inline std::string PartKey(RecordNumber number, uint32_t part) {
  std::string key = RecordKey(number);
  AppendBigEndian(part, &key);
  return key;
}

// kBlocks: tenant u32, block id.
inline std::string BlockKey(uint32_t tenant, const Hash256& block_id) {
  return TenantPrefix(tenant).append(AsString(block_id));
}

// kChain: tenant u32, chain hash, relation u8, ~record u64 (newest first).
enum class ChainRelation : uint8_t {
  // The record ends this chain (full blocks only).
  kEnds = 1,
  // The record continues this chain.
  kContinues = 2,
};
inline std::string ChainPrefix(uint32_t tenant, const Hash256& chain,
                               ChainRelation relation) {
  std::string key = TenantPrefix(tenant).append(AsString(chain));
  key.push_back(static_cast<char>(relation));
  return key;
}
inline std::string ChainKey(uint32_t tenant, const Hash256& chain,
                            ChainRelation relation, RecordNumber number) {
  std::string key = ChainPrefix(tenant, chain, relation);
  AppendBigEndian(~number, &key);
  return key;
}
inline RecordNumber RecordOfChainKey(std::string_view key) {
  return ~LoadBigEndian<uint64_t>(key.substr(key.size() - 8));
}

// kTombstones: tenant u32, session id length u16, session id, operation id.
inline std::string TombstoneKey(const SessionKey& session,
                                std::string_view operation_id) {
  std::string key = TenantPrefix(session.tenant);
  AppendBigEndian(static_cast<uint16_t>(session.id.size()), &key);
  return key.append(session.id).append(operation_id);
}

}  // namespace torpor::store

#endif  // TORPOR_STORE_KEYS_H_
