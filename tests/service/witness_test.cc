// SPDX-License-Identifier: Apache-2.0
//
// Verdicts and the climb: bits that were promised are there or it is DATA_LOSS,
// errors are measured, what exceeds the limit climbs, and a witness that could
// never be compared is refused at once.

#include "tests/service/model_fixture.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using Stub = v1::SessionService::Stub;

class WitnessTest : public ModelReplayTest {
 protected:
  // Session "s", as the engine puts it to sleep; and "t", with the same rows
  // and its witness changed.
  void SleepWithWitness(const std::function<void(v1::Witness*)>& change) {
    Asleep("w8", "s", false);
    v1::BeginResumeHeader resume = EngineResume("s");
    resume.set_send_tokens(true);
    ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(resume));
    v1::Witness witness = woken.begin.witness();
    ASSERT_GT(witness.layers_size(), 0);
    change(&witness);
    v1::SuspendRequest first;
    first.mutable_header()->set_session("t");
    first.mutable_header()->set_operation_id("t");
    first.mutable_header()->set_model("w8");
    first.mutable_header()->set_kv_len(kLong);
    first.mutable_tokens()->mutable_ids()->Add(woken.ids.begin(),
                                               woken.ids.end());
    std::vector<v1::SuspendRequest> messages = {first};
    for (const auto& [slot, run] : woken.compact) {
      v1::SuspendRequest& message = messages.emplace_back();
      message.set_data(run.bytes);
      v1::RowPiece piece = PieceOf(0, 0, kLong, run.bytes);
      piece.set_slot(slot);
      piece.set_row_bytes(static_cast<uint32_t>(run.bytes.size() / kLong));
      *message.add_pieces() = piece;
    }
    *messages.emplace_back().mutable_commit()->mutable_witness() = witness;
    ASSERT_OK(Suspend(messages));
  }
  absl::StatusOr<Woken> Exact(const std::string& session = "t") {
    v1::BeginResumeHeader header;
    header.set_session(session);
    header.set_mode(v1::REPLAY_MODE_EXACT);
    return Resume(header);
  }
};

TEST_F(WitnessTest, OtherBitsUnderTheSameNumericsAreDataLoss) {
  SleepWithWitness([](v1::Witness* w) {
    w->mutable_layers(0)->mutable_digest()->at(3) ^= 1;
  });
  EXPECT_THAT(Exact(), HasStatus(StatusCode::kDataLoss, "witness"));
  ExpectIdle();
}

TEST_F(WitnessTest, OtherNumericsAreMeasured) {
  SleepWithWitness([](v1::Witness* w) {
    w->set_numerics_id("another machine");
    w->mutable_layers(0)->mutable_digest()->at(3) ^= 1;
  });
  ASSERT_OK_AND_ASSIGN(const Woken woken, Exact());
  EXPECT_EQ(woken.receipt->verdict(), v1::WITNESS_VERDICT_MEASURED);
  ASSERT_GT(woken.receipt->errors_size(), 0);
  EXPECT_FALSE(woken.receipt->errors(0).digest_equal());
  EXPECT_EQ(woken.receipt->errors(0).max_relative(), 0);
}

TEST_F(WitnessTest, AnErrorAboveTheLimitClimbs) {
  Asleep("w8", "s", false);
  v1::BeginResumeHeader header;
  header.set_session("s");
  header.set_mode(v1::REPLAY_MODE_BOUNDED);
  ASSERT_OK_AND_ASSIGN(const Woken bounded, Resume(header));
  double error = 0;
  for (const v1::LayerError& e : bounded.receipt->errors()) {
    error = std::max(error, e.max_relative());
  }
  ASSERT_GT(error, 0);
  header.mutable_limits()->set_max_error(error);
  ASSERT_OK_AND_ASSIGN(const Woken within, Resume(header));
  EXPECT_EQ(within.receipt->rung(), 0);
  header.mutable_limits()->set_max_error(1e-12);
  ASSERT_OK_AND_ASSIGN(const Woken climbed, Resume(header));
  EXPECT_GT(climbed.receipt->rung(), 0);
  EXPECT_EQ(climbed.receipt->mode_asked(), v1::REPLAY_MODE_BOUNDED);
  EXPECT_EQ(climbed.receipt->mode_used(), v1::REPLAY_MODE_EXACT);
  EXPECT_EQ(climbed.receipt->verdict(), v1::WITNESS_VERDICT_EXACT);
  EXPECT_FALSE(climbed.receipt->has_floor());
  ExpectAddsUp(*climbed.receipt);
  EXPECT_EQ(climbed.header->plan().mode(), v1::REPLAY_MODE_EXACT);
}

TEST_F(WitnessTest, TheTopOfTheClimbIsColdAndOnlyWhenAllowed) {
  SleepWithWitness([](v1::Witness* w) {
    w->set_numerics_id("another machine");
    for (auto& layer : *w->mutable_layers()) {
      layer.mutable_digest()->at(3) ^= 1;
      for (auto& row : *layer.mutable_rows()) row.mutable_row()->at(1) ^= 0x55;
    }
  });
  v1::BeginResumeHeader header;
  header.set_session("t");
  header.set_mode(v1::REPLAY_MODE_BOUNDED);
  header.mutable_limits()->set_max_error(1e-9);
  EXPECT_THAT(Resume(header),
              HasStatus(StatusCode::kFailedPrecondition, "max_error"));
  header.mutable_limits()->set_allow_cold(true);
  ASSERT_OK_AND_ASSIGN(const Woken cold, Resume(header));
  EXPECT_EQ(cold.receipt->mode_used(), v1::REPLAY_MODE_COLD);
  EXPECT_EQ(cold.receipt->recomputed_tokens(), kLong + 1);
  ExpectAddsUp(*cold.receipt);
  uint64_t explained = 0;
  for (const auto& reason : cold.receipt->reasons()) {
    explained += reason.tokens();
  }
  EXPECT_EQ(explained, kLong + 1) << "a reason for each token not reused";
  EXPECT_TRUE(cold.window.empty());
}

TEST_F(WitnessTest, AnEngineSaysWhatItRan) {
  Asleep("w8", "s", false);
  ASSERT_OK_AND_ASSIGN(const auto begun, BeginResume(EngineResume("s")));
  v1::ReleaseRequest release;
  release.set_lease(begun.lease());
  v1::EngineReplay* const replay = release.mutable_replay();
  replay->set_token_layers(77);
  replay->set_replay_us(5);
  const auto end = [&] { return Ask(sessions(), &Stub::Release, release); };
  EXPECT_THAT(end(), HasStatus(StatusCode::kInvalidArgument, "got 0 layers"));
  *replay->mutable_witness() = begun.witness();
  replay->mutable_witness()->set_numerics_id("an engine");
  replay->mutable_witness()->mutable_layers(0)->mutable_rows()->Clear();
  EXPECT_THAT(end(), HasStatus(StatusCode::kInvalidArgument, "outside"));
  // The lease stayed. One row is other than what was stored.
  *replay->mutable_witness()->mutable_layers(0) = begun.witness().layers(0);
  v1::LayerWitness* const changed =
      replay->mutable_witness()->mutable_layers(1);
  changed->mutable_digest()->at(3) ^= 1;
  changed->mutable_rows(0)->mutable_row()->at(1) ^= 1;
  ASSERT_OK_AND_ASSIGN(const v1::ResumeReceipt receipt, end());
  EXPECT_EQ(receipt.replayed_token_layers(), 77);
  EXPECT_EQ(receipt.times().replay_us(), 5);
  EXPECT_EQ(receipt.replay_numerics_id(), "an engine");
  EXPECT_EQ(receipt.verdict(), v1::WITNESS_VERDICT_MEASURED);
  ASSERT_EQ(receipt.errors_size(), begun.witness().layers_size());
  EXPECT_EQ(receipt.errors(0).max_relative(), 0);
  EXPECT_TRUE(receipt.errors(0).digest_equal());
  EXPECT_GT(receipt.errors(1).max_relative(), 0);
  EXPECT_FALSE(receipt.errors(1).digest_equal());
  ExpectAddsUp(receipt);
  ExpectIdle();
}

TEST_F(WitnessTest, WhatAnEngineRanIsNotForOtherLeases) {
  Asleep("w8", "s", false);
  v1::BeginResumeHeader header;
  header.set_session("s");
  header.set_mode(v1::REPLAY_MODE_EXACT);
  ASSERT_OK_AND_ASSIGN(const auto begun, BeginResume(header));
  v1::ReleaseRequest release;
  release.set_lease(begun.lease());
  release.mutable_replay();
  EXPECT_THAT(Ask(sessions(), &Stub::Release, release),
              HasStatus(StatusCode::kInvalidArgument, "engine_replays"));
  ASSERT_OK(Release(begun.lease()));
}

TEST_F(WitnessTest, WithoutAWitnessNothingIsVerified) {
  SleepWithWitness([](v1::Witness* w) { w->Clear(); });
  ASSERT_OK_AND_ASSIGN(const Woken woken, Exact());
  EXPECT_EQ(woken.receipt->verdict(), v1::WITNESS_VERDICT_UNWITNESSED);
  EXPECT_TRUE(woken.receipt->exact());
}

TEST_F(WitnessTest, TheFirstWitnessOfACutStays) {
  Asleep("w8", "s", false);
  ASSERT_OK_AND_ASSIGN(const auto begun, BeginResume(EngineResume("s")));
  ASSERT_OK(Release(begun.lease()));
  v1::BeginSuspendHeader header;
  header.set_session("s");
  header.set_expected_version(1);
  header.set_operation_id("again");
  header.set_model("w8");
  header.set_tokens_kept(kLong + 1);
  header.set_kv_len(kLong);
  ASSERT_OK_AND_ASSIGN(const auto again, BeginSuspend(header, {}));
  v1::CommitRequest commit;
  commit.set_ticket(again.ticket());
  *commit.mutable_witness() = begun.witness();
  commit.mutable_witness()->mutable_layers(0)->mutable_digest()->at(3) ^= 1;
  ASSERT_OK(Commit(commit));
  ASSERT_OK_AND_ASSIGN(const Woken woken, Exact("s"));
  EXPECT_EQ(woken.receipt->version(), 2);
  EXPECT_EQ(woken.receipt->verdict(), v1::WITNESS_VERDICT_EXACT);
}

TEST_F(WitnessTest, AWitnessThatCannotBeIsRefused) {
  Asleep("w8", "s", false);
  ASSERT_OK_AND_ASSIGN(const auto begun, BeginResume(EngineResume("s")));
  ASSERT_OK(Release(begun.lease()));
  const std::vector<std::pair<const char*, std::function<void(v1::Witness*)>>>
      cases = {
          {"digest",
           [](auto* w) { w->mutable_layers(0)->mutable_digest()->pop_back(); }},
          {"layer", [](auto* w) { w->mutable_layers(0)->set_layer(77); }},
          {"layer", [](auto* w) { w->mutable_layers()->RemoveLast(); }},
          {"row",
           [](auto* w) {
             w->mutable_layers(0)->mutable_rows(0)->mutable_row()->pop_back();
           }},
          {"row", [](auto* w) {
             w->mutable_layers(0)->mutable_rows(0)->set_position(3);
           }}};
  for (const auto& [text, change] : cases) {
    v1::BeginSuspendHeader header;
    header.set_session("s");
    header.set_expected_version(1);
    header.set_operation_id("again");
    header.set_model("w8");
    header.set_tokens_kept(kLong + 1);
    header.set_kv_len(kLong);
    ASSERT_OK_AND_ASSIGN(const auto again, BeginSuspend(header, {}));
    v1::CommitRequest commit;
    commit.set_ticket(again.ticket());
    *commit.mutable_witness() = begun.witness();
    change(commit.mutable_witness());
    EXPECT_THAT(Commit(commit), HasStatus(StatusCode::kInvalidArgument, text));
    v1::AbandonSuspendRequest abandon;
    abandon.set_ticket(again.ticket());
    ASSERT_OK(Ask(sessions(), &Stub::AbandonSuspend, abandon));
  }
  ASSERT_OK_AND_ASSIGN(const Woken woken, Exact("s"));
  EXPECT_EQ(woken.receipt->verdict(), v1::WITNESS_VERDICT_EXACT);
}

}  // namespace
}  // namespace torpor::service
