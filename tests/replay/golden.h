// SPDX-License-Identifier: Apache-2.0
//
// Values of tests/oracles/replay_hashes/golden.txt, which generate.py there
// computed without any code of replay/.

#ifndef TORPOR_TESTS_REPLAY_GOLDEN_H_
#define TORPOR_TESTS_REPLAY_GOLDEN_H_

#include <cstdint>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace torpor::replay {

inline std::string Hex(std::span<const uint8_t> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const uint8_t byte : bytes) {
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  return hex;
}

// The value of that name, or a text that no hash equals.
inline std::string Golden(const std::string& name) {
  static const auto* const values = [] {
    auto* const map = new std::map<std::string, std::string>;
    std::ifstream in(TORPOR_ORACLES_DIR "/replay_hashes/golden.txt");
    std::string key;
    std::string value;
    while (in >> key) {
      if (key == "#") {
        std::getline(in, value);
      } else if (in >> value) {
        (*map)[key] = value;
      }
    }
    return map;
  }();
  const auto it = values->find(name);
  return it != values->end() ? it->second : "no golden value of that name";
}

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_GOLDEN_H_
