// SPDX-License-Identifier: Apache-2.0
//
// Sessions of real (tiny, seeded) models through the daemon: every mode wakes
// them, and what is promised to the bit is compared to the bit with a session
// that never slept. Two models at once throughout.

#include <cstring>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "replay/families.h"
#include "replay/replayer.h"
#include "tests/service/model_fixture.h"

namespace torpor::service {
namespace {

using absl::StatusCode;

TEST_F(ModelReplayTest, EveryModeWakesTheSession) {
  for (const char* model : {"w8", "w7"}) {
    Engine never_slept = Asleep(model, model, /*snapshot=*/true);
    const std::vector<uint32_t> more = Ids(model, 20, 2);
    ASSERT_OK_AND_ASSIGN(const std::vector<float> truth,
                         never_slept.Feed(more));
    for (const v1::ReplayMode mode :
         {v1::REPLAY_MODE_EXACT, v1::REPLAY_MODE_SNAPSHOT, v1::REPLAY_MODE_COLD,
          v1::REPLAY_MODE_AUTO, v1::REPLAY_MODE_BOUNDED}) {
      SCOPED_TRACE(absl::StrCat(model, " ", v1::ReplayMode_Name(mode)));
      Engine engine = NewEngine(model);
      ASSERT_OK_AND_ASSIGN(const WakeReport report, Wake(&engine, model, mode));
      const v1::ResumeReceipt& r = report.receipt;
      EXPECT_EQ(r.version(), 1);
      EXPECT_EQ(r.mode_asked(), mode);
      ExpectAddsUp(r);
      ASSERT_OK_AND_ASSIGN(const std::vector<float> logits, engine.Feed(more));
      if (mode == v1::REPLAY_MODE_BOUNDED) {
        EXPECT_EQ(r.mode_used(), mode);
        EXPECT_FALSE(r.exact());
        EXPECT_EQ(r.verdict(), v1::WITNESS_VERDICT_MEASURED);
        EXPECT_GT(r.errors_size(), 0);
        ASSERT_TRUE(r.has_floor());
        EXPECT_EQ(r.floor().resume_at(), kLong);
        EXPECT_EQ(r.floor().replay_start(), kLong - r.replayed_tokens());
        continue;
      }
      EXPECT_TRUE(SameBits(logits, truth));
      EXPECT_FALSE(r.has_floor());
      if (mode == v1::REPLAY_MODE_COLD) {
        EXPECT_EQ(r.recomputed_tokens(), kLong + 1);
        EXPECT_FALSE(r.exact());
      } else {
        EXPECT_TRUE(r.exact());
        EXPECT_EQ(r.verdict(), v1::WITNESS_VERDICT_EXACT);
        EXPECT_EQ(r.recomputed_tokens(), 1);
      }
      if (mode == v1::REPLAY_MODE_EXACT) {
        EXPECT_GT(r.replayed_tokens(), 0);
        EXPECT_GT(r.replayed_token_layers(), 0);
      }
    }
    EXPECT_EQ(Describe(model)->version(), 1) << "a resume changes nothing";
  }
  ExpectIdle();
}

TEST_F(ModelReplayTest, WokenBoundedExtendedAndWokenExact) {
  for (const char* model : {"w8", "w7"}) {
    SCOPED_TRACE(model);
    Asleep(model, model, /*snapshot=*/false);
    Engine bounded = NewEngine(model);
    ASSERT_OK(Wake(&bounded, model, v1::REPLAY_MODE_BOUNDED));
    bounded.Append(Ids(model, 50, 3));
    ASSERT_OK_AND_ASSIGN(const v1::SuspendReceipt receipt,
                         bounded.Sleep(client_.get(), model, kToyBlock, false));
    EXPECT_EQ(receipt.version(), 2);
    EXPECT_EQ(receipt.tokens_kept(), kLong + 1);
    ASSERT_OK_AND_ASSIGN(const v1::SessionState state, Describe(model));
    ASSERT_EQ(state.floors_size(), 1);
    EXPECT_EQ(state.floors(0).resume_at(), kLong);
    EXPECT_EQ(state.provenance(state.provenance_size() - 1).provenance(),
              v1::PROVENANCE_APPROXIMATE);

    const std::vector<uint32_t> more = Ids(model, 20, 4);
    ASSERT_OK_AND_ASSIGN(const std::vector<float> truth, bounded.Feed(more));
    Engine exact = NewEngine(model);
    ASSERT_OK_AND_ASSIGN(const WakeReport report,
                         Wake(&exact, model, v1::REPLAY_MODE_EXACT));
    EXPECT_EQ(report.receipt.verdict(), v1::WITNESS_VERDICT_EXACT);
    ASSERT_OK_AND_ASSIGN(const std::vector<float> logits, exact.Feed(more));
    EXPECT_TRUE(SameBits(logits, truth));
  }
}

TEST_F(ModelReplayTest, WakesAfterARestartAtAnyCut) {
  Asleep("w8", "s", false);
  Reconnect();
  const std::vector<uint32_t> ids = Ids("w8", kLong + 1, 1);
  const std::vector<uint32_t> more = Ids("w8", 5, 5);
  for (const uint64_t cut : {1, 7, 8, 9, 31, 32, 33, 100, 149}) {
    SCOPED_TRACE(cut);
    Engine truth_engine = NewEngine("w8");
    truth_engine.Start({});
    truth_engine.Append(std::span(ids).first(cut));
    ASSERT_OK_AND_ASSIGN(const std::vector<float> truth,
                         truth_engine.Feed(more));
    Engine engine = NewEngine("w8");
    ASSERT_OK(engine.Wake(client_.get(), "s",
                          {.mode = v1::REPLAY_MODE_EXACT, .cut = cut}));
    ASSERT_OK_AND_ASSIGN(const std::vector<float> logits, engine.Feed(more));
    EXPECT_TRUE(SameBits(logits, truth));
  }
}

TEST_F(ModelReplayTest, WeightsThatAreGoneLeaveTheSession) {
  const std::string copy = dir().File("copy");
  std::filesystem::copy(Dir("w8"), copy);
  v1::RegisterRequest request;
  request.set_name("copy");
  request.set_model_dir(copy);
  request.set_block_size(kToyBlock);
  ASSERT_OK(Ask(models(), &v1::ModelService::Stub::Register, request));
  Engine engine(models_["w8"].get(), "copy");
  engine.Start({});
  engine.Append(Ids("w8", kLong + 1, 1));
  ASSERT_OK(engine.Sleep(client_.get(), "s", kToyBlock, false));
  std::filesystem::remove_all(copy);
  Reconnect();

  v1::DescribeModelRequest describe;
  describe.set_name("copy");
  ASSERT_OK_AND_ASSIGN(
      const v1::ModelState state,
      Ask(models(), &v1::ModelService::Stub::Describe, describe));
  EXPECT_THAT(state.executors(), ::testing::ElementsAre("engine"));
  EXPECT_THAT(state.daemon_executor_reason(), ::testing::HasSubstr(copy));
  v1::BeginResumeHeader header;
  header.set_session("s");
  header.set_mode(v1::REPLAY_MODE_EXACT);
  EXPECT_THAT(Resume(header), HasStatus(StatusCode::kFailedPrecondition, copy));
  // An engine still has all it needs.
  ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(EngineResume("s")));
  EXPECT_EQ(woken.begin.plan().resume_at(), kLong);
  EXPECT_GT(woken.begin.witness().layers_size(), 0);
  for (const uint32_t slot : models_["w8"]->layout().CompactSlots()) {
    EXPECT_EQ(woken.compact.at(slot).end, kLong);
  }
}

TEST_F(ModelReplayTest, WindowInPartsAndShards) {
  Engine engine = NewEngine("w8");
  engine.Start({});
  const std::vector<uint32_t> ids = Ids("w8", kLong + 1, 1);
  engine.Append(ids);
  ASSERT_OK(engine.Sleep(client_.get(), "s", kToyBlock, false));
  replay::Model& model = *models_["w8"];
  const auto sequence = model.NewSequence();
  ASSERT_OK_AND_ASSIGN(const std::vector<float> truth_logits,
                       replay::RunTokens(&model,
                                         {.sequence = sequence.get(),
                                          .ids = std::span(ids).first(kLong),
                                          .logits_begin = kLong - 1},
                                         0, {}));
  ASSERT_OK_AND_ASSIGN(const replay::WindowState truth,
                       replay::ExportWindow(model.layout(), *sequence, kLong));

  v1::BeginResumeHeader header;
  header.set_session("s");
  header.set_mode(v1::REPLAY_MODE_EXACT);
  header.set_want_logits(true);
  ASSERT_OK_AND_ASSIGN(const auto begun, BeginResume(header));
  EXPECT_GT(begun.plan().replay_memory_bytes(), 0);
  v1::WindowRequest request;
  request.set_lease(begun.lease());
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(const Woken whole, Window(request));
    EXPECT_EQ(whole.header->verdict(), v1::WITNESS_VERDICT_EXACT);
    ASSERT_EQ(whole.header->logits().size(),
              truth_logits.size() * sizeof(float));
    EXPECT_EQ(std::memcmp(whole.header->logits().data(), truth_logits.data(),
                          whole.header->logits().size()),
              0);
    ASSERT_EQ(whole.window.size(), truth.slots.size());
    for (const replay::SlotRows& rows : truth.slots) {
      const Woken::Run& run = whole.window.at(rows.slot);
      EXPECT_EQ(run.begin, rows.first);
      EXPECT_EQ(run.end, rows.end);
      EXPECT_TRUE(run.bytes ==
                  std::string(rows.bytes.begin(), rows.bytes.end()))
          << "slot " << rows.slot;
    }
  }
  // Two halves are the whole, row by row.
  request.set_n_shards(2);
  std::map<uint32_t, std::string> halves[2];
  for (uint32_t shard = 0; shard < 2; ++shard) {
    request.set_shard(shard);
    ASSERT_OK_AND_ASSIGN(const Woken part, Window(request));
    for (const auto& [slot, run] : part.window) halves[shard][slot] = run.bytes;
  }
  for (const replay::SlotRows& rows : truth.slots) {
    const size_t half = model.layout().slots[rows.slot].row_bytes / 2;
    std::string joined;
    for (size_t i = 0; i < rows.end - rows.first; ++i) {
      joined += halves[0][rows.slot].substr(i * half, half);
      joined += halves[1][rows.slot].substr(i * half, half);
    }
    EXPECT_TRUE(joined == std::string(rows.bytes.begin(), rows.bytes.end()));
  }
  ASSERT_OK_AND_ASSIGN(const v1::ResumeReceipt receipt, Release(begun.lease()));
  EXPECT_TRUE(receipt.exact());
  ExpectIdle();
}

TEST_F(ModelReplayTest, ManyAtOnceWakeLikeOneAlone) {
  std::map<std::string, std::vector<uint32_t>> more;
  std::map<std::string, std::vector<float>> truth;
  for (const char* model : {"w8", "w7"}) {
    Engine engine = Asleep(model, model, false);
    more[model] = Ids(model, 10, 2);
    ASSERT_OK_AND_ASSIGN(truth[model], engine.Feed(more[model]));
  }
  std::vector<std::string> failures(8);
  std::vector<std::unique_ptr<replay::Model>> own;
  for (size_t i = 0; i < failures.size(); ++i) {
    ASSERT_OK_AND_ASSIGN(auto model,
                         replay::LoadModel(Dir(i % 2 == 0 ? "w8" : "w7"), {}));
    own.push_back(std::move(model));
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < failures.size(); ++i) {
    threads.emplace_back([&, i] {
      const std::string name = i % 2 == 0 ? "w8" : "w7";
      Engine engine(own[i].get(), name);
      const auto report = Wake(&engine, name, v1::REPLAY_MODE_EXACT);
      if (!report.ok()) {
        failures[i] = std::string(report.status().message());
        return;
      }
      const auto logits = engine.Feed(more.at(name));
      if (!logits.ok() || !SameBits(*logits, truth[name])) {
        failures[i] = "other bits";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(failures, ::testing::Each(""));
  ExpectIdle();
}

// ---- admission ------------------------------------------------------------

class SmallReplayTest : public ModelReplayTest {
 protected:
  void Configure(ServerOptions* options) override {
    options->backend.replay.memory_bytes = 1000;
  }
};

TEST_F(SmallReplayTest, AReplayAboveTheMemoryIsRefused) {
  Engine engine = Asleep("w8", "s", true);
  Engine other = NewEngine("w8");
  EXPECT_THAT(Wake(&other, "s", v1::REPLAY_MODE_EXACT),
              HasStatus(StatusCode::kResourceExhausted, "1000"));
  ExpectIdle();
  // What needs no replay still comes.
  EXPECT_OK(Wake(&other, "s", v1::REPLAY_MODE_SNAPSHOT));
}

}  // namespace
}  // namespace torpor::service
