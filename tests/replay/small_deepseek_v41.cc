// SPDX-License-Identifier: Apache-2.0

#include "tests/replay/small_deepseek_v41.h"

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/replay/raw_safetensors.h"

namespace torpor::replay {
namespace {

using nlohmann::json;

// Which of the oracle's layers each of the four is.
constexpr std::array<int, 4> kLayers = {0, 5, 7, 9};

json SmallConfig(json config) {
  json& text = config["text_config"];
  text["num_hidden_layers"] = kLayers.size();
  text["sliding_window"] = 4;
  text["hc_sinkhorn_iters"] = 2;
  text["compress_ratios"] = {0, 2, 1, 1};
  text["kv_source_layer_ids"] = {1, 2};
  text["index_source_layer_ids"] = {1, 2, 3};
  text["candidate_source_layer_id"] = 2;
  text["engram_layer_ids"] = {1};
  text["engram_num_embeddings"] = {text["engram_num_embeddings"][1]};
  return config;
}

// The second table's.
json SmallEngram(json engram) {
  engram["layer_ids"] = {1};
  for (const char* key : {"multipliers", "primes", "offsets"}) {
    engram[key] = json::array({engram[key][1]});
  }
  return engram;
}

// Tensors of other layers stay under names that nothing asks for.
std::string SmallName(const std::string& name) {
  const std::string prefix = "layers.";
  const size_t dot = name.find('.', prefix.size());
  if (!name.starts_with(prefix)) return name;
  const int layer = std::stoi(name.substr(prefix.size()));
  for (size_t i = 0; i < kLayers.size(); ++i) {
    if (kLayers[i] == layer) {
      return prefix + std::to_string(i) + name.substr(dot);
    }
  }
  return "other." + name;
}

std::string SmallWeights(const std::string& file) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  const json tensors = json::parse(file.substr(sizeof(length), length));
  json header;
  for (const auto& [name, tensor] : tensors.items()) {
    header[SmallName(name)] = tensor;
  }
  return RawFile(header.dump(), file.substr(sizeof(length) + length));
}

}  // namespace

std::string WriteSmallDeepSeekV41(const std::string& name,
                                  const std::string& to) {
  const std::string from =
      std::string(TORPOR_ORACLES_DIR) + "/deepseek_v41/" + name + "/";
  WriteFile(to + "/config.json",
            SmallConfig(json::parse(ReadBack(from + "config.json"))).dump());
  WriteFile(to + "/engram.json",
            SmallEngram(json::parse(ReadBack(from + "engram.json"))).dump());
  WriteFile(to + "/model.safetensors",
            SmallWeights(ReadBack(from + "model.safetensors")));
  return to;
}

}  // namespace torpor::replay
