// SPDX-License-Identifier: Apache-2.0
//
// What "acknowledged" means, seen from the system calls: the payload is
// written, then flushed, then the meta page goes through an O_DSYNC
// descriptor, and only then does the verb return.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/store/lmdb_fixture.h"
#include "tests/testing/shim.h"

namespace torpor::store {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;
using testing::Shim;
using testing::ShimMark;

// A mark of 2 n bytes: verb n begins; of 2 n + 1: it was acknowledged.
constexpr uint64_t BeginMark(uint64_t n) { return 2 * n; }
constexpr uint64_t AckMark(uint64_t n) { return 2 * n + 1; }

// Says of every acknowledged verb n what stood in the wrong order, or did not
// happen. `payload_bytes[n]` must have been written before the flush.
std::vector<std::string> Violations(
    const std::vector<torpor_shim_event>& events,
    const std::vector<uint64_t>& payload_bytes) {
  std::vector<std::string> out;
  uint64_t acks = 0;
  for (uint64_t n = 1; n <= payload_bytes.size(); ++n) {
    const auto is_mark = [&](uint64_t mark) {
      return [mark](const torpor_shim_event& e) {
        return e.fd == TORPOR_SHIM_MARK && e.bytes == mark;
      };
    };
    const auto begin =
        std::find_if(events.begin(), events.end(), is_mark(BeginMark(n)));
    const auto ack = std::find_if(begin, events.end(), is_mark(AckMark(n)));
    if (ack == events.end()) continue;
    ++acks;
    const std::string who = "verb " + std::to_string(n) + ": ";
    uint64_t written = 0;    // so far
    uint64_t flushed = 0;    // of those, before a flush
    uint64_t published = 0;  // of those, before a meta page
    for (auto e = begin; e != ack; ++e) {
      if (e->result < 0) continue;
      if (e->call == TORPOR_SHIM_WRITE && e->fd == TORPOR_SHIM_DATA) {
        written += e->bytes;
      } else if (e->call == TORPOR_SHIM_SYNC) {
        flushed = written;
      } else if (e->call == TORPOR_SHIM_WRITE &&
                 e->fd == TORPOR_SHIM_DATA_DSYNC) {
        if (flushed != written) out.push_back(who + "meta before flush");
        published = flushed;
      }
    }
    if (published == 0) out.push_back(who + "nothing published");
    if (published < payload_bytes[n - 1]) {
      out.push_back(who + "only " + std::to_string(published) + " of " +
                    std::to_string(payload_bytes[n - 1]) + " bytes published");
    }
  }
  if (acks != payload_bytes.size()) out.push_back("verbs without an answer");
  return out;
}

uint64_t RowBytesOf(uint64_t n_tokens) {
  uint64_t bytes = 4 * n_tokens;
  for (const SlotSpec& slot : SmallLayout().slots) {
    bytes += RowsOf(slot, n_tokens) * slot.row_bytes;
  }
  return bytes;
}

// Runs every mutating verb between marks; returns what each must have written.
std::vector<uint64_t> RunVerbs(SessionStore* store, ShimMark* mark) {
  std::vector<uint64_t> payload;
  const auto verb = [&](uint64_t bytes, const auto& run) {
    payload.push_back(bytes);
    mark->Set(BeginMark(payload.size()));
    const absl::Status status = run();
    EXPECT_OK(status);
    if (status.ok()) mark->Set(AckMark(payload.size()));
  };
  uint64_t tokens = 0;
  for (uint64_t n_new : {1, 15, 100, 20'000, 1, 0}) {
    verb(RowBytesOf(n_new), [&] {
      const std::string op = "op" + std::to_string(payload.size());
      const uint64_t version = payload.size() - 1;
      return Suspend(store, Spec("a", version, tokens, n_new, op), 1,
                     {Bytes(AttachmentKind::kClientState, op)})
          .status();
    });
    tokens += n_new;
  }
  // The others write index pages only.
  verb(1, [&] {
    return store->Fork({Key("a"), 0, {Key("b"), 0, "fork"}, 77}).status();
  });
  verb(1, [&] { return store->Rewind({Key("b"), 1, "rw"}, 20).status(); });
  verb(1, [&] {
    return store->Touch({.session = Key("b"), .ttl_seconds = 9}).status();
  });
  verb(1, [&] { return store->Erase({Key("b"), 2, "rm"}).status(); });
  verb(1, [&] { return store->PutModel("model", "value"); });
  return payload;
}

TEST(DurabilityTest, NothingIsAcknowledgedBeforeItIsFlushedAndPublished) {
  // With one publishing commit for all, and with payload commits before it.
  for (const uint64_t publish_bytes : {uint64_t{64} << 20, uint64_t{1}}) {
    const testing::TempDir dir;
    LmdbStoreOptions options = SmallStore(dir.path());
    options.publish_bytes = publish_bytes;
    ASSERT_OK_AND_ASSIGN(const auto store, LmdbSessionStore::Open(options));
    ShimMark mark(dir.path());
    Shim::Reset();
    const std::vector<uint64_t> payload = RunVerbs(store.get(), &mark);
    EXPECT_THAT(Violations(Shim::Events(), payload), IsEmpty());
  }
}

// The check must be able to fail: it sees a store that does not flush.
TEST(DurabilityTest, AStoreThatDoesNotFlushIsSeen) {
  const testing::TempDir dir;
  LmdbStoreOptions options = SmallStore(dir.path());
  options.no_sync_for_test = true;
  ASSERT_OK_AND_ASSIGN(const auto store, LmdbSessionStore::Open(options));
  ShimMark mark(dir.path());
  Shim::Reset();
  const std::vector<uint64_t> payload = RunVerbs(store.get(), &mark);
  const auto violations = Violations(Shim::Events(), payload);
  EXPECT_GE(violations.size(), payload.size());
}

TEST(DurabilityTest, SuspendsThatShareACommitWaitForItAll) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kRounds = 12;
  const testing::TempDir dir;
  ASSERT_OK_AND_ASSIGN(const auto store, OpenStore(dir.path()));
  ShimMark mark(dir.path());
  Shim::Reset();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t round = 0; round < kRounds; ++round) {
        const uint64_t n = t * kRounds + round + 1;
        const std::string op = "op" + std::to_string(round);
        mark.Set(BeginMark(n));
        const auto receipt = Suspend(
            store.get(),
            Spec("s" + std::to_string(t), round, 20 * round, 20, op), n);
        EXPECT_OK(receipt.status());
        mark.Set(AckMark(n));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Pages of neighbours count as this verb's, too: a lower bound.
  EXPECT_THAT(
      Violations(Shim::Events(),
                 std::vector<uint64_t>(kThreads * kRounds, RowBytesOf(20))),
      IsEmpty());
}

TEST(DurabilityTest, ANewStoreIsFlushedBeforeItIsUsed) {
  const testing::TempDir dir;
  Shim::Reset();
  ASSERT_OK(OpenStore(dir.path()));
  uint64_t written = 0;
  uint64_t flushed = 0;
  for (const torpor_shim_event& e : Shim::Events()) {
    if (e.call == TORPOR_SHIM_WRITE && e.fd == TORPOR_SHIM_DATA) ++written;
    if (e.call == TORPOR_SHIM_SYNC) flushed = written;
    if (e.fd == TORPOR_SHIM_DATA_DSYNC) {
      EXPECT_EQ(flushed, written);
    }
  }
  EXPECT_GT(written, 0);
  EXPECT_EQ(flushed, written);
}

}  // namespace
}  // namespace torpor::store
