// SPDX-License-Identifier: Apache-2.0
//
// What each family's config keys say of its cache: one function a family, in a
// file for it and those that read like it. replay/families.cc has the table.
// `reader` stands on the text config; what is wrong with it sticks there, and
// the stack that comes back counts only while its status is OK. Defaults are
// those of transformers 5.24 unless a function says otherwise.

#ifndef TORPOR_REPLAY_LAYOUTS_FAMILIES_H_
#define TORPOR_REPLAY_LAYOUTS_FAMILIES_H_

#include <string>

#include "absl/status/statusor.h"
#include "replay/config_json.h"
#include "replay/layouts/attention_stack.h"
#include "replay/model_layout.h"

namespace torpor::replay::layouts {

// uniform.cc: every layer alike, full or, for all but Llama, with one window.
AttentionStack Llama(ConfigReader* reader);
AttentionStack Mistral(ConfigReader* reader);
AttentionStack Mixtral(ConfigReader* reader);
AttentionStack Ministral(ConfigReader* reader);
AttentionStack Ministral3(ConfigReader* reader);
AttentionStack Phi3(ConfigReader* reader);
AttentionStack Starcoder2(ConfigReader* reader);

// alternating.cc: sliding layers and full ones in a pattern.
AttentionStack Gemma2(ConfigReader* reader);
AttentionStack Cohere2(ConfigReader* reader);
AttentionStack Olmo3(ConfigReader* reader);
AttentionStack GptOss(ConfigReader* reader);
AttentionStack Exaone4(ConfigReader* reader);

// switched.cc: windows that use_sliding_window switches on.
AttentionStack Qwen2(ConfigReader* reader);
AttentionStack Qwen3(ConfigReader* reader);
AttentionStack Qwen3Moe(ConfigReader* reader);
AttentionStack Qwen25Vl(ConfigReader* reader);
AttentionStack SmolLm3(ConfigReader* reader);

// gemma_shared.cc: the last layers read the rows of layers below.
AttentionStack Gemma3n(ConfigReader* reader);
AttentionStack Gemma4(ConfigReader* reader);

// uneven.cc: heads or widths that differ between kinds of layers, and chunks.
AttentionStack Llama4(ConfigReader* reader);
AttentionStack MiMoV2Flash(ConfigReader* reader);
AttentionStack Step3p5(ConfigReader* reader);

// deepseek_v3.cc: multi-head latent attention.
AttentionStack DeepSeekV2(ConfigReader* reader);
AttentionStack DeepSeekV3(ConfigReader* reader);

// deepseek_v4.cc, deepseek_v41.cc: a window in every layer beside compressed
// rows. `kv_dtype` as in LayoutOptions; "native" is the family's own records.
absl::StatusOr<ModelLayout> DeepSeekV4(ConfigReader* reader,
                                       const std::string& kv_dtype);
absl::StatusOr<ModelLayout> DeepSeekV41(ConfigReader* reader,
                                        const std::string& kv_dtype);

}  // namespace torpor::replay::layouts

#endif  // TORPOR_REPLAY_LAYOUTS_FAMILIES_H_
