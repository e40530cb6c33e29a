// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda_emulation/report_log.h"

#include <utility>

#include "kernels/cuda_emulation/source_line.h"

namespace torpor::kernels::emulation {
namespace {

// Of one launch: one fault often repeats in every thread.
constexpr size_t kReportsMax = 16;

std::string Triple(const uint3& v) {
  return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " +
         std::to_string(v.z) + ")";
}

}  // namespace

std::string_view FaultName(Fault fault) {
  switch (fault) {
    case Fault::kOutOfBounds:
      return "out of bounds";
    case Fault::kUseAfterFree:
      return "use after free";
    case Fault::kReadOnly:
      return "write to read-only memory";
    case Fault::kUninitialised:
      return "uninitialised read";
    case Fault::kRace:
      return "race between threads";
    case Fault::kBlockRace:
      return "race between blocks";
    case Fault::kDivergentBarrier:
      return "divergent barrier";
    case Fault::kMissingLane:
      return "missing lane";
    case Fault::kMisaligned:
      return "misaligned access";
    case Fault::kLaunchLimit:
      return "launch limit";
  }
  return "?";
}

std::string ToString(const Report& report) {
  std::string out(FaultName(report.fault));
  out += " in " + report.kernel;
  if (report.fault != Fault::kLaunchLimit) {
    out +=
        ", block " + Triple(report.block) + " thread " + Triple(report.thread);
  }
  out += ": " + report.text;
  if (!report.where.empty()) out += " at " + report.where;
  return out;
}

ReportLog& ReportLog::Get() {
  static auto* const log = new ReportLog;
  return *log;
}

void ReportLog::BeginLaunch() {
  MutexLock lock(&mutex_);
  launch_.clear();
  n_dropped_ = 0;
}

void ReportLog::Add(Report report, const void* pc) {
  MutexLock lock(&mutex_);
  for (const Entry& entry : launch_) {
    if (pc != nullptr && entry.pc == pc && entry.report.fault == report.fault) {
      return;
    }
  }
  if (launch_.size() >= kReportsMax) {
    ++n_dropped_;
    return;
  }
  launch_.push_back({std::move(report), pc});
}

size_t ReportLog::EndLaunch() {
  MutexLock lock(&mutex_);
  for (Entry& entry : launch_) {
    if (entry.pc != nullptr) entry.report.where = SourceLine(entry.pc);
  }
  if (n_dropped_ != 0) {
    launch_.back().report.text +=
        " (and " + std::to_string(n_dropped_) + " further reports)";
  }
  const size_t n = launch_.size();
  for (Entry& entry : launch_) reports_.push_back(std::move(entry.report));
  launch_.clear();
  return n;
}

std::vector<Report> ReportLog::Take() {
  MutexLock lock(&mutex_);
  return std::exchange(reports_, {});
}

std::vector<Report> TakeReports() { return ReportLog::Get().Take(); }

}  // namespace torpor::kernels::emulation
