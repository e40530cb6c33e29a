// SPDX-License-Identifier: Apache-2.0
//
// The generator against NumPy's own draws
// (tests/oracles/deepseek_v41/numpy_draws.txt).

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "replay/deepseek_v41/numpy_random.h"

namespace torpor::replay::deepseek_v41 {
namespace {

TEST(NumpyRandomTest, DrawsWhatNumpyDraws) {
  const std::string path =
      std::string(TORPOR_ORACLES_DIR) + "/deepseek_v41/numpy_draws.txt";
  std::ifstream in(path);
  ASSERT_TRUE(in) << path;
  std::map<std::string, int> n_lines;
  std::string line;
  while (std::getline(in, line)) {
    if (line.starts_with('#')) continue;
    SCOPED_TRACE(line);
    std::istringstream fields(line);
    std::string kind;
    uint64_t seed = 0;
    fields >> kind >> seed;
    ASSERT_TRUE(fields);
    ++n_lines[kind];
    uint64_t most = 0;
    if (kind == "multipliers") {
      // `seed` is the layer; 2 r + 1 of draws below (2^63 - 1) / vocab / 2.
      uint64_t vocab = 0;
      fields >> vocab;
      most = uint64_t{INT64_MAX} / vocab / 2;
      seed *= 10'007;
    } else if (kind == "below") {
      fields >> most;
    }
    NumpyRandom random(seed);
    int n = 0;
    for (uint64_t wanted = 0; fields >> wanted; ++n) {
      uint64_t got = most == 0 ? random.Next() : random.Below(most);
      if (kind == "multipliers") got = 2 * got + 1;
      ASSERT_EQ(got, wanted) << "draw " << n;
    }
    EXPECT_GE(n, 4);
  }
  EXPECT_EQ(n_lines, (std::map<std::string, int>{
                         {"raw", 12}, {"below", 12 * 8}, {"multipliers", 2}}));
}

TEST(NumpyRandomTest, BoundsAreKept) {
  NumpyRandom random(7);
  for (const uint64_t n :
       {(uint64_t{1} << 32) + 1, (uint64_t{1} << 63) + 1, UINT64_MAX}) {
    for (int i = 0; i < 1000; ++i) EXPECT_LT(random.Below(n), n);
  }
}

}  // namespace
}  // namespace torpor::replay::deepseek_v41
