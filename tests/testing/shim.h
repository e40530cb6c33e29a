// SPDX-License-Identifier: Apache-2.0
//
// What tests ask of the shim (syscall_shim.h). Link torpor_syscall_shim before
// anything else. One per process; not thread-safe, but the writes it watches
// may come from any thread.

#ifndef TORPOR_TESTS_TESTING_SHIM_H_
#define TORPOR_TESTS_TESTING_SHIM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/syscall_shim.h"

namespace torpor::testing {

// Which calls are counted: those on data.mdb's ordinary descriptor (payload,
// index, flushes), on its O_DSYNC descriptor (meta pages), or both.
enum class Watch { kPages, kMeta, kAll };

class Shim {
 public:
  // Forgets what was recorded and lets every call pass.
  static void Reset();

  // `n` calls, from the `at`-th from now on, fail with `error`, come short, or
  // end the process. Resets first.
  static void FailAt(Watch watch, uint64_t at, int error, uint64_t n = 1);
  static void ShortAt(Watch watch, uint64_t at);
  // For the child of a crash test; `torn`: half of the call's bytes arrive.
  static void KillAt(Watch watch, uint64_t at, bool torn);

  // Since the last reset: counted calls, and bytes written to data.mdb by
  // whichever descriptor.
  static uint64_t calls();
  static uint64_t data_bytes();
  // Calls on data.mdb and marks, in the order in which they completed. Fails
  // the test when more happened than the log holds.
  static std::vector<torpor_shim_event> Events();
};

// Puts marks among the recorded calls. The mark is a write of `bytes` bytes,
// so that its place in the order is a system call's.
class ShimMark {
 public:
  // A file in `directory` that the shim knows by its name.
  explicit ShimMark(const std::string& directory);
  ~ShimMark();
  ShimMark(const ShimMark&) = delete;
  ShimMark& operator=(const ShimMark&) = delete;

  void Set(uint64_t bytes);

 private:
  const int fd_;
};

}  // namespace torpor::testing

#endif  // TORPOR_TESTS_TESTING_SHIM_H_
