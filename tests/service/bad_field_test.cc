// SPDX-License-Identifier: Apache-2.0
//
// Fields of requests that cannot be, one at a time: enums from another world,
// numbers and ranges that are not there, verbs that are not served.

#include <limits>
#include <nlohmann/json.hpp>

#include "tests/service/service_fixture.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using Stub = v1::SessionService::Stub;

class BadFieldTest : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    ASSERT_OK(Suspend(stored_));
  }
  void TearDown() override {
    ExpectIdle();
    ExpectStored(stored_, 1);
  }
  const ToySuspend stored_{.ids = ToyIds(1, 50)};
};

TEST_F(BadFieldTest, HeadersOfSuspends) {
  struct Case {
    const char* text;
    std::function<void(v1::BeginSuspendHeader*)> set;
  };
  constexpr int64_t kForever = std::numeric_limits<int64_t>::max();
  const std::vector<Case> cases = {
      {"kv_len", [](auto* h) { h->set_kv_len(81); }},
      {"kv_len",
       [](auto* h) { h->set_kv_len(std::numeric_limits<uint64_t>::max()); }},
      {"51", [](auto* h) { h->set_tokens_kept(51); }},
      {"session_class",
       [](auto* h) { h->set_session_class(static_cast<v1::SessionClass>(9)); }},
      {"provenance",
       [](auto* h) {
         auto* range = h->add_provenance();
         range->set_begin(50);
         range->set_end(80);
         range->set_provenance(static_cast<v1::Provenance>(9));
       }},
      {"provenance",
       [](auto* h) {
         auto* range = h->add_provenance();
         range->set_begin(70);
         range->set_end(60);
         range->set_provenance(v1::PROVENANCE_EXACT);
       }},
      {"provenance",
       [](auto* h) {
         auto* range = h->add_provenance();
         range->set_begin(50);
         range->set_end(81);
         range->set_provenance(v1::PROVENANCE_EXACT);
       }},
      {"ttl_seconds", [](auto* h) { h->set_ttl_seconds(-2); }},
      {"ttl_seconds", [=](auto* h) { h->set_ttl_seconds(kForever); }},
      {"heads", [](auto* h) { h->set_n_ranks(3); }},
      {"heads",
       [](auto* h) { h->set_n_ranks(std::numeric_limits<uint32_t>::max()); }},
      {"floor",
       [](auto* h) {
         h->add_floors()->set_resume_at(50);
         h->mutable_floors(0)->set_replay_start(50);
       }},
      {"floor",
       [](auto* h) {
         h->add_floors()->set_resume_at(50);
         h->mutable_floors(0)->set_replay_start(45);
       }},
      {"floor",
       [](auto* h) {
         h->add_floors()->set_resume_at(50);
         h->mutable_floors(0)->set_layer_begin(3);
       }},
      {"floor",
       [](auto* h) {
         h->add_floors()->set_resume_at(81);
         h->mutable_floors(0)->set_replay_start(60);
       }},
      {"label",
       [](auto* h) { (*h->mutable_labels())[std::string(300, 'k')] = "v"; }},
      {"holder: got 257 bytes",
       [](auto* h) { h->set_holder(std::string(257, 'h')); }},
      {"numerics_id: got 257 bytes",
       [](auto* h) { h->set_numerics_id(std::string(257, 'n')); }}};
  for (const Case& c : cases) {
    ToySuspend next{.expected_version = 1,
                    .operation_id = "next",
                    .tokens_kept = 50,
                    .ids = ToyIds(1, 80),
                    .rows_from = 50};
    v1::BeginSuspendHeader header = next.Header();
    c.set(&header);
    SCOPED_TRACE(header.ShortDebugString());
    std::vector<v1::SuspendRequest> messages = Messages(next);
    *messages[0].mutable_header() = header;
    EXPECT_THAT(Suspend(messages),
                HasStatus(StatusCode::kInvalidArgument, c.text));
    EXPECT_EQ(Describe("s")->version(), 1);
  }
}

// gRPC drops an answer whose text is too long, its code as well.
TEST_F(BadFieldTest, OfALongTextTheEndsArrive) {
  // The ends are cut at every byte of a letter.
  for (const char* letters : {"m", "\u00fc", "m\u00fc", "\u00fcm"}) {
    std::string name = "m";
    while (name.size() < 100'000) name += letters;
    std::vector<v1::SuspendRequest> messages =
        Messages({.session = "t", .ids = ToyIds(1, 20)});
    messages[0].mutable_header()->set_model(name);
    const auto answer = Suspend(messages);
    EXPECT_THAT(answer, HasStatus(StatusCode::kNotFound, "model 'm"));
    EXPECT_THAT(answer, HasStatus(StatusCode::kNotFound, "registered are: "));
    // Which refuses what is no UTF-8.
    EXPECT_NO_THROW(
        nlohmann::json(std::string(answer.status().message())).dump());
  }
}

TEST_F(BadFieldTest, ClientStateHasALimit) {
  ToySuspend s{.session = "t", .ids = ToyIds(1, 20)};
  s.client_state = std::string(64 * 1024, 'x');
  ASSERT_OK(Suspend(s));
  ExpectStored(s, 1);
  s.session = "u";
  s.client_state += 'x';
  EXPECT_THAT(Suspend(s), HasStatus(StatusCode::kInvalidArgument, "65537"));
  EXPECT_THAT(Describe("u"), HasCode(StatusCode::kNotFound));
}

TEST_F(BadFieldTest, ModesAndTouches) {
  v1::BeginResumeHeader header = EngineResume("s");
  for (const int mode : {6, 77, -1}) {
    header.set_mode(static_cast<v1::ReplayMode>(mode));
    EXPECT_THAT(Resume(header),
                HasStatus(StatusCode::kInvalidArgument, std::to_string(mode)));
  }
  header = EngineResume("s");
  header.set_mode(v1::REPLAY_MODE_BOUNDED);
  header.mutable_limits()->set_replay_tokens(3);
  EXPECT_THAT(Resume(header), HasStatus(StatusCode::kInvalidArgument, "3"))
      << "below the window";
  for (const double error : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    header = EngineResume("s");
    header.mutable_limits()->set_max_error(error);
    EXPECT_THAT(Resume(header),
                HasStatus(StatusCode::kInvalidArgument, "max_error"));
  }
  const std::vector<
      std::pair<const char*, std::function<void(v1::TouchRequest*)>>>
      touches = {{"ttl_seconds", [](auto* t) { t->set_ttl_seconds(-2); }},
                 {"ttl_seconds",
                  [](auto* t) {
                    t->set_ttl_seconds(std::numeric_limits<int64_t>::max());
                  }},
                 {"pin_seconds", [](auto* t) { t->set_pin_seconds(-7); }},
                 {"pin_seconds",
                  [](auto* t) {
                    t->set_pin_seconds(std::numeric_limits<int64_t>::max());
                  }},
                 {"session_class",
                  [](auto* t) {
                    t->set_session_class(static_cast<v1::SessionClass>(5));
                  }},
                 {"label", [](auto* t) {
                    (*t->mutable_labels())["k"] = std::string(300, 'v');
                  }}};
  for (const auto& [text, set] : touches) {
    v1::TouchRequest touch;
    touch.set_session("s");
    set(&touch);
    EXPECT_THAT(Ask(sessions(), &Stub::Touch, touch),
                HasStatus(StatusCode::kInvalidArgument, text));
  }
}

TEST_F(BadFieldTest, RangesThatAreNotThere) {
  v1::BeginResumeHeader header = EngineResume("s");
  header.set_cut(51);
  EXPECT_THAT(Resume(header), HasStatus(StatusCode::kInvalidArgument, "51"));
  v1::RewindRequest rewind;
  rewind.set_session("s");
  rewind.set_expected_version(1);
  rewind.set_operation_id("op");
  rewind.set_at(51);
  EXPECT_THAT(Ask(sessions(), &Stub::Rewind, rewind),
              HasStatus(StatusCode::kInvalidArgument, "51"));
  v1::ForkRequest fork;
  fork.set_source("s");
  fork.set_target("t");
  fork.set_operation_id("op");
  fork.set_at(51);
  EXPECT_THAT(Ask(sessions(), &Stub::Fork, fork),
              HasStatus(StatusCode::kInvalidArgument, "51"));

  ASSERT_OK_AND_ASSIGN(const auto begun, BeginResume(EngineResume("s")));
  struct Case {
    uint64_t begin, end;
    std::vector<uint32_t> slots;
    uint32_t shard, n_shards;
    const char* text;
  };
  for (const Case& c : std::vector<Case>{
           {0, 51, {}, 0, 0, "51"},
           {60, 0, {}, 0, 0, "60"},
           {9, 3, {}, 0, 0, "9"},
           {0, 0, {kWindow}, 0, 0, "2"},
           {0, 0, {9}, 0, 0, "9"},
           {0, 0, {kHeads}, 2, 2, "2"},
           {0, 0, {kHeads}, 0, 3, "heads"},
           {~uint64_t{0}, ~uint64_t{0}, {}, 0, 0, "18446744073709551615"}}) {
    SCOPED_TRACE(c.text);
    v1::ReadRowsRequest read;
    read.set_lease(begun.lease());
    read.set_begin(c.begin);
    read.set_end(c.end);
    read.mutable_slots()->Add(c.slots.begin(), c.slots.end());
    read.set_shard(c.shard);
    read.set_n_shards(c.n_shards);
    EXPECT_THAT(ReadRows(read),
                HasStatus(StatusCode::kInvalidArgument, c.text));
  }
  v1::ReadTokensRequest tokens;
  tokens.set_lease(begun.lease());
  tokens.set_end(51);
  EXPECT_THAT(ReadTokens(tokens),
              HasStatus(StatusCode::kInvalidArgument, "51"));
  tokens.set_begin(9);
  tokens.set_end(3);
  EXPECT_THAT(ReadTokens(tokens), HasCode(StatusCode::kInvalidArgument));
  EXPECT_OK(Release(begun.lease()));
}

TEST_F(BadFieldTest, TheDaemonKnowsOfItself) {
  ASSERT_OK_AND_ASSIGN(const v1::ServerInfoResponse info,
                       Ask(admin(), &v1::AdminService::Stub::ServerInfo,
                           v1::ServerInfoRequest()));
  EXPECT_THAT(info.unimplemented(), ::testing::IsEmpty());
  EXPECT_EQ(info.data_dir(), dir().File("data"));
  EXPECT_FALSE(info.draining());
}

}  // namespace
}  // namespace torpor::service
