// SPDX-License-Identifier: Apache-2.0
//
// Layouts of published models, built by hand from their configurations.

#ifndef TORPOR_TESTS_REPLAY_KNOWN_LAYOUTS_H_
#define TORPOR_TESTS_REPLAY_KNOWN_LAYOUTS_H_

#include <cstdint>

#include "replay/model_layout.h"

namespace torpor::replay {

// 18 layers, full at 5, 11 and 17, else sliding 512; one KV head of 256, bf16.
ModelLayout Gemma3With270M();

// 24 layers, sliding 128 and full in turn; 8 KV heads of 64, bf16.
ModelLayout GptOssWith20B();

// 7 sliding of 128, full, 7 sliding, full.
ModelLayout Nano();

// 48 layers, every fourth full, else chunked by 8192; 8 KV heads of 128, bf16.
ModelLayout Llama4Scout();

// 32 layers of window 4096; 8 KV heads of 128, bf16.
ModelLayout Mistral7B();

// 35 layers, every fifth full, else sliding 512; layers from 20 on read the KV
// of layer 18 (sliding) or 19 (full). 2 KV heads of 256, bf16.
ModelLayout Gemma3nE4B();

// 40 layers of window 128; compressed KV and index keys of layers 2, 8, 14 (a
// row for two tokens) and 20 (a row for each), in bytes of a row.
struct DeepSeekBytes {
  uint32_t window_row;
  uint32_t main_row;
  uint32_t index_row;
};
inline constexpr DeepSeekBytes kV41Native = {528, 288, 68};
inline constexpr DeepSeekBytes kV4Native = {584, 584, 68};
// bf16, head dim 512, index dim 128.
inline constexpr DeepSeekBytes kDeepSeekBf16 = {1024, 1024, 256};
ModelLayout DeepSeekV41Flash(const DeepSeekBytes& bytes);

// 43 layers of window 128; even ones from 2 on pool by 4 with the 4 tokens
// before (and have index keys), odd ones from 3 on by 128.
ModelLayout DeepSeekV4Flash(const DeepSeekBytes& bytes);

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_KNOWN_LAYOUTS_H_
