// SPDX-License-Identifier: Apache-2.0
//
// Gemma 3 (text) on a backend. The forward, per layer, for a row x:
//   h = norm(x, input)               q = rope(norm(Wq h)), k = rope(norm(Wk
//   h)),
//                                    v = Wv h
//   x += norm(Wo attend(q, K, V), post_attention)
//   h = norm(x, pre_feedforward)
//   x += norm(Wdown (gelu(Wgate h) * Wup h), post_feedforward)
// with K and V of the layer's window or of everything; x begins as
// embedding[id] * sqrt(hidden), ends in logits = Whead norm(x).
// Residuals, norms and softmax are f32; GEMM inputs are rounded to the weights'
// dtype, K and V to the KV dtype.

#ifndef TORPOR_REPLAY_GEMMA3_MODEL_H_
#define TORPOR_REPLAY_GEMMA3_MODEL_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "replay/model.h"

namespace torpor::replay::gemma3 {

// Loads config.json (its text is given) and the weights in `directory`.
absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& directory,
                                            std::string_view config_json,
                                            const ModelOptions& options);

}  // namespace torpor::replay::gemma3

#endif  // TORPOR_REPLAY_GEMMA3_MODEL_H_
