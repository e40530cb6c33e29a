// SPDX-License-Identifier: Apache-2.0
//
// The built-in Gemma 3 against numbers that transformers made
// (tests/oracles/gemma3).

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "replay/families.h"
#include "tests/replay/kv_oracle.h"
#include "tests/replay/model_testing.h"

namespace torpor::replay {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Gemma3, KvOracleTest,
    ::testing::Combine(::testing::Values("gemma3/w8", "gemma3/w7", "gemma3/w5",
                                         "gemma3/w8nested", "gemma3/pattern"),
                       ::testing::ValuesIn(kernels::AvailableIsas())),
    KvOracleName);

// The other prefix that multimodal checkpoints use has as many letters: made by
// replacing it in the headers.
TEST(Gemma3PrefixTest, BothMultimodalPrefixesLoad) {
  const std::filesystem::path from =
      std::string(TORPOR_ORACLES_DIR) + "/gemma3/w8nested";
  const std::filesystem::path to =
      std::filesystem::path(::testing::TempDir()) / "torpor-prefix-test";
  std::filesystem::remove_all(to);
  std::filesystem::copy(from, to);
  const std::string old_prefix = "language_model.model.";
  const std::string new_prefix = "model.language_model.";
  for (const auto& file : std::filesystem::directory_iterator(to)) {
    std::ifstream in(file.path(), std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    in.close();
    for (size_t at = 0; (at = text.find(old_prefix, at)) != std::string::npos;
         at += new_prefix.size()) {
      text.replace(at, old_prefix.size(), new_prefix);
    }
    std::ofstream(file.path(), std::ios::binary) << text;
  }
  const ModelOptions options{.compute_dtype = "f32", .kv_dtype = "f32"};
  ASSERT_OK_AND_ASSIGN(const auto a, LoadModel(from.string(), options));
  ASSERT_OK_AND_ASSIGN(const auto b, LoadModel(to.string(), options));
  EXPECT_EQ(a->fingerprint(), b->fingerprint());
  std::vector<std::vector<float>> logits;
  for (Model* model : {a.get(), b.get()}) {
    TestSession session(model);
    const std::vector<uint32_t> ids = {1, 2, 3, 4};
    ASSERT_OK_AND_ASSIGN(auto out, session.Run(ids, 4));
    logits.push_back(out);
  }
  EXPECT_EQ(logits[0], logits[1]);
  std::filesystem::remove_all(to);
}

}  // namespace
}  // namespace torpor::replay
