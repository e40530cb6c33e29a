// SPDX-License-Identifier: Apache-2.0
//
// Sessions of a layout without weights: every row's bytes and every token
// follow from (seed, session, slot, row), so that whatever comes back can be
// verified and nothing has to be kept. Const methods are thread-safe.

#ifndef TORPOR_BENCH_SYNTHETIC_H_
#define TORPOR_BENCH_SYNTHETIC_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "replay/model_layout.h"
#include "service/client.h"

namespace torpor::bench {

// DeepSeek-V4.1-Flash's compact KV, 890 B/token, with its windows: main rows of
// 288 B and index keys of 68 B, three sources pooled by 2 and one not.
replay::ModelLayout PooledLayout();
// One layer that persists 64 B a token beside one with a window: sessions whose
// number counts, not their size.
replay::ModelLayout TinyLayout();
// Of a config.json, or of a directory that holds one; PooledLayout when empty.
absl::StatusOr<replay::ModelLayout> LayoutOf(const std::string& config,
                                             const std::string& kv_dtype);

// Rows [begin, end) of a slot, and whether `bytes` are those: kDataLoss names
// the row.
void FillRows(uint64_t key, uint32_t row_bytes, uint64_t begin,
              std::span<uint8_t> out);
absl::Status CheckRows(uint64_t key, uint32_t row_bytes, uint64_t begin,
                       std::span<const uint8_t> bytes);

struct SyntheticOptions {
  replay::ModelLayout layout;
  uint64_t seed = 1;
  // 0 = chosen from the row sizes.
  uint32_t block_size = 0;
  // Of every session, from its last suspend; 0 = none.
  int64_t ttl_seconds = 0;
  // For tests: this session is sent with one wrong byte, which must be found
  // when it comes back.
  std::optional<uint64_t> wrong_session;
};

struct SyntheticWake {
  v1::ResumeReceipt receipt;
  // Of the call; verifying comes after it.
  double ms = 0;
};

class Synthetic {
 public:
  // Registers the layout as an engine's: the daemon stores, nobody replays.
  static absl::StatusOr<Synthetic> Register(service::Client* client,
                                            const SyntheticOptions& options);

  [[nodiscard]] uint32_t block_size() const { return block_size_; }
  // Of rows [0, n_tokens) of all slots that persist.
  [[nodiscard]] uint64_t CompactBytes(uint64_t n_tokens) const;
  [[nodiscard]] static std::string Id(uint64_t session);
  [[nodiscard]] std::vector<uint32_t> Tokens(uint64_t session, uint64_t begin,
                                             uint64_t end) const;

  // Tokens [kept, n) of a session, its version being `version` (0 = new).
  absl::StatusOr<v1::SuspendReceipt> Suspend(service::Client* client,
                                             uint64_t session, uint64_t version,
                                             uint64_t kept, uint64_t n) const;

  // Wakes it as an engine that replays does: begin, tokens, compact rows
  // copied into `buffer` (resized), release. Then verifies: kDataLoss unless
  // all n tokens and every row of them came, once, in order and right.
  absl::StatusOr<SyntheticWake> Resume(service::Client* client,
                                       uint64_t session, uint64_t n,
                                       std::vector<uint8_t>* buffer) const;

  absl::StatusOr<uint64_t> LookupPrefix(service::Client* client,
                                        std::span<const uint32_t> ids) const;

 private:
  explicit Synthetic(const SyntheticOptions& options) : options_(options) {}
  [[nodiscard]] uint64_t KeyOf(uint64_t session, uint32_t slot) const;
  // Where a slot's rows begin when all slots of n tokens lie in one buffer;
  // the last element is its size.
  [[nodiscard]] std::vector<uint64_t> Offsets(uint64_t n) const;
  [[nodiscard]] absl::Status Verify(uint64_t session, uint64_t n,
                                    std::span<const uint8_t> buffer) const;

  SyntheticOptions options_;
  std::string name_;
  v1::Fingerprint fingerprint_;
  uint32_t block_size_ = 0;
};

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_SYNTHETIC_H_
