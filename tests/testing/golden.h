// SPDX-License-Identifier: Apache-2.0
//
// Golden values of tests/oracles: "name hex" lines, "#" begins a comment.

#ifndef TORPOR_TESTS_TESTING_GOLDEN_H_
#define TORPOR_TESTS_TESTING_GOLDEN_H_

#include <cstdint>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace torpor::testing {

inline std::string Hex(std::span<const uint8_t> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const uint8_t byte : bytes) {
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  return hex;
}

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path) {
    std::ifstream in(path);
    std::string key;
    std::string value;
    while (in >> key) {
      if (key == "#") {
        std::getline(in, value);
      } else if (in >> value) {
        values_[key] = value;
      }
    }
  }

  // The value of that name, or a text that no golden value equals.
  [[nodiscard]] std::string Get(const std::string& name) const {
    const auto it = values_.find(name);
    return it != values_.end() ? it->second : "no golden value of that name";
  }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace torpor::testing

#endif  // TORPOR_TESTS_TESTING_GOLDEN_H_
