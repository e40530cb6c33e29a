// SPDX-License-Identifier: Apache-2.0

#include "bench/table.h"

#include <algorithm>

namespace torpor::bench {

std::string AlignedTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string out;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      out += "  ";
      out += i == 0 ? row[i] + padding : padding + row[i];
    }
    out += '\n';
  }
  return out;
}

}  // namespace torpor::bench
