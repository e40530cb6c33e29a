// SPDX-License-Identifier: Apache-2.0
//
// Reports of all launches. Thread-safe.

#ifndef TORPOR_KERNELS_CUDA_EMULATION_REPORT_LOG_H_
#define TORPOR_KERNELS_CUDA_EMULATION_REPORT_LOG_H_

#include <cstddef>

#include "base/mutex.h"
#include "kernels/cuda_emulation/emulation.h"

namespace torpor::kernels::emulation {

class ReportLog {
 public:
  static ReportLog& Get();

  // Forgets which places have reported.
  void BeginLaunch();
  // `pc` is the access's return address, null when there is none.
  void Add(Report report, const void* pc);
  // Finds the lines of this launch's reports. Returns how many there are.
  size_t EndLaunch();

  std::vector<Report> Take();

 private:
  struct Entry {
    Report report;
    const void* pc = nullptr;
  };

  Mutex mutex_;
  std::vector<Entry> launch_ ABSL_GUARDED_BY(mutex_);
  std::vector<Report> reports_ ABSL_GUARDED_BY(mutex_);
  size_t n_dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace torpor::kernels::emulation

#endif  // TORPOR_KERNELS_CUDA_EMULATION_REPORT_LOG_H_
