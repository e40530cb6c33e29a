// SPDX-License-Identifier: Apache-2.0
//
// A shared library that stands before libc and sees what a process writes to
// an LMDB environment: order, descriptors, bytes; and that makes the n-th such
// call fail, or the process die at it. Tests link it (it then precedes libc in
// the search order); any other program gets it by LD_PRELOAD.
//
// One log per process, in memory; in the file that TORPOR_SHIM_LOG names when
// that is set, so that another process can read it. All fields are read and
// written by __atomic builtins or by one thread at a time.

#ifndef TORPOR_TESTS_TESTING_SYSCALL_SHIM_H_
#define TORPOR_TESTS_TESTING_SYSCALL_SHIM_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum torpor_shim_call {
  TORPOR_SHIM_WRITE = 1,  // write, writev, pwrite, pwritev
  TORPOR_SHIM_SYNC = 2,   // fdatasync, fsync, msync
  TORPOR_SHIM_TRUNCATE = 3,
};

enum torpor_shim_fd {
  TORPOR_SHIM_OTHER = 0,
  // data.mdb through an ordinary descriptor, or its map.
  TORPOR_SHIM_DATA = 1,
  // data.mdb through a descriptor opened with O_DSYNC.
  TORPOR_SHIM_DATA_DSYNC = 2,
  // A file named torpor-shim-mark: the program's own marks in the order.
  TORPOR_SHIM_MARK = 3,
};

// What happens at call number `at`.
enum torpor_shim_action {
  TORPOR_SHIM_FAIL = 1,        // does nothing, returns -1 with `error`
  TORPOR_SHIM_SHORT = 2,       // writes half (0 bytes of a sync), says so
  TORPOR_SHIM_KILL = 3,        // the process dies before the call
  TORPOR_SHIM_KILL_SHORT = 4,  // ... after half of the bytes are written
};

struct torpor_shim_event {
  uint32_t call;
  uint32_t fd;
  uint64_t bytes;
  int64_t result;
};

enum { TORPOR_SHIM_MAX_EVENTS = 1 << 18 };

struct torpor_shim_log {
  // Bytes that reached data.mdb by writes since the last reset.
  uint64_t data_bytes;
  // The descriptors whose calls are counted: bits 1 << torpor_shim_fd.
  uint32_t counted;
  // Calls on them since the last reset, failed ones included.
  uint64_t calls;
  // Calls from number `at` on (1 = the first), `n` of them, are subject to
  // `action`. 0 = none.
  uint64_t at;
  uint64_t n;
  uint32_t action;
  int32_t error;
  // Completed calls on data.mdb and marks, in order; may exceed the maximum,
  // whose surplus is not kept.
  uint64_t n_events;
  struct torpor_shim_event events[TORPOR_SHIM_MAX_EVENTS];
};

struct torpor_shim_log* torpor_shim_get_log(void);

#ifdef __cplusplus
}
#endif

#endif  // TORPOR_TESTS_TESTING_SYSCALL_SHIM_H_
