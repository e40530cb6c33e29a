# SPDX-License-Identifier: Apache-2.0
"""Decoders of full and sliding layers, both kinds of caches, and the engine's
replay where the tests of the daemon's do not go. Skipped without torch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import hf_models as tiny
import torpor
from daemon import Daemon
from hf_models import WINDOW, Session, torch, transformers

hf = pytest.importorskip("torpor.hf")
from torpor.hf import _replay  # noqa: E402

FAMILIES = ["gemma3", "gemma2", "gpt_oss", "qwen3", "olmo3", "mistral", "llama"]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_decoder_wakes(daemon: Daemon, family: str) -> None:
    model = tiny.tiny_model(family)
    bound = hf.register(daemon.connect(), model, family)
    slides = sum(layer.is_sliding for layer in tiny.Session(model, []).cache.layers)
    assert slides == {"gemma2": 3, "gpt_oss": 3, "mistral": 6, "llama": 0}.get(
        family, 4
    )
    count = tiny.RowCount(model)
    one = tiny.slept(model, 21)
    bound.suspend(one.cache, one.ids, "s")
    kept = bound.resume("s")
    count.take()
    exact = bound.resume("s", mode="exact", executor="engine")
    rows = slides * (WINDOW - 1)
    assert count.take() == [rows] * tiny.N_LAYERS
    receipt = exact.receipt
    assert receipt.replayed_tokens == rows
    assert receipt.replayed_token_layers == rows * tiny.N_LAYERS
    assert receipt.exact and receipt.floor is None
    tiny.same_caches(kept.cache, one.cache)
    assert tiny.window_error(exact.cache, one.cache) < 1e-5
    # The witness's rows are of the window that was compared whole above.
    assert receipt.max_error <= 2e-5
    kept_on, on = Session.woken(model, kept), Session.woken(model, exact)
    for _ in range(20):
        true = one.step()
        assert torch.equal(kept_on.step(), true)
        assert (on.step() - true).abs().max() < 1e-4 * true.abs().max()
    assert one.ids == kept_on.ids == on.ids
    # What it adds sleeps and wakes again.
    bound.suspend(on.cache, on.ids, "s", after=exact)
    tiny.same_caches(bound.resume("s").cache, on.cache)


@pytest.mark.parametrize("chunk", [1, 5, 1024])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_chunks_of_a_replay(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, attention: str, chunk: int
) -> None:
    monkeypatch.setattr(_replay, "_CHUNK", chunk)
    model = tiny.tiny_model("gemma3", attn_implementation=attention)
    bound = hf.register(daemon.connect(), model, "tiny")
    # Sessions at both ends of the window and of the exact replay, and beyond.
    for n in (1, 2, WINDOW - 1, WINDOW, 4 * (WINDOW - 1), 4 * WINDOW, 90):
        one = Session(model, tiny.prompt_of(n, n))
        one.step()
        bound.suspend(one.cache, one.ids, f"s{n}", snapshot=False)
        awake = bound.resume(f"s{n}", mode="exact", executor="engine")
        assert awake.receipt.replayed_tokens == min(n, 4 * (WINDOW - 1))
        assert tiny.window_error(awake.cache, one.cache) < 1e-5


def test_a_replay_at_a_cut_and_of_a_prompt(daemon: Daemon) -> None:
    model = tiny.tiny_model("gpt_oss")
    bound = hf.register(daemon.connect(), model, "tiny")
    one = tiny.slept(model, 22)
    bound.suspend(one.cache, one.ids, "s", snapshot=False)
    short = Session(model, one.ids[:60])
    short.step()
    for awake in (
        bound.resume("s", mode="exact", executor="engine", cut=60),
        bound.resume("s", one.ids[:60] + [0], mode="exact", executor="engine"),
    ):
        assert awake.ids.tolist() == one.ids[:60]
        # The witness is of another cut.
        assert awake.receipt.verdict is torpor.Verdict.UNWITNESSED
        assert tiny.window_error(awake.cache, short.cache, one.cache) < 1e-5


def test_an_error_above_the_limit_is_refused(daemon: Daemon) -> None:
    model = tiny.tiny_model("gemma3")
    bound = hf.register(daemon.connect(), model, "tiny")
    one = tiny.slept(model, 23)
    bound.suspend(one.cache, one.ids, "s", snapshot=False)
    ask: Any = {"executor": "engine", "max_error": 1e-4}
    with pytest.raises(torpor.FailedPrecondition, match="largest relative error"):
        bound.resume("s", mode="bounded", **ask)
    # As far as the exact replay goes, the bounded one is exact.
    far = bound.resume("s", mode="bounded", replay_tokens=4 * (WINDOW - 1), **ask)
    assert far.receipt.exact and far.receipt.max_error < 1e-5
    assert bound.client.stats().open_leases == 0


def test_the_floor_of_a_bounded_wake_is_kept(daemon: Daemon) -> None:
    """What was woken bounded sleeps again with rows that a cut window made; an
    exact replay makes them once more."""
    model = tiny.tiny_model("gemma3")
    bound = hf.register(daemon.connect(), model, "tiny")
    one = tiny.slept(model, 24)
    bound.suspend(one.cache, one.ids, "s", snapshot=False)
    bounded = bound.resume("s", mode="bounded", executor="engine")
    at = bounded.kv_len
    assert bounded.floors == (torpor.Floor(at, at - WINDOW),)
    for steps in (1, WINDOW // 2, 2 * WINDOW):
        on = Session.woken(model, bounded)
        on.cache = copy.deepcopy(bounded.cache)
        for _ in range(steps):
            on.step()
        session = f"s{steps}"
        bound.client.fork("s", session)
        bound.suspend(on.cache, on.ids, session, after=bounded, snapshot=False)
        again = bound.resume(session, mode="exact", executor="engine")
        assert again.receipt.exact
        assert tiny.window_error(again.cache, on.cache) < 1e-5
        assert again.provenance is torpor.Provenance.APPROXIMATE


@pytest.mark.parametrize("family", ["gemma3", "gpt_oss", "mistral", "llama"])
def test_static_caches_sleep_and_are_woken_into(daemon: Daemon, family: str) -> None:
    model = tiny.tiny_model(family)
    bound = hf.register(daemon.connect(), model, family)

    def static() -> Any:
        return transformers.StaticCache(config=model.config, max_cache_len=64)

    # Before a window is whole, when it just is, and after.
    for n in (1, WINDOW - 2, WINDOW - 1, WINDOW, 40):
        one = Session(model, tiny.prompt_of(n, n), static())
        one.step()
        session = f"s{n}"
        bound.suspend(one.cache, one.ids, session)
        kept = bound.resume(session, into=static())
        dynamic = bound.resume(session)
        exact = bound.resume(session, mode="exact", executor="engine", into=static())
        tiny.same_caches(kept.cache, one.cache)
        assert tiny.window_error(exact.cache, one.cache) < 1e-5
        # Nobody reads what is not of the session: a window's oldest place.
        for layer in kept.cache.layers:
            if layer.is_sliding and n >= WINDOW:
                layer.keys[:, :, 0] = torch.nan
        others = [Session.woken(model, a) for a in (kept, exact, dynamic)]
        # By one token, and by several.
        for pending in ([], [3, 5, 8], []):
            one.ids += pending
            true = one.step()
            for i, other in enumerate(others):
                other.ids += pending
                logits = other.step()
                assert (logits - true).abs().max() < 1e-4 * true.abs().max()
                assert i or torch.equal(logits, true)
        bound.suspend(others[0].cache, others[0].ids, session, after=kept)
        tiny.same_caches(bound.resume(session, into=static()).cache, one.cache)


def test_a_static_cache_is_filled_in_place(daemon: Daemon) -> None:
    """Compiled code knows its tensors by their addresses."""
    model = tiny.tiny_model("gemma3")
    bound = hf.register(daemon.connect(), model, "tiny")
    cache = transformers.StaticCache(config=model.config, max_cache_len=64)
    one = Session(model, tiny.prompt_of(31, 40), cache)
    one.step()
    bound.suspend(cache, one.ids, "s")
    true = copy.deepcopy(cache)
    where = [layer.keys.data_ptr() for layer in cache.layers]
    cache.reset()
    awake = bound.resume("s", into=cache)
    assert awake.cache is cache
    assert where == [layer.keys.data_ptr() for layer in cache.layers]
    tiny.same_caches(cache, true)


def test_a_directory_of_another_model(daemon: Daemon, tmp_path: Path) -> None:
    tiny.tiny_model("gemma3", sliding_window=2 * WINDOW).save_pretrained(tmp_path)
    with pytest.raises(torpor.FailedPrecondition, match="registered layout: its slot 0"):
        hf.register(
            daemon.connect(), tiny.tiny_model("gemma3"), "tiny", directory=tmp_path
        )
