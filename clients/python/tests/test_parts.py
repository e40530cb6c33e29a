# SPDX-License-Identifier: Apache-2.0
"""Suspend and resume in parts, from several processes and shards."""

from __future__ import annotations

import multiprocessing
import threading

import numpy as np
import pytest

import torpor
import toy
from daemon import Daemon
from torpor import ResumeSpec, SuspendSpec, TicketHandle

N = 1000


def shard_of(rows: dict[str, toy.Bytes], shard: int, n: int) -> dict[str, toy.Bytes]:
    """What one rank holds: its part of `heads`; rank 0 sends the others too."""
    width = rows["heads"].shape[1] // n
    mine = {"heads": rows["heads"][:, shard * width : (shard + 1) * width]}
    return {**rows, **mine} if shard == 0 else mine


def rank(address: str, plane: str, handle: TicketHandle, shard: int) -> None:
    with torpor.connect(address, plane=plane) as client:  # type: ignore[arg-type]
        ticket = client.attach(handle)
        rows = shard_of(toy.rows_for(1, N), shard, handle.n_ranks)
        with ticket:
            ticket.put(rows, shard=shard)


@pytest.mark.parametrize("plane", ["grpc", "shm"])
def test_two_ranks_suspend_and_one_resumes(daemon: Daemon, plane: str) -> None:
    client = daemon.connect(plane=plane)
    toy.register(client)
    ticket = client.begin_suspend(SuspendSpec("s", "toy", toy.ids_of(1, N), n_ranks=2))
    spawn = multiprocessing.get_context("spawn")
    ranks = [
        spawn.Process(target=rank, args=(daemon.address, plane, ticket.handle, i))
        for i in range(2)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
        assert process.exitcode == 0
    with ticket:
        receipt = ticket.commit()
    total = N * 64 + N // 4 * 20
    assert receipt.row_bytes_received == total
    assert receipt.shared_memory_bytes == (total if plane == "shm" else 0)
    woken = client.resume(ResumeSpec("s", mode="exact", engine_replays=True))
    toy.expect_rows(woken, 1)


def test_an_engine_says_what_it_ran(client: torpor.Client) -> None:
    rows = toy.rows_for(5, N, window=True)
    spec = SuspendSpec("s", "toy", toy.ids_of(5, N))
    stored = torpor.make_witness(toy.LAYOUT, N, {"window": rows["window"]}, "engine")
    client.suspend(spec, rows, witness=stored)
    rebuilt = rows["window"].copy()
    for change, verdict in ((0, torpor.Verdict.EXACT), (1, torpor.Verdict.MEASURED)):
        rebuilt[-1, 3] ^= change
        witness = torpor.make_witness(toy.LAYOUT, N, {"window": rebuilt}, "engine")
        ask = ResumeSpec("s", mode="exact", engine_replays=True)
        with client.begin_resume(ask) as lease:
            receipt = lease.release(torpor.EngineReplay(33, witness, replay_us=7))
        assert receipt.replayed_token_layers == 33
        assert receipt.times.replay_us == 7
        assert receipt.replay_numerics_id == "engine"
        assert receipt.verdict is verdict
        assert (receipt.max_error > 0) == bool(change)
    with client.begin_resume(ResumeSpec("s", mode="cold")) as lease:
        with pytest.raises(torpor.InvalidArgument, match="without engine_replays"):
            lease.release(torpor.EngineReplay(33, witness))


def test_parts_of_a_lease(any_plane: torpor.Client) -> None:
    rows = toy.rows_for(2, N, window=True)
    ids = toy.ids_of(2, N)
    any_plane.suspend(SuspendSpec("s", "toy", ids, with_snapshot=True), rows)
    with any_plane.begin_resume(ResumeSpec("s", mode="snapshot")) as lease:
        assert lease.plan.mode is torpor.ReplayMode.SNAPSHOT
        assert any_plane.stats().open_leases == 1
        assert (lease.read_tokens().ids == ids).all()
        assert (lease.read_tokens(10, 20).ids == ids[10:20]).all()
        got = lease.read_rows(["plain", "pooled"], begin=32, end=480)
        assert list(got) == ["plain", "pooled"]
        assert got["plain"].first == 32
        assert (got["plain"].array == rows["plain"][32:480]).all()
        assert (got["pooled"].array == rows["pooled"][8:120]).all()
        for shard in range(2):
            part = lease.read_rows(["heads"], shard=shard, n_shards=2)
            wanted = rows["heads"][:, 12 * shard : 12 * shard + 12]
            assert (part["heads"].array == wanted).all()
        window = lease.window()
        assert (window.rows["window"].array == rows["window"]).all()
        assert window.verdict is torpor.Verdict.UNWITNESSED
        receipt = lease.release()
    assert receipt.loaded_tokens == N
    assert any_plane.stats().open_leases == 0
    with pytest.raises(torpor.NotFound, match="lease"):
        lease.read_tokens()


def test_a_sink_reads_in_place(daemon: Daemon) -> None:
    client = daemon.connect(plane="shm")
    toy.register(client)
    client.suspend(SuspendSpec("s", "toy", toy.ids_of(3, N)), toy.rows_for(3, N))
    spec = ResumeSpec("s", mode="exact", engine_replays=True)
    total = 0

    def add(piece: torpor.Piece) -> None:
        nonlocal total
        total += int(piece.rows.astype(np.int64).sum())

    with client.begin_resume(spec) as lease:
        for _ in range(3):
            lease.read_rows(sink=add)
    wanted = sum(int(r.astype(np.int64).sum()) for r in toy.rows_for(3, N).values())
    assert total == 3 * wanted

    kept: list[toy.Bytes] = []
    with pytest.raises(torpor.ViewHeld):
        with client.begin_resume(spec) as lease:
            lease.read_rows(sink=lambda piece: kept.append(piece.rows))
    assert (kept[0] == toy.rows_of(3, 0, 0, len(kept[0]))).all()


def test_streams_of_a_lease_beside_each_other(daemon: Daemon) -> None:
    client = daemon.connect(plane="shm")
    layout = toy.wide_layout(2048)
    toy.register(client, "wide", layout, block=128)
    rows = toy.rows_for(4, 4000, layout)
    client.suspend(SuspendSpec("s", "wide", toy.ids_of(4, 4000)), rows)
    right: list[bool] = []
    spec = ResumeSpec("s", mode="exact", engine_replays=True)
    with client.begin_resume(spec) as lease:

        def read(slot: str) -> None:
            got = lease.read_rows([slot])[slot].array
            right.append(bool((got == rows[slot]).all()))

        threads = [threading.Thread(target=read, args=(s,)) for s in "kvkvkv"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert right == [True] * 6


def test_leaving_a_ticket_gives_it_up(any_plane: torpor.Client) -> None:
    rows = toy.rows_for(5, N)
    spec = SuspendSpec("s", "toy", toy.ids_of(5, N))
    with pytest.raises(KeyError), any_plane.begin_suspend(spec) as ticket:
        assert any_plane.stats().open_tickets == 1
        ticket.put(rows, end=512)
        raise KeyError("an engine's own error")
    assert any_plane.stats().open_tickets == 0
    with pytest.raises(torpor.NotFound):
        any_plane.describe("s")
    with any_plane.begin_suspend(spec) as ticket:
        assert ticket.wanted == {0: (0, N), 1: (0, N), 2: (0, N // 4)}
        for begin in range(0, N, 256):
            ticket.put(rows, begin=begin, end=begin + 256)
        receipt = ticket.commit(client_state=b"state")
    assert any_plane.stats().open_tickets == 0
    # The same operation again: committed, nothing is wanted.
    with any_plane.begin_suspend(spec) as ticket:
        assert ticket.receipt is not None
        assert ticket.receipt.version == receipt.version == 1
        assert ticket.put(rows) == 0
        assert ticket.commit() == ticket.receipt
    woken = any_plane.resume(ResumeSpec("s", mode="exact", engine_replays=True))
    toy.expect_rows(woken, 5)
    assert woken.client_state == b"state"


def test_a_put_may_be_repeated_but_not_torn(any_plane: torpor.Client) -> None:
    rows = toy.rows_for(6, N)
    with any_plane.begin_suspend(SuspendSpec("s", "toy", toy.ids_of(6, N))) as ticket:
        assert ticket.put(rows, end=250) == ticket.put(rows, end=250)
        with pytest.raises(torpor.InvalidArgument, match="overlap"):
            ticket.put(rows, begin=245, end=512)
        ticket.put(rows, begin=250)
        ticket.commit()
    woken = any_plane.resume(ResumeSpec("s", mode="exact", engine_replays=True))
    toy.expect_rows(woken, 6)
