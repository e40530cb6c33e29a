// SPDX-License-Identifier: Apache-2.0
//
// The main job, end to end, with real processes: an agent session is prefilled
// and generates, is suspended, everything is killed with -9, and it wakes in
// every mode. A twin of it in this process never sleeps; the woken sessions are
// held against the twin's bits.

#ifndef TORPOR_BENCH_DEMO_EXPERIMENT_H_
#define TORPOR_BENCH_DEMO_EXPERIMENT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace torpor::bench {

struct DemoOptions {
  // Holds torpord and torpor.
  std::string bin_dir;
  // config.json and safetensors of a byte-vocabulary model.
  std::string model_dir;
  // Text of the session, and real text that follows it.
  std::string session_file;
  std::string feed_file;
  // Data directory, socket and logs go here.
  std::string work_dir;
  uint64_t generated_tokens = 64;
  uint64_t fed_tokens = 256;
  uint64_t extended_tokens = 50;
  // Timed wakes of each mode, interleaved; medians are given.
  int repeats = 3;
  double temperature = 0.8;
  uint64_t seed = 7;
  std::string isa = "auto";
  int n_threads = 0;
};

// Milliseconds from the wake's start to the next token, and of its parts.
struct WakeTimes {
  double to_next_token = 0;
  double queue = 0;
  double index = 0;
  double read = 0;
  double verify = 0;
  double replay = 0;
  double transfer = 0;
  // Of all tokens, in the engine: a cold wake.
  double prefill = 0;
  // The next token itself.
  double decode = 0;
  // Not part of to_next_token.
  double model_load = 0;
};

// How far a woken session is from the one that never slept.
struct Difference {
  // Of the tokens sampled from the same seed; none when all are equal.
  std::optional<uint64_t> first_token;
  uint64_t n_tokens = 0;
  // Logits over given tokens.
  bool same_bits = false;
  uint64_t n_logit_rows = 0;
  double max_abs = 0;
  // Nats a token, from the never-slept distribution to the woken one.
  double mean_kl = 0;

  [[nodiscard]] bool none() const { return !first_token && same_bits; }
};

struct Wake {
  std::string name;
  std::string mode_used;
  bool exact = false;
  std::string verdict;
  double max_layer_error = 0;
  uint64_t loaded_tokens = 0;
  uint64_t replayed_tokens = 0;
  uint64_t recomputed_tokens = 0;
  uint64_t token_layers = 0;
  uint64_t bytes_read = 0;
  WakeTimes times;
  Difference difference;
};

struct Stored {
  uint64_t n_tokens = 0;
  uint64_t kv_len = 0;
  uint64_t turns = 0;
  uint64_t compact_bytes = 0;
  // Records as written, without the snapshot: rows, ids, headers, witness.
  uint64_t stored_bytes = 0;
  uint64_t token_bytes = 0;
  uint64_t witness_bytes = 0;
  uint64_t client_state_bytes = 0;
  uint64_t snapshot_bytes = 0;
  // What the three named baselines keep of the same session.
  uint64_t every_window_row_bytes = 0;
  uint64_t snapshot_per_turn_bytes = 0;
  uint64_t snapshot_per_session_bytes = 0;
  double suspend_ms = 0;
  double prefill_ms = 0;
};

struct DemoResult {
  std::string family;
  uint32_t n_layers = 0;
  uint64_t window = 0;
  uint64_t exact_tokens = 0;
  std::string numerics_id;
  double twin_decode_ms = 0;
  uint64_t extended_tokens = 0;
  Stored stored;
  std::vector<Wake> wakes;
  // Woken bounded, extended, suspended, everything killed, woken exact: held
  // against the session that went on in memory.
  Wake after_bounded;

  // The promise: exact (and snapshot, and cold) are == to never having slept.
  [[nodiscard]] bool holds() const;
};

// `say` gets one line for each step.
absl::StatusOr<DemoResult> RunDemo(
    const DemoOptions& options,
    const std::function<void(const std::string&)>& say);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_DEMO_EXPERIMENT_H_
