// SPDX-License-Identifier: Apache-2.0
//
// The families on the CUDA backend, under the emulator, whose streams run as
// late as they may: all that family_conformance_*.cc asks, among it that an
// exact wake == a session that never slept, rows beside others == rows alone,
// and that nothing reads what was not written.

#include "kernels/cuda_emulation/emulation.h"
#include "kernels/cuda_emulation/stream.h"
#include "kernels/ops_cuda.h"
#include "tests/replay/family_conformance.h"
#include "tests/replay/small_deepseek_v41.h"

namespace torpor::replay {
namespace {

// One emulated device for the program; a test fails when it finds a fault.
class Device : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo&) override {
    for (const auto& report : kernels::emulation::TakeReports()) {
      ADD_FAILURE() << kernels::emulation::ToString(report);
    }
  }

  kernels::emulation::DeviceControl control_{{.late = true}};
};
const bool kBegun = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new Device);
  return true;
}();

std::vector<FamilyCase> OnEmulatedCuda(std::vector<FamilyCase> cases) {
  for (FamilyCase& family_case : cases) {
    family_case.name += "_cuda";
    family_case.load = [](const std::string& directory,
                          const ModelOptions& options)
        -> absl::StatusOr<std::unique_ptr<Model>> {
      ModelOptions on_device = options;
      auto ops = kernels::MakeCudaOps({.name = "cuda/emulated",
                                       .keep_memory = false,
                                       .staging_bytes = 1 << 16,
                                       .staging_pieces = 2});
      if (!ops.ok()) return ops.status();
      on_device.ops = *std::move(ops);
      return LoadModel(directory, on_device);
    };
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Gemma3, FamilyConformance,
                         ::testing::ValuesIn(OnEmulatedCuda(
                             {OracleCase("w5", "gemma3/w5"),
                              OracleCase("w5_bf16", "gemma3/w5", "bf16")})),
                         FamilyCaseName);
INSTANTIATE_TEST_SUITE_P(
    GptOss, FamilyConformance,
    ::testing::ValuesIn(OnEmulatedCuda({OracleCase("yarn", "gpt_oss/yarn"),
                                        OracleCase("mxfp4_bf16",
                                                   "gpt_oss/mxfp4", "bf16")})),
    FamilyCaseName);

FamilyCase SmallV41Case(const std::string& name, const std::string& oracle,
                        const std::string& compute_dtype) {
  FamilyCase family_case = V41Case(name, oracle, compute_dtype);
  family_case.directory = [oracle](const std::string& temp_dir) {
    return WriteSmallDeepSeekV41(oracle, temp_dir);
  };
  return family_case;
}

INSTANTIATE_TEST_SUITE_P(
    DeepSeekV41, FamilyConformance,
    ::testing::ValuesIn(
        OnEmulatedCuda({SmallV41Case("v41", "plain", "f32"),
                        SmallV41Case("v41_bf16", "plain", "bf16"),
                        SmallV41Case("v41_release", "release", "native")})),
    FamilyCaseName);

}  // namespace
}  // namespace torpor::replay
