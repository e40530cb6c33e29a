// SPDX-License-Identifier: Apache-2.0
//
// A small made-up model and sessions of it, as wire messages: every row's bytes
// follow from (salt, slot, row), so that a test knows what must come back.

#ifndef TORPOR_TESTS_SERVICE_TOY_SESSION_H_
#define TORPOR_TESTS_SERVICE_TOY_SESSION_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "torpor/v1/model_service.pb.h"
#include "torpor/v1/session_service.pb.h"

namespace torpor::service {

inline constexpr uint32_t kToyVocab = 1000;
inline constexpr uint32_t kToyBlock = 16;
inline constexpr uint32_t kToyWindow = 8;
// Slots: full rows cut by heads, full replicated rows, a sliding window.
inline constexpr uint32_t kHeads = 0;
inline constexpr uint32_t kPlain = 1;
inline constexpr uint32_t kWindow = 2;
inline constexpr uint32_t kToyRowBytes[] = {24, 40, 16};
inline constexpr uint32_t kToyHeads = 2;

// Three layers, one slot each; only an engine replays it. `weights` tells
// models apart.
v1::RegisterRequest ToyModel(const std::string& name,
                             const std::string& weights);

// Bytes of rows [begin, end) of a slot.
std::string ToyRows(uint32_t salt, uint32_t slot, uint64_t begin, uint64_t end);
// Part `shard` of `n_shards` of each of those rows.
std::string ToyShard(uint32_t salt, uint32_t slot, uint64_t begin, uint64_t end,
                     uint32_t shard, uint32_t n_shards);

// n ids that follow from the salt; a longer run begins with the shorter one.
std::vector<uint32_t> ToyIds(uint32_t salt, size_t n);

// A piece that describes `bytes`, checksum included.
v1::RowPiece PieceOf(uint32_t slot, uint64_t row_begin, uint32_t n_rows,
                     const std::string& bytes);

struct ToySuspend {
  std::string session = "s";
  std::string model = "toy";
  uint64_t expected_version = 0;
  std::string operation_id = "op";
  uint64_t tokens_kept = 0;
  // Every token of the session afterwards.
  std::vector<uint32_t> ids;
  // Default: all.
  std::optional<uint64_t> kv_len;
  // First compact row that is sent.
  uint64_t rows_from = 0;
  bool snapshot = false;
  uint32_t salt = 1;
  std::string client_state;
  v1::Witness witness;
  uint64_t blocks_per_message = 1;

  [[nodiscard]] uint64_t rows_to() const { return kv_len.value_or(ids.size()); }
  [[nodiscard]] v1::BeginSuspendHeader Header() const;
  [[nodiscard]] v1::CommitRequest Commit() const;
};

// Header, tokens, rows in messages of whole blocks, commit.
std::vector<v1::SuspendRequest> Messages(const ToySuspend& suspend);
// The rows of `Messages` alone.
std::vector<v1::PutRowsRequest> RowMessages(const ToySuspend& suspend);

// What a resume sent, checked as it came: checksums, order of parts, rows in
// position order without gaps.
class Woken {
 public:
  absl::Status Add(const v1::ResumeChunk& chunk);
  absl::Status AddRows(const google::protobuf::RepeatedPtrField<v1::RowPiece>&,
                       const std::string& data, bool window);

  struct Run {
    uint64_t begin = 0;
    uint64_t end = 0;
    std::string bytes;
  };
  v1::BeginResumeResponse begin;
  std::vector<uint32_t> ids;
  std::map<uint32_t, Run> compact;
  std::map<uint32_t, Run> window;
  std::optional<v1::WindowHeader> header;
  std::optional<v1::ResumeReceipt> receipt;
  int n_messages = 0;
};

}  // namespace torpor::service

#endif  // TORPOR_TESTS_SERVICE_TOY_SESSION_H_
