// SPDX-License-Identifier: Apache-2.0
//
// What the scale benchmark measured as table, JSON and plots.

#ifndef TORPOR_BENCH_SCALE_REPORT_H_
#define TORPOR_BENCH_SCALE_REPORT_H_

#include "bench/command.h"
#include "bench/scale.h"

namespace torpor::bench {

Result ReportOf(const ScaleOptions& options, const ScaleResult& result);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_SCALE_REPORT_H_
