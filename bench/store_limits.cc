// SPDX-License-Identifier: Apache-2.0

#include "bench/store_limits.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"
#include "bench/command.h"
#include "bench/daemon.h"
#include "bench/raw_io.h"
#include "store/lmdb_session_store.h"

namespace torpor::bench {
namespace {

using store::LmdbSessionStore;
using store::RecordLayout;
using store::RowRange;
using store::SlotSpec;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// DeepSeek-V4.1-Flash's compact KV, 890 B/token: main rows of 288 B and index
// keys of 68 B, three layers pooled by 2 and one not.
RecordLayout PooledLayout() {
  RecordLayout layout;
  layout.fingerprint.fill(0x89);
  layout.block_size = 1024;
  for (int i = 0; i < 3; ++i) {
    layout.slots.push_back({288, 2});
    layout.slots.push_back({68, 2});
  }
  layout.slots.push_back({288, 1});
  layout.slots.push_back({68, 1});
  return layout;
}

uint64_t CompactBytes(const RecordLayout& layout, uint64_t n_tokens) {
  uint64_t bytes = 0;
  for (const SlotSpec& slot : layout.slots) {
    bytes += store::RowsOf(slot, n_tokens) * slot.row_bytes;
  }
  return bytes;
}

// All rows of a session of noise, slot by slot; pieces are spans of it.
class NoiseSession {
 public:
  NoiseSession(RecordLayout layout, uint64_t n_tokens)
      : layout_(std::move(layout)), n_tokens_(n_tokens) {
    std::mt19937_64 engine(20'261'129);
    for (const SlotSpec& slot : layout_.slots) {
      std::vector<uint8_t> rows(store::RowsOf(slot, n_tokens) * slot.row_bytes);
      for (size_t i = 0; i + 8 <= rows.size(); i += 8) {
        const uint64_t word = engine();
        std::memcpy(&rows[i], &word, 8);
      }
      rows_.push_back(std::move(rows));
    }
  }

  [[nodiscard]] const RecordLayout& layout() const { return layout_; }
  [[nodiscard]] uint64_t bytes() const {
    return CompactBytes(layout_, n_tokens_);
  }

  // Tokens [kept, n) of session `id`, as an engine would suspend them.
  absl::StatusOr<store::SuspendReceipt> Suspend(store::SessionStore* store,
                                                const std::string& id,
                                                uint64_t version, uint64_t kept,
                                                uint64_t n) const {
    store::SuspendSpec spec;
    spec.session = {0, id};
    spec.expected_version = version;
    spec.operation_id = absl::StrFormat("%s/%d", id, version);
    spec.model = "bench";
    spec.numerics_id = "bench";
    spec.layout = layout_;
    spec.tokens_kept = kept;
    for (uint64_t i = kept; i < n; ++i) {
      spec.new_tokens.ids.push_back(static_cast<uint32_t>(i * 31));
    }
    spec.kv_len = n;
    spec.provenance = {{kept, n, store::Provenance::kUnknown}};
    TORPOR_ASSIGN_OR_RETURN(const store::BeginResult begin,
                            store->Begin(std::move(spec)));
    for (uint64_t at = kept / layout_.block_size * layout_.block_size; at < n;
         at += layout_.block_size) {
      for (uint32_t i = 0; i < layout_.slots.size(); ++i) {
        const SlotSpec& slot = layout_.slots[i];
        const RowRange wanted = begin.ticket->wanted(i);
        const RowRange rows{
            std::max(at / slot.tokens_per_row, wanted.begin),
            std::min((at + layout_.block_size) / slot.tokens_per_row,
                     wanted.end)};
        if (rows.begin >= rows.end) continue;
        const auto bytes = std::span(rows_[i]).subspan(
            rows.begin * slot.row_bytes, rows.size() * slot.row_bytes);
        TORPOR_RETURN_IF_ERROR(
            begin.ticket->Put({.slot = i,
                               .row_begin = rows.begin,
                               .n_rows = static_cast<uint32_t>(rows.size()),
                               .checksum = Xxh3(bytes)},
                              bytes));
      }
    }
    return begin.ticket->Commit({});
  }

  // Reads every row into `out` (resized); slots one after another.
  absl::Status ReadAll(store::SessionLease* lease,
                       std::vector<uint8_t>* out) const {
    out->resize(bytes());
    size_t at = 0;
    for (uint32_t i = 0; i < layout_.slots.size(); ++i) {
      const auto to = std::span(*out).subspan(at, rows_[i].size());
      TORPOR_RETURN_IF_ERROR(lease->ReadRows(
          i, {0, store::RowsOf(layout_.slots[i], n_tokens_)}, to));
      at += to.size();
    }
    return absl::OkStatus();
  }

  absl::Status Check(std::span<const uint8_t> read) const {
    size_t at = 0;
    for (const auto& rows : rows_) {
      if (at + rows.size() > read.size() ||
          std::memcmp(&read[at], rows.data(), rows.size()) != 0) {
        return absl::DataLossError("bench: rows came back different");
      }
      at += rows.size();
    }
    return absl::OkStatus();
  }

 private:
  const RecordLayout layout_;
  const uint64_t n_tokens_;
  std::vector<std::vector<uint8_t>> rows_;
};

absl::StatusOr<std::unique_ptr<LmdbSessionStore>> OpenStore(
    const std::string& directory) {
  store::LmdbStoreOptions options;
  options.data_dir = directory;
  options.map_bytes = 8192 * kMiB;
  options.max_bytes = 4096 * kMiB;
  return LmdbSessionStore::Open(options);
}

// Bytes that this process has written with system calls.
uint64_t WrittenBytes() {
  std::ifstream in("/proc/self/io");
  std::string key;
  uint64_t value = 0;
  while (in >> key >> value) {
    if (key == "wchar:") return value;
  }
  return 0;
}

absl::StatusOr<LimitRow> PageOverhead(store::SessionStore* store) {
  constexpr uint64_t kTokens = 10'000;
  const NoiseSession session(PooledLayout(), kTokens);
  TORPOR_RETURN_IF_ERROR(
      session.Suspend(store, "overhead", 0, 0, kTokens).status());
  TORPOR_ASSIGN_OR_RETURN(const auto lease, store->Open({0, "overhead"}, 0));
  std::vector<uint8_t> read;
  TORPOR_RETURN_IF_ERROR(session.ReadAll(lease.get(), &read));
  TORPOR_RETURN_IF_ERROR(session.Check(read));
  const auto ids = static_cast<double>(kTokens * sizeof(uint32_t));
  return LimitRow{"pages of 10,000 tokens, ids apart",
                  static_cast<double>(lease->info().stored_bytes) - ids,
                  static_cast<double>(session.bytes()),
                  "B",
                  "compact bytes (890 B/token)",
                  1.02,
                  /*at_least=*/false};
}

absl::StatusOr<LimitRow> DeltaBytes(store::SessionStore* store) {
  constexpr uint64_t kTokens = 100'000;
  constexpr uint64_t kNew = 100;
  const NoiseSession session(PooledLayout(), kTokens + kNew);
  TORPOR_RETURN_IF_ERROR(
      session.Suspend(store, "delta", 0, 0, kTokens).status());
  const uint64_t before = WrittenBytes();
  TORPOR_RETURN_IF_ERROR(
      session.Suspend(store, "delta", 1, kTokens, kTokens + kNew).status());
  const uint64_t written = WrittenBytes() - before;
  TORPOR_ASSIGN_OR_RETURN(const auto lease, store->Open({0, "delta"}, 0));
  std::vector<uint8_t> read;
  TORPOR_RETURN_IF_ERROR(session.ReadAll(lease.get(), &read));
  TORPOR_RETURN_IF_ERROR(session.Check(read));
  const RecordLayout layout = session.layout();
  const uint64_t tail =
      CompactBytes(layout, kTokens + kNew) -
      CompactBytes(layout, kTokens / layout.block_size * layout.block_size);
  return LimitRow{"written by 100 tokens on 100,000",
                  static_cast<double>(written),
                  1.05 * static_cast<double>(tail) + 65'536,
                  "B",
                  "1.05 x (new rows + tail) + 64 KiB",
                  1,
                  /*at_least=*/false};
}

absl::StatusOr<LimitRow> DurableSuspend(store::SessionStore* store,
                                        const StoreLimitsOptions& options) {
  // 1.5 MiB a commit.
  constexpr uint64_t kTokens = 1'792;
  constexpr int kCommits = 8;
  const NoiseSession session(PooledLayout(), kTokens);
  std::vector<uint8_t> raw(session.bytes());
  std::vector<double> ours;
  std::vector<double> disk;
  absl::Status status;
  for (int round = 0; round < options.rounds && status.ok(); ++round) {
    ours.push_back(SecondsOf([&] {
      for (int i = 0; i < kCommits && status.ok(); ++i) {
        const std::string id = absl::StrFormat("durable-%d-%d", round, i);
        status = session.Suspend(store, id, 0, 0, kTokens).status();
      }
    }));
    if (round == 0 && status.ok()) {
      TORPOR_ASSIGN_OR_RETURN(const auto lease,
                              store->Open({0, "durable-0-0"}, 0));
      TORPOR_RETURN_IF_ERROR(session.ReadAll(lease.get(), &raw));
      TORPOR_RETURN_IF_ERROR(session.Check(raw));
    }
    disk.push_back(SecondsOf([&] {
      for (int i = 0; i < kCommits && status.ok(); ++i) {
        status.Update(RawWrite(
            absl::StrFormat("%s/raw-%d-%d", options.directory, round, i), raw));
      }
    }));
  }
  TORPOR_RETURN_IF_ERROR(status);
  const double mb = static_cast<double>(session.bytes()) * kCommits / 1e6;
  return LimitRow{"durable suspends of 1.5 MiB, rows in memory",
                  mb / Median(ours),
                  mb / Median(disk),
                  "MB/s",
                  "write + fdatasync of as many bytes",
                  0.7,
                  /*at_least=*/true};
}

absl::Status FromDisk(uint64_t got, uint64_t wanted) {
  if (got >= wanted - wanted / 10) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "cold read: %d bytes came from the disk, wanted about %d: pages were not "
      "dropped",
      got, wanted));
}

absl::StatusOr<LimitRow> HotRead(store::SessionStore* store,
                                 const StoreLimitsOptions& options) {
  constexpr uint64_t kTokens = 75'000;
  const NoiseSession session(PooledLayout(), kTokens);
  TORPOR_RETURN_IF_ERROR(session.Suspend(store, "hot", 0, 0, kTokens).status());
  TORPOR_ASSIGN_OR_RETURN(const auto lease, store->Open({0, "hot"}, 0));
  std::vector<uint8_t> read;
  TORPOR_RETURN_IF_ERROR(session.ReadAll(lease.get(), &read));
  TORPOR_RETURN_IF_ERROR(session.Check(read));
  const std::vector<uint8_t> from = read;
  std::vector<double> ours;
  std::vector<double> copy;
  absl::Status status;
  for (int round = 0; round < options.rounds; ++round) {
    ours.push_back(
        SecondsOf([&] { status.Update(session.ReadAll(lease.get(), &read)); }));
    copy.push_back(
        SecondsOf([&] { std::memcpy(read.data(), from.data(), from.size()); }));
  }
  TORPOR_RETURN_IF_ERROR(status);
  TORPOR_RETURN_IF_ERROR(session.Check(read));
  const double gb = static_cast<double>(from.size()) / 1e9;
  return LimitRow{"hot read of 67 MB, verified, one thread",
                  gb / Median(ours),
                  gb / Median(copy),
                  "GB/s",
                  "memcpy",
                  0.6,
                  /*at_least=*/true};
}

// Bytes that this process has read from the disk.
uint64_t DiskBytes() { return UsageOf(getpid()).read_bytes; }

// Everything of a store that holds one session, from the disk.
absl::StatusOr<LimitRow> ColdRead(const StoreLimitsOptions& options) {
  constexpr uint64_t kTokens = 300'000;
  const NoiseSession session(PooledLayout(), kTokens);
  const std::string data_dir = options.directory + "/cold";
  {
    TORPOR_ASSIGN_OR_RETURN(const auto store, OpenStore(data_dir));
    TORPOR_RETURN_IF_ERROR(
        session.Suspend(store.get(), "cold", 0, 0, kTokens).status());
  }
  TORPOR_ASSIGN_OR_RETURN(const std::vector<FileRange> ranges,
                          RowRanges(data_dir));
  uint64_t stored = 0;
  for (const FileRange& range : ranges) stored += range.end - range.begin;
  // Touched before: page faults of the buffer are neither side's.
  std::vector<uint8_t> read(session.bytes(), 1);
  std::vector<uint8_t> raw(stored, 1);
  std::vector<double> ours;
  std::vector<double> disk;
  for (int round = 0; round < options.rounds; ++round) {
    TORPOR_RETURN_IF_ERROR(DropPageCache(data_dir));
    uint64_t before = DiskBytes();
    absl::Status status;
    disk.push_back(SecondsOf(
        [&] { status = RawRead(data_dir + "/data.mdb", ranges, raw); }));
    TORPOR_RETURN_IF_ERROR(status);
    TORPOR_RETURN_IF_ERROR(FromDisk(DiskBytes() - before, stored));
    TORPOR_RETURN_IF_ERROR(DropPageCache(data_dir));
    TORPOR_ASSIGN_OR_RETURN(const auto store, OpenStore(data_dir));
    before = DiskBytes();
    ours.push_back(SecondsOf([&] {
      const auto lease = store->Open({0, "cold"}, 0);
      status =
          lease.ok() ? session.ReadAll(lease->get(), &read) : lease.status();
    }));
    TORPOR_RETURN_IF_ERROR(status);
    TORPOR_RETURN_IF_ERROR(FromDisk(DiskBytes() - before, session.bytes()));
    TORPOR_RETURN_IF_ERROR(session.Check(read));
  }
  const double mb = static_cast<double>(session.bytes()) / 1e6;
  return LimitRow{absl::StrFormat("cold read of %.0f MB, verified", mb),
                  mb / Median(ours),
                  static_cast<double>(stored) / 1e6 / Median(disk),
                  "MB/s",
                  "pread of the same ranges, same order",
                  0.9,
                  /*at_least=*/true};
}

}  // namespace

absl::StatusOr<std::vector<LimitRow>> MeasureStore(
    const StoreLimitsOptions& options) {
  TORPOR_ASSIGN_OR_RETURN(const auto store,
                          OpenStore(options.directory + "/data"));
  std::vector<LimitRow> rows;
  TORPOR_ASSIGN_OR_RETURN(LimitRow row, PageOverhead(store.get()));
  rows.push_back(row);
  TORPOR_ASSIGN_OR_RETURN(row, DeltaBytes(store.get()));
  rows.push_back(row);
  TORPOR_ASSIGN_OR_RETURN(row, DurableSuspend(store.get(), options));
  rows.push_back(row);
  TORPOR_ASSIGN_OR_RETURN(row, HotRead(store.get(), options));
  rows.push_back(row);
  TORPOR_ASSIGN_OR_RETURN(row, ColdRead(options));
  rows.push_back(row);
  return rows;
}

RunBenchmark AddStoreCommand(CLI::App* app, const Common* common) {
  auto options = std::make_shared<StoreLimitsOptions>();
  app->add_option("--rounds", options->rounds, "Interleaved rounds")
      ->check(CLI::Range(1, 1001))
      ->capture_default_str();
  return [options, common]() -> absl::StatusOr<Result> {
    TORPOR_ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Make(common->dir));
    options->directory = scratch.path();
    TORPOR_ASSIGN_OR_RETURN(const std::vector<LimitRow> rows,
                            MeasureStore(*options));
    Result result;
    result.json["rows"] = LimitsJson(rows);
    result.text = LimitTable(rows);
    result.page = SvgPage("The store against what is below it");
    result.page.Add(LimitsPlot(rows));
    result.holds = AllHold(rows);
    return result;
  };
}

}  // namespace torpor::bench
