// SPDX-License-Identifier: Apache-2.0

#include "replay/layouts/refusals.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::replay::layouts {
namespace {

using nlohmann::json;

// Layer types that carry a state from token to token, alone or beside
// attention.
constexpr std::array<const char*, 18> kRecurrentTypes = {
    "mamba",      "mamba2", "linear_attention", "conv",
    "recurrent",  "hybrid", "hybrid_sliding",   "rwkv",
    "rwkv6",      "rwkv7",  "gated_deltanet",   "gated_delta_net",
    "deltanet",   "kda",    "lightning",        "ssm",
    "short_conv", "linear"};

constexpr std::array<const char*, 5> kLayerTypeKeys = {
    "layer_types", "layers_block_type", "block_types", "_block_types",
    "hybrid_layer_types"};

// Keys that only models with recurrent layers have.
constexpr std::array<const char*, 24> kRecurrentKeys = {
    "mamba_d_state",
    "mamba_d_conv",
    "mamba_d_ssm",
    "mamba_n_heads",
    "mamba_num_heads",
    "mamba_expand",
    "full_attention_interval",
    "linear_conv_kernel_dim",
    "linear_num_value_heads",
    "linear_attn_config",
    "conv_L_cache",
    "ssm_cfg",
    "ssm_state_size",
    "state_size",
    "hybrid_override_pattern",
    "attn_layer_period",
    "attn_layer_indices",
    "attn_type_list",
    "lru_width",
    "rescale_every",
    "conv_kernel",
    "time_step_rank",
    "ssm_num_heads",
    "hybrid_block_layer_ids"};

// Layers that differ from each other in ways that a layout could hold and no
// family here reads.
constexpr std::array<const char*, 5> kUnreadKeys = {
    "block_configs", "dense_attention_every_n_layers", "blocksparse_block_size",
    "cross_attention_layers", "sparse_attention_config"};

bool Says(const json& config, const char* key) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null() || *it == false) return false;
  return !((it->is_array() || it->is_object()) && it->empty());
}

absl::Status CheckLayerTypes(const json& config) {
  for (const char* key : kLayerTypeKeys) {
    const auto types = config.find(key);
    if (types == config.end() || !types->is_array()) continue;
    for (size_t l = 0; l < types->size(); ++l) {
      const json& type = (*types)[l];
      if (!type.is_string()) continue;
      const auto& name = type.get_ref<const std::string&>();
      if (std::find(kRecurrentTypes.begin(), kRecurrentTypes.end(), name) ==
          kRecurrentTypes.end()) {
        continue;
      }
      return absl::FailedPreconditionError(absl::StrFormat(
          "config key '%s': layer %d is '%s': its state is carried from token "
          "to token, so no replay of a bounded length rebuilds it",
          key, l, name));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDirection(const json& config) {
  constexpr const char* kKey = "use_bidirectional_attention";
  const auto it = config.find(kKey);
  if (it != config.end() && !it->is_null()) {
    // "vision": spans of images alone, in which no session is cut.
    const bool causal = *it == false || *it == "vision";
    if (!causal && *it != true && *it != "all") {
      return absl::InvalidArgumentError(absl::StrFormat(
          "config key '%s': got %s, wanted true, false, \"vision\" or \"all\"",
          kKey, it->dump().substr(0, 120)));
    }
    if (!causal) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "config key '%s': %s; a model whose tokens see what follows has no "
          "KV that a session could sleep with",
          kKey, it->dump()));
    }
  }
  if (const auto causal = config.find("is_causal");
      causal != config.end() && *causal == false) {
    return absl::FailedPreconditionError(
        "config key 'is_causal': false; a model whose tokens see what follows "
        "has no KV that a session could sleep with");
  }
  return absl::OkStatus();
}

absl::Status CheckOne(const json& config) {
  TORPOR_RETURN_IF_ERROR(CheckLayerTypes(config));
  for (const char* key : kRecurrentKeys) {
    if (!Says(config, key)) continue;
    return absl::FailedPreconditionError(absl::StrFormat(
        "config key '%s': a model with recurrent layers (state space, linear "
        "attention or convolution), whose state no replay of a bounded length "
        "rebuilds",
        key));
  }
  for (const char* key : kUnreadKeys) {
    if (!Says(config, key)) continue;
    return absl::UnimplementedError(absl::StrFormat(
        "config key '%s': its layers attend in ways that no family here "
        "describes",
        key));
  }
  if (Says(config, "is_encoder_decoder")) {
    return absl::FailedPreconditionError(
        "config key 'is_encoder_decoder': true; the decoder's KV depends on an "
        "encoder that a session does not hold");
  }
  return CheckDirection(config);
}

}  // namespace

absl::Status CheckRebuildable(const json& config) {
  TORPOR_RETURN_IF_ERROR(CheckOne(config));
  const auto text = config.find("text_config");
  if (text == config.end() || !text->is_object()) return absl::OkStatus();
  return CheckOne(*text);
}

std::string ReasonOfName(std::string_view model_type) {
  for (const char* name : {"mamba", "rwkv", "deltanet", "recurrent", "lfm2",
                           "jamba", "kimi_linear", "xlstm"}) {
    if (!absl::StrContains(std::string(model_type), name)) continue;
    return absl::StrFormat(
        "; '%s' has recurrent layers (%s), which no replay rebuilds",
        std::string(model_type), name);
  }
  return "";
}

}  // namespace torpor::replay::layouts
