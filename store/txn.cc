// SPDX-License-Identifier: Apache-2.0
//
// The transactions of an Env (env.h).

#include <lmdb.h>

#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "store/env.h"
#include "store/lmdb_error.h"

namespace torpor::store {
namespace {

MDB_val ToVal(std::string_view s) {
  return {s.size(), const_cast<char*>(s.data())};
}

std::span<const uint8_t> ToSpan(const MDB_val& v) {
  return {static_cast<const uint8_t*>(v.mv_data), v.mv_size};
}

}  // namespace

absl::StatusOr<std::optional<std::span<const uint8_t>>> ReadView::Get(
    Table table, std::string_view key) const {
  MDB_val k = ToVal(key);
  MDB_val v;
  const int rc = mdb_get(txn_, env_->dbi_[static_cast<size_t>(table)], &k, &v);
  if (rc == MDB_NOTFOUND) return std::nullopt;
  if (rc != 0) {
    return LmdbError(absl::StrFormat("get from table %s",
                                     kTableNames[static_cast<size_t>(table)]),
                     rc);
  }
  return ToSpan(v);
}

absl::Status ReadView::Scan(
    Table table, std::string_view from,
    const std::function<bool(const Entry&)>& visit) const {
  const std::string what = absl::StrFormat(
      "scan of table %s", kTableNames[static_cast<size_t>(table)]);
  MDB_cursor* raw = nullptr;
  if (const int rc =
          mdb_cursor_open(txn_, env_->dbi_[static_cast<size_t>(table)], &raw);
      rc != 0) {
    return LmdbError(what, rc);
  }
  const std::unique_ptr<MDB_cursor, decltype(&mdb_cursor_close)> cursor(
      raw, &mdb_cursor_close);
  MDB_val k = ToVal(from);
  MDB_val v;
  int rc =
      mdb_cursor_get(raw, &k, &v, from.empty() ? MDB_FIRST : MDB_SET_RANGE);
  for (; rc == 0; rc = mdb_cursor_get(raw, &k, &v, MDB_NEXT)) {
    const Entry entry{{static_cast<const char*>(k.mv_data), k.mv_size},
                      ToSpan(v)};
    if (!visit(entry)) return absl::OkStatus();
  }
  return rc == MDB_NOTFOUND ? absl::OkStatus() : LmdbError(what, rc);
}

absl::StatusOr<std::string> ReadView::LastKey(Table table) const {
  const auto index = static_cast<size_t>(table);
  const std::string what =
      absl::StrFormat("last key of table %s", kTableNames[index]);
  MDB_cursor* raw = nullptr;
  if (const int rc = mdb_cursor_open(txn_, env_->dbi_[index], &raw); rc != 0) {
    return LmdbError(what, rc);
  }
  const std::unique_ptr<MDB_cursor, decltype(&mdb_cursor_close)> cursor(
      raw, &mdb_cursor_close);
  MDB_val k;
  MDB_val v;
  const int rc = mdb_cursor_get(raw, &k, &v, MDB_LAST);
  if (rc == MDB_NOTFOUND) return std::string();
  if (rc != 0) return LmdbError(what, rc);
  return std::string(static_cast<const char*>(k.mv_data), k.mv_size);
}

uint64_t ReadView::Count(Table table) const {
  MDB_stat stat;
  const int rc = mdb_stat(txn_, env_->dbi_[static_cast<size_t>(table)], &stat);
  return rc == 0 ? stat.ms_entries : 0;
}

ReadTxn::ReadTxn(Env* env, MDB_txn* txn) : ReadView(env, txn), owner_(env) {}
ReadTxn::~ReadTxn() {
  owner_->ReturnReader(txn_);
  owner_->Leave();
}

WriteTxn::WriteTxn(Env* env, MDB_txn* txn, bool nested)
    : ReadView(env, txn), owner_(env), nested_(nested) {}

WriteTxn::~WriteTxn() {
  if (txn_ == nullptr) return;
  mdb_txn_abort(txn_);
  if (!nested_) owner_->Leave();
}

absl::Status WriteTxn::Put(Table table, std::string_view key,
                           std::span<const uint8_t> value) {
  MDB_val k = ToVal(key);
  MDB_val v{value.size(), const_cast<uint8_t*>(value.data())};
  const int rc =
      mdb_put(txn_, env_->dbi_[static_cast<size_t>(table)], &k, &v, 0);
  if (rc == 0) return absl::OkStatus();
  return LmdbError(
      absl::StrFormat("put of %d bytes into table %s", value.size(),
                      kTableNames[static_cast<size_t>(table)]),
      rc);
}

absl::StatusOr<std::span<uint8_t>> WriteTxn::Reserve(Table table,
                                                     std::string_view key,
                                                     size_t bytes) {
  MDB_val k = ToVal(key);
  MDB_val v{bytes, nullptr};
  const int rc = mdb_put(txn_, env_->dbi_[static_cast<size_t>(table)], &k, &v,
                         MDB_RESERVE | MDB_NOOVERWRITE);
  const std::string what =
      absl::StrFormat("reserve %d bytes in table %s", bytes,
                      kTableNames[static_cast<size_t>(table)]);
  if (rc == MDB_KEYEXIST) {
    return absl::AlreadyExistsError(what + ": the key is present");
  }
  if (rc != 0) return LmdbError(what, rc);
  return std::span<uint8_t>(static_cast<uint8_t*>(v.mv_data), bytes);
}

absl::StatusOr<bool> WriteTxn::Delete(Table table, std::string_view key) {
  MDB_val k = ToVal(key);
  const int rc =
      mdb_del(txn_, env_->dbi_[static_cast<size_t>(table)], &k, nullptr);
  if (rc == 0) return true;
  if (rc == MDB_NOTFOUND) return false;
  return LmdbError(absl::StrFormat("delete from table %s",
                                   kTableNames[static_cast<size_t>(table)]),
                   rc);
}

absl::StatusOr<std::unique_ptr<WriteTxn>> WriteTxn::Child() {
  MDB_txn* child = nullptr;
  if (const int rc = mdb_txn_begin(env_->env_, txn_, 0, &child); rc != 0) {
    return LmdbError("begin nested transaction", rc);
  }
  return std::unique_ptr<WriteTxn>(
      new WriteTxn(owner_, child, /*nested=*/true));
}

absl::Status WriteTxn::Commit() {
  MDB_txn* const txn = std::exchange(txn_, nullptr);
  const int rc = mdb_txn_commit(txn);
  if (!nested_) owner_->Leave();
  return rc == 0 ? absl::OkStatus() : LmdbError("commit", rc);
}

}  // namespace torpor::store
