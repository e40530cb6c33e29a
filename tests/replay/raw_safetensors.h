// SPDX-License-Identifier: Apache-2.0
//
// safetensors files spelled out byte by byte, sound or lying, for tests of the
// reader. Shares no code with it.

#ifndef TORPOR_TESTS_REPLAY_RAW_SAFETENSORS_H_
#define TORPOR_TESTS_REPLAY_RAW_SAFETENSORS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "replay/safetensors.h"

namespace torpor::replay {

// The length as eight little-endian bytes.
inline std::string LengthPrefix(uint64_t length) {
  std::string prefix;
  for (int i = 0; i < 8; ++i) {
    prefix.push_back(static_cast<char>(length >> (8 * i)));
  }
  return prefix;
}

inline std::string RawFile(std::string_view header, std::string_view data) {
  return LengthPrefix(header.size()) + std::string(header) + std::string(data);
}

inline void WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  out.flush();
  ASSERT_TRUE(out.good()) << path;
}

inline std::string ReadBack(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline std::string Text(std::span<const uint8_t> bytes) {
  return {bytes.begin(), bytes.end()};
}

// n bytes, no two neighbours alike.
inline std::string SomeBytes(size_t n, uint8_t first = 1) {
  std::string bytes;
  for (size_t i = 0; i < n; ++i) {
    bytes.push_back(static_cast<char>(first + i * 37));
  }
  return bytes;
}

// What every file that was opened must satisfy, whatever its header said: the
// tensors take the file's data bytes, each of them once, and have as many as
// their dtype and shape say. Reads every byte.
inline void ExpectSound(const SafetensorsFile& file) {
  static const std::map<std::string, uint64_t> kBits = {
      {"F64", 64},        {"I64", 64},       {"U64", 64},    {"F32", 32},
      {"I32", 32},        {"U32", 32},       {"F16", 16},    {"BF16", 16},
      {"I16", 16},        {"U16", 16},       {"F8_E4M3", 8}, {"F8_E5M2", 8},
      {"F8_E8M0", 8},     {"I8", 8},         {"U8", 8},      {"BOOL", 8},
      {"F4", 4},          {"F6_E2M3", 6},    {"F6_E3M2", 6}, {"C64", 64},
      {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}};
  const std::span<const uint8_t> all = file.bytes();
  ASSERT_GE(all.size(), 8);
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  uint64_t sum = 0;
  for (const auto& [name, view] : file.tensors()) {
    const auto bits = kBits.find(view.dtype);
    ASSERT_NE(bits, kBits.end()) << view.dtype;
    uint64_t n = 1;
    for (const int64_t dimension : view.shape) {
      ASSERT_GE(dimension, 0) << name;
      n *= static_cast<uint64_t>(dimension);
    }
    EXPECT_EQ(view.bytes.size() * 8, n * bits->second) << name;
    ASSERT_GE(view.bytes.data(), all.data() + 8) << name;
    ASSERT_LE(view.bytes.data() + view.bytes.size(), all.data() + all.size())
        << name;
    for (const uint8_t byte : view.bytes) sum += byte;
    const auto begin = static_cast<uint64_t>(view.bytes.data() - all.data());
    if (!view.bytes.empty()) {
      ranges.emplace_back(begin, begin + view.bytes.size());
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    EXPECT_EQ(ranges[i].first, ranges[i - 1].second);
  }
  if (!ranges.empty()) {
    EXPECT_EQ(ranges.back().second, all.size());
  }
  // Keeps the reads.
  EXPECT_LE(sum, all.size() * 255);
}

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_RAW_SAFETENSORS_H_
