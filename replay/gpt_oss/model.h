// SPDX-License-Identifier: Apache-2.0
//
// gpt-oss on a backend. The forward, per layer, for a row x:
//   h = norm(x, input)      q = rope(Wq h + bq), k = rope(Wk h + bk),
//                           v = Wv h + bv
//   x += Wo attend(q, K, V, sinks) + bo
//   h = norm(x, post_attention)
//   e = the n_active experts of the highest Wr h + br, p their softmax
//   x += sum over e of p_e (Wdown_e a_e + bdown_e)
//   a_e = (clamp(up, -limit, limit) + 1) g sigmoid(alpha g)
//   g = min(gate, limit);   gate, up = Wgate_e h + bgate_e, Wup_e h + bup_e
// with K and V of the layer's window or of everything; x begins as
// embedding[id], ends in logits = Whead norm(x). replay/kv_model.h says what is
// rounded to what.

#ifndef TORPOR_REPLAY_GPT_OSS_MODEL_H_
#define TORPOR_REPLAY_GPT_OSS_MODEL_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "replay/model.h"

namespace torpor::replay::gpt_oss {

// Loads config.json (its text is given) and the weights in `directory`.
absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& directory,
                                            std::string_view config_json,
                                            const ModelOptions& options);

}  // namespace torpor::replay::gpt_oss

#endif  // TORPOR_REPLAY_GPT_OSS_MODEL_H_
