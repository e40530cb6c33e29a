// SPDX-License-Identifier: Apache-2.0

#include "tests/testing/shim.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

namespace torpor::testing {
namespace {

uint64_t Load(const uint64_t& field) {
  return __atomic_load_n(&field, __ATOMIC_SEQ_CST);
}
void Store(uint64_t value, uint64_t* field) {
  __atomic_store_n(field, value, __ATOMIC_SEQ_CST);
}

uint32_t Mask(Watch watch) {
  constexpr uint32_t kPages = 1 << TORPOR_SHIM_DATA;
  constexpr uint32_t kMeta = 1 << TORPOR_SHIM_DATA_DSYNC;
  switch (watch) {
    case Watch::kPages:
      return kPages;
    case Watch::kMeta:
      return kMeta;
    case Watch::kAll:
      return kPages | kMeta;
  }
  return 0;
}

void Arm(Watch watch, uint64_t at, uint64_t n, torpor_shim_action action,
         int error) {
  Shim::Reset();
  torpor_shim_log* const log = torpor_shim_get_log();
  log->counted = Mask(watch);
  log->n = n;
  log->action = action;
  log->error = error;
  Store(at, &log->at);
}

}  // namespace

void Shim::Reset() {
  torpor_shim_log* const log = torpor_shim_get_log();
  Store(0, &log->at);
  log->counted = Mask(Watch::kAll);
  Store(0, &log->calls);
  Store(0, &log->data_bytes);
  Store(0, &log->n_events);
}

void Shim::FailAt(Watch watch, uint64_t at, int error, uint64_t n) {
  Arm(watch, at, n, TORPOR_SHIM_FAIL, error);
}

void Shim::ShortAt(Watch watch, uint64_t at) {
  Arm(watch, at, 1, TORPOR_SHIM_SHORT, 0);
}

void Shim::KillAt(Watch watch, uint64_t at, bool torn) {
  Arm(watch, at, 1, torn ? TORPOR_SHIM_KILL_SHORT : TORPOR_SHIM_KILL, 0);
}

uint64_t Shim::calls() { return Load(torpor_shim_get_log()->calls); }

uint64_t Shim::data_bytes() { return Load(torpor_shim_get_log()->data_bytes); }

std::vector<torpor_shim_event> Shim::Events() {
  const torpor_shim_log* const log = torpor_shim_get_log();
  const uint64_t n = Load(log->n_events);
  EXPECT_LE(n, TORPOR_SHIM_MAX_EVENTS) << "the shim's log is full";
  return {log->events,
          log->events + std::min<uint64_t>(n, TORPOR_SHIM_MAX_EVENTS)};
}

ShimMark::ShimMark(const std::string& directory)
    : fd_(open((directory + "/torpor-shim-mark").c_str(),
               O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) {
  EXPECT_GE(fd_, 0);
}

ShimMark::~ShimMark() { close(fd_); }

void ShimMark::Set(uint64_t bytes) {
  const std::string text(bytes, 'x');
  EXPECT_EQ(write(fd_, text.data(), text.size()),
            static_cast<ssize_t>(text.size()));
}

}  // namespace torpor::testing
