// SPDX-License-Identifier: Apache-2.0
//
// The numbers that a stored row's bytes stand for, to measure and to show.

#ifndef TORPOR_REPLAY_ROW_VALUES_H_
#define TORPOR_REPLAY_ROW_VALUES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace torpor::replay {

// Whole rows of `row_bytes` each, as floats: bf16, f16, f32, and the records of
// DeepSeek V4.1. nullopt for another format, bytes that are no whole rows, or
// rows of no whole elements; no rows of a known format are no values.
std::optional<std::vector<float>> RowValues(std::string_view format,
                                            uint64_t row_bytes,
                                            std::span<const uint8_t> rows);

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_ROW_VALUES_H_
