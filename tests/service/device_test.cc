// SPDX-License-Identifier: Apache-2.0
//
// A daemon whose models run on a device (emulated): what receipts and model
// states say of it, where there is no room, and when the device is lost.

#include "service/device.h"

#include "tests/kernels/emulated_ops.h"
#include "tests/replay/small_deepseek_v41.h"
#include "tests/service/model_fixture.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using kernels::EmulatedDevice;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ChooseDeviceTest, TheCpuNeedsNothing) {
  ASSERT_OK_AND_ASSIGN(const Device device, ChooseDevice({.name = "cpu"}));
  EXPECT_EQ(device.name, "cpu");
  EXPECT_EQ(device.reason, "");
  EXPECT_EQ(device.open, nullptr);
}

TEST(ChooseDeviceTest, AutoTakesADeviceOrSaysWhyNot) {
  ASSERT_OK_AND_ASSIGN(const Device device, ChooseDevice({.name = "auto"}));
  EXPECT_EQ(device.name, device.open == nullptr ? "cpu" : "cuda:0");
  EXPECT_EQ(device.reason.empty(), device.open != nullptr);
}

TEST(ChooseDeviceTest, OtherTextsAreRefused) {
  for (const char* text :
       {"", "gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:1 2", "CPU"}) {
    EXPECT_THAT(
        ChooseDevice({.name = text}),
        HasStatus(StatusCode::kInvalidArgument, "wanted auto, cpu or cuda:N"))
        << text;
  }
}

TEST(ChooseDeviceTest, AGemmThatIsNoneIsRefusedOnEveryDevice) {
  for (const char* device : {"cpu", "auto", "cuda:0"}) {
    for (const char* gemm : {"", "fast", "Tensor", "simt "}) {
      EXPECT_THAT(
          ChooseDevice({.name = device, .gemm = gemm}),
          HasStatus(StatusCode::kInvalidArgument,
                    absl::StrFormat(
                        "device_gemm: got '%s', wanted simt or tensor", gemm)));
    }
  }
  for (const char* gemm : {"simt", "tensor"}) {
    EXPECT_OK(ChooseDevice({.name = "cpu", .gemm = gemm}).status());
  }
}

TEST(ChooseDeviceTest, ADeviceThatIsNotThereIsUnavailable) {
  EXPECT_THAT(ChooseDevice({.name = "cuda:1000"}),
              HasCode(StatusCode::kUnavailable));
}

class DeviceReplayTest : public ModelReplayTest {
 protected:
  void Configure(ServerOptions* options) override {
    options->backend.models.open_device =
        [this]() -> absl::StatusOr<std::shared_ptr<kernels::Ops>> {
      return EmulatedDevice::NewOps(tensor_cores_);
    };
  }
  // Its memory goes before the device does.
  void TearDown() override {
    client_.reset();
    Stop();
  }
  absl::StatusOr<v1::ModelState> Register(const std::string& name,
                                          const std::string& directory) {
    v1::RegisterRequest request;
    request.set_name(name);
    request.set_model_dir(directory);
    request.set_block_size(kToyBlock);
    return Ask(models(), &v1::ModelService::Stub::Register, request);
  }
  void LeaveRoom(uint64_t bytes) {
    device_.control().SetMemoryBytes(device_.control().bytes_allocated() +
                                     bytes);
  }

  // Of the daemon's models.
  bool tensor_cores_ = false;
  EmulatedDevice device_;
  const torpor::testing::TempDir model_dir_;
};

TEST_F(DeviceReplayTest, TheReceiptNamesTheDevice) {
  Asleep("w8", "s", /*snapshot=*/false);
  Engine engine = NewEngine("w8");
  ASSERT_OK_AND_ASSIGN(const WakeReport report,
                       Wake(&engine, "s", v1::REPLAY_MODE_EXACT));
  const v1::ResumeReceipt& r = report.receipt;
  EXPECT_THAT(r.replay_numerics_id(), StartsWith("cuda/emulated/gemma3"));
  EXPECT_EQ(r.fallback_reason(), "");
  EXPECT_TRUE(r.exact());
  // The session was computed on the CPU: other numerics promise no equal bits,
  // but windows that are as near.
  EXPECT_TRUE(r.verdict() == v1::WITNESS_VERDICT_EXACT ||
              r.verdict() == v1::WITNESS_VERDICT_MEASURED);
  EXPECT_GT(r.errors_size(), 0);
  for (const v1::LayerError& error : r.errors()) {
    // A rounding of the model's bf16 KV.
    EXPECT_LE(error.max_relative(), 1.0 / 128);
  }
}

TEST_F(DeviceReplayTest, WithoutRoomTheCpuReplaysAndTheReceiptSaysWhy) {
  Asleep("w8", "s", /*snapshot=*/false);
  LeaveRoom(4096);
  Engine engine = NewEngine("w8");
  ASSERT_OK_AND_ASSIGN(const WakeReport report,
                       Wake(&engine, "s", v1::REPLAY_MODE_EXACT));
  const v1::ResumeReceipt& r = report.receipt;
  EXPECT_THAT(r.fallback_reason(), HasSubstr("no room"));
  EXPECT_THAT(r.replay_numerics_id(), StartsWith("cpu/"));
  // The CPU's own bits.
  EXPECT_EQ(r.verdict(), v1::WITNESS_VERDICT_EXACT);
}

TEST_F(DeviceReplayTest, ALostDeviceIsUnavailableAndTheDaemonLivesOn) {
  Asleep("w8", "s", /*snapshot=*/true);
  device_.control().LoseDevice();
  for (int i = 0; i < 2; ++i) {
    Engine engine = NewEngine("w8");
    EXPECT_THAT(Wake(&engine, "s", v1::REPLAY_MODE_EXACT),
                HasStatus(StatusCode::kUnavailable, "CUDA"));
  }
  Engine engine = NewEngine("w8");
  EXPECT_OK(Wake(&engine, "s", v1::REPLAY_MODE_SNAPSHOT).status());
}

TEST_F(DeviceReplayTest, AModelThatDoesNotFitRunsOnTheCpu) {
  LeaveRoom(1024);
  ASSERT_OK_AND_ASSIGN(const v1::ModelState state, Register("w5", Dir("w5")));
  EXPECT_THAT(state.device_reason(), HasSubstr("no room"));
  EXPECT_THAT(state.numerics_id(), StartsWith("cpu/"));
}

TEST_F(DeviceReplayTest, DeepSeekV41RunsThereAndItsReceiptSaysSo) {
  const std::string directory =
      replay::WriteSmallDeepSeekV41("plain", model_dir_.path());
  ASSERT_OK_AND_ASSIGN(const v1::ModelState state, Register("v41", directory));
  EXPECT_EQ(state.device_reason(), "");
  EXPECT_THAT(state.numerics_id(), StartsWith("cuda/emulated/deepseek_v41"));
  ASSERT_OK_AND_ASSIGN(models_["v41"], replay::LoadModel(directory, {}));
  Engine engine = NewEngine("v41");
  engine.Start({});
  engine.Append(Ids("v41", kToyBlock + 3, 1));
  ASSERT_OK(engine.Sleep(client_.get(), "s", kToyBlock, /*snapshot=*/false));
  ASSERT_OK_AND_ASSIGN(const WakeReport report,
                       Wake(&engine, "s", v1::REPLAY_MODE_EXACT));
  const v1::ResumeReceipt& r = report.receipt;
  EXPECT_THAT(r.replay_numerics_id(), StartsWith("cuda/emulated/deepseek_v41"));
  EXPECT_EQ(r.fallback_reason(), "");
  EXPECT_TRUE(r.exact());
}

// Daemon and engine on one device, each with or without its tensor cores.
class DeviceGemmTest : public DeviceReplayTest,
                       public ::testing::WithParamInterface<bool> {
 protected:
  void Configure(ServerOptions* options) override {
    tensor_cores_ = GetParam();
    DeviceReplayTest::Configure(options);
  }
  // The engine's models go before the device does, too.
  void TearDown() override {
    models_.clear();
    DeviceReplayTest::TearDown();
  }
  void LoadEngine(bool tensor_cores) {
    ASSERT_OK_AND_ASSIGN(
        models_["w8"],
        replay::LoadModel(Dir("w8"),
                          {.ops = EmulatedDevice::NewOps(tensor_cores)}));
  }
  // Of the exact wake of a new session of that engine.
  v1::ResumeReceipt SleepAndWake(uint64_t stream) {
    const std::string session = absl::StrFormat("s%d", stream);
    Engine sleeper = NewEngine("w8");
    sleeper.Start({});
    sleeper.Append(Ids("w8", kLong + 1, stream));
    EXPECT_OK(sleeper.Sleep(client_.get(), session, kToyBlock,
                            /*with_snapshot=*/false));
    Engine engine = NewEngine("w8");
    const auto report = Wake(&engine, session, v1::REPLAY_MODE_EXACT);
    EXPECT_OK(report.status());
    return report.ok() ? report->receipt : v1::ResumeReceipt();
  }
};

TEST_P(DeviceGemmTest, BitsArePromisedToSessionsOfTheSameNumerics) {
  LoadEngine(GetParam());
  const v1::ResumeReceipt r = SleepAndWake(1);
  EXPECT_THAT(r.replay_numerics_id(),
              StartsWith(GetParam() ? "cuda/emulated/tensor/gemma3"
                                    : "cuda/emulated/gemma3"));
  EXPECT_EQ(r.replay_numerics_id(), models_["w8"]->numerics_id());
  EXPECT_EQ(r.fallback_reason(), "");
  EXPECT_EQ(r.verdict(), v1::WITNESS_VERDICT_EXACT);
}

// As between two CPU paths. bf16 rounds some differences away: of a few
// sessions one shows them.
TEST_P(DeviceGemmTest, SessionsOfOtherNumericsAreMeasured) {
  LoadEngine(!GetParam());
  bool differs = false;
  for (uint64_t stream = 1; stream <= 40 && !differs; ++stream) {
    const v1::ResumeReceipt r = SleepAndWake(stream);
    EXPECT_NE(r.replay_numerics_id(), models_["w8"]->numerics_id());
    EXPECT_EQ(r.fallback_reason(), "");
    EXPECT_GT(r.errors_size(), 0);
    for (const v1::LayerError& error : r.errors()) {
      EXPECT_LE(error.max_relative(), 1.0 / 16);
    }
    differs = r.verdict() != v1::WITNESS_VERDICT_EXACT;
    if (differs) {
      EXPECT_EQ(r.verdict(), v1::WITNESS_VERDICT_MEASURED);
    }
  }
  EXPECT_TRUE(differs);
}

INSTANTIATE_TEST_SUITE_P(Gemm, DeviceGemmTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "tensor" : "simt";
                         });

}  // namespace
}  // namespace torpor::service
