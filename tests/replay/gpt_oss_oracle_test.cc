// SPDX-License-Identifier: Apache-2.0
//
// The built-in gpt-oss against numbers that transformers made
// (tests/oracles/gpt_oss).

#include <gtest/gtest.h>

#include "tests/replay/kv_oracle.h"

namespace torpor::replay {
namespace {

INSTANTIATE_TEST_SUITE_P(
    GptOss, KvOracleTest,
    ::testing::Combine(::testing::Values("gpt_oss/yarn", "gpt_oss/plain",
                                         "gpt_oss/mxfp4"),
                       ::testing::ValuesIn(kernels::AvailableIsas())),
    KvOracleName);

}  // namespace
}  // namespace torpor::replay
