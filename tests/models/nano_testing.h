// SPDX-License-Identifier: Apache-2.0
//
// Shared by tests of the bundled model.

#ifndef TORPOR_TESTS_MODELS_NANO_TESTING_H_
#define TORPOR_TESTS_MODELS_NANO_TESTING_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "replay/families.h"
#include "tests/testing/status_matchers.h"

namespace torpor::replay {

inline std::unique_ptr<Model> LoadNano() {
  auto model =
      LoadModel(TORPOR_NANO_DIR,
                {.isa = kernels::AvailableIsas().back(), .n_threads = 2});
  EXPECT_OK(model.status());
  return model.ok() ? *std::move(model) : nullptr;
}

// The bytes of a file beside the model, as token ids.
inline std::vector<uint32_t> NanoText(const std::string& file) {
  std::ifstream in(TORPOR_NANO_DIR "/" + file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  EXPECT_FALSE(text.empty()) << file;
  std::vector<uint32_t> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_MODELS_NANO_TESTING_H_
