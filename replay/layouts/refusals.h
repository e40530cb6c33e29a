// SPDX-License-Identifier: Apache-2.0
//
// Configs that say of a model, whatever its family, that its sessions cannot be
// stored and rebuilt as a layout describes.

#ifndef TORPOR_REPLAY_LAYOUTS_REFUSALS_H_
#define TORPOR_REPLAY_LAYOUTS_REFUSALS_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace torpor::replay::layouts {

// kFailedPrecondition names the key, or the layer type, of a recurrent state,
// of bidirectional attention or of an encoder; kUnimplemented the key of layers
// that differ in ways no family here has; kInvalidArgument a value of such a
// key that cannot be. Looks at `config` and at its text_config.
absl::Status CheckRebuildable(const nlohmann::json& config);

// Why a family of that name could have no layout, as a clause for the end of a
// message; empty when the name says nothing.
std::string ReasonOfName(std::string_view model_type);

}  // namespace torpor::replay::layouts

#endif  // TORPOR_REPLAY_LAYOUTS_REFUSALS_H_
