// SPDX-License-Identifier: Apache-2.0
//
// A forward over layers that keep K and V rows per token: ids to rows, K and V
// into their pages, attention, logits. A family is a subclass that says what it
// is in a KvModelSpec and runs a layer out of the steps below.
// Residuals, norms and softmax are f32; GEMM inputs are rounded to the weights'
// dtype, K and V to the KV dtype.

#ifndef TORPOR_REPLAY_KV_MODEL_H_
#define TORPOR_REPLAY_KV_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/attention.h"
#include "kernels/gemm.h"
#include "kernels/ops.h"
#include "replay/activations.h"
#include "replay/kv_cache.h"
#include "replay/kv_weights.h"
#include "replay/model.h"
#include "replay/row_batch.h"
#include "replay/safetensors.h"

namespace torpor::replay {

// Rotary embedding of some layers; cos and sin are multiplied by `scale`.
struct KvRope {
  std::vector<float> inv_freq;
  float scale = 1.0f;
};

struct KvModelSpec {
  // Slots "layer.N.k" and "layer.N.v" of each layer, in order.
  ModelLayout layout;
  // The rope variant as the fingerprint names it.
  std::string rope_name;
  // Family and version of its numerics.
  std::string numerics_name;
  int64_t hidden_size = 0;
  int64_t n_heads = 0;
  kernels::KvShape shape;
  // A window that holds every position the model knows is no window.
  int64_t max_positions = 0;
  // RmsNorm's, of every norm.
  float norm_offset = 0.0f;
  float norm_eps = 0.0f;
  float attention_scale = 1.0f;
  // 0 = none.
  float final_softcap = 0.0f;
  std::vector<KvRope> ropes;
  struct Layer {
    // Tokens that a row sees, itself included; 0 = all.
    uint64_t window = 0;
    // Its index in `ropes`.
    size_t rope = 0;
  };
  std::vector<Layer> layers;
};

class KvModel : public Model {
 public:
  // Rows of one forward: enough to keep a GEMM at its ceiling, few enough that
  // its buffers stay in cache.
  static constexpr uint64_t kMaxRows = 512;

  const ModelLayout& layout() const final { return spec_.layout; }
  const Fingerprint& fingerprint() const final { return fingerprint_; }
  const std::string& numerics_id() const final { return numerics_id_; }
  uint32_t vocab_size() const final { return spec_.layout.vocab_size; }
  uint32_t hidden_size() const final {
    return static_cast<uint32_t>(spec_.hidden_size);
  }
  uint64_t max_rows() const final { return kMaxRows; }
  uint64_t SequenceBytes(uint64_t n_tokens) const final;
  absl::Status Settle() final;
  std::unique_ptr<Sequence> NewSequence() final;
  absl::Status Forward(std::span<const Segment> segments,
                       const ForwardOptions& options,
                       std::vector<std::vector<float>>* logits) final;

 protected:
  // `weights_digest` is over all weights, those of the layers too. `tensors`
  // hold the embedding.
  KvModel(std::shared_ptr<kernels::Ops> ops, KvModelSpec spec,
          ModelTensors tensors, OuterWeights outer, std::string weights_digest);

  // WriteKv, then the rows that run in the layer.
  virtual void RunLayer(uint32_t layer, const RowBatch& batch) = 0;

  kernels::Ops& ops() { return ops_; }
  kernels::DType dtype() const { return outer_.dtype; }
  // A row of the batch between two layers: [hidden] f32.
  float* X(uint64_t row) { return x_.data() + row * spec_.hidden_size; }

  // K and V of the rows that the layer writes, into their sequences.
  void WriteKv(uint32_t layer, const RowBatch& batch,
               const AttentionWeights& w);
  // Wo attend(...) of the rows of `runs`, one after the other: [rows, hidden].
  const Floats& Attend(uint32_t layer, const RowBatch& batch,
                       std::span<const RowRun> runs, const AttentionWeights& w);
  // The norm of the batch's rows of `runs`, one after the other: [rows, hidden]
  // of dtype(); valid until the next step.
  Activations& NormRows(std::span<const RowRun> runs, const Floats& weight);
  // c = b a + bias, `a` of dtype(); null or empty biases are none.
  void Multiply(const void* a, uint64_t rows, const kernels::PackedMatrix& b,
                const Floats* bias, Floats* c);

  // Floats of a row in the buffers of the steps above.
  int64_t WorkFloats() const;

 private:
  absl::Status Embed(std::span<const Segment> segments, const RowBatch& batch);
  void ShowInput(uint32_t layer, const RowBatch& batch,
                 const ForwardOptions& options);
  void FillTables(const RowBatch& batch, const KvRope& rope, Floats* tables);
  // Norm over each head where there is a weight, then rope, in place; rows of
  // `runs` in order.
  void TurnHeads(uint32_t layer, std::span<const RowRun> runs, int64_t n_heads,
                 const Floats& norm, float* x);
  void Head(const RowBatch& batch, std::vector<std::vector<float>>* logits);

  // First and last: everything below is in its memory.
  const std::shared_ptr<kernels::Ops> own_ops_;
  kernels::Ops& ops_;
  const KvModelSpec spec_;
  const ModelTensors tensors_;
  const OuterWeights outer_;
  Fingerprint fingerprint_;
  std::string numerics_id_;
  std::vector<KvLayerSpec> kv_layers_;

  // Work of one forward, kept between them.
  std::vector<float> host_tables_;
  std::vector<Floats> tables_;  // of each rope
  Floats x_;
  Activations h_;
  Activations attended_;
  Floats kv_;
  Floats k_;
  Floats q_;
  Floats y_;
  // Of backends whose memory is not the host's.
  Floats logits_;
};

// What a model computes and keeps its rows in.
struct KvDTypes {
  kernels::DType compute;
  kernels::DType kv;
};

// The dtypes that `options` ask for of a model whose weights are `stored`;
// "native" rows are of `config_dtype`, where config.json names one.
// kInvalidArgument for others than bf16 and f32.
absl::StatusOr<KvDTypes> PickKvDTypes(const ModelOptions& options,
                                      const std::string& config_dtype,
                                      kernels::DType stored);

// options.ops, or a CPU backend as they describe it.
std::shared_ptr<kernels::Ops> OpsOf(const ModelOptions& options);

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_KV_MODEL_H_
