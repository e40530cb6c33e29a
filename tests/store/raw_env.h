// SPDX-License-Identifier: Apache-2.0
//
// A closed store's environment, opened through liblmdb itself: for tests that
// damage what stands there. Tables and keys: docs/FORMAT.md. Every call is a
// transaction of its own and fails the test when LMDB does.

#ifndef TORPOR_TESTS_STORE_RAW_ENV_H_
#define TORPOR_TESTS_STORE_RAW_ENV_H_

#include <gtest/gtest.h>
#include <lmdb.h>

#include <string>
#include <utility>
#include <vector>

#include "store/codec.h"
#include "store/keys.h"
#include "store/manifest.h"
#include "store/record.h"

namespace torpor::store {

class RawEnv {
 public:
  explicit RawEnv(const std::string& directory) {
    EXPECT_EQ(mdb_env_create(&env_), 0);
    EXPECT_EQ(mdb_env_set_maxdbs(env_, 16), 0);
    EXPECT_EQ(mdb_env_set_mapsize(env_, size_t{1} << 30), 0);
    EXPECT_EQ(mdb_env_open(env_, directory.c_str(), 0, 0600), 0);
  }
  ~RawEnv() { mdb_env_close(env_); }
  RawEnv(const RawEnv&) = delete;
  RawEnv& operator=(const RawEnv&) = delete;

  // Empty when the key is absent.
  std::string Get(const char* table, const std::string& key) {
    std::string out;
    InTxn(table, [&](MDB_txn* txn, MDB_dbi dbi) {
      MDB_val k = Val(key);
      MDB_val v;
      if (mdb_get(txn, dbi, &k, &v) == 0) {
        out.assign(static_cast<const char*>(v.mv_data), v.mv_size);
      }
    });
    return out;
  }

  void Put(const char* table, const std::string& key,
           const std::string& value) {
    InTxn(table, [&](MDB_txn* txn, MDB_dbi dbi) {
      MDB_val k = Val(key);
      MDB_val v = Val(value);
      EXPECT_EQ(mdb_put(txn, dbi, &k, &v, 0), 0);
    });
  }

  void Delete(const char* table, const std::string& key) {
    InTxn(table, [&](MDB_txn* txn, MDB_dbi dbi) {
      MDB_val k = Val(key);
      EXPECT_EQ(mdb_del(txn, dbi, &k, nullptr), 0);
    });
  }

  void FlipBit(const char* table, const std::string& key, size_t bit) {
    std::string value = Get(table, key);
    ASSERT_LT(bit / 8, value.size());
    value[bit / 8] = static_cast<char>(value[bit / 8] ^ (1 << bit % 8));
    Put(table, key, value);
  }

  void Swap(const char* table, const std::string& a, const std::string& b) {
    const std::string at_a = Get(table, a);
    Put(table, a, Get(table, b));
    Put(table, b, at_a);
  }

  // ---- what the values mean ------------------------------------------------

  SessionManifest Manifest(const SessionKey& session) {
    auto manifest =
        DecodeManifest(AsBytes(Get("sessions", SessionTableKey(session))));
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    return manifest.ok() ? *std::move(manifest) : SessionManifest();
  }

  RecordEntry Index(RecordNumber number) {
    const auto entry =
        DecodeRecordEntry(AsBytes(Get("records", RecordKey(number))));
    EXPECT_TRUE(entry.ok()) << entry.status();
    return entry.ok() ? *entry : RecordEntry();
  }

  // Records from a chain's first to `tip`.
  std::vector<RecordNumber> Chain(RecordNumber tip) {
    std::vector<RecordNumber> chain;
    for (; tip != 0; tip = Index(tip).parent) {
      chain.insert(chain.begin(), tip);
    }
    return chain;
  }

  RecordHeader Header(RecordNumber number) {
    const auto header =
        DecodeRecordPrefix(AsBytes(Get("parts", PartKey(number, 0))));
    EXPECT_TRUE(header.ok()) << header.status();
    return header.ok() ? *header : RecordHeader();
  }

  // Flips a bit of a record's byte `offset`, in whichever part it stands.
  void FlipRecordBit(RecordNumber number, uint64_t offset, int bit) {
    FlipBit("parts",
            PartKey(number, static_cast<uint32_t>(offset / kPartBytes)),
            8 * (offset % kPartBytes) + bit);
  }

 private:
  static MDB_val Val(const std::string& s) {
    return {s.size(), const_cast<char*>(s.data())};
  }

  template <typename Body>
  void InTxn(const char* table, const Body& body) {
    MDB_txn* txn = nullptr;
    MDB_dbi dbi = 0;
    ASSERT_EQ(mdb_txn_begin(env_, nullptr, 0, &txn), 0);
    EXPECT_EQ(mdb_dbi_open(txn, table, 0, &dbi), 0) << table;
    body(txn, dbi);
    EXPECT_EQ(mdb_txn_commit(txn), 0);
  }

  MDB_env* env_ = nullptr;
};

}  // namespace torpor::store

#endif  // TORPOR_TESTS_STORE_RAW_ENV_H_
