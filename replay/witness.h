// SPDX-License-Identifier: Apache-2.0
//
// What a suspend stores so that a resume can prove, or measure, the window it
// rebuilt (design D6). Pure functions.

#ifndef TORPOR_REPLAY_WITNESS_H_
#define TORPOR_REPLAY_WITNESS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/hash.h"
#include "replay/model_layout.h"
#include "replay/replayer.h"

namespace torpor::replay {

// One token's row of a layer: the bytes of its window slots in layout order (K,
// then V), of those whose window reaches that token.
struct WitnessRow {
  uint64_t position = 0;
  std::vector<uint8_t> bytes;

  friend bool operator==(const WitnessRow&, const WitnessRow&) = default;
};

struct LayerWitness {
  uint32_t layer = 0;
  // XXH3-128 over the little-endian XXH3-64s of the layer's window rows in
  // position order.
  Digest128 digest{};
  // W is the layer's longest window. Rows at H-1, H-W/4, H-W/2, H-3W/4 and
  // H-W+1, those that exist, ascending.
  std::vector<WitnessRow> rows;

  friend bool operator==(const LayerWitness&, const LayerWitness&) = default;
};

struct Witness {
  std::string numerics_id;
  uint64_t resume_at = 0;
  std::vector<LayerWitness> layers;

  friend bool operator==(const Witness&, const Witness&) = default;
};

// The witness of a window as its session holds it.
Witness MakeWitness(const ModelLayout& layout, std::string_view numerics_id,
                    const WindowState& window);

struct LayerError {
  uint32_t layer = 0;
  bool digest_equal = false;
  // Over the sample rows: max and mean of |a - b|, each over max |b| of the
  // finite b. Infinite where one side alone is NaN or infinite.
  double max_relative = 0;
  double mean_relative = 0;
};

enum class Verdict : uint8_t {
  // Nothing was stored to compare with.
  kUnwitnessed = 1,
  // Every digest agrees.
  kExact = 2,
  // Compared on sample rows.
  kMeasured = 3,
};

struct WitnessReport {
  Verdict verdict = Verdict::kUnwitnessed;
  std::vector<LayerError> layers;

  [[nodiscard]] double max_error() const;
};

// Compares a rebuilt window with a witness of the same cut. kInvalidArgument
// when they are of different cuts or layers.
absl::StatusOr<WitnessReport> CompareWithWitness(const ModelLayout& layout,
                                                 const WindowState& window,
                                                 const Witness& witness);

// The same, of an engine's window of which its witness alone is known.
absl::StatusOr<WitnessReport> CompareWitnesses(const ModelLayout& layout,
                                               const Witness& got,
                                               const Witness& wanted);

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_WITNESS_H_
