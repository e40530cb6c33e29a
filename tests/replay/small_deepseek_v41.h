// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek V4.1 with one layer of each kind, for an emulator on which the
// oracle's eleven layers take too long.

#ifndef TORPOR_TESTS_REPLAY_SMALL_DEEPSEEK_V41_H_
#define TORPOR_TESTS_REPLAY_SMALL_DEEPSEEK_V41_H_

#include <string>

namespace torpor::replay {

// Writes four layers of tests/oracles/deepseek_v41/`name` ("plain", "release")
// into `to`, with windows of 4: a window alone; entries of two tokens behind an
// Engram; entries of one, candidates chosen; those entries, picked among the
// candidates. Returns `to`.
std::string WriteSmallDeepSeekV41(const std::string& name,
                                  const std::string& to);

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_SMALL_DEEPSEEK_V41_H_
