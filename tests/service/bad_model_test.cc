// SPDX-License-Identifier: Apache-2.0
//
// Registrations: inventories that no engine can have, names that are taken,
// directories that hold no model; and plans over the wire.

#include <fstream>

#include "tests/service/service_fixture.h"
#include "tests/testing/temp_dir.h"

namespace torpor::service {
namespace {

using absl::StatusCode;

class BadModelTest : public ServiceTest {
 protected:
  absl::StatusOr<v1::ModelState> Register(const v1::RegisterRequest& request) {
    return Ask(models(), &v1::ModelService::Stub::Register, request);
  }
};

TEST_F(BadModelTest, InventoriesThatCannotBe) {
  using Change = std::function<void(v1::RegisterRequest*)>;
  const auto slot = [](int index, auto set) -> Change {
    return [index, set](v1::RegisterRequest* r) {
      set(r->mutable_layout()->mutable_slots(index));
    };
  };
  const std::vector<std::pair<const char*, Change>> cases = {
      {"name", [](auto* r) { r->set_name(""); }},
      {"129", [](auto* r) { r->set_name(std::string(129, 'n')); }},
      {"0 of", [](auto* r) { r->clear_layout(); }},
      {"2 of", [](auto* r) { r->set_config_json("{}"); }},
      {"block_size", [](auto* r) { r->set_block_size(15); }},
      {"block_size", [](auto* r) { r->set_block_size(1 << 21); }},
      {"heads",
       slot(0, [](auto* s) { s->set_kind(v1::SLOT_KIND_UNSPECIFIED); })},
      {"heads",
       slot(0, [](auto* s) { s->set_kind(static_cast<v1::SlotKind>(9)); })},
      {"heads",
       slot(0, [](auto* s) { s->set_come_back(v1::COME_BACK_UNSPECIFIED); })},
      {"heads",
       slot(0,
            [](auto* s) { s->set_shard_axis(static_cast<v1::ShardAxis>(9)); })},
      {"heads", slot(0, [](auto* s) { s->set_row_bytes(0); })},
      {"heads", slot(0, [](auto* s) { s->set_row_bytes((1 << 20) + 1); })},
      {"heads", slot(0, [](auto* s) { s->set_n_heads(5); })},
      {"heads", slot(0, [](auto* s) { s->set_owner_layer(3); })},
      {"heads", slot(0, [](auto* s) { s->add_reader_layers(9); })},
      {"heads", slot(0, [](auto* s) { s->set_window(8); })},
      {"plain", slot(1, [](auto* s) { s->set_tokens_per_row(4); })},
      {"plain", slot(1, [](auto* s) { s->set_chunk(4); })},
      {"heads", slot(1, [](auto* s) { s->set_name("heads"); })},
      {"window", slot(2, [](auto* s) { s->set_window(0); })},
      {"window", slot(2, [](auto* s) { s->set_window(1U << 31); })}};
  for (const auto& [text, change] : cases) {
    v1::RegisterRequest request = ToyModel("bad", "bad weights");
    change(&request);
    SCOPED_TRACE(request.ShortDebugString());
    EXPECT_THAT(Register(request),
                HasStatus(StatusCode::kInvalidArgument, text));
  }
  EXPECT_EQ(
      Ask(models(), &v1::ModelService::Stub::List, v1::ListModelsRequest())
          ->models_size(),
      1);
}

TEST_F(BadModelTest, DirectoriesThatHoldNone) {
  v1::RegisterRequest request;
  request.set_name("m");
  request.set_model_dir("/no/such/model");
  EXPECT_THAT(Register(request),
              HasStatus(StatusCode::kNotFound, "/no/such/model"));
  // The daemon's working directory is nobody's business.
  request.set_model_dir("models/nano");
  EXPECT_THAT(Register(request),
              HasStatus(StatusCode::kInvalidArgument,
                        "model_dir: got 'models/nano', wanted an absolute"));
  for (const std::string directory : {"backup", ""}) {
    v1::BackupRequest backup;
    backup.set_directory(directory);
    grpc::ClientContext context;
    v1::BackupProgress progress;
    const auto reader = admin().Backup(&context, backup);
    EXPECT_FALSE(reader->Read(&progress));
    EXPECT_THAT(FromGrpcStatus(reader->Finish()),
                HasStatus(StatusCode::kInvalidArgument,
                          "directory: got '" + directory + "', wanted an"));
  }
  request.Clear();
  request.set_name("m");
  request.set_config_json("{ \"model_type\": ");
  EXPECT_THAT(Register(request), HasCode(StatusCode::kInvalidArgument));
  request.set_config_json("{\"model_type\": \"unheard_of\"}");
  EXPECT_THAT(
      Register(request),
      ::testing::AnyOf(HasStatus(StatusCode::kInvalidArgument, "unheard_of"),
                       HasStatus(StatusCode::kUnimplemented, "unheard_of")));
  v1::DescribeModelRequest describe;
  describe.set_name("m");
  EXPECT_THAT(Ask(models(), &v1::ModelService::Stub::Describe, describe),
              HasStatus(StatusCode::kNotFound, "toy"));
}

// No forward of the family: the layout is the config's, an engine replays, and
// another config is another model.
TEST_F(BadModelTest, APlanOnlyDirectoryIsAnEngines) {
  const torpor::testing::TempDir dir;
  const auto write = [&](const char* bos) {
    std::ofstream(dir.File("config.json"))
        << "{\"model_type\": \"olmo3\", \"num_hidden_layers\": 2, "
           "\"bos_token_id\": "
        << bos << "}";
  };
  write("1");
  v1::RegisterRequest request;
  request.set_name("olmo");
  request.set_model_dir(dir.path());
  ASSERT_OK_AND_ASSIGN(const v1::ModelState first, Register(request));
  EXPECT_THAT(first.executors(), ::testing::ElementsAre("engine"));
  EXPECT_THAT(first.daemon_executor_reason(),
              ::testing::HasSubstr("plan-only"));
  EXPECT_EQ(first.layout().slots_size(), 4);
  EXPECT_EQ(first.fingerprint().weights().substr(0, 7), "config:");
  EXPECT_NE(first.fingerprint().layout(), "");
  // Again is harmless, and so is a restart.
  ASSERT_OK(Register(request).status());
  Restart();
  v1::DescribeModelRequest describe;
  describe.set_name("olmo");
  ASSERT_OK_AND_ASSIGN(
      const v1::ModelState after,
      Ask(models(), &v1::ModelService::Stub::Describe, describe));
  EXPECT_EQ(after.SerializeAsString(), first.SerializeAsString());
  // The same shapes, another model.
  write("2");
  EXPECT_THAT(Register(request),
              HasStatus(StatusCode::kAlreadyExists, "weights"));
  Restart();
  // What is registered stays what it was, and says what changed.
  ASSERT_OK_AND_ASSIGN(
      const v1::ModelState changed,
      Ask(models(), &v1::ModelService::Stub::Describe, describe));
  EXPECT_EQ(changed.fingerprint().weights(), first.fingerprint().weights());
  EXPECT_THAT(changed.daemon_executor_reason(),
              ::testing::HasSubstr("weights"));
  // An engine may name the weights itself.
  request.set_name("named");
  request.mutable_fingerprint()->set_weights("w");
  ASSERT_OK_AND_ASSIGN(const v1::ModelState named, Register(request));
  EXPECT_EQ(named.fingerprint().weights(), "w");
}

TEST_F(BadModelTest, ANameIsOneModels) {
  ASSERT_OK_AND_ASSIGN(const v1::ModelState first,
                       Register(ToyModel("toy", "toy weights")));
  EXPECT_THAT(Register(ToyModel("toy", "other weights")),
              HasStatus(StatusCode::kAlreadyExists, "weights"));
  v1::RegisterRequest wider = ToyModel("toy", "toy weights");
  wider.mutable_layout()->mutable_slots(1)->set_row_bytes(80);
  EXPECT_THAT(Register(wider), HasStatus(StatusCode::kAlreadyExists, "layout"));
  v1::RegisterRequest blocks = ToyModel("toy", "toy weights");
  blocks.set_block_size(32);
  EXPECT_THAT(Register(blocks), HasStatus(StatusCode::kAlreadyExists, "32"));
  // Known still after a restart, as it was.
  Restart();
  v1::DescribeModelRequest describe;
  describe.set_name("toy");
  ASSERT_OK_AND_ASSIGN(
      const v1::ModelState after,
      Ask(models(), &v1::ModelService::Stub::Describe, describe));
  EXPECT_EQ(after.SerializeAsString(), first.SerializeAsString());
  EXPECT_THAT(after.executors(), ::testing::ElementsAre("engine"));
  EXPECT_NE(after.daemon_executor_reason(), "");
}

TEST_F(BadModelTest, PlansOverTheWire) {
  v1::PlanRequest request;
  request.set_model("toy");
  request.set_n_tokens(1000);
  request.set_resume_at(500);
  request.set_mode(v1::REPLAY_MODE_EXACT);
  ASSERT_OK_AND_ASSIGN(const v1::PlanResponse plan,
                       Ask(models(), &v1::ModelService::Stub::Plan, request));
  EXPECT_EQ(plan.compact_bytes_per_token(), 64);
  EXPECT_EQ(plan.all_window_bytes_per_token(), 80);
  EXPECT_EQ(plan.ratio(), 80.0 / 64.0);
  EXPECT_EQ(plan.snapshot_bytes(), 7 * 16);
  EXPECT_EQ(plan.bounded_tokens(), 8);
  EXPECT_EQ(plan.exact_tokens(), 7);
  EXPECT_EQ(plan.plan().resume_at(), 500);
  EXPECT_EQ(plan.plan().replay_start(), 493);
  request.set_resume_at(1000);
  EXPECT_OK(Ask(models(), &v1::ModelService::Stub::Plan, request).status());
  request.set_resume_at(1001);
  EXPECT_THAT(Ask(models(), &v1::ModelService::Stub::Plan, request),
              HasStatus(StatusCode::kInvalidArgument,
                        "resume_at: got 1001, wanted at most n_tokens, 1000"));
  // Refused as well where no plan is asked for.
  request.set_mode(static_cast<v1::ReplayMode>(9));
  for (const uint64_t resume_at : {500, 0}) {
    request.set_resume_at(resume_at);
    EXPECT_THAT(
        Ask(models(), &v1::ModelService::Stub::Plan, request),
        HasStatus(StatusCode::kInvalidArgument, "mode: got 9, wanted bounded"));
  }
  request.clear_mode();
  request.set_model("nobody");
  EXPECT_THAT(Ask(models(), &v1::ModelService::Stub::Plan, request),
              HasStatus(StatusCode::kNotFound, "nobody"));
}

}  // namespace
}  // namespace torpor::service
