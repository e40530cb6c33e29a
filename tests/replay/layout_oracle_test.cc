// SPDX-License-Identifier: Apache-2.0
//
// Layouts against what transformers does: tests/oracles/layouts has small
// models of each family whose cache and attention were measured there, with no
// code of this project. Where the two differ on purpose, the case stands here
// with its reason.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "replay/families.h"
#include "tests/replay/raw_safetensors.h"
#include "tests/testing/status_matchers.h"

namespace torpor::replay {
namespace {

using nlohmann::json;

constexpr char kNoFamily[] = "the family has no layout here";
constexpr char kInnerDtype[] =
    "the dtype stands in text_config alone, where its from_config looks not";
constexpr char kWindowSize[] =
    "sliding_window_size means the window, as in the configs that carry it; "
    "transformers ignores the key, or takes it for one less than the window";
constexpr char kSwaKeys[] =
    "hybrid_layer_pattern and the swa_ keys, which the released config has, "
    "count here; transformers ignores them";
constexpr char kOtherGroups[] =
    "num_attention_groups of attention_other_setting, which the released "
    "model's code reads, counts here; transformers ignores it";

const std::map<std::string, const char*>& KnownDifferences() {
  static const auto* const known = new std::map<std::string, const char*>{
      {"gemma3/nested-inner-dtype-only", kInnerDtype},
      {"mistral/window_size-key-only", kWindowSize},
      {"mimo_v2_flash/hub-form-window_size-8", kWindowSize},
      {"mimo_v2_flash/window_size-5-only", kWindowSize},
      {"mimo_v2_flash/hub-form-other-pattern", kSwaKeys},
      {"mimo_v2_flash/hub-form-equal-swa-heads", kSwaKeys},
      {"mimo_v2_flash/hub-form-other-swa-dims", kSwaKeys},
      {"step3p5/other-setting-more-groups", kOtherGroups},
      {"step3p5/groups-absent", kOtherGroups},
      {"deepseek_v32/base", kNoFamily}};
  return *known;
}

// The dtype to ask for: that of the config where it names one, else the f32
// that torch makes of none.
std::string KvDtype(const json& fixture) {
  const int bytes = fixture["expect"]["dtype_bytes"];
  const bool named =
      fixture["config"].dump().find("dtype\"") != std::string::npos;
  // The families with records of their own keep plain rows in transformers.
  const bool records = fixture["config"]["model_type"] == "deepseek_v4";
  if (named && !records) return "native";
  return bytes == 4 ? "f32" : "bf16";
}

// Slots of attention rows that the layer owns.
std::vector<Slot> OwnSlots(const ModelLayout& layout, uint32_t layer) {
  std::vector<Slot> out;
  for (const Slot& slot : layout.slots) {
    if (slot.owner_layer == layer &&
        (slot.kind == SlotKind::kFull || slot.is_window())) {
      out.push_back(slot);
    }
  }
  return out;
}

std::string CompareShared(const ModelLayout& layout, const json& wanted) {
  const uint32_t layer = wanted["layer"];
  if (!OwnSlots(layout, layer).empty()) return "owns rows";
  for (const Slot& slot : OwnSlots(layout, wanted["owner"])) {
    if (!std::binary_search(slot.reader_layers.begin(),
                            slot.reader_layers.end(), layer)) {
      return "does not read " + slot.name;
    }
  }
  return "";
}

// DeepSeek V4's compressed rows: transformers names the ratio by how many rows
// it made of the prefill, so the widths are compared.
std::string CompareCompressed(const ModelLayout& layout, const json& wanted,
                              uint64_t element_bytes) {
  const json other = wanted.value("other_tensors", json::object());
  for (const Slot& slot : layout.slots) {
    if (slot.owner_layer != wanted["layer"]) continue;
    const bool index = slot.name.find("index") != std::string::npos;
    const std::string of = index ? "[indexer]" : "[compressor]";
    if (slot.kind == SlotKind::kPooled) {
      const auto rows = other.find("compressed_kv" + of);
      if (rows == other.end()) return "has no rows of " + slot.name;
      if (slot.row_bytes != (*rows)[2].get<uint64_t>() * element_bytes) {
        return "rows of " + slot.name + " differ";
      }
    } else if (slot.kind == SlotKind::kOpenGroup) {
      // Value and gate, which are f32 here.
      const auto rows = other.find("buffer_kv" + of);
      if (rows == other.end()) continue;
      if (slot.row_bytes != 2 * 4 * (*rows)[2].get<uint64_t>()) {
        return "rows of " + slot.name + " differ";
      }
    }
  }
  return "";
}

// Empty when layer and measurement agree.
std::string Compare(const ModelLayout& layout, const json& wanted,
                    const json& fixture) {
  if (wanted["kind"] == "shared") return CompareShared(layout, wanted);
  const uint64_t element = fixture["expect"]["dtype_bytes"];
  const std::vector<Slot> slots = OwnSlots(layout, wanted["layer"]);
  if (slots.empty()) return "owns no rows";
  const uint64_t k = wanted["k_heads"].get<uint64_t>() *
                     wanted["k_dim"].get<uint64_t>() * element;
  const uint64_t v = wanted["v_heads"].get<uint64_t>() *
                     wanted["v_dim"].get<uint64_t>() * element;
  uint64_t bytes = 0;
  for (const Slot& slot : slots) bytes += slot.row_bytes;
  if (fixture["config"]["model_type"] == "deepseek_v4") {
    // K and V are one tensor, of a window whatever the layer adds to it.
    if (bytes != k || slots[0].window != wanted["cache_window"]) {
      return "window rows differ";
    }
    return CompareCompressed(layout, wanted, element);
  }
  if (bytes != k + v) return "bytes " + std::to_string(bytes);
  if (slots.size() == 2 && slots[0].row_bytes != k) return "K differs";
  const std::string kind(SlotKindName(slots[0].kind));
  if (kind != wanted["kind"]) return "kind " + kind;
  const uint64_t reach =
      wanted["window"].is_null() ? 0 : wanted["window"].get<uint64_t>();
  if (slots[0].reach() != reach) {
    return "window " + std::to_string(slots[0].reach());
  }
  return "";
}

std::string CompareAll(const ModelLayout& layout, const json& fixture) {
  if (layout.n_layers != fixture["expect"]["layers"].size()) {
    return "other layers";
  }
  for (const json& layer : fixture["expect"]["layers"]) {
    const std::string difference = Compare(layout, layer, fixture);
    if (!difference.empty()) return layer["layer"].dump() + ": " + difference;
  }
  return "";
}

json Read(const std::string& name) {
  return json::parse(ReadBack(TORPOR_ORACLES_DIR "/layouts/" + name));
}

TEST(LayoutOracleTest, EveryLayerIsWhatTransformersKeepsAndSees) {
  const json fixtures = Read("fixtures.json");
  std::set<std::string> differing;
  size_t n_agreed = 0;
  for (const json& fixture : fixtures) {
    const std::string name = fixture["name"];
    const auto layout = LayoutFromConfig(fixture["config"].dump(),
                                         {.kv_dtype = KvDtype(fixture)});
    const std::string difference = layout.ok()
                                       ? CompareAll(*layout, fixture)
                                       : std::string(layout.status().message());
    if (KnownDifferences().contains(name)) {
      EXPECT_NE(difference, "") << name << " agrees by now";
      differing.insert(name);
      continue;
    }
    // Its mask and its cache disagree: there is nothing to agree with.
    if (fixture.value("hf_inconsistent", false)) continue;
    EXPECT_EQ(difference, "") << name;
    ++n_agreed;
  }
  EXPECT_EQ(differing.size(), KnownDifferences().size());
  EXPECT_GE(n_agreed, 150);
}

// What transformers cannot run is planned or refused, never a crash.
TEST(LayoutOracleTest, ConfigsThatBreakTransformersAreAnswered) {
  for (const json& broken : Read("hf_errors.json")) {
    const auto layout =
        LayoutFromConfig(broken["config"].dump(), {.kv_dtype = "bf16"});
    if (layout.ok()) continue;
    EXPECT_THAT(layout.status().code(),
                ::testing::AnyOf(absl::StatusCode::kInvalidArgument,
                                 absl::StatusCode::kUnimplemented))
        << broken["name"];
    EXPECT_THAT(std::string(layout.status().message()),
                ::testing::HasSubstr("config key"));
  }
}

}  // namespace
}  // namespace torpor::replay
