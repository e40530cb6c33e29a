// SPDX-License-Identifier: Apache-2.0
//
// What the resume benchmark measured as table, JSON and plots.

#ifndef TORPOR_BENCH_RESUME_REPORT_H_
#define TORPOR_BENCH_RESUME_REPORT_H_

#include "bench/command.h"
#include "bench/resume.h"

namespace torpor::bench {

Result ReportOf(const ResumeOptions& options, const ResumeResult& result);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_RESUME_REPORT_H_
