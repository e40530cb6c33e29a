// SPDX-License-Identifier: Apache-2.0
//
// A session's life over the wire: suspended, extended, forked, rewound, found
// by its tokens, listed, deleted; every row comes back byte-equal and every
// token is accounted for.

#include "absl/strings/str_cat.h"
#include "tests/service/service_fixture.h"

namespace torpor::service {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Stub = v1::SessionService::Stub;

class SessionCycleTest : public ServiceTest {
 protected:
  absl::StatusOr<v1::SessionState> Rewind(const std::string& session,
                                          uint64_t version, uint64_t at,
                                          const std::string& operation) {
    v1::RewindRequest request;
    request.set_session(session);
    request.set_expected_version(version);
    request.set_operation_id(operation);
    request.set_at(at);
    return Ask(sessions(), &Stub::Rewind, request);
  }

  static void ExpectAddsUp(const v1::ResumeReceipt& r) {
    EXPECT_EQ(r.loaded_tokens() + r.replayed_tokens() + r.recomputed_tokens(),
              r.prompt_tokens())
        << r.ShortDebugString();
    uint64_t explained = 0;
    for (const v1::TokenReason& reason : r.reasons()) {
      EXPECT_NE(reason.reason(), "");
      explained += reason.tokens();
    }
    EXPECT_EQ(explained, r.recomputed_tokens()) << r.ShortDebugString();
  }
};

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
  EXPECT_EQ(wanted, (std::map<uint32_t, Range>{
                        {kHeads, {35, 60}}, {kPlain, {35, 60}},
                        {kWindow, {53, 60}}}));

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
  ASSERT_OK_AND_ASSIGN(const v1::ResumeReceipt receipt,
                       Release(begun.lease()));
  ExpectAddsUp(receipt);
  EXPECT_THAT(Release(begun.lease()), HasCode(absl::StatusCode::kNotFound));
  ExpectIdle();
}

TEST_F(SessionCycleTest, ForkSharesAndThenGoesItsOwnWay) {
  ToySuspend s{.ids = ToyIds(1, 64), .client_state = "state"};
  ASSERT_OK(Suspend(s));
  const uint64_t live = Stats().live_bytes();
  v1::ForkRequest fork;
  fork.set_source("s");
  fork.set_target("f");
  fork.set_operation_id("fork");
  ASSERT_OK_AND_ASSIGN(const v1::SessionState forked,
                       Ask(sessions(), &Stub::Fork, fork));
  EXPECT_EQ(forked.session(), "f");
  EXPECT_EQ(forked.version(), 1);
  EXPECT_EQ(forked.n_tokens(), 64);
  EXPECT_LE(Stats().live_bytes(), live + 4 * 4096) << "rows were copied";
  ToySuspend f = s;
  f.session = "f";
  ExpectStored(f, 1);

  // The fork grows; the source stays.
  ToySuspend grown{.session = "f",
                   .expected_version = 1,
                   .operation_id = "grow",
                   .tokens_kept = 64,
                   .ids = ToyIds(1, 80),
                   .rows_from = 64,
                   .client_state = "other"};
  ASSERT_OK(Suspend(grown));
  ExpectStored(grown, 2);
  ExpectStored(s, 1);

  // A fork at a point inside.
  fork.set_target("g");
  fork.set_operation_id("fork g");
  fork.set_at(20);
  ASSERT_OK(Ask(sessions(), &Stub::Fork, fork));
  ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(EngineResume("g")));
  EXPECT_EQ(woken.begin.plan().resume_at(), 20);
  EXPECT_EQ(woken.compact.at(kPlain).bytes, ToyRows(1, kPlain, 0, 20));

  // A taken name.
  fork.set_operation_id("fork again");
  EXPECT_THAT(Ask(sessions(), &Stub::Fork, fork),
              HasCode(absl::StatusCode::kAborted));
}

TEST_F(SessionCycleTest, RewindThenAnotherWay) {
  ToySuspend s{.ids = ToyIds(1, 50)};
  ASSERT_OK(Suspend(s));
  uint64_t version = 1;
  for (const uint64_t at : {49, 33, 32, 31, 17, 16, 1, 0}) {
    ASSERT_OK_AND_ASSIGN(const v1::SessionState state,
                         Rewind("s", version, at, absl::StrCat("to ", at)));
    EXPECT_EQ(state.version(), ++version);
    EXPECT_EQ(state.n_tokens(), at);
    EXPECT_EQ(state.kv_len(), at);
    if (at == 0) break;
    ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(EngineResume("s")));
    EXPECT_EQ(woken.compact.at(kHeads).bytes, ToyRows(1, kHeads, 0, at));
  }
  EXPECT_THAT(Resume(EngineResume("s")),
              HasStatus(absl::StatusCode::kFailedPrecondition, "reuse 0"));
  ToySuspend other{.expected_version = version,
                   .operation_id = "other",
                   .ids = ToyIds(5, 40),
                   .salt = 5};
  ASSERT_OK(Suspend(other));
  ExpectStored(other, version + 1);
}

TEST_F(SessionCycleTest, RepeatedOperationsAnswerAsTheFirstTime) {
  ToySuspend s{.ids = ToyIds(1, 50), .client_state = "x"};
  ASSERT_OK_AND_ASSIGN(const v1::SuspendReceipt first, Suspend(s));
  ASSERT_OK_AND_ASSIGN(v1::SuspendReceipt again, Suspend(s));
  // Phase times are of the call that did it.
  v1::SuspendReceipt wanted = first;
  wanted.clear_times();
  again.clear_times();
  EXPECT_EQ(again.SerializeAsString(), wanted.SerializeAsString());
  EXPECT_EQ(Describe("s")->version(), 1);

  // In parts: no ticket, the receipt instead.
  ASSERT_OK_AND_ASSIGN(v1::BeginSuspendResponse begun,
                       BeginSuspend(s.Header(), s.ids));
  EXPECT_EQ(begun.ticket(), "");
  ASSERT_TRUE(begun.has_receipt());
  begun.mutable_receipt()->clear_times();
  EXPECT_EQ(begun.receipt().SerializeAsString(), wanted.SerializeAsString());

  ASSERT_OK_AND_ASSIGN(const v1::SessionState cut, Rewind("s", 1, 20, "cut"));
  ASSERT_OK_AND_ASSIGN(const v1::SessionState cut_again,
                       Rewind("s", 1, 20, "cut"));
  EXPECT_EQ(cut_again.version(), cut.version());
  EXPECT_EQ(cut_again.n_tokens(), 20);

  v1::DeleteRequest erase;
  erase.set_session("s");
  erase.set_expected_version(2);
  erase.set_operation_id("rm");
  ASSERT_OK_AND_ASSIGN(const v1::DeleteResponse gone,
                       Ask(sessions(), &Stub::Delete, erase));
  EXPECT_EQ(gone.version(), 2);
  ASSERT_OK_AND_ASSIGN(const v1::DeleteResponse gone_again,
                       Ask(sessions(), &Stub::Delete, erase));
  EXPECT_EQ(gone_again.version(), 2);
  EXPECT_THAT(Describe("s"), HasStatus(absl::StatusCode::kNotFound, "s"));
  ExpectIdle();
}

TEST_F(SessionCycleTest, PrefixesAreFoundByTokensAndExtraKeys) {
  ToySuspend s{.ids = ToyIds(1, 64)};
  std::vector<v1::SuspendRequest> messages = Messages(s);
  v1::ExtraKeySpan* image = messages[1].mutable_tokens()->add_extra_keys();
  image->set_begin(4);
  image->set_end(9);
  image->set_key("image 1");
  ASSERT_OK(Suspend(messages));

  v1::TokenChunk prompt;
  prompt.mutable_ids()->Add(s.ids.begin(), s.ids.end());
  *prompt.add_extra_keys() = *image;
  ASSERT_OK_AND_ASSIGN(const auto all, Lookup("toy", prompt));
  EXPECT_EQ(all.hit_len(), 64);

  v1::TokenChunk other = prompt;
  other.mutable_extra_keys(0)->set_key("image 2");
  ASSERT_OK_AND_ASSIGN(const auto image_differs, Lookup("toy", other));
  EXPECT_EQ(image_differs.hit_len(), 4);
  other = prompt;
  other.clear_extra_keys();
  ASSERT_OK_AND_ASSIGN(const auto no_image, Lookup("toy", other));
  EXPECT_EQ(no_image.hit_len(), 4);

  v1::TokenChunk tail = prompt;
  tail.set_ids(50, 999 - tail.ids(50));
  ASSERT_OK_AND_ASSIGN(const auto tail_differs, Lookup("toy", tail));
  EXPECT_EQ(tail_differs.hit_len(), 50);
  v1::TokenChunk stranger;
  stranger.add_ids(999 - s.ids[0]);
  ASSERT_OK_AND_ASSIGN(const auto none, Lookup("toy", stranger));
  EXPECT_EQ(none.hit_len(), 0) << "0 is an answer, not an error";
}

TEST_F(SessionCycleTest, ResumeByTokensTakesTheCommonPrefix) {
  ToySuspend s{.ids = ToyIds(1, 64)};
  ASSERT_OK(Suspend(s));
  std::vector<uint32_t> prompt = s.ids;
  prompt[40] = 999 - prompt[40];
  prompt.push_back(3);
  // Of one session.
  ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(EngineResume("s"), prompt));
  EXPECT_EQ(woken.begin.plan().resume_at(), 40);
  ASSERT_TRUE(woken.begin.has_divergence());
  EXPECT_EQ(woken.begin.divergence().position(), 40);
  EXPECT_EQ(woken.begin.divergence().stored_id(), s.ids[40]);
  EXPECT_EQ(woken.begin.divergence().prompt_id(), prompt[40]);
  EXPECT_FALSE(woken.begin.divergence().extra_key_differs());
  EXPECT_EQ(woken.compact.at(kPlain).bytes, ToyRows(1, kPlain, 0, 40));
  EXPECT_EQ(woken.receipt->prompt_tokens(), 65);
  ExpectAddsUp(*woken.receipt);
  // Of whichever session has it.
  v1::BeginResumeHeader anyone = EngineResume("");
  anyone.set_model("toy");
  ASSERT_OK_AND_ASSIGN(const Woken found, Resume(anyone, prompt));
  EXPECT_EQ(found.begin.plan().resume_at(), 40);
  EXPECT_EQ(found.compact.at(kHeads).bytes, ToyRows(1, kHeads, 0, 40));
  ExpectAddsUp(*found.receipt);
}

TEST_F(SessionCycleTest, PromptThatEndsBeforePendingTokensAddsUp) {
  ASSERT_OK(Suspend(ToySuspend{.ids = ToyIds(1, 50), .kv_len = 48}));
  for (const size_t n : {47, 48, 49, 50, 51}) {
    ASSERT_OK_AND_ASSIGN(const Woken woken,
                         Resume(EngineResume("s"), ToyIds(1, n)));
    EXPECT_EQ(woken.receipt->prompt_tokens(), n);
    ExpectAddsUp(*woken.receipt);
  }
  for (const uint64_t cut : {1, 16, 47, 48}) {
    v1::BeginResumeHeader header = EngineResume("s");
    header.set_cut(cut);
    ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(header));
    EXPECT_EQ(woken.begin.plan().resume_at(), cut);
    ExpectAddsUp(*woken.receipt);
  }
}

}  // namespace
}  // namespace torpor::service
