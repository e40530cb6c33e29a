// SPDX-License-Identifier: Apache-2.0
//
// What else can be done with a session: forked, rewound, listed, touched,
// deleted, found by its tokens; and that repeating an operation changes
// nothing.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/service/service_fixture.h"

namespace torpor::service {
namespace {

using Stub = v1::SessionService::Stub;

class SessionVerbsTest : public ServiceTest {
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
};

TEST_F(SessionVerbsTest, ForkSharesAndThenGoesItsOwnWay) {
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

TEST_F(SessionVerbsTest, RewindThenAnotherWay) {
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

TEST_F(SessionVerbsTest, RepeatedOperationsAnswerAsTheFirstTime) {
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

TEST_F(SessionVerbsTest, IdsAreBytes) {
  const std::vector<std::string> ids = {std::string(1, '\0'),
                                        std::string("a\0b", 3), "\xff\xfe",
                                        std::string(256, '\xf0'), "\xc3\xa4"};
  for (const std::string& id : ids) {
    ToySuspend s{.session = id, .ids = ToyIds(1, 20)};
    ASSERT_OK_AND_ASSIGN(const v1::SuspendReceipt receipt, Suspend(s));
    EXPECT_EQ(receipt.session(), id);
    ExpectStored(s, 1);
    ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(EngineResume(id)));
    EXPECT_EQ(woken.receipt->session(), id);
  }
  // In order, a page at a time.
  std::vector<std::string> listed;
  v1::ListRequest request;
  request.set_page_size(1);
  do {
    ASSERT_OK_AND_ASSIGN(const v1::ListResponse page,
                         Ask(sessions(), &Stub::List, request));
    for (const v1::SessionState& state : page.sessions()) {
      listed.push_back(state.session());
    }
    ASSERT_LE(listed.size(), ids.size());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  std::vector<std::string> wanted = ids;
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(listed, wanted);
  request.Clear();
  request.set_prefix("a");
  EXPECT_EQ(Ask(sessions(), &Stub::List, request)->sessions_size(), 1);
  request.set_page_size(1001);
  EXPECT_THAT(Ask(sessions(), &Stub::List, request),
              HasStatus(absl::StatusCode::kInvalidArgument, "1001"));
  request.set_page_size(1);
  request.set_page_token("nonsense");
  EXPECT_THAT(Ask(sessions(), &Stub::List, request),
              HasStatus(absl::StatusCode::kInvalidArgument, "nonsense"));
}

// gRPC's clients take messages of 4 MiB unless told otherwise.
TEST_F(SessionVerbsTest, APageEndsBeforeItIsTooLong) {
  v1::TouchRequest touch;
  for (int i = 0; i < 64; ++i) {
    (*touch.mutable_labels())[absl::StrCat(std::string(250, 'k'), i)] =
        std::string(256, 'v');
  }
  constexpr int kSessions = 150;
  ToySuspend s{.session = "000", .ids = ToyIds(1, 20)};
  ASSERT_OK(Suspend(s));
  touch.set_session("000");
  ASSERT_OK(Ask(sessions(), &Stub::Touch, touch));
  for (int i = 1; i < kSessions; ++i) {
    v1::ForkRequest fork;
    fork.set_source("000");
    fork.set_target(absl::StrFormat("%03d", i));
    fork.set_operation_id("fork");
    ASSERT_OK(Ask(sessions(), &Stub::Fork, fork));
  }
  v1::ListRequest request;
  request.set_page_size(1000);
  int n = 0;
  int n_pages = 0;
  do {
    ASSERT_OK_AND_ASSIGN(const v1::ListResponse page,
                         Ask(sessions(), &Stub::List, request));
    for (const v1::SessionState& state : page.sessions()) {
      EXPECT_EQ(state.session(), absl::StrFormat("%03d", n++));
    }
    ++n_pages;
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(n, kSessions);
  EXPECT_EQ(n_pages, 3);
}

TEST_F(SessionVerbsTest, TouchChangesClassTimeAndLabels) {
  ASSERT_OK(Suspend(ToySuspend{.ids = ToyIds(1, 20)}));
  v1::TouchRequest touch;
  touch.set_session("s");
  touch.set_session_class(v1::SESSION_CLASS_CACHE);
  touch.set_ttl_seconds(1000);
  touch.set_pin_seconds(500);
  (*touch.mutable_labels())["a"] = "1";
  (*touch.mutable_labels())["b"] = "2";
  ASSERT_OK_AND_ASSIGN(const v1::SessionState touched,
                       Ask(sessions(), &Stub::Touch, touch));
  EXPECT_EQ(touched.version(), 1);
  EXPECT_EQ(touched.session_class(), v1::SESSION_CLASS_CACHE);
  EXPECT_GT(touched.expires_at(), touched.updated_at());
  EXPECT_GT(touched.pinned_until(), 0);
  touch.Clear();
  touch.set_session("s");
  touch.set_ttl_seconds(-1);
  touch.set_pin_seconds(-1);
  (*touch.mutable_labels())["a"] = "";
  ASSERT_OK_AND_ASSIGN(const v1::SessionState cleared,
                       Ask(sessions(), &Stub::Touch, touch));
  EXPECT_EQ(cleared.session_class(), v1::SESSION_CLASS_CACHE) << "kept";
  EXPECT_EQ(cleared.expires_at(), 0);
  EXPECT_EQ(cleared.pinned_until(), 0);
  EXPECT_EQ(cleared.labels_size(), 1);
}

TEST_F(SessionVerbsTest, PrefixesAreFoundByTokensAndExtraKeys) {
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

TEST_F(SessionVerbsTest, ResumeByTokensTakesTheCommonPrefix) {
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

TEST_F(SessionVerbsTest, PromptThatEndsBeforePendingTokensAddsUp) {
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
