# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 of transformers sleeps and wakes. Skipped without torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import torpor
from daemon import ROOT, Daemon
from hf_models import (
    PROMPT,
    WINDOW,
    Session,
    prompt_of,
    same_caches,
    tiny_model,
    torch,
    transformers,
)
from test_docs import HF_HEADING, blocks_of, run

hf = pytest.importorskip("torpor.hf")


@pytest.mark.parametrize("plane", ["grpc", "shm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_wakes_to_the_bits_of_a_twin_that_never_slept(
    daemon: Daemon, dtype: Any, plane: str
) -> None:
    model = tiny_model("gemma3", dtype)
    bound = hf.register(daemon.connect(plane=plane), model, "tiny")
    twin = Session(model, prompt_of(1))
    for _ in range(5):
        twin.step()
    one = Session(model, prompt_of(1))
    for _ in range(5):
        one.step()
    before: Any = None
    for turn in range(4):
        receipt = bound.suspend(one.cache, one.ids, "chat", after=before)
        assert receipt.version == turn + 1
        assert receipt.n_tokens == receipt.kv_len + 1
        if turn:
            # New rows alone: two full layers, K and V, of 64 elements.
            new = receipt.kv_len - before.kv_len
            wide = one.cache.layers[0].keys.element_size()
            assert receipt.row_bytes_received == new * 4 * 64 * wide
        awake = bound.resume("chat")
        assert awake.receipt.verdict is torpor.Verdict.EXACT
        same_caches(awake.cache, one.cache)
        assert awake.ids.tolist() == one.ids
        one = Session.woken(model, awake)
        before = awake
        for _ in range(turn * 7 + 1):
            assert torch.equal(one.step(), twin.step())
        assert one.ids == twin.ids


def test_short_sessions_and_receipts_as_what_was_before(daemon: Daemon) -> None:
    model = tiny_model("gemma3")
    bound = hf.register(daemon.connect(), model, "tiny")
    one = Session(model, prompt_of(2, 1))
    before = None
    for _ in range(12):
        one.step()
        before = bound.suspend(one.cache, one.ids, "s", after=before)
        same_caches(bound.resume("s").cache, one.cache)
    assert before is not None and before.version == 12


def test_the_daemon_replays_what_torch_computed(daemon: Daemon, tmp_path: Path) -> None:
    model = tiny_model("gemma3")
    model.save_pretrained(tmp_path)
    bound = hf.register(daemon.connect(), model, "tiny", directory=tmp_path)
    assert "daemon" in bound.registered.executors
    one = Session(model, prompt_of(3))
    one.step()
    bound.suspend(one.cache, one.ids, "s", snapshot=False)
    exact = bound.resume("s", mode="exact")
    assert exact.receipt.replayed_tokens == 4 * (WINDOW - 1)
    # Other bits than torch's: measured, within 1e-4 of each row's largest.
    assert exact.receipt.verdict is torpor.Verdict.MEASURED
    assert 0 < exact.receipt.max_error < 1e-4
    for x, y in zip(exact.cache.layers, one.cache.layers):
        worst = (x.keys - y.keys).abs().max() / y.keys.abs().max()
        assert worst < 1e-4
        assert x.is_sliding or torch.equal(x.keys, y.keys)
    woken = Session.woken(model, exact)
    logits, wanted = woken.step(), one.step()
    assert (logits - wanted).abs().max() < 1e-3 * wanted.abs().max()

    bounded = bound.resume("s", mode="bounded")
    assert bounded.receipt.max_error > exact.receipt.max_error
    again = Session.woken(model, bounded)
    again.step()
    receipt = bound.suspend(again.cache, again.ids, "s", after=bounded, snapshot=False)
    state = bound.client.describe("s")
    assert receipt.version == state.version == 2
    assert torpor.Provenance.APPROXIMATE in {p.provenance for p in state.provenance}
    # Its later rows read a window that was cut: every later plan knows.
    spec = torpor.ResumeSpec("s", mode="exact", engine_replays=True)
    with bound.client.begin_resume(spec) as lease:
        assert bounded.floors == (torpor.Floor(PROMPT, PROMPT - WINDOW),)
        assert lease.state.floors == bounded.floors


def test_cuts_and_prompts(daemon: Daemon, tmp_path: Path) -> None:
    model = tiny_model("gemma3")
    model.save_pretrained(tmp_path)
    bound = hf.register(daemon.connect(), model, "tiny", directory=tmp_path)
    one = Session(model, prompt_of(4))
    one.step()
    bound.suspend(one.cache, one.ids, "s")
    for awake in (
        bound.resume("s", mode="exact", cut=60),
        bound.resume("s", one.ids[:60] + [7, 7, 7], mode="exact"),
    ):
        assert awake.kv_len == 60 or one.ids[60] == 7
        assert awake.ids.tolist() == one.ids[:60]
        assert awake.cache.get_seq_length() == 60
        other = Session.woken(model, awake)
        other.ids += [7, 7]
        fresh = Session(model, one.ids[:60] + [7, 7])
        logits, wanted = other.step(), fresh.step()
        assert (logits - wanted).abs().max() < 1e-3 * wanted.abs().max()
        assert other.ids == fresh.ids
    with pytest.raises(torpor.FailedPrecondition, match="snapshot"):
        bound.resume("s", cut=60)


def test_the_page_runs_as_written(daemon: Daemon) -> None:
    blocks = blocks_of(HF_HEADING, "## Every verb")
    assert len(blocks) == 1
    out = run(daemon, blocks)
    # 14 windows of 128 tokens reach further back than the session.
    found = re.findall(r"^(\w+) 721 tokens again, error (\S+)$", out, re.MULTILINE)
    assert [name for name, _ in found] == ["daemon", "engine"]
    by_daemon, by_engine = (float(error) for _, error in found)
    assert 1e-4 < by_daemon < 1e-2 and by_engine < 1e-5


def test_the_bundled_model(daemon: Daemon) -> None:
    directory = ROOT / "models/nano"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.bfloat16, attn_implementation="eager"
    ).eval()
    bound = hf.register(daemon.connect(), model, "nano", directory=directory)
    text = (directory / "agent_session.txt").read_bytes()[:1500]
    one = Session(model, list(text))
    one.step()
    bound.suspend(one.cache, one.ids, "s", client_state=b"mine")
    awake = bound.resume("s")
    same_caches(awake.cache, one.cache)
    assert awake.client_state == b"mine"
    replayed = bound.resume("s", mode="exact")
    # bf16: steps of 2^-8 that add up over 14 window layers.
    assert 0 < replayed.receipt.max_error < 0.1
    step = Session.woken(model, replayed)
    step.step()
    one.step()
    assert step.ids == one.ids
