// SPDX-License-Identifier: Apache-2.0
//
// Field-by-field little-endian encoding of everything the store persists
// (docs/FORMAT.md). ByteReader never reads past its input: a short or lying
// input turns `ok()` false and every later read returns zeros, so decoders
// check once at their end.

#ifndef TORPOR_STORE_CODEC_H_
#define TORPOR_STORE_CODEC_H_

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace torpor::store {

// Integers are stored as they lie in memory.
static_assert(std::endian::native == std::endian::little);

inline std::span<const uint8_t> AsBytes(std::string_view s) {
  return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}

inline std::string_view AsString(std::span<const uint8_t> b) {
  return {reinterpret_cast<const char*>(b.data()), b.size()};
}

// Unsigned big-endian, for keys: byte order is numeric order.
template <std::unsigned_integral T>
void AppendBigEndian(T value, std::string* out) {
  for (int shift = 8 * (sizeof(T) - 1); shift >= 0; shift -= 8) {
    out->push_back(static_cast<char>(value >> shift));
  }
}

// REQUIRES: bytes.size() >= sizeof(T).
template <std::unsigned_integral T>
T LoadBigEndian(std::string_view bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>((value << 8) | static_cast<uint8_t>(bytes[i]));
  }
  return value;
}

class ByteWriter {
 public:
  template <std::integral T>
  void Int(T value) {
    const auto raw = std::bit_cast<std::array<char, sizeof(T)>>(value);
    out_.append(raw.data(), raw.size());
  }

  void Raw(std::span<const uint8_t> bytes) { out_.append(AsString(bytes)); }

  // u32 length, then the bytes.
  void Bytes(std::string_view bytes) {
    Int(static_cast<uint32_t>(bytes.size()));
    out_.append(bytes);
  }

  [[nodiscard]] const std::string& str() const { return out_; }
  [[nodiscard]] std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const uint8_t> bytes) : rest_(bytes) {}

  template <std::integral T>
  T Int() {
    const std::span<const uint8_t> raw = Raw(sizeof(T));
    T value = 0;
    if (!raw.empty()) std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }

  // A view into the input; empty when the input is too short.
  std::span<const uint8_t> Raw(size_t n) {
    if (n > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const std::span<const uint8_t> out = rest_.first(n);
    rest_ = rest_.subspan(n);
    return out;
  }

  std::string Bytes() {
    const auto n = Int<uint32_t>();
    return std::string(AsString(Raw(n)));
  }

  // Number of items that follow, each at least `min_item_bytes` long; a count
  // that the rest of the input cannot hold turns ok() false and reads as 0, so
  // no decoder allocates for a lie.
  uint32_t Count(size_t min_item_bytes) {
    const auto n = Int<uint32_t>();
    if (n > rest_.size() / min_item_bytes) {
      ok_ = false;
      rest_ = {};
      return 0;
    }
    return n;
  }

  template <size_t N>
  std::array<uint8_t, N> Array() {
    std::array<uint8_t, N> out{};
    const std::span<const uint8_t> raw = Raw(N);
    for (size_t i = 0; i < raw.size(); ++i) out[i] = raw[i];
    return out;
  }

  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] size_t remaining() const { return rest_.size(); }
  // True when every read was inside the input and nothing is left over.
  [[nodiscard]] bool Done() const { return ok_ && rest_.empty(); }

 private:
  std::span<const uint8_t> rest_;
  bool ok_ = true;
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_CODEC_H_
