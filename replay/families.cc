// SPDX-License-Identifier: Apache-2.0

#include "replay/families.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "replay/config_json.h"
#include "replay/gemma3/config.h"
#include "replay/gemma3/model.h"

namespace torpor::replay {
namespace {

using nlohmann::json;

struct Family {
  // model_type of the config, or of its text_config.
  const char* model_type;
  absl::StatusOr<ModelLayout> (*layout)(const json& config,
                                        const LayoutOptions& options);
  // Null when layouts alone are known.
  absl::StatusOr<std::unique_ptr<Model>> (*load)(const std::string& directory,
                                                 std::string_view config_json,
                                                 const ModelOptions& options);
};

absl::StatusOr<kernels::DType> KvDType(const std::string& asked,
                                       const std::string& native) {
  const bool is_native = asked == "native";
  const std::string& name =
      is_native ? (native.empty() ? "bf16" : native) : asked;
  if (name == "bf16") return kernels::DType::kBf16;
  if (name == "f32") return kernels::DType::kF32;
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: got '%s', wanted bf16 or f32",
                      is_native ? "config key 'dtype'" : "kv dtype", name));
}

absl::StatusOr<ModelLayout> Gemma3Layout(const json& config,
                                         const LayoutOptions& options) {
  TORPOR_ASSIGN_OR_RETURN(const gemma3::Config parsed,
                          gemma3::ParseConfig(config));
  TORPOR_ASSIGN_OR_RETURN(const kernels::DType dtype,
                          KvDType(options.kv_dtype, parsed.dtype));
  return gemma3::LayoutOf(parsed, dtype);
}

constexpr std::array<Family, 2> kFamilies = {{
    {"gemma3_text", &Gemma3Layout, &gemma3::Load},
    {"gemma3", &Gemma3Layout, &gemma3::Load},
}};

absl::StatusOr<const Family*> FindFamily(const json& config) {
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) {
    return absl::InvalidArgumentError(
        "config key 'model_type': absent, wanted a string");
  }
  const auto name = type->get<std::string>();
  const auto it =
      std::find_if(kFamilies.begin(), kFamilies.end(),
                   [&](const Family& f) { return f.model_type == name; });
  if (it == kFamilies.end()) {
    return absl::UnimplementedError(absl::StrFormat(
        "config key 'model_type': got '%s', this build knows %s", name,
        absl::StrJoin(KnownFamilies(), ", ")));
  }
  return &*it;
}

}  // namespace

std::vector<std::string> KnownFamilies() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.push_back(family.model_type);
  return names;
}

std::vector<std::string> RunnableFamilies() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) {
    if (family.load != nullptr) names.push_back(family.model_type);
  }
  return names;
}

absl::StatusOr<ModelLayout> LayoutFromConfig(std::string_view config_json,
                                             const LayoutOptions& options) {
  TORPOR_ASSIGN_OR_RETURN(const json config,
                          ParseJsonObject(config_json, "config.json"));
  TORPOR_ASSIGN_OR_RETURN(const Family* family, FindFamily(config));
  TORPOR_ASSIGN_OR_RETURN(ModelLayout layout, family->layout(config, options));
  TORPOR_RETURN_IF_ERROR(layout.Validate());
  return layout;
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& directory,
                                                 const ModelOptions& options) {
  const std::string path = directory + "/config.json";
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return absl::NotFoundError(
        absl::StrFormat("open %s: %s", path, std::strerror(errno)));
  }
  std::ostringstream text;
  text << in.rdbuf();
  TORPOR_ASSIGN_OR_RETURN(const json config, ParseJsonObject(text.str(), path));
  TORPOR_ASSIGN_OR_RETURN(const Family* family, FindFamily(config));
  if (family->load == nullptr) {
    return absl::UnimplementedError(absl::StrFormat(
        "model type '%s': its layout is known, its forward is not",
        family->model_type));
  }
  return family->load(directory, text.str(), options);
}

}  // namespace torpor::replay
