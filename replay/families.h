// SPDX-License-Identifier: Apache-2.0
//
// The model families: from a config.json to a layout, and from a directory to a
// model that runs. A family is a folder beside this file and a line in its
// table.

#ifndef TORPOR_REPLAY_FAMILIES_H_
#define TORPOR_REPLAY_FAMILIES_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "replay/model.h"
#include "replay/model_layout.h"

namespace torpor::replay {

struct LayoutOptions {
  // "native": the dtype that config.json names (bf16 where it names none);
  // "bf16", "f32".
  std::string kv_dtype = "native";
};

// The layout of any config.json of a known family, nested in a multimodal one
// or not; needs no weights. kInvalidArgument names the key that cannot be;
// kUnimplemented an unknown family; kFailedPrecondition a model that cannot be
// rebuilt (bidirectional attention, recurrent layers), with the reason.
absl::StatusOr<ModelLayout> LayoutFromConfig(std::string_view config_json,
                                             const LayoutOptions& options);

// Loads config.json and the safetensors beside it. As LayoutFromConfig, and
// kNotFound when a file or tensor is missing, kDataLoss when a file lies.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& directory,
                                                 const ModelOptions& options);

// Names of the families, and of those among them that have a forward.
std::vector<std::string> KnownFamilies();
std::vector<std::string> RunnableFamilies();

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_FAMILIES_H_
