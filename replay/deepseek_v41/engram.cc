// SPDX-License-Identifier: Apache-2.0

#include "replay/deepseek_v41/engram.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/config_json.h"
#include "replay/deepseek_v41/numpy_random.h"

namespace torpor::replay::deepseek_v41 {
namespace {

using nlohmann::json;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
// default_rng's seed is this times the layer.
constexpr uint64_t kSeedPerLayer = 10'007;

absl::Status Wrong(const char* key, const std::string& wanted) {
  return absl::InvalidArgumentError(
      absl::StrFormat("engram.json key '%s': wanted %s", key, wanted));
}

// All integers of nested lists, in order; false where something else stands.
bool Flatten(const json& value, std::vector<int64_t>* out) {
  if (value.is_array()) {
    for (const json& inner : value) {
      if (!Flatten(inner, out)) return false;
    }
    return true;
  }
  if (!value.is_number_unsigned() ||
      value.get<uint64_t>() > static_cast<uint64_t>(kMost)) {
    return false;
  }
  out->push_back(value.get<int64_t>());
  return true;
}

// file[key][i] as `n` integers; empty when the key is absent.
absl::StatusOr<std::vector<int64_t>> Integers(const json& file, const char* key,
                                              size_t i, size_t n) {
  std::vector<int64_t> out;
  const auto it = file.find(key);
  if (it == file.end() || it->is_null()) return out;
  if (!it->is_array() || i >= it->size() || !Flatten((*it)[i], &out) ||
      out.size() != n) {
    return Wrong(
        key,
        absl::StrFormat("%d integers of at least 0 for each Engram layer", n));
  }
  return out;
}

bool IsPrime(int64_t n) {
  if (n < 2) return false;
  for (int64_t d = 2; d * d <= n; ++d) {
    if (n % d == 0) return false;
  }
  return true;
}

// Largest multiplier so that a compressed id times it stays a positive int64.
int64_t MultiplierMost(int64_t compressed_vocab) {
  return kMost / compressed_vocab;
}

std::vector<int64_t> DrawMultipliers(int64_t layer, int64_t compressed_vocab,
                                     int64_t n) {
  NumpyRandom random(kSeedPerLayer * static_cast<uint64_t>(layer));
  const auto below =
      static_cast<uint64_t>(MultiplierMost(compressed_vocab) / 2);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < n; ++i) {
    out.push_back(static_cast<int64_t>(2 * random.Below(below) + 1));
  }
  return out;
}

}  // namespace

absl::StatusOr<EngramIndex> EngramIndex::Parse(std::string_view text,
                                               const Config& config) {
  TORPOR_ASSIGN_OR_RETURN(const json file,
                          ParseJsonObject(text, "engram.json"));
  EngramIndex index;
  index.shape_ = config.engram;
  ConfigReader reader(file);
  index.compressed_vocab_ =
      reader.Int("compressed_vocab_size", 0, 1,
                 std::min(config.vocab_size, kMostCompressedIds));
  index.pad_ = reader.Int("pad_compressed_id", -1, 0, config.vocab_size);
  if (!reader.status().ok()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("engram.json: %s", reader.status().message()));
  }
  const int64_t said = config.engram.compressed_vocab;
  if (said != 0 && index.compressed_vocab_ != said) {
    return Wrong("compressed_vocab_size",
                 absl::StrFormat("config.json's engram_compressed_vocab_size, "
                                 "%d, got %d",
                                 said, index.compressed_vocab_));
  }
  const auto map = file.find("token_map");
  if (index.compressed_vocab_ == 0 || map == file.end() || !map->is_array() ||
      !Flatten(*map, &index.token_map_) ||
      index.token_map_.size() != static_cast<size_t>(config.vocab_size)) {
    return Wrong("token_map",
                 absl::StrFormat("an id for each of %d tokens, and "
                                 "compressed_vocab_size",
                                 config.vocab_size));
  }
  if (index.pad_ < 0) {
    index.pad_ = index.token_map_[static_cast<size_t>(config.engram_pad_id)];
  }
  index.token_map_.push_back(index.pad_);
  for (const int64_t id : index.token_map_) {
    if (id >= index.compressed_vocab_) {
      return Wrong("token_map", absl::StrFormat("ids below %d, got %d",
                                                index.compressed_vocab_, id));
    }
  }
  index.token_map_.pop_back();
  TORPOR_RETURN_IF_ERROR(index.ReadTables(file, config));
  TORPOR_RETURN_IF_ERROR(index.CheckTables(config));
  return index;
}

absl::Status EngramIndex::ReadTables(const json& file, const Config& config) {
  if (const auto it = file.find("layer_ids");
      it != file.end() && *it != json(config.engram_layers)) {
    return Wrong("layer_ids", "config.json's engram_layer_ids");
  }
  const auto n_rows = static_cast<size_t>(shape_.n_rows());
  const auto n_ids = static_cast<size_t>(shape_.max_ngram);
  int64_t last_prime = config.engram.base_vocab - 1;
  for (size_t i = 0; i < config.engram_layers.size(); ++i) {
    Table table;
    TORPOR_ASSIGN_OR_RETURN(table.multipliers,
                            Integers(file, "multipliers", i, n_ids));
    TORPOR_ASSIGN_OR_RETURN(table.primes, Integers(file, "primes", i, n_rows));
    TORPOR_ASSIGN_OR_RETURN(table.offsets,
                            Integers(file, "offsets", i, n_rows));
    if (table.multipliers.empty()) {
      table.multipliers = DrawMultipliers(config.engram_layers[i],
                                          compressed_vocab_, shape_.max_ngram);
    }
    if (table.primes.empty()) {
      // Never the same one twice, over all layers; no more of them than the
      // table has rows for.
      int64_t sum = 0;
      while (table.primes.size() < n_rows && sum <= config.engram_rows[i]) {
        do {
          ++last_prime;
        } while (!IsPrime(last_prime));
        table.primes.push_back(last_prime);
        sum += last_prime;
      }
      if (table.primes.size() < n_rows) {
        return Wrong(
            "primes",
            absl::StrFormat("%d of them from %d on in the %d rows of "
                            "layer %d's table",
                            n_rows, config.engram.base_vocab,
                            config.engram_rows[i], config.engram_layers[i]));
      }
    }
    if (table.offsets.empty()) {
      int64_t at = 0;
      for (const int64_t prime : table.primes) {
        table.offsets.push_back(at);
        at += prime;
      }
    }
    tables_.push_back(std::move(table));
  }
  return absl::OkStatus();
}

absl::Status EngramIndex::CheckTables(const Config& config) const {
  for (size_t i = 0; i < tables_.size(); ++i) {
    const Table& table = tables_[i];
    for (const int64_t m : table.multipliers) {
      if (m < 1 || m > MultiplierMost(compressed_vocab_)) {
        return Wrong("multipliers",
                     absl::StrFormat("numbers of [1, %d], got %d",
                                     MultiplierMost(compressed_vocab_), m));
      }
    }
    for (size_t r = 0; r < table.primes.size(); ++r) {
      if (table.primes[r] < 1 || table.offsets[r] > config.engram_rows[i] ||
          table.primes[r] > config.engram_rows[i] - table.offsets[r]) {
        return Wrong("primes",
                     absl::StrFormat("rows of a table of %d, got [%d, %d + %d)",
                                     config.engram_rows[i], table.offsets[r],
                                     table.offsets[r], table.primes[r]));
      }
    }
  }
  return absl::OkStatus();
}

void EngramIndex::RowsOf(size_t table, std::span<const uint32_t> ids,
                         std::span<int64_t> rows) const {
  const Table& t = tables_[table];
  const auto compressed = [&](size_t back) {
    return back < ids.size() ? token_map_[ids[ids.size() - 1 - back]] : pad_;
  };
  int64_t hash = compressed(0) * t.multipliers[0];
  size_t r = 0;
  for (int64_t n = 1; n < shape_.max_ngram; ++n) {
    const auto back = static_cast<size_t>(n);
    hash ^= compressed(back) * t.multipliers[back];
    for (int64_t head = 0; head < shape_.n_heads; ++head, ++r) {
      rows[r] = hash % t.primes[r] + t.offsets[r];
    }
  }
}

}  // namespace torpor::replay::deepseek_v41
