// SPDX-License-Identifier: Apache-2.0
//
// What the rig measured as table, JSON and plots.

#ifndef TORPOR_BENCH_RIG_REPORT_H_
#define TORPOR_BENCH_RIG_REPORT_H_

#include "bench/command.h"
#include "bench/rig.h"

namespace torpor::bench {

Result ReportOf(const RigOptions& options, const RigResult& result);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_RIG_REPORT_H_
