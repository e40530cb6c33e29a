// SPDX-License-Identifier: Apache-2.0
//
// The model families: from a config.json to a layout, and from a directory to a
// model that runs. A family is a line in the table of families.cc and a
// function in layouts/; one with a forward has a folder beside this file.
// Families without a forward are plan-only: an engine replays them.

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
  // or, for the DeepSeek V4 families, their own records; "bf16", "f16", "f32":
  // plain elements.
  std::string kv_dtype = "native";
};

struct PlannedLayout {
  ModelLayout layout;
  // Full sentences on what the config says and the layout does not hold.
  std::vector<std::string> notes;
  // No forward of the family is in this build.
  bool plan_only = false;
};

// The layout of any config.json of a known family, nested in a multimodal one
// or not; needs no weights. kInvalidArgument names the key that cannot be;
// kUnimplemented an unknown family, or the key of layers that none describes;
// kFailedPrecondition a model that cannot be rebuilt (bidirectional attention,
// recurrent layers), with the key or layer type.
absl::StatusOr<PlannedLayout> PlanConfig(std::string_view config_json,
                                         const LayoutOptions& options);
absl::StatusOr<ModelLayout> LayoutFromConfig(std::string_view config_json,
                                             const LayoutOptions& options);

// The text of a model directory's config.json; kNotFound.
absl::StatusOr<std::string> ReadModelConfig(const std::string& directory);

// Loads config.json and the safetensors beside it. As LayoutFromConfig, and
// kNotFound when a file or tensor is missing, kDataLoss when a file lies,
// kUnimplemented for a plan-only family.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& directory,
                                                 const ModelOptions& options);

// Whether the config's family has a forward in this build; as LayoutFromConfig
// for configs of none.
absl::StatusOr<bool> HasForward(std::string_view config_json);

// Names of the families, and of those among them that have a forward.
std::vector<std::string> KnownFamilies();
std::vector<std::string> RunnableFamilies();

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_FAMILIES_H_
