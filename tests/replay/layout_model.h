// SPDX-License-Identifier: Apache-2.0
//
// A model made of a layout alone, with small weights drawn by chance: the
// slots are written and read as the layout says, whatever their kinds. It
// stands in for families that do not exist yet, so that the conformance suite
// is itself tested on every kind of slot. A row that is not there reads as NaN.

#ifndef TORPOR_TESTS_REPLAY_LAYOUT_MODEL_H_
#define TORPOR_TESTS_REPLAY_LAYOUT_MODEL_H_

#include <cstdint>
#include <memory>

#include "replay/model.h"

namespace torpor::replay {

struct LayoutModelOptions {
  // Rows of f32. Pooled slots whose name begins with "index" are not attended
  // to: their scores pick `n_picks` rows of the owner's other pooled slots, in
  // layers that read both. Groups of more than one token have an open-group
  // slot of the same owner and size.
  ModelLayout layout;
  uint64_t n_picks = 3;
  // Layer 1 also looks up the ids of a token and of those before it. They are
  // taken from in front of a segment's ids, which must stand in one array with
  // those of the whole timeline.
  uint64_t id_lookback = 0;
  uint64_t max_rows = 96;
};

std::unique_ptr<Model> MakeLayoutModel(const LayoutModelOptions& options);

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_LAYOUT_MODEL_H_
