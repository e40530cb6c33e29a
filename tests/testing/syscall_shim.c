// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE

#include "tests/testing/syscall_shim.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static struct torpor_shim_log* shim_log;

static void open_log(void) {
  const char* path = getenv("TORPOR_SHIM_LOG");
  int fd = -1;
  if (path != NULL) {
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || syscall(SYS_ftruncate, fd,
                          (off_t)sizeof(struct torpor_shim_log)) != 0) {
      abort();
    }
  }
  void* map = mmap(NULL, sizeof(struct torpor_shim_log), PROT_READ | PROT_WRITE,
                   fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) abort();
  if (fd >= 0) close(fd);
  shim_log = map;
}

// Before main, and before any call that another constructor makes.
__attribute__((constructor(101))) static void init(void) {
  if (shim_log == NULL) open_log();
}

struct torpor_shim_log* torpor_shim_get_log(void) {
  if (shim_log == NULL) open_log();
  return shim_log;
}

static int ends_with(const char* path, const char* name) {
  const size_t path_len = strlen(path);
  const size_t name_len = strlen(name);
  return path_len > name_len && path[path_len - name_len - 1] == '/' &&
         strcmp(path + path_len - name_len, name) == 0;
}

static uint32_t fd_class(int fd) {
  char link[64];
  char path[PATH_MAX];
  const int saved = errno;
  uint32_t result = TORPOR_SHIM_OTHER;
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, path, sizeof(path) - 1);
  if (n > 0) {
    path[n] = '\0';
    if (ends_with(path, "data.mdb")) {
      const int flags = fcntl(fd, F_GETFL);
      result = flags >= 0 && (flags & O_DSYNC) != 0 ? TORPOR_SHIM_DATA_DSYNC
                                                    : TORPOR_SHIM_DATA;
    } else if (ends_with(path, "torpor-shim-mark")) {
      result = TORPOR_SHIM_MARK;
    }
  }
  errno = saved;
  return result;
}

// The action for this call, 0 for none. Counts it.
static uint32_t next_action(uint32_t fd) {
  struct torpor_shim_log* log = torpor_shim_get_log();
  if ((log->counted >> fd & 1) == 0) return 0;
  const uint64_t number = __atomic_add_fetch(&log->calls, 1, __ATOMIC_SEQ_CST);
  const uint64_t at = __atomic_load_n(&log->at, __ATOMIC_SEQ_CST);
  if (at == 0 || number < at || number - at >= log->n) return 0;
  if (log->action == TORPOR_SHIM_KILL) raise(SIGKILL);
  return log->action;
}

static void record(uint32_t call, uint32_t fd, uint64_t bytes, int64_t result) {
  struct torpor_shim_log* log = torpor_shim_get_log();
  if (fd == TORPOR_SHIM_OTHER) return;
  if (call == TORPOR_SHIM_WRITE && fd != TORPOR_SHIM_MARK && result > 0) {
    __atomic_add_fetch(&log->data_bytes, (uint64_t)result, __ATOMIC_SEQ_CST);
  }
  const uint64_t i = __atomic_fetch_add(&log->n_events, 1, __ATOMIC_SEQ_CST);
  if (i >= TORPOR_SHIM_MAX_EVENTS) return;
  const struct torpor_shim_event event = {call, fd, bytes, result};
  log->events[i] = event;
}

// Half of an iovec list; returns how many entries it takes.
static int halve(struct iovec* iov, int n, uint64_t bytes) {
  uint64_t left = bytes / 2;
  for (int i = 0; i < n; ++i) {
    if (iov[i].iov_len >= left) {
      iov[i].iov_len = left;
      return i + 1;
    }
    left -= iov[i].iov_len;
  }
  return n;
}

// All four writes; offset -1 = at the file position.
static ssize_t shim_write(int fd, const struct iovec* iov, int n,
                          off_t offset) {
  const uint32_t class = fd_class(fd);
  const uint32_t action = next_action(class);
  struct iovec copy[IOV_MAX];
  uint64_t bytes = 0;
  if (n > IOV_MAX) {
    errno = EINVAL;
    return -1;
  }
  for (int i = 0; i < n; ++i) {
    copy[i] = iov[i];
    bytes += iov[i].iov_len;
  }
  ssize_t result = -1;
  if (action == TORPOR_SHIM_FAIL) {
    errno = torpor_shim_get_log()->error;
  } else {
    if (action != 0) n = halve(copy, n, bytes);
    result = offset < 0 ? syscall(SYS_writev, fd, copy, n)
                        : syscall(SYS_pwritev, fd, copy, n, (long)offset, 0L);
    if (action == TORPOR_SHIM_KILL_SHORT) raise(SIGKILL);
  }
  const int saved = errno;
  record(TORPOR_SHIM_WRITE, class, bytes, result);
  errno = saved;
  return result;
}

ssize_t write(int fd, const void* data, size_t bytes) {
  const struct iovec iov = {(void*)data, bytes};
  return shim_write(fd, &iov, 1, -1);
}

ssize_t writev(int fd, const struct iovec* iov, int n) {
  return shim_write(fd, iov, n, -1);
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  const struct iovec iov = {(void*)data, bytes};
  return shim_write(fd, &iov, 1, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off_t offset) {
  return pwrite(fd, data, bytes, offset);
}

ssize_t pwritev(int fd, const struct iovec* iov, int n, off_t offset) {
  return shim_write(fd, iov, n, offset);
}
ssize_t pwritev64(int fd, const struct iovec* iov, int n, off_t offset) {
  return shim_write(fd, iov, n, offset);
}

static int shim_other(uint32_t call, uint32_t class, long number, long a,
                      long b, long c) {
  const uint32_t action = next_action(class);
  int result = -1;
  if (action == TORPOR_SHIM_KILL_SHORT) raise(SIGKILL);
  if (action != 0) {
    errno = action == TORPOR_SHIM_FAIL ? torpor_shim_get_log()->error : EIO;
  } else {
    result = (int)syscall(number, a, b, c);
  }
  const int saved = errno;
  record(call, class, 0, result);
  errno = saved;
  return result;
}

int fdatasync(int fd) {
  return shim_other(TORPOR_SHIM_SYNC, fd_class(fd), SYS_fdatasync, fd, 0, 0);
}

int fsync(int fd) {
  return shim_other(TORPOR_SHIM_SYNC, fd_class(fd), SYS_fsync, fd, 0, 0);
}

// Nothing but the environment is mapped and flushed in these programs.
int msync(void* address, size_t bytes, int flags) {
  return shim_other(TORPOR_SHIM_SYNC, TORPOR_SHIM_DATA, SYS_msync,
                    (long)address, (long)bytes, flags);
}

int ftruncate(int fd, off_t bytes) {
  return shim_other(TORPOR_SHIM_TRUNCATE, fd_class(fd), SYS_ftruncate, fd,
                    bytes, 0);
}
int ftruncate64(int fd, off_t bytes) { return ftruncate(fd, bytes); }
