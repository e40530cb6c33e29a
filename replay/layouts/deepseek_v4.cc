// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek V4: a window in every layer, and beside it entries that pool few
// tokens and are found through an index (compressed sparse attention), or that
// pool many and are all read (heavily compressed attention).

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/layouts/config_keys.h"
#include "replay/layouts/deepseek_records.h"
#include "replay/layouts/families.h"

namespace torpor::replay::layouts {
namespace {

using nlohmann::json;

// Tokens of the largest group that a layout holds.
constexpr int64_t kMaxGroup = 65'536;

enum class Compression : uint8_t { kNone, kSparse, kHeavy };

struct Rates {
  int64_t sparse = 4;
  int64_t heavy = 128;
};

Rates ReadRates(ConfigReader* reader) {
  Rates rates;
  if (reader->Has("compress_rates")) {
    const json& both = reader->at("compress_rates");
    if (!both.is_object()) {
      reader->WrongType("compress_rates", "an object");
      return rates;
    }
    ConfigReader own(both);
    rates.sparse =
        own.Int("compressed_sparse_attention", rates.sparse, 1, kMaxGroup);
    rates.heavy =
        own.Int("heavily_compressed_attention", rates.heavy, 1, kMaxGroup);
    if (!own.status().ok()) {
      reader->Fail(absl::InvalidArgumentError(absl::StrFormat(
          "config key 'compress_rates': %s", own.status().message())));
    }
  }
  rates.sparse = reader->Int("compress_rate_csa", rates.sparse, 1, kMaxGroup);
  rates.heavy = reader->Int("compress_rate_hca", rates.heavy, 1, kMaxGroup);
  return rates;
}

// Entries of `list` are looked up by their text; draft layers may follow.
std::vector<Compression> FromList(
    ConfigReader* reader, const char* key, int64_t n_layers,
    const std::map<std::string, Compression>& names) {
  std::vector<Compression> out(static_cast<size_t>(n_layers));
  const json& list = reader->at(key);
  if (!list.is_array() || list.size() < out.size()) {
    reader->WrongType(
        key, absl::StrFormat("a list of at least %d entries", n_layers));
    return out;
  }
  for (size_t l = 0; l < out.size(); ++l) {
    const auto it = names.find(list[l].is_string() ? list[l].get<std::string>()
                                                   : list[l].dump());
    if (it == names.end()) {
      std::string wanted;
      for (const auto& [name, compression] : names) {
        wanted += (wanted.empty() ? "" : ", ") + name;
      }
      reader->Fail(absl::InvalidArgumentError(
          absl::StrFormat("config key '%s': got %s for layer %d, wanted one of "
                          "%s",
                          key, list[l].dump(), l, wanted)));
      return out;
    }
    out[l] = it->second;
  }
  return out;
}

std::vector<Compression> ReadCompressions(ConfigReader* reader,
                                          int64_t n_layers) {
  if (reader->Has("layer_types")) {
    return FromList(reader, "layer_types", n_layers,
                    {{"sliding_attention", Compression::kNone},
                     {"compressed_sparse_attention", Compression::kSparse},
                     {"heavily_compressed_attention", Compression::kHeavy}});
  }
  if (reader->Has("compress_ratios")) {
    return FromList(reader, "compress_ratios", n_layers,
                    {{"0", Compression::kNone},
                     {"4", Compression::kSparse},
                     {"128", Compression::kHeavy}});
  }
  // Two heavy layers, then both kinds in turn, heavy first.
  std::vector<Compression> out;
  for (int64_t l = 0; l < n_layers; ++l) {
    out.push_back(l >= 2 && l % 2 != 0 ? Compression::kSparse
                                       : Compression::kHeavy);
  }
  return out;
}

}  // namespace

absl::StatusOr<ModelLayout> DeepSeekV4(ConfigReader* reader,
                                       const std::string& kv_dtype) {
  const DeepSeekShape shape =
      ReadDeepSeekShape(reader, {.vocab_size = 129'280,
                                 .n_layers = 43,
                                 .head_dim = 512,
                                 .rope_dim = 64,
                                 .index_dim = 128,
                                 .window = 128,
                                 .max_positions = 1'048'576});
  const Rates rates = ReadRates(reader);
  const std::vector<Compression> compressions =
      ReadCompressions(reader, shape.n_layers);
  TORPOR_RETURN_IF_ERROR(reader->status());
  TORPOR_ASSIGN_OR_RETURN(const DeepSeekRecords records,
                          V4Records(shape, kv_dtype));
  ModelLayout layout;
  layout.n_layers = static_cast<uint32_t>(shape.n_layers);
  layout.vocab_size = static_cast<uint32_t>(shape.vocab_size);
  for (int64_t l = 0; l < shape.n_layers; ++l) {
    layout.slots.push_back(WindowSlot(shape, l, records.window));
    switch (compressions[static_cast<size_t>(l)]) {
      case Compression::kNone:
        break;
      case Compression::kHeavy:
        layout.slots.push_back(
            PooledSlot("main", l, rates.heavy, records.main));
        // A value and a gate.
        layout.slots.push_back(
            OpenSlot("open", l, rates.heavy, 0, 2 * shape.head_dim));
        break;
      case Compression::kSparse:
        layout.slots.push_back(
            PooledSlot("main", l, rates.sparse, records.main));
        layout.slots.push_back(
            PooledSlot("index", l, rates.sparse, records.index));
        // Each group also pools the one before it, through a second value and
        // gate of its tokens.
        layout.slots.push_back(OpenSlot("open", l, rates.sparse, rates.sparse,
                                        4 * shape.head_dim));
        layout.slots.push_back(OpenSlot("index_open", l, rates.sparse,
                                        rates.sparse, 4 * shape.index_dim));
        break;
    }
  }
  // Each ratio may pass alone and all of them not, as groups must close
  // together.
  if (const absl::Status s = layout.Validate(); !s.ok()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("config key 'compress_rates': %s", s.message()));
  }
  return layout;
}

}  // namespace torpor::replay::layouts
