# SPDX-License-Identifier: Apache-2.0
"""Daemons that die, bytes that rot, calls that take too long."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable

import pytest

import torpor
import toy
from daemon import Daemon
from torpor import ResumeSpec, SuspendSpec

WIDE = toy.wide_layout(1024)
BLOCK = 64


def seed() -> int:
    """TORPOR_TEST_SEED, or a new one, printed."""
    one = int(os.environ.get("TORPOR_TEST_SEED", random.randrange(1 << 32)))
    print(f"TORPOR_TEST_SEED={one}")
    return one


def wake(client: torpor.Client, session: str, **more: object) -> torpor.Woken:
    spec = ResumeSpec(session, mode="exact", engine_replays=True, **more)  # type: ignore[arg-type]
    return client.resume(spec)


def source(
    salt: int, slot: int, before: Callable[[int], None] = lambda row: None
) -> torpor.rows.RowSource:
    def read(begin: int, end: int) -> toy.Bytes:
        before(begin)
        return toy.rows_of(salt, slot, begin, end, WIDE)

    return read


def tickets_end(client: torpor.Client) -> bool:
    deadline = time.monotonic() + 10
    while client.stats().open_tickets:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("plane", ["grpc", "shm"])
def test_killed_in_a_suspend_commits_once(daemon: Daemon, plane: str) -> None:
    client = daemon.connect(plane=plane)
    toy.register(client, "wide", WIDE, BLOCK)
    n = 6000
    deaths: list[int] = []

    def die(row: int) -> None:
        if row >= n // 2 and not deaths:
            deaths.append(row)
            daemon.kill()
            daemon.start()

    rows = {"k": source(1, 0, die), "v": source(1, 1)}
    receipt = client.suspend(SuspendSpec("s", "wide", toy.ids_of(1, n)), rows)
    assert len(deaths) == 1
    assert receipt.version == 1
    toy.expect_rows(wake(client, "s"), 1, WIDE)
    assert client.stats().open_tickets == 0


@pytest.mark.parametrize("plane", ["grpc", "shm"])
def test_killed_at_any_moment_commits_once(daemon: Daemon, plane: str) -> None:
    rng = random.Random(seed())
    client = daemon.connect(plane=plane)
    toy.register(client, "wide", WIDE, BLOCK)
    version, n = 0, 0
    for turn in range(6):
        grown = n + rng.randrange(200, 2000)
        spec = SuspendSpec(
            "s",
            "wide",
            toy.ids_of(2, grown)[n:],
            expected_version=version,
            tokens_kept=n,
            operation_id=f"turn-{turn}",
        )
        delay = rng.uniform(0, 0.05)

        def kill() -> None:
            time.sleep(delay)
            daemon.kill()
            daemon.start()

        killer = threading.Thread(target=kill)
        killer.start()
        receipt = client.suspend(spec, {"k": source(2, 0), "v": source(2, 1)})
        killer.join()
        version, n = version + 1, grown
        assert (receipt.version, receipt.n_tokens) == (version, n)
        # Once more is once: the stored receipt, or the daemon's memory of it.
        again = client.suspend(spec, {"k": source(2, 0), "v": source(2, 1)})
        assert again.version == version
        assert client.describe("s").version == version
        toy.expect_rows(wake(client, "s"), 2, WIDE)


def test_resumes_go_on_with_the_next_daemon(daemon: Daemon) -> None:
    client = daemon.connect()
    toy.register(client, "wide", WIDE, BLOCK)
    client.suspend(
        SuspendSpec("s", "wide", toy.ids_of(3, 3000)),
        {"k": source(3, 0), "v": source(3, 1)},
    )
    daemon.kill()
    starter = threading.Timer(0.3, daemon.start)
    starter.start()
    toy.expect_rows(wake(client, "s"), 3, WIDE)
    starter.join()

    seen: list[tuple[int, int]] = []

    def die(piece: torpor.Piece) -> None:
        if not seen:
            daemon.kill()
            daemon.start()
        seen.append((piece.slot, piece.first))

    # A sink has seen rows: it is told, not served twice.
    with pytest.raises(torpor.Unavailable):
        client.resume(
            ResumeSpec("s", mode="exact", engine_replays=True), sink=die, timeout=20
        )
    assert len(seen) == len(set(seen))


def flip_row(daemon: Daemon, row: toy.Bytes) -> None:
    """One bit of a row, wherever it lies in the store."""
    path = daemon.data / "data.mdb"
    data = path.read_bytes()
    at = data.find(row.tobytes())
    assert at > 0
    with open(path, "r+b") as file:
        file.seek(at + 7)
        file.write(bytes([data[at + 7] ^ 0x10]))


@pytest.mark.parametrize("plane", ["grpc", "shm"])
def test_damaged_rows_are_never_served(daemon: Daemon, plane: str) -> None:
    client = daemon.connect(plane=plane)
    toy.register(client, "wide", WIDE, BLOCK)
    for salt in (4, 5):
        client.suspend(
            SuspendSpec(f"s{salt}", "wide", toy.ids_of(salt, 1000)),
            {"k": source(salt, 0), "v": source(salt, 1)},
        )
    daemon.stop()
    flip_row(daemon, toy.rows_of(4, 1, 500, 501, WIDE)[0])
    daemon.start()

    def look(piece: torpor.Piece) -> None:
        wanted = toy.rows_of(
            4, piece.slot, piece.first, piece.first + len(piece.rows), WIDE
        )
        assert (piece.rows == wanted).all()

    spec = ResumeSpec("s4", mode="exact", engine_replays=True)
    with pytest.raises(torpor.DataLoss):
        client.resume(spec, sink=look)
    with pytest.raises(torpor.DataLoss) as caught:
        client.resume(spec)
    # The block of row 500 and what follows is lost, what precedes it is not.
    usable = 500 // BLOCK * BLOCK
    assert caught.value.usable_len == usable
    shorter = wake(client, "s4", allow_shorter=True)
    assert shorter.plan.resume_at == usable
    assert (1000 - usable, "damaged") in shorter.receipt.reasons
    toy.expect_rows(shorter, 4, WIDE)
    toy.expect_rows(wake(client, "s5"), 5, WIDE)
    report = client.verify(deep=True)
    assert report.problems
    assert client.stats().quarantined_records >= 1


@pytest.mark.parametrize("plane", ["grpc", "shm"])
def test_deadlines_end_calls_and_what_they_hold(daemon: Daemon, plane: str) -> None:
    client = daemon.connect(plane=plane)
    toy.register(client, "wide", WIDE, BLOCK)

    def slow(row: int) -> None:
        time.sleep(0.02)

    spec = SuspendSpec("s", "wide", toy.ids_of(6, 20_000))
    begin = time.monotonic()
    with pytest.raises(torpor.DeadlineExceeded):
        client.suspend(spec, {"k": source(6, 0, slow), "v": source(6, 1)}, timeout=0.5)
    assert time.monotonic() - begin < 10
    assert tickets_end(client)
    with pytest.raises(torpor.NotFound):
        client.describe("s")

    client.suspend(spec, {"k": source(6, 0), "v": source(6, 1)})
    begin = time.monotonic()
    with pytest.raises(torpor.DeadlineExceeded):
        client.resume(
            ResumeSpec("s", mode="exact", engine_replays=True),
            sink=lambda piece: time.sleep(0.02),
            timeout=0.5,
        )
    assert time.monotonic() - begin < 20
    toy.expect_rows(wake(client, "s"), 6, WIDE)


def test_a_daemon_that_hangs_is_waited_for_no_longer(daemon: Daemon) -> None:
    client = daemon.connect()
    daemon.signal(signal.SIGSTOP)
    try:
        begin = time.monotonic()
        with pytest.raises(torpor.DeadlineExceeded):
            client.stats(timeout=0.3)
        assert time.monotonic() - begin < 10
    finally:
        daemon.signal(signal.SIGCONT)
    assert client.stats(timeout=30).sessions == 0
