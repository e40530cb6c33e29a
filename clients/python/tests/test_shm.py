# SPDX-License-Identifier: Apache-2.0
"""The ring, and segments of a daemon that lies."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import numpy as np
import pytest

import torpor
from fake_daemon import FakeDaemon, serving
from torpor import _shm
from torpor.v1 import session_service_pb2 as pb

SIZE = 1 << 16
NONCE = bytes(range(16))
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def memory(size: int, seals: int = SEALS) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@contextmanager
def descriptor_socket(code: int, fds: list[int]) -> Iterator[str]:
    """Answers once; the path that its daemon would listen on."""
    with tempfile.TemporaryDirectory(prefix="torpor-py-") as directory:
        path = f"{directory}/s"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path + ".fd")
            listening.listen()
            held: list[socket.socket] = []

            def answer() -> None:
                connection, _ = listening.accept()
                held.append(connection)
                if connection.recv(16) == NONCE:
                    socket.send_fds(connection, [bytes([code])], fds)

            thread = threading.Thread(target=answer)
            thread.start()
            try:
                yield path
            finally:
                thread.join()
                for connection in held:
                    connection.close()
                for fd in fds:
                    os.close(fd)


def take(path: str, writable: bool = True) -> _shm.Segment:
    choice = pb.DataPlaneChoice(
        plane="DATA_PLANE_SHARED_MEMORY", nonce=NONCE, segment="x", segment_bytes=SIZE
    )
    return _shm.Segment(path, choice, writable=writable)


@pytest.fixture
def segment() -> Iterator[_shm.Segment]:
    with descriptor_socket(0, [memory(SIZE), memory(4096)]) as path:
        yield take(path)


def test_a_full_ring_has_no_room(segment: _shm.Segment) -> None:
    ring = _shm.Producer(segment)
    piece = np.full(SIZE // 4, 7, np.uint8)
    for i in range(4):
        assert ring.place(piece.size) == i * piece.size
        ring.put(i * piece.size, piece)
    assert ring.place(1) is None
    segment.consumed[0] = piece.size - 1
    assert ring.place(piece.size) is None
    segment.consumed[0] = piece.size
    assert ring.place(piece.size) == SIZE


def test_no_piece_goes_around_the_end(segment: _shm.Segment) -> None:
    ring = _shm.Producer(segment)
    ring.put(0, np.zeros(SIZE - 10, np.uint8))
    # 20 bytes begin again at the start, which is not read yet.
    assert ring.place(20) is None
    assert ring.place(10) == SIZE - 10
    segment.consumed[0] = SIZE - 10
    assert ring.place(20) == SIZE
    # All is read: a piece as large as the segment fits.
    assert ring.place(SIZE) == SIZE
    with pytest.raises(torpor.InvalidArgument, match="for a segment of 65536"):
        ring.place(SIZE + 1)


def test_a_counter_from_the_future_is_refused(segment: _shm.Segment) -> None:
    ring = _shm.Producer(segment)
    ring.put(0, np.zeros(100, np.uint8))
    segment.consumed[0] = 101
    with pytest.raises(torpor.DataLoss, match="done with 101 bytes of 100"):
        ring.place(1)


@pytest.mark.parametrize(
    ("position", "n_bytes"),
    [
        (50, 10),
        (SIZE - 5, 10),
        (100 + SIZE, 10),
        (100, SIZE + 1),
        (1 << 63, 10),
    ],
)
def test_positions_outside_the_ring_are_refused(
    segment: _shm.Segment, position: int, n_bytes: int
) -> None:
    ring = _shm.Consumer(segment)
    assert ring.view(0, 100).size == 100
    with pytest.raises(torpor.DataLoss, match=f"at position {position}"):
        ring.view(position, n_bytes)
    assert ring.view(SIZE, 5).size == 5


def test_the_consumer_tells_where_it_is(segment: _shm.Segment) -> None:
    ring = _shm.Consumer(segment)
    ring.view(0, 100)
    ring.view(100, 11)
    assert int(segment.consumed[0]) == 0
    ring.release()
    assert int(segment.consumed[0]) == 111


def test_one_stream_at_a_time(segment: _shm.Segment) -> None:
    assert segment.begin_use()
    assert not segment.begin_use()
    segment.end_use()
    assert segment.begin_use()


@pytest.mark.parametrize(
    ("size", "control", "seals"),
    [(SIZE - 4096, 4096, SEALS), (SIZE, 8192, SEALS), (SIZE, 4096, 0)],
)
def test_memory_that_could_shrink_is_refused(
    size: int, control: int, seals: int
) -> None:
    with descriptor_socket(0, [memory(size, seals), memory(control)]) as path:
        with pytest.raises(torpor.DataLoss, match="no sealed memory"):
            take(path)


def test_refusals_have_their_class() -> None:
    for code, wanted in ((5, torpor.NotFound), (7, torpor.PermissionDenied)):
        with descriptor_socket(code, []) as path:
            with pytest.raises(wanted, match="refused"):
                take(path)
    with descriptor_socket(0, [memory(SIZE)]) as path:
        with pytest.raises(torpor.DataLoss, match="got 1 descriptors"):
            take(path)
    with pytest.raises(torpor.Unavailable, match="descriptor socket /nowhere"):
        take("/nowhere")


def test_a_resume_that_ended_before_its_segment_was_taken_says_why() -> None:
    begun = pb.ResumeChunk()
    begun.begin.plane.plane = pb.DATA_PLANE_SHARED_MEMORY
    begun.begin.plane.nonce = NONCE

    def answer(
        requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        yield begun.SerializeToString()
        context.abort(grpc.StatusCode.DATA_LOSS, "rows of slot 1 are damaged")

    fake = FakeDaemon()
    fake.live["Resume"] = answer
    with serving(fake) as address, descriptor_socket(5, []) as path:
        os.symlink(path + ".fd", address.removeprefix("unix://") + ".fd")
        with torpor.connect(address, plane="shm") as client:
            with pytest.raises(torpor.DataLoss, match="slot 1"):
                client.resume("s")


def test_no_descriptor_is_left_open() -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    with descriptor_socket(0, [memory(SIZE), memory(4096)]) as path:
        segment = take(path)
        view = segment.view(0, 10)
        segment.close()
        # The view has its memory still.
        assert view.sum() == 0
        del segment, view
    with descriptor_socket(0, [memory(SIZE, 0), memory(4096)]) as path:
        with pytest.raises(torpor.DataLoss):
            take(path)
    assert count() == before
