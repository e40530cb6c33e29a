// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek V4.1 (text) on a backend. A row carries S streams X and a mix p. Per
// layer, for a row at position i (section numbers of the technical report's
// facts stand with the ops in kernels/):
//   X = X + engram(X, ids i-3 .. i)                       where the layer has
//   one attention site:
//     u = sum_j p_j X_j,  x = norm(u)
//     q_r = norm(Wq_a x),  q = rope(Wq_b q_r)
//     window row  = FP8(rope(norm(Wkv x)))                K and V alike
//     entry of a group = FP4(rope(latent)),  latent = norm(sum_t w_t Wc_kv
//     x_t),
//       w = softmax over the group of Wc_gate x_t          KV sources alone
//     index key   = MXFP4(rope(norm(Wk latent)))
//     picks = top-k of sum_h w_h relu(<MXFP4(rope(WqI q_r)), key>)   index
//     sources y = Wo_b Wo_a rope^-1(attend(q, window rows and picked entries,
//     sink))
//   X = post y + comb X,  p = pre                         mHC of the site
//   FFN site likewise, with y = experts(norm(u))
// logits = Whead norm(sum_j p_j X_j).
//
// In f32 nothing is rounded but what the records and the release's quantised
// layers round; in bf16 every row between two ops is rounded to bf16, where
// DeepSeek's own code rounds it.

#ifndef TORPOR_REPLAY_DEEPSEEK_V41_MODEL_H_
#define TORPOR_REPLAY_DEEPSEEK_V41_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "replay/model.h"
#include "replay/row_batch.h"

namespace torpor::replay::deepseek_v41 {

// Watches what a forward computes, and may replace it: how a test gives the
// model another implementation's codes and picks. All spans may be written to.
class Tap {
 public:
  virtual ~Tap() = default;

  // Rows of `runs`, one after the other, [rows, dim] f32. Names: "attn_in",
  // "q", "window", "latent", "main", "index", "index_q", "index_weights",
  // "attn_o", "attn_y", "ffn_in", "ffn_y", "attn_hc.pre", ".post", ".comb" and
  // "ffn_hc." likewise. For "latent", "main" and "index" positions are those of
  // the tokens that close the groups.
  virtual void OnRows(std::string_view name, uint32_t layer,
                      std::span<const RowRun> runs, std::span<float> rows) = 0;
  // An encoded row of a slot, before anything reads it.
  virtual void OnRecord(uint32_t slot, uint64_t row,
                        std::span<uint8_t> bytes) = 0;
  // Ids chosen for a position: "picks", "candidate_blocks", "experts".
  virtual void OnChoice(std::string_view name, uint32_t layer,
                        uint64_t position, std::vector<int32_t>* ids) = 0;
};

class DeepSeekV41 : public Model {
 public:
  // Null = none. Outlives the forwards it sees.
  virtual void set_tap(Tap* tap) = 0;
};

// Loads config.json (its text is given), engram.json beside it where a layer
// has an Engram, and the weights in `directory`.
absl::StatusOr<std::unique_ptr<DeepSeekV41>> LoadDeepSeekV41(
    const std::string& directory, std::string_view config_json,
    const ModelOptions& options);
absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& directory,
                                            std::string_view config_json,
                                            const ModelOptions& options);

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_REPLAY_DEEPSEEK_V41_MODEL_H_
