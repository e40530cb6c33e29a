// SPDX-License-Identifier: Apache-2.0
//
// Engram (DeepSeek V4.1 section 2.11): which rows of an n-gram table a token
// reads. The rows follow from the ids of the token and of the max_ngram - 1
// before it alone. Immutable.

#ifndef TORPOR_REPLAY_DEEPSEEK_V41_ENGRAM_H_
#define TORPOR_REPLAY_DEEPSEEK_V41_ENGRAM_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "replay/deepseek_v41/config.h"

namespace torpor::replay::deepseek_v41 {

// What engram.json beside config.json holds, or what the release draws.
class EngramIndex {
 public:
  // `text` is engram.json. token_map and compressed_vocab_size must be there;
  // the pad's compressed id, multipliers, primes and offsets are drawn as the
  // release draws them where they are not. kInvalidArgument names the key.
  static absl::StatusOr<EngramIndex> Parse(std::string_view text,
                                           const Config& config);

  // Rows of table `table` for the last token of `ids`, which end with it and
  // hold at least the max_ngram - 1 before it, or all there are: orders 2 to
  // max_ngram, heads inside.
  void RowsOf(size_t table, std::span<const uint32_t> ids,
              std::span<int64_t> rows) const;

  // Tokens before a token whose ids its rows follow from.
  [[nodiscard]] uint64_t lookback() const {
    return static_cast<uint64_t>(shape_.max_ngram - 1);
  }

 private:
  struct Table {
    std::vector<int64_t> multipliers;  // [max_ngram]
    std::vector<int64_t> primes;       // [orders * heads]
    std::vector<int64_t> offsets;      // [orders * heads]
  };

  absl::Status ReadTables(const nlohmann::json& file, const Config& config);
  [[nodiscard]] absl::Status CheckTables(const Config& config) const;

  EngramConfig shape_;
  int64_t compressed_vocab_ = 0;
  int64_t pad_ = 0;
  std::vector<int64_t> token_map_;
  std::vector<Table> tables_;
};

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_REPLAY_DEEPSEEK_V41_ENGRAM_H_
