// SPDX-License-Identifier: Apache-2.0
//
// What makes KV bytes mean the same: two sides exchange rows only when every
// field agrees (design, "fingerprint"). Plain values, pure functions.

#ifndef TORPOR_REPLAY_FINGERPRINT_H_
#define TORPOR_REPLAY_FINGERPRINT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "replay/model_layout.h"

namespace torpor::replay {

inline constexpr uint32_t kRowFormatVersion = 1;

struct Fingerprint {
  // Digest of the weights, hex.
  std::string weights;
  std::string adapter;
  // Digest of the layout, hex.
  std::string layout;
  std::string kv_dtype;
  std::string rope;
  std::string quantiser;
  uint32_t format_version = kRowFormatVersion;

  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

// Hex of the unkeyed BLAKE2b-256 over every field of a layout.
std::string LayoutDigest(const ModelLayout& layout);

// BLAKE2b-256 over all fields: the 32 bytes that the store keeps.
std::array<uint8_t, 32> FingerprintHash(const Fingerprint& fingerprint);

// "field: got X, wanted Y" of the first field that differs; nullopt when equal.
std::optional<std::string> FirstDifference(const Fingerprint& got,
                                           const Fingerprint& wanted);

// Incremental BLAKE2b-256 of a model's weights, as hex.
class WeightsDigest {
 public:
  WeightsDigest();
  ~WeightsDigest();
  WeightsDigest(const WeightsDigest&) = delete;
  WeightsDigest& operator=(const WeightsDigest&) = delete;

  void Update(std::string_view bytes);
  std::string Finish();

 private:
  struct State;
  State* const state_;
};

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_FINGERPRINT_H_
