# SPDX-License-Identifier: Apache-2.0
"""Sessions sleep and wake with the bytes they had, on both planes."""

from __future__ import annotations

import numpy as np
import pytest

import torpor
import toy
from daemon import Daemon
from torpor import ResumeSpec, SuspendSpec

ENGINE = {"mode": "exact", "engine_replays": True}


def wake(client: torpor.Client, session: str, **more: object) -> torpor.Woken:
    spec = ResumeSpec(session, **{**ENGINE, **more})  # type: ignore[arg-type]
    return client.resume(spec, with_tokens=True)


def test_sleeps_and_wakes_with_the_same_bytes(any_plane: torpor.Client) -> None:
    ids = toy.ids_of(1, 203)
    receipt = any_plane.suspend(
        SuspendSpec("s", "toy", ids, kv_len=202, holder="test"),
        toy.rows_for(1, 202),
        client_state=b"sampler",
    )
    assert (receipt.version, receipt.n_tokens, receipt.kv_len) == (1, 203, 202)
    woken = wake(any_plane, "s")
    toy.expect_rows(woken, 1)
    assert woken.tokens is not None
    assert (woken.tokens.ids == ids).all()
    assert woken.client_state == b"sampler"
    assert woken.window is None
    assert woken.receipt.recomputed_tokens == 1
    shared = any_plane.plane_reason == ""
    assert (receipt.shared_memory_bytes > 0) == shared
    assert (woken.receipt.shared_memory_bytes > 0) == shared


def test_second_suspend_brings_new_rows_alone(any_plane: torpor.Client) -> None:
    any_plane.suspend(
        SuspendSpec("s", "toy", toy.ids_of(2, 50), kv_len=49), toy.rows_for(2, 49)
    )
    more = toy.ids_of(2, 90)[50:]
    receipt = any_plane.suspend(
        SuspendSpec("s", "toy", more, expected_version=1, tokens_kept=50),
        toy.rows_for(2, 90),
    )
    # Row 49 was pending: it is new, and so is the pooled row that it closes.
    assert receipt.row_bytes_received == 41 * (24 + 40) + (90 // 4 - 49 // 4) * 20
    new = {"heads": toy.rows_of(2, 0, 90, 120), "plain": toy.rows_of(2, 1, 90, 120)}
    new["pooled"] = toy.rows_of(2, 2, 22, 30)
    any_plane.suspend(
        SuspendSpec(
            "s", "toy", toy.ids_of(2, 120)[90:], expected_version=2, tokens_kept=90
        ),
        new,
    )
    toy.expect_rows(wake(any_plane, "s"), 2)


def test_any_shape_and_dtype_goes_by_its_bytes(client: torpor.Client) -> None:
    rows = toy.rows_for(3, 40)
    given: dict[str, object] = {
        "heads": rows["heads"].view(np.float16).reshape(40, 2, 6),
        "plain": torpor.Rows(0, np.asfortranarray(rows["plain"])),
        "pooled": lambda begin, end: rows["pooled"][begin:end],
    }
    client.suspend(SuspendSpec("s", "toy", toy.ids_of(3, 40)), given)  # type: ignore[arg-type]
    toy.expect_rows(wake(client, "s"), 3)


def test_wakes_at_any_cut(any_plane: torpor.Client) -> None:
    any_plane.suspend(SuspendSpec("s", "toy", toy.ids_of(4, 100)), toy.rows_for(4, 100))
    for cut in (1, 15, 16, 17, 99, 100):
        woken = wake(any_plane, "s", cut=cut)
        assert woken.plan.resume_at == cut
        toy.expect_rows(woken, 4)


def test_wakes_by_tokens_and_says_where_they_part(client: torpor.Client) -> None:
    ids = toy.ids_of(5, 100)
    client.suspend(SuspendSpec("s", "toy", ids), toy.rows_for(5, 100))
    prompt = np.concatenate([ids[:70], [(ids[70] + 1) % 1000], ids[71:]])
    woken = wake(client, "s", ids=prompt)
    assert woken.begun.divergence is not None
    assert woken.begun.divergence.position == 70
    assert woken.receipt.recomputed_tokens == 30
    assert sum(n for n, _ in woken.receipt.reasons) == 30
    assert client.lookup_prefix("toy", prompt) == 70
    assert client.lookup_prefix("toy", [1, 2, 3]) == 0
    found = client.resume(
        ResumeSpec(model="toy", ids=prompt, mode="exact", engine_replays=True)
    )
    toy.expect_rows(found, 5)
    assert found.plan.resume_at == 70


def test_tokens_beyond_one_message_and_extra_keys(client: torpor.Client) -> None:
    toy.register(client, "long", block=4096)
    ids = toy.ids_of(6, 140_000)
    spans = [
        torpor.ExtraKeySpan(10, 20, b"image"),
        torpor.ExtraKeySpan(65_530, 65_540, b"across", bidirectional=True),
        torpor.ExtraKeySpan(139_999, 140_000, b"last"),
    ]
    client.suspend(
        SuspendSpec("s", "long", ids, extra_keys=spans[::-1]), toy.rows_for(6, 140_000)
    )
    woken = wake(client, "s", ids=ids, extra_keys=spans)
    assert woken.tokens is not None
    assert (woken.tokens.ids == ids).all()
    assert woken.tokens.extra_keys == tuple(spans)
    assert woken.receipt.recomputed_tokens == 0
    toy.expect_rows(woken, 6)
    assert client.lookup_prefix("long", ids) == 10


def test_snapshot_and_its_witness_come_back(any_plane: torpor.Client) -> None:
    layout = toy.LAYOUT
    n = 61
    rows = toy.rows_for(7, n, window=True)
    witness = torpor.make_witness(layout, n, {"window": rows["window"]}, "test engine")
    any_plane.suspend(
        SuspendSpec("s", "toy", toy.ids_of(7, n), with_snapshot=True),
        rows,
        witness=witness,
    )
    woken = any_plane.resume(ResumeSpec("s", mode="snapshot"))
    toy.expect_rows(woken, 7)
    assert woken.window is not None
    assert woken.window.rows["window"].first == n - toy.WINDOW + 1
    assert (woken.window.rows["window"].array == rows["window"]).all()
    assert woken.window.verdict is torpor.Verdict.EXACT
    engine = any_plane.resume(ResumeSpec("s", **ENGINE))  # type: ignore[arg-type]
    assert engine.begun.witness == witness


def test_a_snapshot_of_a_model_without_windows_is_what_persists(
    any_plane: torpor.Client,
) -> None:
    layout = torpor.Layout("full", 2, 1000, toy.LAYOUT.slots[: toy.SLIDING])
    toy.register(any_plane, "full", layout)
    any_plane.suspend(
        SuspendSpec("s", "full", toy.ids_of(13, 50)), toy.rows_for(13, 50, layout)
    )
    for cut in (0, 48):
        woken = any_plane.resume(ResumeSpec("s", mode="snapshot", cut=cut))
        toy.expect_rows(woken, 13, layout)
        assert woken.window is not None and not list(woken.window.rows)
        assert woken.receipt.mode_used is torpor.ReplayMode.SNAPSHOT
        assert woken.receipt.exact
        assert woken.receipt.loaded_tokens == (cut or 50)
        assert woken.receipt.replayed_tokens == 0


def test_a_recurrent_state_comes_back(client: torpor.Client) -> None:
    layout = torpor.Layout(
        "rec",
        2,
        1000,
        (
            toy.LAYOUT.slots[toy.HEADS],
            torpor.Slot(
                "state",
                torpor.SlotKind.RECURRENT,
                1,
                32,
                (1,),
                come_back=torpor.ComeBack.SNAPSHOT,
            ),
        ),
    )
    toy.register(client, "rec", layout)
    rows = toy.rows_for(11, 50, layout, window=True)
    assert rows["state"].shape == (1, 32)
    spec = SuspendSpec("s", "rec", toy.ids_of(11, 50), with_snapshot=True)
    assert client.suspend(spec, rows).snapshot_bytes == 32
    for mode in ("snapshot", "exact", "bounded", "auto"):
        woken = client.resume(ResumeSpec("s", mode=mode))
        assert woken.window is not None
        assert (woken.window.rows["state"].array == rows["state"]).all()
    # A wake without the state would go on from another one.
    spec = SuspendSpec("bare", "rec", toy.ids_of(11, 50))
    client.suspend(spec, toy.rows_for(11, 50, layout))
    with pytest.raises(torpor.FailedPrecondition, match="slot 'state'"):
        client.resume(ResumeSpec("bare", mode="exact"))


def test_views_of_shared_memory_may_not_be_kept(daemon: Daemon) -> None:
    client = daemon.connect(plane="shm")
    toy.register(client)
    client.suspend(SuspendSpec("s", "toy", toy.ids_of(8, 100)), toy.rows_for(8, 100))
    seen: list[tuple[int, int]] = []

    def look(piece: torpor.Piece) -> None:
        wanted = toy.rows_of(8, piece.slot, piece.first, piece.first + len(piece.rows))
        assert not piece.rows.flags.writeable
        assert (piece.rows == wanted).all()
        seen.append((piece.slot, len(piece.rows)))

    spec = ResumeSpec("s", **ENGINE)  # type: ignore[arg-type]
    woken = client.resume(spec, sink=look)
    assert sum(n for slot, n in seen if slot == toy.HEADS) == 100
    assert len(woken.compact) == 0

    for keep in (
        lambda piece: piece,
        lambda piece: piece.rows,
        lambda piece: piece.rows[3:5],
        lambda piece: piece.rows.view(np.uint16)[0, :1],
        lambda piece: memoryview(piece.rows),
    ):
        kept: list[object] = []
        with pytest.raises(torpor.ViewHeld, match=r"rows \[0, \+\d+\) of slot 'heads'"):
            client.resume(spec, sink=lambda piece: kept.append(keep(piece)))
    # The memory is the view's: nobody writes it, however much others read.
    view = memoryview(kept[0])  # type: ignore[arg-type]
    for _ in range(3):
        toy.expect_rows(client.resume(spec), 8)
    wanted = toy.rows_of(8, toy.HEADS, 0, len(view))
    assert (np.asarray(view) == wanted).all()
    copies: list[toy.Bytes] = []
    client.resume(spec, sink=lambda piece: copies.append(piece.rows.copy()))
    assert sum(c.nbytes for c in copies) == 100 * 64 + 25 * 20


def test_falls_back_to_grpc_and_says_why(daemon: Daemon) -> None:
    once = torpor.Retry(attempts=1)
    client = daemon.connect(retry=once)
    layout = toy.wide_layout(4096)
    toy.register(client, "wide", layout, block=256)
    rows = toy.rows_for(9, 2100, layout)
    client.suspend(
        SuspendSpec("small", "wide", toy.ids_of(9, 64)),
        {slot: array[:64] for slot, array in rows.items()},
    )
    assert "bytes of rows" in client.plane_reason
    woken = wake(client, "small")
    assert client.plane_reason == ""
    assert woken.receipt.shared_memory_bytes == 64 * 8192
    (daemon.dir / "run/s.fd").unlink()
    # Each of them offers shared memory, cannot take it, and is served.
    receipt = client.suspend(SuspendSpec("s", "wide", toy.ids_of(9, 2100)), rows)
    assert "descriptor socket" in client.plane_reason
    woken = wake(client, "s")
    toy.expect_rows(woken, 9, layout)
    assert receipt.shared_memory_bytes == woken.receipt.shared_memory_bytes == 0
    spec = ResumeSpec("s", **ENGINE)  # type: ignore[arg-type]
    with daemon.connect(retry=once).begin_resume(spec) as lease:
        assert (lease.read_rows(["k"])["k"].array == rows["k"]).all()
    # After three it offers no more.
    wake(client, "s")
    assert "descriptor socket" in client.plane_reason
    only = daemon.connect(plane="shm", retry=once)
    with pytest.raises(torpor.Unavailable, match="descriptor socket"):
        wake(only, "s")


@pytest.mark.parametrize("plane", ["grpc", "shm"])
def test_large_sessions_pass_through_the_ring(daemon: Daemon, plane: str) -> None:
    client = daemon.connect(plane=plane)
    layout = toy.wide_layout(2048)
    toy.register(client, "wide", layout, block=128)
    n = 12_000
    rows = {
        name: (lambda i: lambda begin, end: toy.rows_of(10, i, begin, end, layout))(i)
        for i, name in ((0, "k"), (1, "v"))
    }
    receipt = client.suspend(SuspendSpec("s", "wide", toy.ids_of(10, n)), rows)
    assert receipt.row_bytes_received == n * 4096
    woken = client.resume(ResumeSpec("s", **ENGINE))  # type: ignore[arg-type]
    toy.expect_rows(woken, 10, layout)
    shared = n * 4096 if plane == "shm" else 0
    assert receipt.shared_memory_bytes == shared
    assert woken.receipt.shared_memory_bytes == shared
