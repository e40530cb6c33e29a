// SPDX-License-Identifier: Apache-2.0

#include "replay/row_values.h"

#include <array>
#include <cmath>
#include <cstring>

#include "kernels/bf16.h"
#include "kernels/row_codec.h"

namespace torpor::replay {
namespace {

struct Record {
  std::string_view format;
  kernels::RowFormat codec;
  // Channels of a row whose bytes are `per_bytes`: the least whole piece.
  uint64_t channels;
  uint64_t per_bytes;
};

// As replay/layouts/deepseek_records.cc names them.
constexpr std::array<Record, 3> kRecords = {{
    {"e4m3+ue8m0x32", kernels::RowFormat::kWindowFp8, 32, 33},
    {"e2m1+e4m3x16", kernels::RowFormat::kMainFp4, 16, 9},
    {"e2m1+ue8m0x32", kernels::RowFormat::kIndexFp4, 32, 17},
}};

float FromHalf(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  float value = 0;
  if (exponent == 0x1f) {
    value = mantissa == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    value = std::ldexp(static_cast<float>(mantissa + 0x400), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

template <typename FromWord>
std::vector<float> Words(std::span<const uint8_t> bytes,
                         const FromWord& from_word) {
  std::vector<float> out;
  out.reserve(bytes.size() / 2);
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    out.push_back(
        from_word(static_cast<uint16_t>(bytes[i] | bytes[i + 1] << 8)));
  }
  return out;
}

}  // namespace

std::optional<std::vector<float>> RowValues(std::string_view format,
                                            uint64_t row_bytes,
                                            std::span<const uint8_t> rows) {
  if (row_bytes == 0 ? !rows.empty() : rows.size() % row_bytes != 0) {
    return std::nullopt;
  }
  const uint64_t word = format == "bf16" || format == "f16" ? 2
                        : format == "f32"                   ? 4
                                                            : 1;
  if (!rows.empty() && row_bytes % word != 0) return std::nullopt;
  if (format == "bf16") {
    return Words(rows, [](uint16_t w) { return kernels::ToFloat({w}); });
  }
  if (format == "f16") return Words(rows, FromHalf);
  if (format == "f32") {
    std::vector<float> out(rows.size() / sizeof(float));
    std::memcpy(out.data(), rows.data(), out.size() * sizeof(float));
    return out;
  }
  for (const Record& record : kRecords) {
    if (record.format != format) continue;
    if (rows.empty()) return std::vector<float>();
    if (row_bytes % record.per_bytes != 0) return std::nullopt;
    const uint64_t dim = row_bytes / record.per_bytes * record.channels;
    const uint64_t n = rows.size() / row_bytes;
    std::vector<float> out(n * dim);
    kernels::DecodeRowsRef({.format = record.codec,
                            .in = rows.data(),
                            .n_rows = static_cast<int64_t>(n),
                            .dim = static_cast<int64_t>(dim),
                            .in_stride = static_cast<int64_t>(row_bytes),
                            .out = out.data(),
                            .out_stride = static_cast<int64_t>(dim)});
    return out;
  }
  return std::nullopt;
}

}  // namespace torpor::replay
