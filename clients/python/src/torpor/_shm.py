# SPDX-License-Identifier: Apache-2.0
"""Shared memory with the daemon: how a segment is taken, and its ring.

The contract is the comment of DataPlaneChoice in session_service.proto. The
daemon writes a lease's segment and this process reads it; a ticket's the other
way round. One stream at a time uses a segment.

Memory stays mapped for as long as any array looks at it: closing a segment ends
the daemon's interest in it, never a view.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import select
import socket
import sys
import threading

import numpy as np
import numpy.typing as npt

from torpor import errors
from torpor.v1 import session_service_pb2 as pb

Bytes = npt.NDArray[np.uint8]

_CONTROL_BYTES = 4096
_ANSWER_S = 5.0
_CODES = {5: "NOT_FOUND", 7: "PERMISSION_DENIED"}
# uapi/linux/fcntl.h: F_LINUX_SPECIFIC_BASE + 10; F_SEAL_SHRINK.
_F_GET_SEALS = 1034
_F_SEAL_SHRINK = 2
# asm/unistd_64.h
_SYS_FUTEX = 202
_FUTEX_WAKE = 1


def unsupported() -> str:
    """Why this machine shares no memory; empty when it can."""
    if sys.platform != "linux":
        return f"shared memory: got {sys.platform}, wanted Linux"
    if platform.machine() != "x86_64":
        # Plain stores of Python are released in order there alone.
        return f"shared memory: got {platform.machine()}, wanted x86_64"
    return ""


def unix_path(address: str) -> str:
    """The path of "unix:///path" or "unix:/path"; empty for other addresses."""
    for prefix in ("unix://", "unix:"):
        if address.startswith(prefix):
            return address[len(prefix) :]
    return ""


class Segment:
    """A segment of the daemon, held until `close`."""

    def __init__(
        self, listen_path: str, choice: pb.DataPlaneChoice, *, writable: bool
    ) -> None:
        """Takes it over `<listen_path>.fd`.

        Unavailable when nobody answers there, NotFound for a nonce that it does
        not know (any more), PermissionDenied when we are another user.
        """
        self.id = choice.segment
        self.size = choice.segment_bytes
        self._busy = threading.Lock()
        self._connection, fds = _take(listen_path + ".fd", choice.nonce)
        try:
            protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            self._data = _map(fds[0], self.size, protection)
            self._control = _map(
                fds[1], _CONTROL_BYTES, mmap.PROT_READ | mmap.PROT_WRITE
            )
        except BaseException:
            self._connection.close()
            raise
        finally:
            for fd in fds:
                os.close(fd)
        self.consumed = np.frombuffer(self._control, np.uint64, 1, 0)
        self._wake = np.frombuffer(self._control, np.uint32, 1, 8)
        self.waiting = np.frombuffer(self._control, np.uint32, 1, 64)
        self._wake_address = ctypes.c_void_p(self._wake.ctypes.data)

    def view(self, offset: int, n_bytes: int) -> Bytes:
        """An array of its own, so that whoever looks at a part of it holds it."""
        return np.frombuffer(self._data, np.uint8, n_bytes, offset)

    def begin_use(self) -> bool:
        """Whether the segment is this stream's now."""
        return self._busy.acquire(blocking=False)

    def end_use(self) -> None:
        self._busy.release()

    def release(self, position: int) -> None:
        """Tells the producer that everything before `position` is read."""
        self.consumed[0] = position
        self._wake[0] += np.uint32(1)
        # Woken whether or not it waits: the system call orders what stands
        # before it, and a flag that is read too early would miss a sleeper.
        _libc().syscall(
            _SYS_FUTEX, self._wake_address, _FUTEX_WAKE, 0x7FFFFFFF, None, None, 0
        )

    @property
    def lost(self) -> bool:
        """Whether the daemon has let it go."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN | select.POLLRDHUP)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Frees it on the daemon's side. Idempotent."""
        self._connection.close()


class Consumer:
    """This process reads."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._end = 0

    def view(self, position: int, n_bytes: int) -> Bytes:
        """A piece in place. DataLoss when it is outside the segment or behind
        an earlier one."""
        size = self._segment.size
        offset = position % size
        if (
            position < self._end
            or position - self._end >= size
            or offset + n_bytes > size
        ):
            raise errors.DataLoss(
                f"shared memory: got a piece of {n_bytes} bytes at position "
                f"{position}, wanted it behind {self._end} and within the {size} "
                "bytes of the segment"
            )
        self._end = position + n_bytes
        return self._segment.view(offset, n_bytes)

    def release(self) -> None:
        """Every piece so far may be overwritten."""
        self._segment.release(self._end)


class Producer:
    """This process writes."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._head = 0
        segment.consumed[0] = 0
        segment.waiting[0] = 0

    def place(self, n_bytes: int) -> int | None:
        """Position for a piece; None while there is no room."""
        size = self._segment.size
        if n_bytes > size:
            raise errors.InvalidArgument(
                f"shared memory: got a piece of {n_bytes} bytes for a segment of {size}"
            )
        consumed = int(self._segment.consumed[0])
        if consumed > self._head:
            raise errors.DataLoss(
                f"shared memory: the daemon is done with {consumed} bytes "
                f"of {self._head}"
            )
        at = self._head
        if at % size + n_bytes > size:
            at += size - at % size
        if consumed != self._head and at + n_bytes - consumed > size:
            return None
        return at

    def put(self, position: int, rows: Bytes) -> None:
        """`rows` at what `place` returned for them."""
        self._segment.view(position % self._segment.size, rows.size)[:] = rows
        self._head = position + rows.size


def _take(path: str, nonce: bytes) -> tuple[socket.socket, list[int]]:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    fds: list[int] = []
    try:
        connection.settimeout(_ANSWER_S)
        connection.connect(path)
        connection.sendall(nonce)
        answer, fds, _, _ = socket.recv_fds(connection, 1, 4)
        if not answer:
            raise errors.Unavailable(f"descriptor socket {path}: closed by the daemon")
        if answer[0] != 0:
            code = _CODES.get(answer[0], "UNKNOWN")
            raise errors.of_code(
                code, f"descriptor socket {path}: the segment was refused"
            )
        if len(fds) != 2:
            raise errors.DataLoss(
                f"descriptor socket {path}: got {len(fds)} descriptors, wanted 2"
            )
        return connection, fds
    except (OSError, errors.TorporError) as error:
        connection.close()
        for fd in fds:
            os.close(fd)
        if isinstance(error, errors.TorporError):
            raise
        raise errors.Unavailable(f"descriptor socket {path}: {error}") from None


def _map(fd: int, size: int, protection: int) -> mmap.mmap:
    try:
        sealed = fcntl.fcntl(fd, _F_GET_SEALS) & _F_SEAL_SHRINK
    except OSError:
        sealed = 0
    if not sealed or os.fstat(fd).st_size != size:
        raise errors.DataLoss(
            "shared memory: got a descriptor that is no sealed memory "
            f"of {size} bytes"
        )
    return mmap.mmap(fd, size, mmap.MAP_SHARED, protection)


def _libc() -> ctypes.CDLL:
    global _LIBC
    if _LIBC is None:
        _LIBC = ctypes.CDLL(None, use_errno=True)
    return _LIBC


_LIBC: ctypes.CDLL | None = None
