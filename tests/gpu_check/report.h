// SPDX-License-Identifier: Apache-2.0
//
// What a run found, as JSON and as a table.

#ifndef TORPOR_TESTS_GPU_CHECK_REPORT_H_
#define TORPOR_TESTS_GPU_CHECK_REPORT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace torpor::gpu_check {

enum class Verdict : uint8_t {
  kPassed,
  kFailed,
  // Over its budget; nothing had failed so far.
  kStopped,
  kNotRun,
};
std::string VerdictName(Verdict verdict);

struct Failure {
  // Of the test, kernel or replay.
  std::string name;
  std::string text;
};

struct StageResult {
  std::string name;
  Verdict verdict = Verdict::kPassed;
  // Why it was stopped or not run, or failed as a whole.
  std::string reason;
  double seconds = 0;
  double budget_s = 0;
  // Tests, kernels or replays that came out right.
  int n_passed = 0;
  std::vector<Failure> failures;

  void Fail(const std::string& name, const std::string& text);
};

struct Report {
  std::string commit;
  uint64_t seed = 0;
  // The host's, of bench/machine.h.
  nlohmann::json machine;
  // What the children told of the device, its ceilings, kernels and replays.
  nlohmann::json device = nlohmann::json::object();
  nlohmann::json ceilings = nlohmann::json::array();
  nlohmann::json kernels = nlohmann::json::array();
  nlohmann::json replays = nlohmann::json::array();
  std::vector<StageResult> stages;

  // kFailed when a stage did, else kStopped when one was, else kPassed. A
  // stage that was not run for want of its tool decides nothing.
  [[nodiscard]] Verdict verdict() const;
};

nlohmann::json ToJson(const Report& report);
std::string ToText(const Report& report);

}  // namespace torpor::gpu_check

#endif  // TORPOR_TESTS_GPU_CHECK_REPORT_H_
