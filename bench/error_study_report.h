// SPDX-License-Identifier: Apache-2.0
//
// The error study's figures as tables, JSON and plots.

#ifndef TORPOR_BENCH_ERROR_STUDY_REPORT_H_
#define TORPOR_BENCH_ERROR_STUDY_REPORT_H_

#include "bench/command.h"
#include "bench/error_study.h"

namespace torpor::bench {

// In files of its own, called after the model.
Result ReportOf(const ErrorStudyResult& result);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_ERROR_STUDY_REPORT_H_
