// SPDX-License-Identifier: Apache-2.0

#include "tests/gpu_check/test_log.h"

#include "absl/strings/str_split.h"

namespace torpor::gpu_check {
namespace {

constexpr std::string_view kRun = "[ RUN      ] ";
constexpr std::string_view kOk = "[       OK ] ";
constexpr std::string_view kFailed = "[  FAILED  ] ";
constexpr std::string_view kSkipped = "[  SKIPPED ] ";

std::vector<std::string> Lines(std::string_view text) {
  return absl::StrSplit(absl::string_view(text.data(), text.size()), '\n');
}

// "Suite.Name" of "[ RUN      ] Suite.Name" or "[  FAILED  ] Suite.Name, ...".
std::string NameAfter(std::string_view line, std::string_view mark) {
  line.remove_prefix(mark.size());
  return std::string(line.substr(0, line.find_first_of(", (")));
}

}  // namespace

std::vector<TestVerdict> ParseTestLog(std::string_view output) {
  using Kind = TestVerdict::Kind;
  std::vector<TestVerdict> tests;
  bool running = false;
  for (const std::string& line : Lines(output)) {
    if (line.starts_with(kRun)) {
      tests.push_back({.name = NameAfter(line, kRun)});
      running = true;
      continue;
    }
    // After the last test their names come once more.
    if (!running) continue;
    TestVerdict& test = tests.back();
    running = false;
    if (line.starts_with(std::string(kOk) + test.name)) {
      test.kind = Kind::kPassed;
    } else if (line.starts_with(kFailed) &&
               NameAfter(line, kFailed) == test.name) {
      test.kind = Kind::kFailed;
    } else if (line.starts_with(kSkipped)) {
      test.kind = Kind::kSkipped;
    } else {
      test.text += line + "\n";
      running = true;
    }
  }
  return tests;
}

std::vector<std::string> ParseTestList(std::string_view output) {
  std::vector<std::string> names;
  std::string suite;
  for (std::string line : Lines(output)) {
    line = line.substr(0, line.find("  #"));
    if (line.starts_with("  ")) {
      names.push_back(suite + line.substr(2));
    } else if (line.ends_with(".")) {
      suite = line;
    }
  }
  return names;
}

}  // namespace torpor::gpu_check
