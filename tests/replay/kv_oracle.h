// SPDX-License-Identifier: Apache-2.0
//
// A built-in model whose layers keep K and V rows per token against numbers
// that transformers made (tests/oracles/gemma3/generate.py has the format):
// logits and every layer's K and V of cold runs, windows and logits after exact
// and bounded replays. The tests of kv_oracle.cc run on each directory of
// tests/oracles that is instantiated.

#ifndef TORPOR_TESTS_REPLAY_KV_ORACLE_H_
#define TORPOR_TESTS_REPLAY_KV_ORACLE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/isa.h"
#include "replay/model.h"
#include "replay/safetensors.h"

namespace torpor::replay {

class KvOracleFixture {
 public:
  // Of a directory in tests/oracles.
  explicit KvOracleFixture(const std::string& name);

  // The tensor, row by row, within the tolerance.
  void Expect(const std::string& name, std::span<const float> got) const;
  // In f32.
  std::unique_ptr<Model> Load(kernels::Isa isa, int threads) const;

  const std::vector<uint64_t>& list(const char* key) const {
    return lists_.at(key);
  }
  const nlohmann::json& replays() const { return replays_; }
  const std::vector<uint32_t>& ids() const { return ids_; }

 private:
  const std::string directory_;
  std::unique_ptr<SafetensorsFile> file_;
  std::map<std::string, std::vector<uint64_t>> lists_;
  nlohmann::json replays_;
  std::vector<uint32_t> ids_;
};

class KvOracleTest
    : public ::testing::TestWithParam<std::tuple<const char*, kernels::Isa>> {
 protected:
  KvOracleTest()
      : fixture_(std::get<0>(GetParam())),
        model_(fixture_.Load(std::get<1>(GetParam()), 2)) {}

  KvOracleFixture fixture_;
  std::unique_ptr<Model> model_;
};

// The model's name and the path's.
std::string KvOracleName(
    const ::testing::TestParamInfo<KvOracleTest::ParamType>& info);

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_KV_ORACLE_H_
