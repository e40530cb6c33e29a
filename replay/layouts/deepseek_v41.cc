// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek V4.1: a window in every layer. Few layers write compressed entries
// and index keys (KV sources); those above read them, and some choose among
// them anew (index sources).

#include "replay/layouts/deepseek_v41.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/layouts/config_keys.h"
#include "replay/layouts/families.h"

namespace torpor::replay::layouts {
namespace {

using nlohmann::json;

constexpr int64_t kMaxGroup = 65'536;
constexpr const char* kRatios = "compress_ratios";
constexpr const char* kSources = "kv_source_layer_ids";
constexpr const char* kIndexSources = "index_source_layer_ids";
constexpr const char* kTargets = "dspark_target_layer_ids";

// A list of integers of [least, most]; empty when absent.
std::vector<int64_t> ReadInts(ConfigReader* reader, const char* key,
                              int64_t least, int64_t most) {
  std::vector<int64_t> out;
  if (!reader->Has(key)) return out;
  const json& list = reader->at(key);
  bool fits = list.is_array();
  for (size_t i = 0; fits && i < list.size(); ++i) {
    const json& value = list[i];
    fits = value.is_number_integer() &&
           (!value.is_number_unsigned() ||
            value.get<uint64_t>() <= static_cast<uint64_t>(most)) &&
           value.get<int64_t>() >= least && value.get<int64_t>() <= most;
    if (fits) out.push_back(value.get<int64_t>());
  }
  if (!fits) {
    reader->WrongType(
        key, absl::StrFormat("a list of integers of [%d, %d]", least, most));
  }
  return out;
}

// Ratios of all layers; entries of draft layers may follow.
std::vector<int64_t> ReadRatios(ConfigReader* reader, int64_t n_layers) {
  std::vector<int64_t> ratios = ReadInts(reader, kRatios, 0, kMaxGroup);
  const int64_t n_drafts = ReadDraftLayers(reader);
  const auto n = static_cast<int64_t>(ratios.size());
  if (n < n_layers || n > n_layers + n_drafts) {
    reader->Fail(absl::InvalidArgumentError(absl::StrFormat(
        "config key '%s': got %d entries, wanted one for each of %d layers, "
        "and none beyond those of %d draft layers",
        kRatios, n, n_layers, n_drafts)));
  }
  ratios.resize(static_cast<size_t>(n_layers));
  return ratios;
}

// Layers that write or choose, ascending.
std::vector<int64_t> ReadLayerIds(ConfigReader* reader, const char* key,
                                  int64_t n_layers) {
  std::vector<int64_t> ids = ReadInts(reader, key, 0, n_layers - 1);
  if (std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) !=
      ids.end()) {
    reader->WrongType(key, "layers in ascending order");
  }
  return ids;
}

// The KV source of each layer that reads compressed rows, else -1.
std::vector<int64_t> SourceOfLayers(ConfigReader* reader,
                                    const std::vector<int64_t>& ratios,
                                    const std::vector<int64_t>& sources) {
  std::vector<int64_t> out(ratios.size(), -1);
  for (size_t l = 0; l < ratios.size(); ++l) {
    const auto above = std::upper_bound(sources.begin(), sources.end(),
                                        static_cast<int64_t>(l));
    const int64_t source = above == sources.begin() ? -1 : *(above - 1);
    if (ratios[l] == 0 && source != static_cast<int64_t>(l)) continue;
    if (source < 0 || ratios[static_cast<size_t>(source)] != ratios[l] ||
        ratios[l] == 0) {
      reader->Fail(absl::InvalidArgumentError(absl::StrFormat(
          "config keys '%s' and '%s': layer %d has ratio %d, wanted a source "
          "at or below it of the same ratio above 0",
          kRatios, kSources, l, ratios[l])));
      return out;
    }
    out[l] = source;
  }
  return out;
}

// Windows of the draft layers. All of them project what enters the highest
// target layer (and those below it), so their rows are owed there; no layer of
// the model reads them.
void AddDraftWindows(ConfigReader* reader, const DeepSeekShape& shape,
                     const RowRecord& record, ModelLayout* layout) {
  const int64_t n = ReadDraftLayers(reader);
  const std::vector<int64_t> targets =
      ReadInts(reader, kTargets, 0, shape.n_layers - 1);
  if (n == 0) return;
  if (n > shape.n_layers || targets.empty()) {
    reader->Fail(absl::InvalidArgumentError(absl::StrFormat(
        "config keys 'num_nextn_predict_layers' and '%s': got %d and %d "
        "entries, wanted at most %d draft layers and the layers that feed them",
        kTargets, n, targets.size(), shape.n_layers)));
    return;
  }
  for (int64_t d = 0; d < n; ++d) {
    Slot slot = WindowSlot(
        shape, *std::max_element(targets.begin(), targets.end()), record);
    slot.name = absl::StrFormat("draft.%d.window", d);
    slot.reader_layers.clear();
    layout->slots.push_back(slot);
  }
}

}  // namespace

V41Schedule ReadV41Schedule(ConfigReader* reader) {
  V41Schedule schedule;
  schedule.shape = ReadDeepSeekShape(reader, {.vocab_size = 129'280,
                                              .n_layers = 40,
                                              .head_dim = 512,
                                              .rope_dim = 64,
                                              .index_dim = 128,
                                              .window = 128,
                                              .max_positions = 1'048'576});
  const int64_t n_layers = schedule.shape.n_layers;
  schedule.ratios = ReadRatios(reader, n_layers);
  const std::vector<int64_t> sources = ReadLayerIds(reader, kSources, n_layers);
  schedule.index_sources = ReadLayerIds(reader, kIndexSources, n_layers);
  schedule.kv_source = SourceOfLayers(reader, schedule.ratios, sources);
  return schedule;
}

absl::StatusOr<ModelLayout> V41LayoutOf(const V41Schedule& schedule,
                                        const std::string& kv_dtype) {
  const DeepSeekShape& shape = schedule.shape;
  TORPOR_ASSIGN_OR_RETURN(const DeepSeekRecords records,
                          V41Records(shape, kv_dtype));
  ModelLayout layout;
  layout.n_layers = static_cast<uint32_t>(shape.n_layers);
  layout.vocab_size = static_cast<uint32_t>(shape.vocab_size);
  for (int64_t l = 0; l < shape.n_layers; ++l) {
    layout.slots.push_back(WindowSlot(shape, l, records.window));
    if (schedule.kv_source[static_cast<size_t>(l)] != l) continue;
    const int64_t ratio = schedule.ratios[static_cast<size_t>(l)];
    Slot main = PooledSlot("main", l, ratio, records.main);
    Slot index = PooledSlot("index", l, ratio, records.index);
    for (int64_t reads = l + 1; reads < shape.n_layers; ++reads) {
      if (schedule.kv_source[static_cast<size_t>(reads)] != l) continue;
      main.reader_layers.push_back(static_cast<uint32_t>(reads));
      if (std::binary_search(schedule.index_sources.begin(),
                             schedule.index_sources.end(), reads)) {
        index.reader_layers.push_back(static_cast<uint32_t>(reads));
      }
    }
    layout.slots.push_back(main);
    layout.slots.push_back(index);
    // A value and a gate; a group of one is never open. Index keys are made of
    // the pooled entry and so have nothing of their own.
    if (ratio > 1) {
      layout.slots.push_back(OpenSlot("open", l, ratio, 0, 2 * shape.head_dim));
    }
  }
  return layout;
}

absl::StatusOr<ModelLayout> DeepSeekV41(ConfigReader* reader,
                                        const std::string& kv_dtype) {
  const V41Schedule schedule = ReadV41Schedule(reader);
  TORPOR_RETURN_IF_ERROR(reader->status());
  TORPOR_ASSIGN_OR_RETURN(const DeepSeekRecords records,
                          V41Records(schedule.shape, kv_dtype));
  TORPOR_ASSIGN_OR_RETURN(ModelLayout layout, V41LayoutOf(schedule, kv_dtype));
  AddDraftWindows(reader, schedule.shape, records.window, &layout);
  TORPOR_RETURN_IF_ERROR(reader->status());
  // Each ratio may pass alone and all of them not, as groups must close
  // together.
  if (const absl::Status s = layout.Validate(); !s.ok()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("config key 'compress_ratios': %s", s.message()));
  }
  return layout;
}

}  // namespace torpor::replay::layouts
