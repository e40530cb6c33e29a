// SPDX-License-Identifier: Apache-2.0

#include "replay/fingerprint.h"

#include <sodium.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::replay {
namespace {

// Fields as length-prefixed text, so that no two lists read the same.
void Append(std::string_view field, std::string* out) {
  absl::StrAppendFormat(out, "%d:", field.size());
  out->append(field);
}
void Append(uint64_t field, std::string* out) {
  Append(std::to_string(field), out);
}

std::array<uint8_t, 32> Blake2b(std::string_view bytes) {
  std::array<uint8_t, 32> out;
  crypto_generichash(out.data(), out.size(),
                     reinterpret_cast<const uint8_t*>(bytes.data()),
                     bytes.size(), nullptr, 0);
  return out;
}

std::string Hex(const std::array<uint8_t, 32>& hash) {
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(hash.data()), hash.size()));
}

}  // namespace

std::string LayoutDigest(const ModelLayout& layout) {
  std::string text;
  Append(layout.family, &text);
  Append(layout.n_layers, &text);
  Append(layout.vocab_size, &text);
  Append(layout.slots.size(), &text);
  for (const Slot& slot : layout.slots) {
    Append(slot.name, &text);
    Append(static_cast<uint64_t>(slot.kind), &text);
    Append(slot.owner_layer, &text);
    Append(slot.reader_layers.size(), &text);
    for (const uint32_t reader : slot.reader_layers) Append(reader, &text);
    Append(slot.window, &text);
    Append(slot.chunk, &text);
    Append(slot.tokens_per_row, &text);
    Append(slot.overlap_tokens, &text);
    Append(slot.row_bytes, &text);
    Append(slot.format, &text);
    Append(static_cast<uint64_t>(slot.shard_axis), &text);
    Append(slot.n_heads, &text);
    Append(static_cast<uint64_t>(slot.come_back), &text);
  }
  return Hex(Blake2b(text));
}

std::array<uint8_t, 32> FingerprintHash(const Fingerprint& f) {
  std::string text;
  for (const std::string* field : {&f.weights, &f.adapter, &f.layout,
                                   &f.kv_dtype, &f.rope, &f.quantiser}) {
    Append(*field, &text);
  }
  Append(f.format_version, &text);
  return Blake2b(text);
}

std::optional<std::string> FirstDifference(const Fingerprint& got,
                                           const Fingerprint& wanted) {
  const auto differs = [](const char* name, const std::string& a,
                          const std::string& b) -> std::optional<std::string> {
    if (a == b) return std::nullopt;
    return absl::StrFormat("fingerprint field '%s': got '%s', wanted '%s'",
                           name, a, b);
  };
  for (const auto& difference :
       {differs("weights", got.weights, wanted.weights),
        differs("adapter", got.adapter, wanted.adapter),
        differs("layout", got.layout, wanted.layout),
        differs("kv_dtype", got.kv_dtype, wanted.kv_dtype),
        differs("rope", got.rope, wanted.rope),
        differs("quantiser", got.quantiser, wanted.quantiser),
        differs("format_version", std::to_string(got.format_version),
                std::to_string(wanted.format_version))}) {
    if (difference.has_value()) return difference;
  }
  return std::nullopt;
}

struct WeightsDigest::State {
  crypto_generichash_state blake;
};

WeightsDigest::WeightsDigest() : state_(new State) {
  crypto_generichash_init(&state_->blake, nullptr, 0, 32);
}
WeightsDigest::~WeightsDigest() { delete state_; }

void WeightsDigest::Update(std::string_view bytes) {
  crypto_generichash_update(&state_->blake,
                            reinterpret_cast<const uint8_t*>(bytes.data()),
                            bytes.size());
}

std::string WeightsDigest::Finish() {
  std::array<uint8_t, 32> out;
  crypto_generichash_final(&state_->blake, out.data(), out.size());
  return Hex(out);
}

}  // namespace torpor::replay
