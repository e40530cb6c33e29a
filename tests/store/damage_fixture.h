// SPDX-License-Identifier: Apache-2.0
//
// A store with a session to damage ("victim"), one that shares its first
// blocks ("fork") and one that shares nothing, not even the layout ("other").

#ifndef TORPOR_TESTS_STORE_DAMAGE_FIXTURE_H_
#define TORPOR_TESTS_STORE_DAMAGE_FIXTURE_H_

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/store/lmdb_fixture.h"
#include "tests/store/raw_env.h"

namespace torpor::store {

class DamageTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kTokens = 90;  // five full blocks and a tail
  static constexpr uint64_t kForkedAt = 40;

  static RecordLayout OtherLayout() {
    RecordLayout layout = SmallLayout();
    layout.fingerprint.fill(0x77);
    return layout;
  }

  // A fresh store, closed again.
  void Create() {
    store_.reset();
    dir_ = std::make_unique<testing::TempDir>();
    Open();
    SuspendSpec spec = Spec("victim", 0, 0, kTokens, "create");
    spec.new_tokens.spans = {{2, 12, "adapter", false},
                             {34, 37, "image", true}};
    spec.labels = {{"team", "red"}};
    ASSERT_OK(Suspend(store_.get(), spec, 1,
                      {Bytes(AttachmentKind::kWitness, "witness"),
                       Bytes(AttachmentKind::kClientState, "state")}));
    ASSERT_OK(
        store_->Fork({Key("victim"), 0, {Key("fork"), 0, "fork"}, kForkedAt}));
    SuspendSpec other = Spec("other", 0, 0, kTokens, "create");
    other.layout = OtherLayout();
    ASSERT_OK(Suspend(store_.get(), other, 2));
    victim_ = Read("victim");
    fork_ = Read("fork");
    other_ = Read("other");
    store_.reset();
  }

  void Open() {
    store_.reset();
    LmdbStoreOptions options = SmallStore(dir_->path());
    options.clock = [this] { return now_us_; };
    ASSERT_OK_AND_ASSIGN(store_, LmdbSessionStore::Open(options));
  }

  Content Read(const std::string& id) {
    auto content = ReadAll(store_.get(), Key(id), SmallLayout());
    EXPECT_OK(content.status()) << id;
    return content.ok() ? *std::move(content) : Content();
  }

  // Runs `damage` on the closed store and opens it again.
  template <typename Damage>
  void After(const Damage& damage) {
    ASSERT_NO_FATAL_FAILURE(Create());
    {
      RawEnv raw(dir_->path());
      damage(raw);
    }
    ASSERT_NO_FATAL_FAILURE(Open());
  }

  // Reads everything there is of a session, block by block: each answer is
  // right or kDataLoss. Returns the tokens before the first bad answer.
  uint64_t ReadEverything(const std::string& id, const Content& truth) {
    const RecordLayout layout = SmallLayout();
    const uint64_t n_tokens = truth.tokens.ids.size();
    uint64_t good = n_tokens;
    auto lease = store_->Open(Key(id));
    if (!lease.ok()) {
      ExpectLoss(lease.status());
      return 0;
    }
    EXPECT_EQ((*lease)->info().n_tokens, n_tokens);
    const auto bad = [&](const absl::Status& status, uint64_t at) {
      ExpectLoss(status);
      good = std::min(good, at);
    };
    for (uint64_t at = 0; at < n_tokens; at += layout.block_size) {
      const uint64_t end = std::min(n_tokens, at + layout.block_size);
      if (const auto run = (*lease)->ReadTokens(at, end); !run.ok()) {
        bad(run.status(), at);
      } else {
        EXPECT_TRUE(std::equal(run->ids.begin(), run->ids.end(),
                               truth.tokens.ids.begin() + at,
                               truth.tokens.ids.begin() + end));
      }
      if (const auto f = (*lease)->Floors(at, end); !f.ok()) {
        bad(f.status(), at);
      }
      for (uint32_t slot = 0; slot < layout.slots.size(); ++slot) {
        const SlotSpec& s = layout.slots[slot];
        const RowRange rows{at / s.tokens_per_row, end / s.tokens_per_row};
        std::vector<uint8_t> out(rows.size() * s.row_bytes);
        if (const auto read = (*lease)->ReadRows(slot, rows, out); !read.ok()) {
          bad(read, at);
        } else {
          EXPECT_TRUE(
              std::equal(out.begin(), out.end(),
                         truth.rows[slot].begin() + rows.begin * s.row_bytes));
        }
      }
    }
    return good;
  }

  void ExpectLoss(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  }

  // What must hold whatever was damaged: nobody else is touched, new sessions
  // come and go, the damage is reported.
  void ExpectOthersUntouched() {
    EXPECT_TRUE(Read("other") == other_);
    SuspendSpec spec = Spec("new", 0, 0, 50, "create");
    spec.layout.fingerprint.fill(0x11);
    ASSERT_OK(Suspend(store_.get(), spec, 3));
    EXPECT_EQ(Read("new").rows[0], Rows(3, 0, {0, 50}, 24));
    ASSERT_OK(store_->Erase({Key("new"), 1, "rm"}));
    ASSERT_OK(Settle(store_.get()));
    EXPECT_FALSE(Problems().empty());
  }

  std::vector<std::string> Problems() {
    const auto report = store_->Verify(/*deep=*/true, nullptr);
    EXPECT_OK(report.status());
    return report.ok() ? report->problems : std::vector<std::string>();
  }

  int64_t now_us_ = 1'700'000'000'000'000;
  std::unique_ptr<testing::TempDir> dir_;
  std::unique_ptr<SessionStore> store_;
  // What the sessions held before the damage.
  Content victim_;
  Content fork_;
  Content other_;
};

}  // namespace torpor::store

#endif  // TORPOR_TESTS_STORE_DAMAGE_FIXTURE_H_
