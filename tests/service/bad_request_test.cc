// SPDX-License-Identifier: Apache-2.0
//
// Requests that cannot be served: each gets its code and a message that names
// the thing, what was got and what was wanted; the session stays as it was and
// nothing is held.

#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/service/service_fixture.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using Stub = v1::SessionService::Stub;

class BadRequestTest : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    ASSERT_OK(Suspend(stored_));
    ASSERT_OK(Ask(models(), &v1::ModelService::Stub::Register,
                  ToyModel("other", "other weights")));
  }
  void TearDown() override {
    ExpectIdle();
    ExpectStored(stored_, version_);
    ASSERT_OK_AND_ASSIGN(const v1::VerifyProgress report, Verify());
    EXPECT_EQ(report.problems_size(), 0);
    EXPECT_EQ(report.sessions_checked(), 1);
  }

  // The next version, which would be fine.
  ToySuspend Next() const {
    return {.expected_version = 1,
            .operation_id = "next",
            .tokens_kept = 50,
            .ids = ToyIds(1, 80),
            .rows_from = 50};
  }
  // Both ways to suspend refuse the header alike.
  void ExpectRefused(const v1::BeginSuspendHeader& header, StatusCode code,
                     const std::string& text) {
    SCOPED_TRACE(header.ShortDebugString());
    std::vector<v1::SuspendRequest> messages = Messages(Next());
    *messages[0].mutable_header() = header;
    EXPECT_THAT(Suspend(messages), HasStatus(code, text));
    const std::vector<uint32_t> ids = ToyIds(1, 80);
    EXPECT_THAT(BeginSuspend(header, {ids.begin() + 50, ids.end()}),
                HasStatus(code, text));
  }

  // Of the session, when the test ends.
  uint64_t version_ = 1;
  ToySuspend stored_{.ids = ToyIds(1, 50), .client_state = "state"};
};

TEST_F(BadRequestTest, UnknownSessionsAreNotFound) {
  EXPECT_THAT(Describe("nobody"), HasStatus(StatusCode::kNotFound, "nobody"));
  EXPECT_THAT(Resume(EngineResume("nobody")),
              HasStatus(StatusCode::kNotFound, "nobody"));
  EXPECT_THAT(BeginResume(EngineResume("nobody")),
              HasStatus(StatusCode::kNotFound, "nobody"));
  v1::ForkRequest fork;
  fork.set_source("nobody");
  fork.set_target("t");
  fork.set_operation_id("op");
  EXPECT_THAT(Ask(sessions(), &Stub::Fork, fork),
              HasStatus(StatusCode::kNotFound, "nobody"));
  v1::RewindRequest rewind;
  rewind.set_session("nobody");
  rewind.set_expected_version(1);
  rewind.set_operation_id("op");
  EXPECT_THAT(Ask(sessions(), &Stub::Rewind, rewind),
              HasStatus(StatusCode::kNotFound, "nobody"));
  v1::DeleteRequest erase;
  erase.set_session("nobody");
  erase.set_expected_version(1);
  erase.set_operation_id("op");
  EXPECT_THAT(Ask(sessions(), &Stub::Delete, erase),
              HasStatus(StatusCode::kNotFound, "nobody"));
  v1::TouchRequest touch;
  touch.set_session("nobody");
  EXPECT_THAT(Ask(sessions(), &Stub::Touch, touch),
              HasStatus(StatusCode::kNotFound, "nobody"));
  v1::BeginSuspendHeader header = Next().Header();
  header.set_session("nobody");
  ExpectRefused(header, StatusCode::kNotFound, "nobody");
}

TEST_F(BadRequestTest, UnknownLeasesAndTicketsAreNotFound) {
  v1::ReadRowsRequest rows;
  rows.set_lease("no lease");
  EXPECT_THAT(ReadRows(rows), HasStatus(StatusCode::kNotFound, "no lease"));
  v1::ReadTokensRequest tokens;
  tokens.set_lease("no lease");
  EXPECT_THAT(ReadTokens(tokens), HasStatus(StatusCode::kNotFound, "no lease"));
  v1::WindowRequest window;
  window.set_lease("no lease");
  EXPECT_THAT(Window(window), HasStatus(StatusCode::kNotFound, "no lease"));
  EXPECT_THAT(Release("no lease"),
              HasStatus(StatusCode::kNotFound, "no lease"));
  v1::CommitRequest commit;
  commit.set_ticket("no ticket");
  EXPECT_THAT(Commit(commit), HasStatus(StatusCode::kNotFound, "no ticket"));
  std::vector<v1::PutRowsRequest> messages = RowMessages(stored_);
  messages[0].set_ticket("no ticket");
  EXPECT_THAT(PutRows(messages), HasStatus(StatusCode::kNotFound, "no ticket"));
  // Giving up what is not there is harmless.
  v1::AbandonSuspendRequest abandon;
  abandon.set_ticket("no ticket");
  EXPECT_OK(Ask(sessions(), &Stub::AbandonSuspend, abandon));
}

TEST_F(BadRequestTest, IdsOfNoOrTooManyBytes) {
  for (const std::string& id : {std::string(), std::string(257, 'x')}) {
    const std::string size = std::to_string(id.size());
    v1::BeginSuspendHeader header = Next().Header();
    header.set_session(id);
    ExpectRefused(header, StatusCode::kInvalidArgument, size);
    EXPECT_THAT(Describe(id), HasStatus(StatusCode::kInvalidArgument, size));
    v1::ForkRequest fork;
    fork.set_source("s");
    fork.set_target(id);
    fork.set_operation_id("op");
    EXPECT_THAT(Ask(sessions(), &Stub::Fork, fork),
                HasStatus(StatusCode::kInvalidArgument, size));
    v1::DeleteRequest erase;
    erase.set_session(id);
    erase.set_expected_version(1);
    erase.set_operation_id("op");
    EXPECT_THAT(Ask(sessions(), &Stub::Delete, erase),
                HasStatus(StatusCode::kInvalidArgument, size));
    v1::TouchRequest touch;
    touch.set_session(id);
    EXPECT_THAT(Ask(sessions(), &Stub::Touch, touch),
                HasStatus(StatusCode::kInvalidArgument, size));
    EXPECT_THAT(Resume(EngineResume(id)),
                HasCode(StatusCode::kInvalidArgument));
  }
  for (const std::string& operation : {std::string(), std::string(65, 'x')}) {
    v1::BeginSuspendHeader header = Next().Header();
    header.set_operation_id(operation);
    ExpectRefused(header, StatusCode::kInvalidArgument,
                  std::to_string(operation.size()));
  }
}

TEST_F(BadRequestTest, AnotherFingerprintNamesTheField) {
  struct Case {
    const char* field;
    std::function<void(v1::Fingerprint*)> set;
  };
  const std::vector<Case> cases = {
      {"weights", [](auto* f) { f->set_weights("wrong"); }},
      {"adapter", [](auto* f) { f->set_adapter("wrong"); }},
      {"layout", [](auto* f) { f->set_layout("wrong"); }},
      {"kv_dtype", [](auto* f) { f->set_kv_dtype("wrong"); }},
      {"rope", [](auto* f) { f->set_rope("wrong"); }},
      {"quantiser", [](auto* f) { f->set_quantiser("wrong"); }},
      {"format_version", [](auto* f) { f->set_format_version(77); }}};
  for (const Case& c : cases) {
    v1::BeginSuspendHeader header = Next().Header();
    c.set(header.mutable_fingerprint());
    ExpectRefused(header, StatusCode::kFailedPrecondition, c.field);
    v1::BeginResumeHeader resume = EngineResume("s");
    c.set(resume.mutable_fingerprint());
    EXPECT_THAT(Resume(resume),
                HasStatus(StatusCode::kFailedPrecondition, c.field));
    EXPECT_THAT(BeginResume(resume),
                HasStatus(StatusCode::kFailedPrecondition, c.field));
  }
}

TEST_F(BadRequestTest, AnotherModelsSession) {
  v1::BeginResumeHeader resume = EngineResume("s");
  resume.set_model("other");
  EXPECT_THAT(Resume(resume),
              HasStatus(StatusCode::kFailedPrecondition, "weights"));
  v1::BeginSuspendHeader header = Next().Header();
  header.set_model("other");
  ExpectRefused(header, StatusCode::kFailedPrecondition, "weights");
  header.set_model("nobody");
  ExpectRefused(header, StatusCode::kNotFound, "toy");
  // Its tokens are not this model's either.
  v1::TokenChunk tokens;
  tokens.mutable_ids()->Add(stored_.ids.begin(), stored_.ids.end());
  ASSERT_OK_AND_ASSIGN(const auto hit, Lookup("other", tokens));
  EXPECT_EQ(hit.hit_len(), 0);
}

TEST_F(BadRequestTest, StaleVersionsNameTheHolder) {
  for (const uint64_t version : {0, 2, 7}) {
    v1::BeginSuspendHeader header = Next().Header();
    header.set_expected_version(version);
    // A session that is created keeps nothing.
    if (version == 0) header.set_tokens_kept(0);
    if (version == 0) header.set_kv_len(30);
    ExpectRefused(header, StatusCode::kAborted, "toy engine");
    v1::RewindRequest rewind;
    rewind.set_session("s");
    rewind.set_expected_version(version);
    rewind.set_operation_id("op");
    EXPECT_THAT(Ask(sessions(), &Stub::Rewind, rewind),
                HasStatus(StatusCode::kAborted, "toy engine"));
    v1::DeleteRequest erase;
    erase.set_session("s");
    erase.set_expected_version(version);
    erase.set_operation_id("op");
    EXPECT_THAT(Ask(sessions(), &Stub::Delete, erase),
                HasStatus(StatusCode::kAborted, "toy engine"));
  }
  v1::BeginResumeHeader resume = EngineResume("s");
  resume.set_version(2);
  EXPECT_THAT(Resume(resume), HasStatus(StatusCode::kAborted, "2"));
  v1::ForkRequest fork;
  fork.set_source("s");
  fork.set_source_version(2);
  fork.set_target("t");
  fork.set_operation_id("op");
  EXPECT_THAT(Ask(sessions(), &Stub::Fork, fork),
              HasStatus(StatusCode::kAborted, "2"));
}

TEST_F(BadRequestTest, TheSecondOfTwoWritersLoses) {
  const std::vector<uint32_t> ids = ToyIds(1, 80);
  const std::vector<uint32_t> fresh = {ids.begin() + 50, ids.end()};
  v1::BeginSuspendHeader header = Next().Header();
  // Begun at the same version; the loser learns of it at the commit.
  header.set_operation_id("loser");
  ASSERT_OK_AND_ASSIGN(const auto loser, BeginSuspend(header, fresh));
  ASSERT_OK(Suspend(Next()));
  std::vector<v1::PutRowsRequest> rows = RowMessages(Next());
  rows[0].set_ticket(loser.ticket());
  ASSERT_OK(PutRows(rows));
  v1::CommitRequest commit;
  commit.set_ticket(loser.ticket());
  EXPECT_THAT(Commit(commit), HasStatus(StatusCode::kAborted, "toy engine"));
  EXPECT_THAT(Commit(commit), HasCode(StatusCode::kNotFound)) << "spent";
  // Back to the tokens of before.
  v1::RewindRequest rewind;
  rewind.set_session("s");
  rewind.set_expected_version(2);
  rewind.set_operation_id("back");
  rewind.set_at(50);
  ASSERT_OK(Ask(sessions(), &Stub::Rewind, rewind));
  version_ = 3;
  // It was of the tip.
  stored_.client_state.clear();
}

TEST_F(BadRequestTest, TokensOutOfRange) {
  std::vector<uint32_t> ids = stored_.ids;
  ids[3] = kToyVocab;
  ToySuspend bad{.session = "new", .ids = ids};
  EXPECT_THAT(Suspend(bad), HasStatus(StatusCode::kInvalidArgument, "1000"));
  EXPECT_THAT(BeginSuspend(bad.Header(), ids),
              HasStatus(StatusCode::kInvalidArgument, "position 3"));
  v1::TokenChunk chunk;
  chunk.mutable_ids()->Add(ids.begin(), ids.end());
  EXPECT_THAT(Lookup("toy", chunk),
              HasStatus(StatusCode::kInvalidArgument, "position 3"));
  v1::BeginResumeHeader by_tokens = EngineResume("");
  by_tokens.set_model("toy");
  EXPECT_THAT(Resume(by_tokens, ids),
              HasStatus(StatusCode::kInvalidArgument, "position 3"));
  // Too many in a message.
  bad.ids = std::vector<uint32_t>(65'537, 1);
  EXPECT_THAT(BeginSuspend(bad.Header(), bad.ids),
              HasStatus(StatusCode::kInvalidArgument, "65537"));
}

TEST_F(BadRequestTest, ExtraKeysThatCannotBe) {
  struct Case {
    const char* what;
    std::vector<std::tuple<uint64_t, uint64_t, std::string>> spans;
  };
  const std::vector<Case> cases = {
      {"empty key", {{1, 3, ""}}},
      {"long key", {{1, 3, std::string(65, 'k')}}},
      {"empty span", {{3, 3, "k"}}},
      {"backwards", {{3, 1, "k"}}},
      {"past the tokens", {{1, 51, "k"}}},
      {"far past the tokens", {{1, std::numeric_limits<uint64_t>::max(), "k"}}},
      {"begins past the tokens", {{60, 70, "k"}}},
      {"overlapping", {{1, 5, "k"}, {4, 8, "l"}}},
      {"descending", {{6, 8, "k"}, {1, 3, "l"}}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    ToySuspend bad{.session = "new", .ids = ToyIds(1, 50)};
    std::vector<v1::SuspendRequest> messages = Messages(bad);
    v1::TokenChunk prompt;
    prompt.mutable_ids()->Add(bad.ids.begin(), bad.ids.end());
    for (const auto& [begin, end, key] : c.spans) {
      v1::ExtraKeySpan span;
      span.set_begin(begin);
      span.set_end(end);
      span.set_key(key);
      *messages[1].mutable_tokens()->add_extra_keys() = span;
      *prompt.add_extra_keys() = span;
    }
    EXPECT_THAT(Suspend(messages), HasCode(StatusCode::kInvalidArgument));
    EXPECT_THAT(Lookup("toy", prompt), HasCode(StatusCode::kInvalidArgument));
  }
}

TEST_F(BadRequestTest, OtherExtraKeysAreOtherTokens) {
  v1::BeginResumeRequest first;
  *first.mutable_header() = EngineResume("s");
  v1::BeginResumeRequest prompt;
  prompt.mutable_tokens()->mutable_ids()->Add(stored_.ids.begin(),
                                              stored_.ids.end());
  v1::ExtraKeySpan* span = prompt.mutable_tokens()->add_extra_keys();
  span->set_begin(20);
  span->set_end(30);
  span->set_key("image");
  v1::BeginResumeResponse response;
  const auto context = NewContext();
  const auto writer = sessions().BeginResume(context.get(), &response);
  writer->Write(first);
  writer->Write(prompt);
  writer->WritesDone();
  ASSERT_OK(FromGrpcStatus(writer->Finish()));
  EXPECT_EQ(response.plan().resume_at(), 20);
  EXPECT_EQ(response.divergence().position(), 20);
  EXPECT_TRUE(response.divergence().extra_key_differs());
  EXPECT_OK(Release(response.lease()));
}

TEST_F(BadRequestTest, ReuseNothing) {
  std::vector<uint32_t> prompt = stored_.ids;
  prompt[0] = 999 - prompt[0];
  EXPECT_THAT(Resume(EngineResume("s"), prompt),
              HasStatus(StatusCode::kFailedPrecondition, "reuse 0"));
  v1::BeginResumeHeader by_tokens = EngineResume("");
  by_tokens.set_model("toy");
  EXPECT_THAT(Resume(by_tokens, prompt),
              HasStatus(StatusCode::kFailedPrecondition, "reuse 0"));
  EXPECT_THAT(Resume(by_tokens), HasCode(StatusCode::kInvalidArgument));
}

TEST_F(BadRequestTest, NoWeightsNoReplay) {
  for (const v1::ReplayMode mode :
       {v1::REPLAY_MODE_EXACT, v1::REPLAY_MODE_BOUNDED, v1::REPLAY_MODE_AUTO}) {
    v1::BeginResumeHeader header;
    header.set_session("s");
    header.set_mode(mode);
    EXPECT_THAT(Resume(header),
                HasStatus(StatusCode::kFailedPrecondition, "weights"));
    EXPECT_THAT(Resume(header),
                HasStatus(StatusCode::kFailedPrecondition, "toy"));
  }
}

TEST_F(BadRequestTest, ColdMustBeAllowed) {
  v1::BeginResumeHeader header = EngineResume("s");
  header.set_mode(v1::REPLAY_MODE_COLD);
  EXPECT_THAT(Resume(header),
              HasStatus(StatusCode::kFailedPrecondition, "cold"));
}

}  // namespace
}  // namespace torpor::service
