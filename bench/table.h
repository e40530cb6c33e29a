// SPDX-License-Identifier: Apache-2.0
//
// Tables for terminals.

#ifndef TORPOR_BENCH_TABLE_H_
#define TORPOR_BENCH_TABLE_H_

#include <string>
#include <vector>

namespace torpor::bench {

// Columns aligned, two spaces in; the first row is the header. Columns after
// the first stand to the right.
std::string AlignedTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_TABLE_H_
