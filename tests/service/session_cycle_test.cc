// SPDX-License-Identifier: Apache-2.0
//
// Suspended, extended and woken over the wire: every row comes back byte-equal
// and every token is accounted for.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/service/service_fixture.h"

namespace torpor::service {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SessionCycleTest : public ServiceTest {};

TEST_F(SessionCycleTest, SuspendResumeReturnsEveryByte) {
  ToySuspend s{.ids = ToyIds(1, 75), .kv_len = 74, .client_state = "sampler"};
  ASSERT_OK_AND_ASSIGN(const v1::SuspendReceipt receipt, Suspend(s));
  EXPECT_EQ(receipt.session(), "s");
  EXPECT_EQ(receipt.version(), 1);
  EXPECT_EQ(receipt.n_tokens(), 75);
  EXPECT_EQ(receipt.kv_len(), 74);
  EXPECT_EQ(receipt.tokens_kept(), 0);
  EXPECT_EQ(receipt.row_bytes_received(), 74 * (24 + 40));
  EXPECT_EQ(receipt.client_state_bytes(), s.client_state.size());
  EXPECT_GT(receipt.stored_bytes(), 74 * (24 + 40));
  ExpectStored(s, 1);

  ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(EngineResume("s")));
  EXPECT_THAT(woken.ids, IsEmpty()) << "tokens are sent only when asked";
  EXPECT_FALSE(woken.header.has_value());
  EXPECT_EQ(woken.begin.plan().resume_at(), 74);
  EXPECT_EQ(woken.begin.recompute_from(), 74);
  EXPECT_EQ(woken.receipt->prompt_tokens(), 75);
  EXPECT_EQ(woken.receipt->recomputed_tokens(), 1);
  EXPECT_EQ(woken.receipt->bytes_sent(), 74 * (24 + 40));
  ExpectAddsUp(*woken.receipt);
  ExpectIdle();
}

TEST_F(SessionCycleTest, DeltaSuspendSendsOnlyWhatIsNew) {
  ToySuspend s{.ids = ToyIds(1, 40), .kv_len = 39};
  ASSERT_OK(Suspend(s));
  ToySuspend next{.expected_version = 1,
                  .operation_id = "next",
                  .tokens_kept = 40,
                  .ids = ToyIds(1, 90),
                  .kv_len = 89,
                  .rows_from = 39};
  ASSERT_OK_AND_ASSIGN(const v1::SuspendReceipt receipt, Suspend(next));
  EXPECT_EQ(receipt.version(), 2);
  EXPECT_EQ(receipt.tokens_kept(), 40);
  EXPECT_EQ(receipt.row_bytes_received(), (89 - 39) * (24 + 40));
  ExpectStored(next, 2);
}

TEST_F(SessionCycleTest, BeginNamesTheRowsItWants) {
  ASSERT_OK(Suspend(ToySuspend{.ids = ToyIds(1, 40)}));
  ToySuspend next{.expected_version = 1,
                  .operation_id = "next",
                  .tokens_kept = 35,
                  .ids = ToyIds(1, 60),
                  .snapshot = true};
  const std::vector<uint32_t> ids = {next.ids.begin() + 35, next.ids.end()};
  ASSERT_OK_AND_ASSIGN(const v1::BeginSuspendResponse begun,
                       BeginSuspend(next.Header(), ids));
  EXPECT_NE(begun.ticket(), "");
  EXPECT_EQ(begun.block_size(), kToyBlock);
  EXPECT_EQ(begun.plane().plane(), v1::DATA_PLANE_GRPC);
  std::map<uint32_t, std::pair<uint64_t, uint64_t>> wanted;
  for (const v1::SlotRows& rows : begun.wanted()) {
    wanted[rows.slot()] = {rows.row_begin(), rows.row_end()};
  }
  using Range = std::pair<uint64_t, uint64_t>;
  EXPECT_EQ(wanted,
            (std::map<uint32_t, Range>{
                {kHeads, {35, 60}}, {kPlain, {35, 60}}, {kWindow, {53, 60}}}));

  // In parts, to the end.
  next.rows_from = 35;
  std::vector<v1::PutRowsRequest> rows = RowMessages(next);
  rows.front().set_ticket(begun.ticket());
  ASSERT_OK_AND_ASSIGN(const uint64_t bytes, PutRows(rows));
  EXPECT_EQ(bytes, 25 * (24 + 40) + 7 * 16);
  v1::CommitRequest commit = next.Commit();
  commit.set_ticket(begun.ticket());
  ASSERT_OK_AND_ASSIGN(const v1::SuspendReceipt receipt, Commit(commit));
  EXPECT_EQ(receipt.version(), 2);
  EXPECT_EQ(receipt.tokens_kept(), 35);
  EXPECT_EQ(receipt.snapshot_bytes() > 0, true);
  ExpectStored(next, 2);
  ExpectIdle();
  EXPECT_THAT(Commit(commit), HasCode(absl::StatusCode::kNotFound));
}

TEST_F(SessionCycleTest, SnapshotComesBackWithoutAReplayer) {
  ToySuspend s{.ids = ToyIds(1, 50), .snapshot = true};
  ASSERT_OK(Suspend(s));
  for (const v1::ReplayMode mode :
       {v1::REPLAY_MODE_SNAPSHOT, v1::REPLAY_MODE_AUTO,
        v1::REPLAY_MODE_UNSPECIFIED}) {
    v1::BeginResumeHeader header;
    header.set_session("s");
    header.set_mode(mode);
    ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(header));
    ASSERT_TRUE(woken.header.has_value());
    EXPECT_EQ(woken.header->verdict(), v1::WITNESS_VERDICT_UNWITNESSED);
    ASSERT_TRUE(woken.window.contains(kWindow));
    EXPECT_EQ(woken.window.at(kWindow).begin, 43);
    EXPECT_EQ(woken.window.at(kWindow).bytes, ToyRows(1, kWindow, 43, 50));
    EXPECT_EQ(woken.receipt->mode_used(), v1::REPLAY_MODE_SNAPSHOT);
    EXPECT_EQ(woken.receipt->loaded_tokens(), 50);
    EXPECT_FALSE(woken.receipt->has_floor());
    ExpectAddsUp(*woken.receipt);
  }
  // Not at another cut.
  v1::BeginResumeHeader header;
  header.set_session("s");
  header.set_mode(v1::REPLAY_MODE_SNAPSHOT);
  header.set_cut(49);
  EXPECT_THAT(Resume(header),
              HasStatus(absl::StatusCode::kFailedPrecondition, "49"));
  ExpectIdle();
}

TEST_F(SessionCycleTest, ColdUsesNoStoredRow) {
  ASSERT_OK(Suspend(ToySuspend{.ids = ToyIds(1, 50), .kv_len = 49}));
  v1::BeginResumeHeader header;
  header.set_session("s");
  header.set_mode(v1::REPLAY_MODE_COLD);
  header.mutable_limits()->set_allow_cold(true);
  header.set_send_tokens(true);
  ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(header));
  EXPECT_EQ(woken.ids, ToyIds(1, 50));
  EXPECT_THAT(woken.compact, IsEmpty());
  EXPECT_THAT(woken.window, IsEmpty());
  EXPECT_EQ(woken.begin.recompute_from(), 0);
  EXPECT_EQ(woken.receipt->mode_used(), v1::REPLAY_MODE_COLD);
  EXPECT_EQ(woken.receipt->recomputed_tokens(), 50);
  EXPECT_EQ(woken.receipt->loaded_tokens(), 0);
  EXPECT_FALSE(woken.receipt->has_floor());
  ExpectAddsUp(*woken.receipt);
}

TEST_F(SessionCycleTest, ResumeInPartsReadsAnyRangeAndShard) {
  ToySuspend s{.ids = ToyIds(1, 70), .kv_len = 69};
  ASSERT_OK(Suspend(s));
  ASSERT_OK_AND_ASSIGN(const v1::BeginResumeResponse begun,
                       BeginResume(EngineResume("s")));
  v1::ReadRowsRequest read;
  read.set_lease(begun.lease());
  ASSERT_OK_AND_ASSIGN(Woken all, ReadRows(read));
  for (const uint32_t slot : {kHeads, kPlain}) {
    EXPECT_EQ(all.compact[slot].bytes, ToyRows(1, slot, 0, 69));
  }
  read.add_slots(kHeads);
  read.set_begin(5);
  read.set_end(37);
  for (uint32_t shard = 0; shard < 2; ++shard) {
    read.set_n_shards(2);
    read.set_shard(shard);
    ASSERT_OK_AND_ASSIGN(Woken part, ReadRows(read));
    EXPECT_EQ(part.compact.size(), 1);
    EXPECT_EQ(part.compact[kHeads].begin, 5);
    EXPECT_EQ(part.compact[kHeads].bytes, ToyShard(1, kHeads, 5, 37, shard, 2));
  }
  v1::ReadTokensRequest tokens;
  tokens.set_lease(begun.lease());
  ASSERT_OK_AND_ASSIGN(const std::vector<uint32_t> ids, ReadTokens(tokens));
  EXPECT_EQ(ids, s.ids) << "pending tokens included";
  tokens.set_begin(10);
  tokens.set_end(12);
  ASSERT_OK_AND_ASSIGN(const std::vector<uint32_t> two, ReadTokens(tokens));
  EXPECT_THAT(two, ElementsAre(s.ids[10], s.ids[11]));
  v1::WindowRequest window;
  window.set_lease(begun.lease());
  EXPECT_THAT(Window(window), HasStatus(absl::StatusCode::kFailedPrecondition,
                                        "engine_replays"));
  ASSERT_OK_AND_ASSIGN(const v1::ResumeReceipt receipt, Release(begun.lease()));
  ExpectAddsUp(receipt);
  EXPECT_THAT(Release(begun.lease()), HasCode(absl::StatusCode::kNotFound));
  ExpectIdle();
}

// By name or by tokens, what comes back says whose rows they are.
TEST_F(SessionCycleTest, EveryResumeNamesItsModel) {
  const ToySuspend s{.ids = ToyIds(1, 50)};
  ASSERT_OK(Suspend(s));
  v1::BeginResumeHeader by_tokens = EngineResume("");
  by_tokens.set_model("toy");
  v1::BeginResumeHeader by_both = EngineResume("s");
  by_both.set_model("toy");
  for (const auto& [header, prompt] :
       {std::pair{EngineResume("s"), std::vector<uint32_t>()},
        std::pair{EngineResume("s"), s.ids}, std::pair{by_both, s.ids},
        std::pair{by_tokens, s.ids}, std::pair{by_tokens, ToyIds(1, 60)}}) {
    SCOPED_TRACE(header.ShortDebugString());
    ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(header, prompt));
    ASSERT_OK_AND_ASSIGN(const v1::BeginResumeResponse begun,
                         BeginResume(header, prompt));
    for (const v1::SessionState& state : {woken.begin.state(), begun.state()}) {
      EXPECT_EQ(state.session(), header.session());
      EXPECT_EQ(state.model(), "toy");
      EXPECT_EQ(state.fingerprint().SerializeAsString(),
                Describe("s")->fingerprint().SerializeAsString());
      EXPECT_EQ(state.kv_len(), 50);
    }
    ASSERT_OK(Release(begun.lease()));
  }
}

TEST_F(SessionCycleTest, TheFirstWitnessAndClientStateStay) {
  ToySuspend s{.ids = ToyIds(1, 50), .client_state = "first"};
  v1::LayerWitness* layer = s.witness.add_layers();
  layer->set_layer(2);
  layer->set_digest(std::string(16, 'd'));
  v1::WitnessRow* row = layer->add_rows();
  row->set_position(49);
  row->set_row(std::string(16, 'r'));
  s.witness.set_numerics_id("toy numerics");
  ASSERT_OK(Suspend(s));
  ToySuspend again = s;
  again.client_state = "second";
  again.witness.mutable_layers(0)->set_digest(std::string(16, 'x'));
  ASSERT_OK(Suspend(again));
  ExpectStored(s, 1);
  ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(EngineResume("s")));
  EXPECT_EQ(woken.begin.witness().SerializeAsString(),
            s.witness.SerializeAsString());
  EXPECT_TRUE(Describe("s")->has_witness());
}

}  // namespace
}  // namespace torpor::service
