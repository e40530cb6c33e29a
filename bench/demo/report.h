// SPDX-License-Identifier: Apache-2.0
//
// A demo's result as text for a terminal, as JSON and as an SVG chart.

#ifndef TORPOR_BENCH_DEMO_REPORT_H_
#define TORPOR_BENCH_DEMO_REPORT_H_

#include <string>

#include "bench/demo/experiment.h"
#include "bench/machine.h"

namespace torpor::bench {

// Tables and bar charts.
std::string TextReport(const DemoResult& result);
std::string JsonReport(const DemoResult& result, const Machine& machine);
std::string SvgReport(const DemoResult& result, const Machine& machine);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_DEMO_REPORT_H_
