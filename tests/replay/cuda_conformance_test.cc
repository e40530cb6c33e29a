// SPDX-License-Identifier: Apache-2.0
//
// The families on the CUDA backend: all that family_conformance_*.cc asks,
// among it that an exact wake == a session that never slept, and rows beside
// others == rows alone. On a GPU, or under the emulator, whose streams run as
// late as they may, and where nothing may read what was not written.

#ifdef TORPOR_CUDA_EMULATED
#include "kernels/cuda_emulation/emulation.h"
#include "kernels/cuda_emulation/stream.h"
#endif
#include "kernels/ops_cuda.h"
#include "tests/replay/family_conformance.h"
#include "tests/replay/small_deepseek_v41.h"

namespace torpor::replay {
namespace {

#ifdef TORPOR_CUDA_EMULATED
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
// So that it sees who uses freed memory after all.
constexpr bool kKeepMemory = false;
#else
constexpr bool kKeepMemory = true;
#endif

std::vector<FamilyCase> OnCuda(std::vector<FamilyCase> cases,
                               bool tensor_cores = false) {
  for (FamilyCase& family_case : cases) {
    family_case.name += tensor_cores ? "_tensor_cuda" : "_cuda";
    family_case.load = [tensor_cores](const std::string& directory,
                                      const ModelOptions& options)
        -> absl::StatusOr<std::unique_ptr<Model>> {
      ModelOptions on_device = options;
      auto ops = kernels::MakeCudaOps({.name = "cuda/test",
                                       .tensor_cores = tensor_cores,
                                       .keep_memory = kKeepMemory,
                                       .staging_bytes = 1 << 16,
                                       .staging_pieces = 2});
      if (!ops.ok()) return ops.status();
      on_device.ops = *std::move(ops);
      return LoadModel(directory, on_device);
    };
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(
    Gemma3, FamilyConformance,
    ::testing::ValuesIn(OnCuda({OracleCase("w5", "gemma3/w5"),
                                OracleCase("w5_bf16", "gemma3/w5", "bf16")})),
    FamilyCaseName);
INSTANTIATE_TEST_SUITE_P(
    GptOss, FamilyConformance,
    ::testing::ValuesIn(OnCuda({OracleCase("yarn", "gpt_oss/yarn"),
                                OracleCase("mxfp4_bf16", "gpt_oss/mxfp4",
                                           "bf16")})),
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
    ::testing::ValuesIn(OnCuda({SmallV41Case("v41", "plain", "f32"),
                                SmallV41Case("v41_bf16", "plain", "bf16"),
                                SmallV41Case("v41_release", "release",
                                             "native")})),
    FamilyCaseName);

// bf16 weights on the tensor cores: every k of w8 and mxfp4 fits them, of V4.1
// some.
INSTANTIATE_TEST_SUITE_P(
    TensorCores, FamilyConformance,
    ::testing::ValuesIn(OnCuda({OracleCase("w8", "gemma3/w8"),
                                OracleCase("mxfp4", "gpt_oss/mxfp4"),
                                SmallV41Case("v41", "plain", "bf16")},
                               /*tensor_cores=*/true)),
    FamilyCaseName);

}  // namespace
}  // namespace torpor::replay
