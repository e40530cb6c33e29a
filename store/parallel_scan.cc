// SPDX-License-Identifier: Apache-2.0

#include "store/parallel_scan.h"

#include <algorithm>
#include <memory>
#include <thread>

#include "base/status.h"

namespace torpor::store {
namespace {

// Pages on their way from the disk at once. More threads than processors: they
// wait.
constexpr size_t kThreads = 16;

// The eight bytes from `at` on, zeros after the key's end.
uint64_t BytesAt(std::string_view key, size_t at) {
  uint64_t out = 0;
  for (size_t i = at; i < at + sizeof(out); ++i) {
    out = out << 8 | (i < key.size() ? static_cast<uint8_t>(key[i]) : 0);
  }
  return out;
}

absl::Status ScanRange(Env* env, Table table, const std::string& from,
                       const std::string* to,
                       const std::function<void(const Entry&)>& visit) {
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, env->BeginRead());
  return txn->Scan(table, from, [&](const Entry& entry) {
    if (to != nullptr && entry.key >= *to) return false;
    visit(entry);
    return true;
  });
}

}  // namespace

std::vector<std::string> PartKeys(std::string_view first, std::string_view last,
                                  size_t n) {
  const size_t common = static_cast<size_t>(
      std::mismatch(first.begin(), first.end(), last.begin(), last.end())
          .first -
      first.begin());
  const uint64_t begin = BytesAt(first, common);
  const uint64_t step = (BytesAt(last, common) - begin) / n;
  std::vector<std::string> keys;
  for (size_t i = 1; i < n && step > 0; ++i) {
    std::string key(first.substr(0, common));
    const uint64_t bytes = begin + step * i;
    for (int shift = 56; shift >= 0; shift -= 8) {
      key += static_cast<char>(bytes >> shift);
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

absl::Status ParallelScan(Env* env, Table table,
                          const std::function<void(const Entry&)>& visit) {
  std::vector<std::string> bounds;
  {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            env->BeginRead());
    TORPOR_ASSIGN_OR_RETURN(const std::string last, txn->LastKey(table));
    std::string first;
    TORPOR_RETURN_IF_ERROR(txn->Scan(table, "", [&](const Entry& entry) {
      first = entry.key;
      return false;
    }));
    bounds = PartKeys(first, last, kThreads);
  }
  std::vector<absl::Status> statuses(bounds.size() + 1);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < statuses.size(); ++i) {
    threads.emplace_back([&, i] {
      statuses[i] = ScanRange(env, table, i == 0 ? "" : bounds[i - 1],
                              i == bounds.size() ? nullptr : &bounds[i], visit);
    });
  }
  absl::Status status;
  for (size_t i = 0; i < threads.size(); ++i) {
    threads[i].join();
    status.Update(statuses[i]);
  }
  return status;
}

}  // namespace torpor::store
