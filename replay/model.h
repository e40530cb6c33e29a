// SPDX-License-Identifier: Apache-2.0
//
// A model that runs, and the KV of one sequence of it. Prefill, decode and
// replay are one call, Forward: they differ in the rows that run and the rows
// that are written. A Model is not thread-safe (one Forward at a time);
// sequences belong to one caller each and do not outlive their model.

#ifndef TORPOR_REPLAY_MODEL_H_
#define TORPOR_REPLAY_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gemm.h"
#include "kernels/isa.h"
#include "kernels/ops.h"
#include "replay/fingerprint.h"
#include "replay/model_layout.h"
#include "replay/planner.h"

namespace torpor::replay {

struct ModelOptions {
  kernels::Isa isa = kernels::Isa::kPortable;
  // At least 1.
  int n_threads = 1;
  // Where the model runs; null: the CPU, on `isa` with `n_threads`.
  std::shared_ptr<kernels::Ops> ops;
  // "native" (the weights' own), "f32", "bf16": what GEMMs multiply. In f32,
  // bf16 weights are widened and nothing is rounded on the way.
  std::string compute_dtype = "native";
  // "native" (that of config.json, else of the weights), "bf16", "f32". A
  // family whose records are part of the model keeps them under any.
  std::string kv_dtype = "native";
};

// The KV that one token timeline holds in memory.
class Sequence {
 public:
  virtual ~Sequence() = default;

  // Puts stored rows where Forward reads them. `bytes` holds whole rows.
  // kInvalidArgument for another slot or size; kOutOfRange for window rows that
  // could not stand beside each other.
  virtual absl::Status ImportRows(uint32_t slot, uint64_t row_begin,
                                  std::span<const uint8_t> bytes) = 0;
  // The bytes of rows that were written or imported and are still held; the
  // same bytes that ImportRows takes. kInvalidArgument for another slot or
  // size; kOutOfRange for rows that are not held.
  virtual absl::Status ExportRows(uint32_t slot, Rows rows,
                                  std::span<uint8_t> out) const = 0;
  // Bytes of memory held now.
  [[nodiscard]] virtual uint64_t bytes() const = 0;
};

// Rows [begin, begin + n) of one sequence.
struct Segment {
  Sequence* sequence = nullptr;
  uint64_t begin = 0;
  // Ids of the rows; their number is n.
  std::span<const uint32_t> ids;
  // Ids of the tokens right before `begin`, in order: at least as many as the
  // model's id_lookback() and as there are.
  std::span<const uint32_t> history;
  // Null: every row runs through every layer and writes its KV. Else the
  // plan's rows: runs and writes what the plan says of [begin, begin + n). A
  // replay's plan writes no persisted slot; they are read.
  const ReplayPlan* plan = nullptr;
  // Tokens that attend to each other in both directions.
  std::span<const TwoWaySpan> spans;
  // [n, hidden] f32 in place of the ids' embeddings; null as a rule.
  const float* inputs = nullptr;
  // Rows [logits_begin, begin + n) give logits; begin + n = none.
  uint64_t logits_begin = 0;
};

// Rows [begin, end) of a timeline and the ids before them; no logits. `ids`
// holds the timeline's tokens from the first on, may go on beyond `end`, and is
// not copied. REQUIRES: begin <= end <= ids.size().
Segment SegmentOf(Sequence* sequence, std::span<const uint32_t> ids,
                  uint64_t begin, uint64_t end);

struct ForwardOptions {
  // Sees the inputs of each layer, and may change them: rows from `row_begin`
  // of segment `segment` on, [rows, stream_size] f32. Null as a rule.
  std::function<void(uint32_t layer, size_t segment, uint64_t row_begin,
                     std::span<float> rows)>
      on_layer_input;
  // Polled between layers; true stops the forward with kCancelled.
  std::function<bool()> cancelled;
  // Called before each layer, in order; an error stops the forward. Null as a
  // rule; a replay waits here for the rows that the layer reads.
  std::function<absl::Status(uint32_t layer)> before_layer;
};

class Model {
 public:
  virtual ~Model() = default;

  [[nodiscard]] virtual const ModelLayout& layout() const = 0;
  [[nodiscard]] virtual const Fingerprint& fingerprint() const = 0;
  // What makes results bit-equal: backend, path, dtypes, kernel version.
  [[nodiscard]] virtual const std::string& numerics_id() const = 0;
  [[nodiscard]] virtual uint32_t vocab_size() const = 0;
  [[nodiscard]] virtual uint32_t hidden_size() const = 0;
  // Floats of a row between two layers: more than hidden_size() where a model
  // carries several streams.
  [[nodiscard]] virtual uint32_t stream_size() const { return hidden_size(); }
  // Tokens before a row whose ids alone change its result (n-gram tables).
  [[nodiscard]] virtual uint64_t id_lookback() const { return 0; }
  // Rows that one Forward takes at most, all segments together; its memory
  // follows from them.
  [[nodiscard]] virtual uint64_t max_rows() const = 0;
  // Bytes of a sequence that holds n tokens, and of the work of one Forward.
  [[nodiscard]] virtual uint64_t SequenceBytes(uint64_t n_tokens) const = 0;
  [[nodiscard]] virtual uint64_t WorkBytes() const = 0;

  // Ends what an interrupted forward left behind: waits for it, forgets its
  // error, takes back the memory of sequences that are gone. kUnavailable when
  // the device is lost.
  virtual absl::Status Settle() { return absl::OkStatus(); }

  virtual std::unique_ptr<Sequence> NewSequence() = 0;

  // Runs a ragged batch. `logits[i]` receives segment i's rows, [rows, vocab]
  // f32. A row's results do not depend on the rows beside it (design D9).
  // kInvalidArgument for an id outside the vocabulary or too many rows;
  // kCancelled.
  virtual absl::Status Forward(std::span<const Segment> segments,
                               const ForwardOptions& options,
                               std::vector<std::vector<float>>* logits) = 0;
};

// Runs ids [begin, begin + n) of one sequence in chunks of at most `chunk`
// rows (0 = max_rows). Logits of rows from `logits_begin` on, [rows, vocab].
absl::StatusOr<std::vector<float>> RunTokens(Model* model, Segment segment,
                                             uint64_t chunk,
                                             const ForwardOptions& options);

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_MODEL_H_
