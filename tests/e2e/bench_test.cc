// SPDX-License-Identifier: Apache-2.0
//
// The benchmarks at sizes that take no time: they must find what is wrong, and
// say what they measured as JSON. Nothing here looks at a duration.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sodium.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "bench/divergence.h"
#include "bench/error_parts.h"
#include "bench/error_study.h"
#include "bench/error_study_report.h"
#include "bench/replay_speed.h"
#include "bench/resume.h"
#include "bench/rig.h"
#include "bench/rig_report.h"
#include "bench/scale.h"
#include "bench/scale_report.h"
#include "bench/size.h"
#include "bench/synthetic.h"
#include "tests/e2e/process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace torpor::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class BenchTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_GE(sodium_init(), 0); }

  Common ThisCommon() const {
    Common common;
    common.dir = dir_.path();
    common.bin_dir =
        std::filesystem::path(e2e::TorpordPath()).parent_path().string();
    common.seed = 7;
    return common;
  }
  static RigOptions SmallRig() {
    RigOptions options;
    options.layout = TinyLayout();
    options.block_size = 16;
    options.n_sessions = 8;
    options.n_tokens = 40;
    options.n_new_tokens = 5;
    options.n_turns = 2;
    options.n_clients = 4;
    options.think = {"exponential", 1};
    return options;
  }
  static EngineCases SmallModel() {
    EngineCases cases;
    cases.model_dir = std::string(TORPOR_ORACLES_DIR) + "/gemma3/w8";
    cases.engine.n_threads = 1;
    cases.lengths = {20, 90};
    cases.replay_tokens = {0, 12};
    cases.repeats = 2;
    return cases;
  }

  const testing::TempDir dir_;
};

TEST_F(BenchTest, RigFindsEveryAcknowledgedByteAfterTheCrash) {
  const Common common = ThisCommon();
  const RigOptions options = SmallRig();
  ASSERT_OK_AND_ASSIGN(const RigResult result, RunRig(options, common));
  EXPECT_EQ(result.first_suspend.size(), 8U);
  EXPECT_EQ(result.resume.size(), 16U);
  EXPECT_EQ(result.delta_suspend.size(), 16U);
  // 64 B a token.
  EXPECT_EQ(result.first.row_bytes_received, 8U * 40 * 64);
  EXPECT_EQ(result.turns.row_bytes_received, 16U * 5 * 64);
  EXPECT_EQ(result.turns.row_bytes_sent, 8U * (40 + 45) * 64);
  EXPECT_GT(result.turns.commits, 0U);
  EXPECT_GE(result.turns.written, result.turns.row_bytes_received);
  EXPECT_GT(result.idle_bytes, 0U);
  ASSERT_TRUE(result.crash.has_value());
  EXPECT_GE(result.crash->acknowledged, 4U);
  EXPECT_EQ(result.crash->sessions_read, 8U);
  const Result report = ReportOf(options, result);
  EXPECT_EQ(report.json["calls"]["resume"]["n"], 16);
  EXPECT_THAT(report.text, HasSubstr("kill -9 after"));
}

TEST_F(BenchTest, RigTakesAnyKnownConfig) {
  RigOptions options = SmallRig();
  ASSERT_OK_AND_ASSIGN(
      options.layout,
      LayoutOf(std::string(TORPOR_ORACLES_DIR) + "/gemma3/w8", "bf16"));
  options.n_verified = 3;
  ASSERT_OK_AND_ASSIGN(const RigResult result, RunRig(options, ThisCommon()));
  EXPECT_EQ(result.crash->sessions_read, 3U);
  // Rows in two slots, some of them pooled.
  options.layout = PooledLayout();
  options.block_size = 0;
  EXPECT_OK(RunRig(options, ThisCommon()));
}

TEST_F(BenchTest, RigFindsOneWrongByte) {
  RigOptions options = SmallRig();
  options.wrong_session = 3;
  const absl::Status status = RunRig(options, ThisCommon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bench/00000003"));
}

TEST_F(BenchTest, ScaleAsksBothDaemons) {
  ScaleOptions options;
  options.populations = {5, 120};
  options.n_clients = 8;
  options.n_samples = 4;
  options.ttl_seconds = 3'600;
  ASSERT_OK_AND_ASSIGN(const ScaleResult result,
                       RunScale(options, ThisCommon()));
  ASSERT_THAT(result.steps, SizeIs(2));
  EXPECT_EQ(result.steps[1].created, 115U);
  for (const std::string& kind : ScaleResult::Kinds()) {
    EXPECT_EQ(result.steps[1].here.at(kind).size(), 4U) << kind;
    EXPECT_EQ(result.steps[1].small.at(kind).size(), 4U) << kind;
  }
  const Result report = ReportOf(options, result);
  EXPECT_THAT(report.json["populations"], SizeIs(2));
  EXPECT_THAT(report.text, HasSubstr("describe p50"));
}

TEST_F(BenchTest, ScaleFindsOneWrongByte) {
  ScaleOptions options;
  options.populations = {2};
  options.n_clients = 1;
  options.n_samples = 30;
  options.wrong_session = 1;
  EXPECT_EQ(RunScale(options, ThisCommon()).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST_F(BenchTest, ResumeWakesTheSameBitsInEveryMode) {
  ResumeOptions options;
  options.cases = SmallModel();
  // Dropping pages needs a disk below the temporary directory.
  options.variants = {"hot", "killed"};
  ASSERT_OK_AND_ASSIGN(const ResumeResult result,
                       MeasureResume(options, ThisCommon()));
  // Two lengths, bounded twice, exact, snapshot, cold.
  ASSERT_THAT(result.cases, SizeIs(20));
  for (const ResumeResult::Case& c : result.cases) {
    EXPECT_EQ(c.to_next_token.size(), 2U);
    if (c.mode.mode == replay::ReplayMode::kExact) {
      EXPECT_TRUE(c.exact);
      EXPECT_EQ(c.verdict, "EXACT");
    }
  }
  EXPECT_THAT(result.Limits(), SizeIs(8));
}

TEST_F(BenchTest, ReplayRebuildsTheSameWindow) {
  for (const char* model : {"/gemma3/w8", "/deepseek_v41/plain"}) {
    SCOPED_TRACE(model);
    ReplaySpeedOptions options;
    options.cases = SmallModel();
    options.cases.model_dir = std::string(TORPOR_ORACLES_DIR) + model;
    options.cases.modes = {"bounded", "exact"};
    ASSERT_OK_AND_ASSIGN(const ReplaySpeedResult result,
                         MeasureReplay(options, ThisCommon()));
    ASSERT_THAT(result.cases, SizeIs(8));
    for (const ReplaySpeedResult::Case& c : result.cases) {
      EXPECT_EQ(c.exact, c.rows_different == 0) << c.mode.name;
    }
  }
}

SizeOptions SmallSession() {
  SizeOptions options;
  options.config =
      std::string(TORPOR_ORACLES_DIR) + "/configs/DeepSeek-V4.1-Flash.json";
  options.n_tokens = 8'192;
  return options;
}

TEST_F(BenchTest, ASleepingSessionTakesWhatItsLayoutSays) {
  const SizeOptions options = SmallSession();
  ASSERT_OK_AND_ASSIGN(const SizeResult result,
                       MeasureSize(options, ThisCommon()));
  EXPECT_EQ(result.compact.row_bytes, 890U * 8'192);
  EXPECT_EQ(result.all.row_bytes, 22'010U * 8'192);
  EXPECT_EQ(result.compact.token_bytes, 4U * 8'192);
  // 40 layers, 5 rows of 528 B and a digest each.
  EXPECT_GE(result.compact.witness_bytes, 40U * (5 * 528 + 16));
  EXPECT_GE(result.compact.witness_page_bytes, result.compact.witness_bytes);
  // What quotas are held against is what the file takes, within its small
  // tables.
  EXPECT_NEAR(result.compact.accounted_bytes, result.compact.page_bytes,
              20 * 4'096);
  EXPECT_LT(result.compact.overhead(), 0.02);
  EXPECT_LT(result.all.overhead(), 0.02);
  EXPECT_TRUE(result.Holds());
  const Result report = ReportOf(options, result);
  EXPECT_NEAR(report.json["ratio"].get<double>(), 24.7, 0.5);
}

TEST_F(BenchTest, SizeFindsOneWrongByte) {
  SizeOptions options = SmallSession();
  options.n_tokens = 100;
  ASSERT_OK_AND_ASSIGN(const replay::ModelLayout layout,
                       LayoutOf(options.config, options.kv_dtype));
  options.wrong_slot = layout.CompactSlots().front();
  EXPECT_EQ(MeasureSize(options, ThisCommon()).status().code(),
            absl::StatusCode::kDataLoss);
}

ErrorStudyOptions SmallStudy() {
  ErrorStudyOptions options;
  options.models = {std::string(TORPOR_ORACLES_DIR) + "/gemma3/w8"};
  options.text_file =
      std::string(TORPOR_ORACLES_DIR) + "/../../models/nano/heldout_sample.bin";
  options.engine.n_threads = 1;
  options.n_cuts = 3;
  options.n_needles = 2;
  options.n_chains = 2;
  options.n_fed = 4;
  options.n_greedy = 6;
  options.n_wakes = 4;
  return options;
}

TEST_F(BenchTest, ErrorStudyHoldsBoundedWakesAgainstTheTwin) {
  const ErrorStudyOptions options = SmallStudy();
  const std::string& dir = options.models.front();
  ASSERT_OK_AND_ASSIGN(const ErrorStudyResult result,
                       MeasureErrors(options, dir, ThisCommon()));
  EXPECT_EQ(result.model, "w8");
  EXPECT_EQ(result.window, 8U);
  // Each cut, and each chain's end at both intervals.
  EXPECT_EQ(result.n_verified, 3U + 2 * 2);
  ASSERT_GE(result.cuts.size(), 2U);
  const CutStudy& bounded = result.cuts.front();
  EXPECT_EQ(bounded.replay_tokens, 8U);
  EXPECT_FALSE(bounded.exact);
  EXPECT_THAT(bounded.kl_fed, SizeIs(3));
  EXPECT_GT(EstimateOf(bounded.MeanRowL2s()).mean, 0);
  // The first layer's rows are functions of their tokens alone.
  EXPECT_EQ(EstimateOfGroups(bounded.layers.front().row_l2).max, 0);
  const CutStudy& exact = result.cuts.back();
  EXPECT_TRUE(exact.exact);
  EXPECT_EQ(EstimateOf(exact.MeanRowL2s()).max, 0);
  EXPECT_EQ(EstimateOf(exact.kl_fed).max, 0);
  EXPECT_THAT(exact.first_difference, ::testing::Each(6));
  ASSERT_THAT(result.needles, SizeIs(4));
  EXPECT_EQ(result.needles.back().distance, 32U);
  ASSERT_THAT(result.chains, SizeIs(2));
  const ChainStudy::Point& first = result.chains.front().points.front();
  // One wake in a row is a wake.
  EXPECT_EQ(first.kl, first.kl_once);
  EXPECT_EQ(first.row_l2, first.row_l2_once);
  EXPECT_EQ(result.chains.front().points.back().n_wakes, 4U);

  const Result report = ReportOf(result);
  EXPECT_EQ(report.file_name, "error-w8");
  EXPECT_EQ(report.json["exact_wakes_equal"], 7);
  // The same seed, the same figures.
  ASSERT_OK_AND_ASSIGN(const ErrorStudyResult again,
                       MeasureErrors(options, dir, ThisCommon()));
  EXPECT_EQ(ReportOf(again).json, report.json);
}

TEST_F(BenchTest, ErrorStudyTakesAModelThatLooksBackAtTokenIds) {
  ErrorStudyOptions options = SmallStudy();
  // Its tokens are no bytes and it has no ids file: it samples its own text.
  ASSERT_OK_AND_ASSIGN(const ErrorStudyResult result,
                       MeasureErrors(options,
                                     "v41=" + std::string(TORPOR_ORACLES_DIR) +
                                         "/deepseek_v41/plain",
                                     ThisCommon()));
  EXPECT_EQ(result.n_verified, 3U + 2 * 2);
  const CutStudy& bounded = result.cuts.front();
  EXPECT_EQ(bounded.replay_tokens, 8U);
  // FP8 records; those of the first layer follow from their tokens alone.
  ASSERT_THAT(bounded.layers, SizeIs(11));
  EXPECT_EQ(EstimateOfGroups(bounded.layers.front().row_l2).max, 0);
  EXPECT_GT(EstimateOfGroups(bounded.layers.back().row_l2).mean, 0);
  // Every layer slides: what its rows see is 7 tokens a layer further back.
  for (const CutStudy& cut : result.cuts) {
    for (const CutStudy::Layer& layer : cut.layers) {
      if (cut.replay_tokens < 7 * (layer.layer + 1)) continue;
      EXPECT_EQ(EstimateOfGroups(layer.row_l2).max, 0)
          << "layer " << layer.layer << " R = " << cut.replay_tokens;
    }
  }
  EXPECT_EQ(EstimateOf(result.cuts.back().MeanRowL2s()).max, 0);
  EXPECT_EQ(EstimateOf(result.cuts.back().kl_fed).max, 0);
  EXPECT_THAT(result.cuts.back().first_difference, ::testing::Each(6));
  const Result report = ReportOf(result);
  EXPECT_EQ(report.file_name, "error-v41");
  EXPECT_EQ(report.json["rows_compared_as"], "numbers");
  EXPECT_THAT(report.json["text"].get<std::string>(), HasSubstr("sampled"));
}

TEST_F(BenchTest, ErrorStudyNamesTextThatCannotBe) {
  ErrorStudyOptions options = SmallStudy();
  const std::string ids = dir_.File("ids");
  options.ids_files = {"w8=" + ids};
  const auto code = [&](const std::string& text) {
    std::ofstream(ids) << text;
    return MeasureErrors(options, options.models.front(), ThisCommon())
        .status()
        .code();
  };
  EXPECT_EQ(code("[1, 2, 4000000000]"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("1 2 3"), absl::StatusCode::kInvalidArgument);
  options.ids_files = {"w8"};
  EXPECT_EQ(code("1"), absl::StatusCode::kInvalidArgument);
}

TEST_F(BenchTest, ReplayLengthsGoUpToTheExactOne) {
  EXPECT_THAT(
      ReplayGrid(128, 1'778),
      ::testing::ElementsAre(128, 192, 256, 384, 512, 768, 1'024, 1'536));
  EXPECT_THAT(ReplayGrid(8, 9), ::testing::ElementsAre(8));
  EXPECT_THAT(ReplayGrid(8, 8), SizeIs(0));
}

TEST_F(BenchTest, DivergenceIsThatOfTheFormula) {
  // Probabilities 1/2, 1/4, 1/4 and 1/4, 1/2, 1/4; a shift changes nothing.
  const float two = std::log(2.0F);
  const NextTokens p({two, 0, 0, 1, 1, 1}, 3);
  const NextTokens q({5, 5 + two, 5, 1, 1, 1}, 3);
  EXPECT_EQ(p.size(), 2U);
  EXPECT_NEAR(p.Divergence(0, q), 0.25 * std::log(2.0), 1e-6);
  EXPECT_EQ(p.Divergence(1, q), 0);
  EXPECT_NEAR(p.LogProbability(0, 0), -std::log(2.0), 1e-6);
  EXPECT_EQ(q.Likeliest(0), 1U);
  EXPECT_NEAR(RelativeL2(std::vector<float>{3, 5}, std::vector<float>{3, 4}),
              0.2, 1e-9);
  EXPECT_EQ(RowValues("f16", std::vector<uint8_t>{0x00, 0xc0}),
            std::vector<float>{-2});
  const Estimate e = EstimateOf({4, 1, 2, 3});
  EXPECT_EQ(e.mean, 2.5);
  EXPECT_NEAR(e.standard_error, std::sqrt(5.0 / 12), 1e-12);
  EXPECT_EQ(e.p50, 2);
  EXPECT_EQ(e.max, 4);
  // Rows of one cut hang together.
  const Estimate groups = EstimateOfGroups({{1, 1, 1}, {3, 3, 3}});
  EXPECT_EQ(groups.n, 6U);
  EXPECT_EQ(groups.mean, 2);
  EXPECT_NEAR(groups.standard_error, 1, 1e-12);
  EXPECT_NEAR(
      SlopeOf(std::vector<double>{0, 1, 2}, std::vector<double>{1, 3, 5}), 2,
      1e-12);
}

TEST_F(BenchTest, RowsFollowFromTheirKeyAlone) {
  std::vector<uint8_t> rows(10 * 68);
  FillRows(5, 68, 3, rows);
  EXPECT_OK(CheckRows(5, 68, 3, rows));
  // Part of them, and the same rows again.
  EXPECT_OK(CheckRows(5, 68, 4, std::span(rows).subspan(68, 136)));
  EXPECT_FALSE(CheckRows(6, 68, 3, rows).ok());
  EXPECT_FALSE(CheckRows(5, 68, 4, rows).ok());
  for (const size_t at :
       {size_t{0}, size_t{67}, size_t{200}, rows.size() - 1}) {
    rows[at] ^= 1;
    const absl::Status status = CheckRows(5, 68, 3, rows);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("row " + std::to_string(3 + at / 68) + " "));
    rows[at] ^= 1;
  }
}

TEST_F(BenchTest, QuantilesAreValuesThatWereSeen) {
  Latencies latencies;
  EXPECT_EQ(latencies.Quantile(0.5), 0);
  for (int ms = 100; ms >= 1; --ms) latencies.Add(ms);
  EXPECT_EQ(latencies.Quantile(0), 1);
  EXPECT_EQ(latencies.Quantile(0.5), 50);
  EXPECT_EQ(latencies.Quantile(0.99), 99);
  EXPECT_EQ(latencies.Quantile(1), 100);
}

TEST_F(BenchTest, TorporBenchWritesWhatItMeasured) {
  const std::string out = dir_.File("out");
  const e2e::Finished run = e2e::RunToEnd({e2e::TorporPath(),
                                           "bench",
                                           "rig",
                                           "--sessions",
                                           "3",
                                           "--tokens",
                                           "40",
                                           "--turns",
                                           "1",
                                           "--clients",
                                           "2",
                                           "--think",
                                           "fixed",
                                           "--think-ms",
                                           "0",
                                           "--dir",
                                           dir_.path(),
                                           "--out",
                                           out,
                                           "--commit",
                                           "abc",
                                           "--json"});
  // Its limits may not hold at this size; what it says must be there.
  const nlohmann::json json = nlohmann::json::parse(run.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << run.err;
  EXPECT_EQ(json["benchmark"], "rig");
  EXPECT_EQ(json["machine"]["commit"], "abc");
  EXPECT_EQ(json["seed"], 1);
  EXPECT_EQ(json["flags"][0], "rig");
  EXPECT_EQ(run.code, json["holds"].get<bool>() ? 0 : 1);
  std::ifstream file(out + "/rig.json");
  EXPECT_EQ(nlohmann::json::parse(file, nullptr, false), json);
  std::stringstream svg;
  svg << std::ifstream(out + "/rig.svg").rdbuf();
  EXPECT_THAT(svg.str(), HasSubstr("</svg>"));
}

TEST_F(BenchTest, TorporBenchNamesWhatItDoesNotKnow) {
  const e2e::Finished help =
      e2e::RunToEnd({e2e::TorporPath(), "bench", "--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* name :
       {"store", "size", "rig", "scale", "resume", "replay", "error"}) {
    EXPECT_THAT(help.out, HasSubstr(name));
  }
  const e2e::Finished unknown =
      e2e::RunToEnd({e2e::TorporPath(), "bench", "nothing"});
  EXPECT_NE(unknown.code, 0);
  EXPECT_THAT(unknown.err + unknown.out, HasSubstr("nothing"));
  const e2e::Finished server =
      e2e::RunToEnd({e2e::TorporPath(), "bench", "rig", "--server", "h:1"});
  EXPECT_EQ(server.code, 1);
  EXPECT_THAT(server.err, HasSubstr("wanted unix:///path"));
}

}  // namespace
}  // namespace torpor::bench
