// SPDX-License-Identifier: Apache-2.0
//
// Replays on a device against those on the CPU, and what happens when the
// device has no room or is lost. Under the emulator.

#include <gtest/gtest.h>

#include <cstring>

#include "replay/fallback_replayer.h"
#include "replay/families.h"
#include "tests/kernels/emulated_ops.h"
#include "tests/replay/exactness_testing.h"
#include "tests/replay/small_deepseek_v41.h"
#include "tests/testing/temp_dir.h"

namespace torpor::replay {
namespace {

using kernels::EmulatedDevice;
using testing::HasStatus;

constexpr uint64_t kCut = 150;

std::vector<float> FloatsOf(const std::vector<uint8_t>& bytes) {
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// A directory with a model; may write one into `temp_dir`.
struct TinyModel {
  const char* name;
  std::string (*directory)(const std::string& temp_dir);
};
constexpr TinyModel kGemma3{
    "gemma3", [](const std::string&) {
      return std::string(TORPOR_ORACLES_DIR "/gemma3/w5");
    }};
constexpr TinyModel kGptOss{
    "gpt_oss", [](const std::string&) {
      return std::string(TORPOR_ORACLES_DIR "/gpt_oss/yarn");
    }};
// Of bf16 weights whose every k fits the tensor cores.
constexpr TinyModel kGemma3Bf16{
    "gemma3_bf16", [](const std::string&) {
      return std::string(TORPOR_ORACLES_DIR "/gemma3/w8");
    }};
constexpr TinyModel kGptOssMxfp4{
    "gpt_oss_mxfp4", [](const std::string&) {
      return std::string(TORPOR_ORACLES_DIR "/gpt_oss/mxfp4");
    }};
constexpr TinyModel kDeepSeekV41{
    "deepseek_v41", [](const std::string& temp_dir) {
      return WriteSmallDeepSeekV41("plain", temp_dir);
    }};

class CudaReplayerTest : public ::testing::TestWithParam<TinyModel> {
 protected:
  void SetUp() override {
    directory_ = GetParam().directory(temp_dir_.path());
    ASSERT_OK_AND_ASSIGN(cpu_, Load(nullptr));
    ASSERT_OK_AND_ASSIGN(cuda_, Load(EmulatedDevice::NewOps()));
    ids_ = RandomIds(random_, kCut, cpu_->vocab_size());
    TestSession session(cpu_.get());
    ASSERT_OK(session.Run(ids_, 0));
    ASSERT_OK_AND_ASSIGN(rows_, session.Compact());
    ASSERT_OK_AND_ASSIGN(plan_, Plan(*cpu_, kCut, ReplayMode::kExact));
  }

  absl::StatusOr<std::unique_ptr<Model>> Load(
      std::shared_ptr<kernels::Ops> ops) const {
    return LoadModel(directory_, {.ops = std::move(ops)});
  }
  ReplayJob Job() {
    return {.plan = &plan_, .ids = ids_, .reader = &rows_, .want_logits = true};
  }
  std::unique_ptr<Replayer> WithFallback(uint64_t cpu_memory_bytes) {
    return MakeFallbackReplayer(
        MakeReplayer(cuda_.get()),
        [this] {
          ++n_loads_;
          return Load(nullptr);
        },
        cpu_memory_bytes);
  }
  // Room for the weights and `n` sequences at once.
  void LeaveRoomFor(double n) {
    const uint64_t sequence = cuda_->SequenceBytes(kCut);
    device_.control().SetMemoryBytes(
        device_.control().bytes_allocated() +
        static_cast<uint64_t>(n * static_cast<double>(sequence)));
  }

  testing::TempDir temp_dir_;
  std::string directory_;
  testing::Random random_;
  EmulatedDevice device_;
  std::unique_ptr<Model> cpu_;
  std::unique_ptr<Model> cuda_;
  std::vector<uint32_t> ids_;
  MemoryRows rows_;
  ReplayPlan plan_;
  int n_loads_ = 0;
};

// Of a family whose rows are floats: a rounding changes a code of others.
class CudaWindowTest : public CudaReplayerTest {};

TEST_P(CudaWindowTest, RebuildsTheWindowOfTheCpu) {
  const ReplayJob job = Job();
  ASSERT_OK_AND_ASSIGN(const auto on_cpu,
                       MakeReplayer(cpu_.get())->Rebuild({&job, 1}, nullptr));
  ASSERT_OK_AND_ASSIGN(const auto on_device,
                       WithFallback(UINT64_MAX)->Rebuild({&job, 1}, nullptr));
  const WindowState& wanted = on_cpu[0].window;
  const WindowState& got = on_device[0].window;
  ASSERT_EQ(got.slots.size(), wanted.slots.size());
  for (size_t i = 0; i < got.slots.size(); ++i) {
    EXPECT_TRUE(kernels::Near(FloatsOf(got.slots[i].bytes),
                              FloatsOf(wanted.slots[i].bytes), 1e-5))
        << "slot " << got.slots[i].slot;
  }
  EXPECT_TRUE(kernels::Near(got.logits, wanted.logits, 1e-5));
  EXPECT_EQ(on_device[0].numerics_id, cuda_->numerics_id());
  EXPECT_NE(cuda_->numerics_id(), cpu_->numerics_id());
  EXPECT_EQ(on_device[0].fallback_reason, "");
  EXPECT_EQ(n_loads_, 0);
}

// Of a model in bf16: what a sum rounds otherwise may round an activation to
// the next bf16, 2^-8 from it, and a few of those add up.
class CudaTensorCoresTest : public CudaReplayerTest {};

TEST_P(CudaTensorCoresTest, LogitsAreTheCpusWithinRoundings) {
  ASSERT_OK_AND_ASSIGN(cuda_, Load(EmulatedDevice::NewOps(true)));
  const ReplayJob job = Job();
  ASSERT_OK_AND_ASSIGN(const auto on_cpu,
                       MakeReplayer(cpu_.get())->Rebuild({&job, 1}, nullptr));
  ASSERT_OK_AND_ASSIGN(const auto on_device,
                       WithFallback(UINT64_MAX)->Rebuild({&job, 1}, nullptr));
  EXPECT_TRUE(kernels::Near(on_device[0].window.logits, on_cpu[0].window.logits,
                            1.0 / 32));
  EXPECT_THAT(on_device[0].numerics_id,
              ::testing::StartsWith("cuda/emulated/tensor/"));
  EXPECT_EQ(on_device[0].fallback_reason, "");
}

TEST_P(CudaReplayerTest, WhatFindsNoRoomRunsOnTheCpuAndSaysWhy) {
  const ReplayJob job = Job();
  ASSERT_OK_AND_ASSIGN(const auto wanted,
                       MakeReplayer(cpu_.get())->Rebuild({&job, 1}, nullptr));
  const auto replayer = WithFallback(UINT64_MAX);
  LeaveRoomFor(0.5);
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto got, replayer->Rebuild({&job, 1}, nullptr));
    EXPECT_EQ(got[0].window.slots, wanted[0].window.slots);
    EXPECT_EQ(got[0].window.logits, wanted[0].window.logits);
    EXPECT_EQ(got[0].numerics_id, cpu_->numerics_id());
    EXPECT_THAT(got[0].fallback_reason, ::testing::HasSubstr("no room"));
  }
  EXPECT_EQ(n_loads_, 1);
  // With room again it runs there again.
  device_.control().SetMemoryBytes(UINT64_MAX);
  ASSERT_OK_AND_ASSIGN(const auto again, replayer->Rebuild({&job, 1}, nullptr));
  EXPECT_EQ(again[0].fallback_reason, "");
}

TEST_P(CudaReplayerTest, ABatchIsHalvedUntilItFits) {
  const std::vector<ReplayJob> jobs(4, Job());
  const auto replayer = WithFallback(0);
  ASSERT_OK_AND_ASSIGN(const auto wanted, replayer->Rebuild(jobs, nullptr));
  LeaveRoomFor(3);
  ASSERT_OK_AND_ASSIGN(const auto got, replayer->Rebuild(jobs, nullptr));
  ASSERT_EQ(got.size(), 4u);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].window.slots, wanted[i].window.slots);
    EXPECT_EQ(got[i].fallback_reason, "");
  }
}

TEST_P(CudaReplayerTest, WithoutRoomOnTheCpuTheDevicesErrorStays) {
  const ReplayJob job = Job();
  LeaveRoomFor(0.5);
  EXPECT_THAT(WithFallback(1)->Rebuild({&job, 1}, nullptr),
              HasStatus(absl::StatusCode::kResourceExhausted, "device memory"));
}

TEST_P(CudaReplayerTest, ALostDeviceIsUnavailable) {
  const ReplayJob job = Job();
  const auto replayer = WithFallback(UINT64_MAX);
  device_.control().LoseDevice();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(replayer->Rebuild({&job, 1}, nullptr),
                HasStatus(absl::StatusCode::kUnavailable, "CUDA"));
  }
  EXPECT_EQ(n_loads_, 0);
}

std::string NameOf(const ::testing::TestParamInfo<TinyModel>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Families, CudaReplayerTest,
                         ::testing::Values(kGemma3, kGptOss, kDeepSeekV41),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Families, CudaWindowTest,
                         ::testing::Values(kGemma3, kGptOss), NameOf);
INSTANTIATE_TEST_SUITE_P(Families, CudaTensorCoresTest,
                         ::testing::Values(kGemma3Bf16, kGptOssMxfp4), NameOf);

}  // namespace
}  // namespace torpor::replay
