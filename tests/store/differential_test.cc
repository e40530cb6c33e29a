// SPDX-License-Identifier: Apache-2.0
//
// The LMDB store against its plain twin in memory: the same random verbs to
// both, the same codes, receipts, sessions and bytes back. Now and then the
// LMDB store is closed and opened again; at the end it must verify.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "store/memory_session_store.h"
#include "tests/store/differential_spec.h"
#include "tests/store/lmdb_fixture.h"
#include "tests/testing/random.h"

namespace torpor::store {
namespace {

using ::testing::ElementsAreArray;

constexpr int kSteps = 400;

class DifferentialTest : public ::testing::TestWithParam<int> {
 protected:
  DifferentialTest() : random_(100 + GetParam()), specs_(&random_) {}

  void SetUp() override {
    memory_ = MakeMemorySessionStore([this] { return now_us_; });
    Reopen();
  }

  void Reopen() {
    leases_.clear();
    lmdb_.reset();
    LmdbStoreOptions options = SmallStore(dir_.path());
    options.clock = [this] { return now_us_; };
    options.no_sync_for_test = true;  // nobody pulls the plug here
    options.put_timeout = std::chrono::milliseconds(500);
    if (GetParam() % 2 == 0) {
      options.publish_bytes = 1;
      options.buffer_bytes = 64 * 1024;
      options.ahead_bytes = 4 * 1024;
    }
    ASSERT_OK_AND_ASSIGN(lmdb_, LmdbSessionStore::Open(options));
  }

  // ---- comparisons ---------------------------------------------------------

  // True when both are OK.
  template <typename T>
  bool SameCode(const T& in_lmdb, const T& in_memory, const std::string& what) {
    const absl::Status& a = testing::StatusOf(in_lmdb);
    const absl::Status& b = testing::StatusOf(in_memory);
    EXPECT_EQ(a.code(), b.code())
        << what << "\n  lmdb:   " << a << "\n  memory: " << b;
    return a.ok() && b.ok();
  }

  // Everything but what only one of them keeps: pages and times.
  void ExpectSame(const SessionInfo& a, const SessionInfo& b) {
    EXPECT_EQ(a.key, b.key);
    EXPECT_EQ(a.version, b.version);
    EXPECT_EQ(a.n_tokens, b.n_tokens);
    EXPECT_EQ(a.kv_len, b.kv_len);
    EXPECT_EQ(a.usable_len, b.usable_len);
    EXPECT_EQ(a.model, b.model);
    EXPECT_EQ(a.fingerprint, b.fingerprint);
    EXPECT_EQ(a.fingerprint_fields, b.fingerprint_fields);
    EXPECT_EQ(a.numerics_id, b.numerics_id);
    EXPECT_EQ(a.holder, b.holder);
    EXPECT_EQ(a.session_class, b.session_class);
    EXPECT_EQ(a.expires_at_us, b.expires_at_us);
    EXPECT_EQ(a.pinned_until_us, b.pinned_until_us);
    EXPECT_EQ(a.created_at_us, b.created_at_us);
    EXPECT_EQ(a.updated_at_us, b.updated_at_us);
    EXPECT_EQ(a.labels, b.labels);
    EXPECT_THAT(a.provenance, ElementsAreArray(b.provenance));
    EXPECT_EQ(a.n_blocks, b.n_blocks);
    EXPECT_EQ(a.compact_bytes, b.compact_bytes);
    EXPECT_EQ(a.token_bytes, b.token_bytes);
    EXPECT_EQ(a.witness_bytes, b.witness_bytes);
    EXPECT_EQ(a.client_state_bytes, b.client_state_bytes);
    EXPECT_EQ(a.snapshot_bytes, b.snapshot_bytes);
  }

  void ExpectSame(const SuspendReceipt& a, const SuspendReceipt& b) {
    EXPECT_EQ(a.version, b.version);
    EXPECT_EQ(a.n_tokens, b.n_tokens);
    EXPECT_EQ(a.kv_len, b.kv_len);
    EXPECT_EQ(a.tokens_kept, b.tokens_kept);
    EXPECT_EQ(a.row_bytes_received, b.row_bytes_received);
  }

  void CompareLeases(SessionLease* a, SessionLease* b) {
    ExpectSame(a->info(), b->info());
    const uint64_t n = b->info().n_tokens;
    const uint64_t begin = random_.Between(0, n);
    // Now and then beyond the end.
    const uint64_t end = random_.Between(begin, n + (random_.OneIn(9) ? 2 : 0));
    const auto tokens =
        std::pair(a->ReadTokens(begin, end), b->ReadTokens(begin, end));
    if (SameCode(tokens.first, tokens.second, "tokens")) {
      EXPECT_THAT(tokens.first->ids, ElementsAreArray(tokens.second->ids));
      EXPECT_THAT(tokens.first->spans, ElementsAreArray(tokens.second->spans))
          << "tokens [" << begin << ", " << end << ") of " << n << ", rows of "
          << b->info().kv_len;
    }
    const auto floors = std::pair(a->Floors(begin, end), b->Floors(begin, end));
    if (SameCode(floors.first, floors.second, "floors")) {
      EXPECT_THAT(*floors.first, ElementsAreArray(*floors.second));
    }
    const RecordLayout layout = SmallLayout();
    for (uint32_t slot = 0; slot < layout.slots.size(); ++slot) {
      const uint64_t per_row = layout.slots[slot].tokens_per_row;
      const RowRange rows{begin / per_row, end / per_row};
      std::vector<uint8_t> out_a(rows.size() * layout.slots[slot].row_bytes);
      std::vector<uint8_t> out_b = out_a;
      const auto read = std::pair(a->ReadRows(slot, rows, out_a),
                                  b->ReadRows(slot, rows, out_b));
      if (SameCode(read.first, read.second, "rows")) {
        EXPECT_TRUE(out_a == out_b) << "slot " << slot;
      }
    }
    std::vector<uint8_t> out_a(specs_.kSnapshotRowBytes);
    std::vector<uint8_t> out_b = out_a;
    const uint64_t row = n > 0 ? random_.Between(0, n - 1) : 0;
    const auto read = std::pair(a->ReadSnapshot(2, {row, row + 1}, out_a),
                                b->ReadSnapshot(2, {row, row + 1}, out_b));
    if (SameCode(read.first, read.second, "snapshot")) {
      EXPECT_TRUE(out_a == out_b);
    }
    for (const AttachmentKind kind :
         {AttachmentKind::kWitness, AttachmentKind::kClientState,
          AttachmentKind::kOpenGroups}) {
      const auto attachment =
          std::pair(a->ReadAttachment(kind), b->ReadAttachment(kind));
      if (SameCode(attachment.first, attachment.second, "attachment")) {
        EXPECT_TRUE(*attachment.first == *attachment.second);
      }
    }
  }

  void CompareSession(const SessionKey& key) {
    SCOPED_TRACE("session " + key.id + " of " + std::to_string(key.tenant));
    const auto info = std::pair(lmdb_->Describe(key), memory_->Describe(key));
    if (!SameCode(info.first, info.second, "describe")) return;
    ExpectSame(*info.first, *info.second);
    const auto lease = std::pair(lmdb_->Open(key), memory_->Open(key));
    if (!SameCode(lease.first, lease.second, "open")) return;
    CompareLeases(lease.first->get(), lease.second->get());
  }

  void CompareAll() {
    for (const uint32_t tenant : {0, 1}) {
      const std::string prefix = random_.OneIn(2) ? "" : "s";
      const size_t limit = random_.Between(1, 6);
      std::string after;
      do {
        const auto list =
            std::pair(lmdb_->List(tenant, prefix, after, limit),
                      memory_->List(tenant, prefix, after, limit));
        if (!SameCode(list.first, list.second, "list")) return;
        EXPECT_EQ(list.first->next, list.second->next);
        ASSERT_EQ(list.first->sessions.size(), list.second->sessions.size());
        for (size_t i = 0; i < list.first->sessions.size(); ++i) {
          ExpectSame(list.first->sessions[i], list.second->sessions[i]);
          CompareSession(list.second->sessions[i].key);
        }
        after = list.second->next;
      } while (!after.empty());
    }
    for (const auto& [a, b] : leases_) CompareLeases(a.get(), b.get());
  }

  // ---- verbs ---------------------------------------------------------------

  const SessionInfo* Now(const SessionKey& key) {
    const auto info = memory_->Describe(key);
    now_ = info.ok() ? std::optional(*info) : std::nullopt;
    return now_.has_value() ? &*now_ : nullptr;
  }

  void DoSuspend() {
    const SessionKey key = specs_.AnyKey();
    const SessionInfo* now = Now(key);
    const SuspendSpec spec = specs_.AnySuspend(key, now);
    const std::vector<Attachment> attachments = specs_.AnyAttachments();
    const uint64_t writer = random_.Between(1, 3);
    auto begin = std::pair(lmdb_->Begin(spec), memory_->Begin(spec));
    if (!SameCode(begin.first, begin.second, "begin")) return;
    ASSERT_EQ(begin.first->receipt.has_value(),
              begin.second->receipt.has_value());
    if (begin.second->receipt.has_value()) {
      ExpectSame(*begin.first->receipt, *begin.second->receipt);
      return;
    }
    for (uint32_t slot = 0; slot < spec.layout.slots.size(); ++slot) {
      EXPECT_EQ(begin.first->ticket->wanted(slot),
                begin.second->ticket->wanted(slot));
    }
    if (random_.OneIn(20)) return;  // abandoned
    const bool incomplete = random_.OneIn(20);
    for (const auto& ticket :
         {begin.first->ticket.get(), begin.second->ticket.get()}) {
      // Rows of a snapshot may wait for the others, so these come first.
      if (incomplete) break;
      ASSERT_OK(PutAll(ticket, spec.layout, writer));
      ASSERT_OK(specs_.PutSnapshot(ticket, spec, writer));
    }
    if (random_.OneIn(10)) {
      // The twin's ticket is judged at Commit: somebody else came first.
      const auto touched =
          std::pair(lmdb_->Rewind({key, spec.expected_version, "race"}, 0),
                    memory_->Rewind({key, spec.expected_version, "race"}, 0));
      SameCode(touched.first, touched.second, "racing rewind");
    }
    const auto receipt = std::pair(begin.first->ticket->Commit(attachments),
                                   begin.second->ticket->Commit(attachments));
    if (SameCode(receipt.first, receipt.second, "commit")) {
      ExpectSame(*receipt.first, *receipt.second);
    }
    CompareSession(key);
  }

  template <typename Verb>
  void DoBoth(const char* what, const SessionKey& key, const Verb& verb) {
    const auto result = std::pair(verb(lmdb_.get()), verb(memory_.get()));
    if (SameCode(result.first, result.second, what)) {
      if constexpr (std::is_same_v<std::decay_t<decltype(*result.first)>,
                                   SessionInfo>) {
        ExpectSame(*result.first, *result.second);
      } else {
        EXPECT_EQ(*result.first, *result.second);
      }
    }
    CompareSession(key);
  }

  void DoFork() {
    ForkSpec spec;
    spec.source = specs_.AnyKey();
    const SessionInfo* now = Now(spec.source);
    if (now != nullptr) {
      if (random_.OneIn(3)) spec.at = specs_.AnyCut(*now);
      if (random_.OneIn(4)) spec.source_version = specs_.AnyVersion(now);
    }
    SessionKey target = specs_.AnyKey();
    if (!random_.OneIn(20)) target.tenant = spec.source.tenant;
    spec.target = specs_.AnyMutation(target, Now(target));
    DoBoth("fork", target,
           [&](SessionStore* store) { return store->Fork(spec); });
  }

  void DoRewind() {
    const SessionKey key = specs_.AnyKey();
    const SessionInfo* now = Now(key);
    const MutateSpec spec = specs_.AnyMutation(key, now);
    const uint64_t at = now != nullptr ? specs_.AnyCut(*now) : 3;
    DoBoth("rewind", key,
           [&](SessionStore* store) { return store->Rewind(spec, at); });
  }

  void DoErase() {
    const SessionKey key = specs_.AnyKey();
    const MutateSpec spec = specs_.AnyMutation(key, Now(key));
    DoBoth("erase", key,
           [&](SessionStore* store) { return store->Erase(spec); });
  }

  void DoTouch() {
    const TouchSpec spec = specs_.AnyTouch(specs_.AnyKey());
    DoBoth("touch", spec.session,
           [&](SessionStore* store) { return store->Touch(spec); });
  }

  void DoLookup() {
    const SessionKey key = specs_.AnyKey();
    TokenRun prompt = specs_.AnyTokens(0, random_.Between(0, 80));
    if (const auto lease = memory_->Open(key); lease.ok()) {
      const auto stored = (*lease)->ReadTokens(0, (*lease)->info().n_tokens);
      ASSERT_OK(stored);
      prompt = specs_.LikeThis(*stored);
    }
    const auto hit =
        std::pair(lmdb_->Lookup(key.tenant, SmallLayout(), prompt),
                  memory_->Lookup(key.tenant, SmallLayout(), prompt));
    if (!SameCode(hit.first, hit.second, "lookup")) return;
    // A block keeps the tokens that a rewind cut off its session: the LMDB
    // store may find more, never less.
    const uint64_t len = hit.first->hit_len;
    ASSERT_GE(len, hit.second->hit_len);
    EXPECT_LE(len, prompt.ids.size());
    if (len == 0) return;
    // Whose rows they are may differ; what they are rows of may not.
    ASSERT_OK_AND_ASSIGN(const TokenRun tokens,
                         hit.first->lease->ReadTokens(0, len));
    EXPECT_EQ(CommonLength(tokens, prompt, 0), len);
    const RecordLayout layout = SmallLayout();
    for (uint32_t slot = 0; slot < layout.slots.size(); ++slot) {
      const uint32_t row_bytes = layout.slots[slot].row_bytes;
      for (uint64_t row = 0; row < RowsOf(layout.slots[slot], len); ++row) {
        std::vector<uint8_t> out(row_bytes);
        ASSERT_OK(hit.first->lease->ReadRows(slot, {row, row + 1}, out));
        EXPECT_TRUE(out == RowBytes(1, slot, row, row_bytes) ||
                    out == RowBytes(2, slot, row, row_bytes) ||
                    out == RowBytes(3, slot, row, row_bytes))
            << "slot " << slot << " row " << row << " of a hit of " << len;
      }
    }
  }

  void DoLease() {
    if (leases_.size() > 3) leases_.pop_front();
    const SessionKey key = specs_.AnyKey();
    const uint64_t version = random_.OneIn(3) ? specs_.AnyVersion(Now(key)) : 0;
    auto lease =
        std::pair(lmdb_->Open(key, version), memory_->Open(key, version));
    if (!SameCode(lease.first, lease.second, "open")) return;
    leases_.emplace_back(*std::move(lease.first), *std::move(lease.second));
  }

  void Step() {
    const uint64_t dice = random_.Between(0, 99);
    if (dice < 40) return DoSuspend();
    if (dice < 52) return DoFork();
    if (dice < 62) return DoRewind();
    if (dice < 68) return DoErase();
    if (dice < 74) return DoTouch();
    if (dice < 86) return DoLookup();
    if (dice < 91) return DoLease();
    if (dice < 94) {
      now_us_ += static_cast<int64_t>(random_.Between(1, 40)) * 1'000'000;
    } else if (dice < 97) {
      ASSERT_OK(Settle(lmdb_.get()));
      ASSERT_OK(Settle(memory_.get()));
    } else if (dice < 98) {
      Reopen();
    } else {
      CompareAll();
    }
  }

  testing::Random random_;
  DifferentialSpecs specs_;
  int64_t now_us_ = 1'700'000'000'000'000;
  testing::TempDir dir_;
  std::unique_ptr<SessionStore> memory_;
  std::unique_ptr<SessionStore> lmdb_;
  std::optional<SessionInfo> now_;
  // Held over other verbs: what they read must not change.
  std::deque<
      std::pair<std::unique_ptr<SessionLease>, std::unique_ptr<SessionLease>>>
      leases_;
};

TEST_P(DifferentialTest, BothStoresGiveTheSameAnswers) {
  for (int step = 0; step < kSteps; ++step) {
    SCOPED_TRACE("step " + std::to_string(step) + ", seed " +
                 std::to_string(testing::TestSeed()));
    ASSERT_NO_FATAL_FAILURE(Step());
    if (HasFailure()) return;
  }
  CompareAll();
  leases_.clear();
  ExpectSound(lmdb_.get());
  Reopen();
  CompareAll();
  ExpectSound(lmdb_.get());
}

INSTANTIATE_TEST_SUITE_P(Seeds, DifferentialTest, ::testing::Range(0, 20));

}  // namespace
}  // namespace torpor::store
