// SPDX-License-Identifier: Apache-2.0
//
// Values of tests/oracles/replay_hashes/golden.txt, which generate.py there
// computed without any code of replay/.

#ifndef TORPOR_TESTS_REPLAY_GOLDEN_H_
#define TORPOR_TESTS_REPLAY_GOLDEN_H_

#include <string>

#include "tests/testing/golden.h"

namespace torpor::replay {

using torpor::testing::Hex;

inline std::string Golden(const std::string& name) {
  static const torpor::testing::GoldenFile file(TORPOR_ORACLES_DIR
                                                "/replay_hashes/golden.txt");
  return file.Get(name);
}

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_GOLDEN_H_
