// SPDX-License-Identifier: Apache-2.0

#include "tests/testing/temp_dir.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace torpor::testing {

TempDir::TempDir() {
  const char* base = std::getenv("TORPOR_TEST_TMP");
  if (base == nullptr) base = std::getenv("TMPDIR");
  if (base == nullptr) base = "/tmp";
  std::string pattern = std::string(base) + "/torpor-test-XXXXXX";
  const char* made = mkdtemp(pattern.data());
  EXPECT_NE(made, nullptr) << "mkdtemp " << pattern;
  path_ = made != nullptr ? made : "";
}

TempDir::~TempDir() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace torpor::testing
