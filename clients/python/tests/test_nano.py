# SPDX-License-Identifier: Apache-2.0
"""The bundled model: the daemon replays, the client gets the window's bits."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

import torpor
from daemon import ROOT, Daemon
from torpor import Floor, Provenance, ProvenanceRange, ResumeSpec, SuspendSpec

TEXT = 2500


@pytest.fixture(scope="module")
def nano() -> Iterator[tuple[Daemon, torpor.Client]]:
    """A daemon with a session "a" of the built-in engine, its window stored."""
    daemon = Daemon()
    try:
        daemon.start()
        client = daemon.connect()
        client.models.register("nano", directory=ROOT / "models/nano")
        prompt = daemon.dir / "prompt"
        text = (ROOT / "models/nano/agent_session.txt").read_bytes()
        prompt.write_bytes(text[:TEXT])
        words = ["--session", "a", "--model", "nano", "--prompt-file", str(prompt)]
        daemon.torpor("run", *words, "--generate", "20", "--snapshot")
        yield daemon, client
    finally:
        daemon.close()


def same_rows(a: torpor.RowSet, b: torpor.RowSet) -> None:
    assert list(a) == list(b)
    for slot in a:
        assert a[slot].first == b[slot].first
        assert (a[slot].array == b[slot].array).all(), slot


@pytest.mark.parametrize("plane", ["grpc", "shm"])
def test_exact_wakes_hold_the_bits_of_the_snapshot(
    nano: tuple[Daemon, torpor.Client], plane: str
) -> None:
    client = nano[0].connect(plane=plane)
    stored = client.resume(ResumeSpec("a", mode="snapshot"))
    exact = client.resume(ResumeSpec("a", mode="exact"), with_tokens=True)
    assert stored.window is not None and exact.window is not None
    same_rows(stored.compact, exact.compact)
    same_rows(stored.window.rows, exact.window.rows)
    assert exact.window.verdict is torpor.Verdict.EXACT
    assert exact.receipt.exact
    assert exact.receipt.replayed_tokens > 128
    assert stored.receipt.replayed_tokens == 0
    assert exact.tokens is not None
    assert (
        bytes(exact.tokens.ids[:TEXT].astype(np.uint8))
        == (ROOT / "models/nano/agent_session.txt").read_bytes()[:TEXT]
    )
    assert (exact.receipt.shared_memory_bytes > 0) == (plane == "shm")


def test_bounded_wakes_are_measured(nano: tuple[Daemon, torpor.Client]) -> None:
    woken = nano[1].resume(ResumeSpec("a", mode="bounded"))
    assert woken.window is not None
    assert woken.window.verdict is torpor.Verdict.MEASURED
    assert 0 < woken.receipt.max_error
    assert not woken.receipt.exact
    assert woken.receipt.replayed_tokens == 128
    at = woken.plan.resume_at
    assert woken.receipt.floor == Floor(at, at - 128)
    climbed = nano[1].resume(ResumeSpec("a", mode="bounded", max_error=1e-9))
    assert climbed.receipt.exact
    assert climbed.receipt.rung > 0


def test_logits_of_the_last_row(nano: tuple[Daemon, torpor.Client]) -> None:
    woken = nano[1].resume(ResumeSpec("a", mode="exact", want_logits=True))
    assert woken.window is not None and woken.window.logits is not None
    assert woken.window.logits.shape == (256,)
    assert np.isfinite(woken.window.logits).all()


@pytest.mark.parametrize("plane", ["grpc", "shm"])
def test_what_python_puts_to_sleep_the_engine_wakes(
    nano: tuple[Daemon, torpor.Client], plane: str
) -> None:
    daemon, _ = nano
    client = daemon.connect(plane=plane)
    a = client.resume(ResumeSpec("a", mode="exact"), with_tokens=True)
    assert a.window is not None and a.tokens is not None
    layout = client.models.get("nano").layout
    kv_len = a.state.kv_len
    copy = f"copy-{plane}"
    rows = {s: a.compact[s] for s in a.compact} | {
        s: a.window.rows[s] for s in a.window.rows
    }
    receipt = client.suspend(
        SuspendSpec(
            copy,
            "nano",
            a.tokens.ids,
            kv_len=kv_len,
            numerics_id=a.state.numerics_id,
            fingerprint=a.state.fingerprint,
            provenance=[ProvenanceRange(0, kv_len, Provenance.EXACT)],
            with_snapshot=True,
        ),
        rows,
        witness=torpor.make_witness(
            layout,
            kv_len,
            {s: a.window.rows[s] for s in a.window.rows},
            a.state.numerics_id,
        ),
        client_state=a.client_state,
    )
    assert receipt.snapshot_bytes == sum(
        a.window.rows[s].array.nbytes for s in a.window.rows
    )
    b = client.resume(ResumeSpec(copy, mode="exact"))
    assert b.window is not None
    same_rows(a.compact, b.compact)
    same_rows(a.window.rows, b.window.rows)
    # Our witness is the daemon's.
    assert b.window.verdict is torpor.Verdict.EXACT
    texts = []
    for session in ("a", copy):
        words = ["run", "--session", session, "--model", "nano", "--wake", "exact"]
        words += ["--generate", "12", "--no-sleep"]
        texts.append(daemon.torpor(*words)[:12])
    assert texts[0] == texts[1]


def test_a_snapshot_has_the_rows_of_an_open_group(daemon: Daemon) -> None:
    client = daemon.connect()
    directory = ROOT / "tests/oracles/deepseek_v41/plain"
    model = client.models.register("v41", directory=directory)
    ids = [i % 160 for i in range(102)]
    file = daemon.dir / "ids.json"
    file.write_text(json.dumps(ids))
    words = ["--session", "a", "--model", "v41", "--tokens", str(file)]
    daemon.torpor("run", *words, "--generate", "1")
    for cut in (101, 102):
        a = client.resume(ResumeSpec("a", mode="exact", cut=cut))
        assert a.window is not None
        # Pairs of tokens make a row: token 100 waits for its other half.
        open_rows = a.window.rows["layer.2.open"]
        assert (open_rows.first, len(open_rows.array)) == (cut // 2 * 2, cut % 2)
        rows = {s: a.compact[s] for s in a.compact} | {
            s: a.window.rows[s] for s in a.window.rows
        }
        copy = f"copy-{cut}"
        spec = SuspendSpec(copy, "v41", ids[:cut], with_snapshot=True)
        windows = {s: a.window.rows[s] for s in a.window.rows}
        witness = torpor.make_witness(model.layout, cut, windows, model.numerics_id)
        client.suspend(spec, rows, witness=witness)
        for mode in ("snapshot", "exact"):
            b = client.resume(ResumeSpec(copy, mode=mode))
            assert b.window is not None
            same_rows(a.compact, b.compact)
            same_rows(a.window.rows, b.window.rows)
            assert b.window.verdict is torpor.Verdict.EXACT
