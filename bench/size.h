// SPDX-License-Identifier: Apache-2.0
//
// What a sleeping session takes on disk: synthetic rows of a model's own
// layout, suspended into a real store, once as Torpor keeps them and once with
// every window row kept beside them. Nothing is timed.

#ifndef TORPOR_BENCH_SIZE_H_
#define TORPOR_BENCH_SIZE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "bench/command.h"
#include "replay/model_layout.h"

namespace torpor::bench {

struct SizeOptions {
  // A config.json, or a directory that holds one.
  std::string config = "tests/oracles/configs/DeepSeek-V4.1-Flash.json";
  // As of replay::LayoutOptions.
  std::string kv_dtype = "native";
  uint64_t n_tokens = 100'000;
  uint64_t seed = 1;
  // For tests: one byte of this slot of the compact layout is wrong when it
  // comes back; none by default.
  uint32_t wrong_slot = UINT32_MAX;
};

// One session as it lies in the store.
struct StoredSize {
  uint32_t n_slots = 0;
  uint32_t block_size = 0;
  uint64_t n_blocks = 0;
  // Of the rows alone.
  uint64_t row_bytes = 0;
  // All reachable pages of a store that holds this session alone, x page size;
  // counted in the file, without the witness.
  uint64_t page_bytes = 0;
  // The same as the store accounts for it: what quotas are held against.
  uint64_t accounted_bytes = 0;
  // Of page_bytes: token ids, 4 bytes each.
  uint64_t token_bytes = 0;
  // Pages that the witness adds, and its bytes; 0 without one.
  uint64_t witness_page_bytes = 0;
  uint64_t witness_bytes = 0;

  // Share of pages beyond rows and ids.
  [[nodiscard]] double overhead() const {
    return static_cast<double>(page_bytes - token_bytes) /
               static_cast<double>(row_bytes) -
           1;
  }
};

struct SizeResult {
  replay::ModelLayout layout;
  uint64_t n_tokens = 0;
  // The layout's own figures, bytes a token.
  double stated_compact = 0;
  double stated_all = 0;
  StoredSize compact;
  // Every window row of every token; draft windows left out.
  StoredSize all;

  [[nodiscard]] double CompactPerToken() const;
  [[nodiscard]] double AllPerToken() const;
  // The store adds at most 2 % to either, and rows are as stated.
  [[nodiscard]] bool Holds() const;
};

// kDataLoss when what comes back is not what went in; kFailedPrecondition for a
// layout that persists nothing or has no windows to drop.
absl::StatusOr<SizeResult> MeasureSize(const SizeOptions& options,
                                       const Common& common);
Result ReportOf(const SizeOptions& options, const SizeResult& result);

RunBenchmark AddSizeCommand(CLI::App* app, const Common* common);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_SIZE_H_
