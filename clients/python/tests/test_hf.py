# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 of transformers sleeps and wakes. Skipped without torch."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torpor
from daemon import ROOT, Daemon

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.4")
hf = pytest.importorskip("torpor.hf")

# Small models: more threads would only wait for each other.
torch.set_num_threads(1)

WINDOW = 8
PROMPT = 150


def tiny_model(dtype: Any) -> Any:
    """Weights from names: wild enough that a wrong row shows."""
    config = transformers.Gemma3TextConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        sliding_window=WINDOW,
        layer_types=["sliding_attention"] * 2
        + ["full_attention"]
        + ["sliding_attention"] * 2
        + ["full_attention"],
        query_pre_attn_scalar=32,
        max_position_embeddings=2048,
        attn_implementation="eager",
    )
    model = transformers.Gemma3ForCausalLM(config).to(dtype).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            values = rng.standard_normal(weight.shape, np.float32) * 0.2
            weight.copy_(torch.from_numpy(values).to(dtype))
    return model


def prompt_of(seed: int, n: int = PROMPT) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, 256, n)]


class Session:
    """A session of an engine: the last token has no KV."""

    def __init__(self, model: Any, ids: list[int]) -> None:
        self.model = model
        self.ids = list(ids)
        self.cache = transformers.DynamicCache(config=model.config)

    def step(self) -> Any:
        """Runs what is pending, appends the most likely token; its logits."""
        ids = torch.tensor([self.ids[self.cache.get_seq_length() :]])
        with torch.no_grad():
            logits = self.model(ids, past_key_values=self.cache).logits[0, -1]
        self.ids.append(int(logits.argmax()))
        return logits

    @classmethod
    def woken(cls, model: Any, awake: Any) -> Session:
        session = cls(model, awake.ids.tolist())
        session.cache = awake.cache
        return session


def same_caches(a: Any, b: Any) -> None:
    assert len(a.layers) == len(b.layers)
    for x, y in zip(a.layers, b.layers):
        assert type(x) is type(y)
        assert x.get_seq_length() == y.get_seq_length()
        assert torch.equal(x.keys, y.keys)
        assert torch.equal(x.values, y.values)


@pytest.mark.parametrize("plane", ["grpc", "shm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_wakes_to_the_bits_of_a_twin_that_never_slept(
    daemon: Daemon, dtype: Any, plane: str
) -> None:
    model = tiny_model(dtype)
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
    model = tiny_model(torch.float32)
    bound = hf.register(daemon.connect(), model, "tiny")
    one = Session(model, prompt_of(2, 1))
    before = None
    for _ in range(12):
        one.step()
        before = bound.suspend(one.cache, one.ids, "s", after=before)
        same_caches(bound.resume("s").cache, one.cache)
    assert before is not None and before.version == 12


def test_the_daemon_replays_what_torch_computed(daemon: Daemon, tmp_path: Path) -> None:
    model = tiny_model(torch.float32)
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
    model = tiny_model(torch.float32)
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


def test_bad_caches_are_refused(daemon: Daemon) -> None:
    model = tiny_model(torch.float32)
    bound = hf.register(daemon.connect(), model, "tiny")
    one = Session(model, prompt_of(5))
    one.step()
    with pytest.raises(torpor.InvalidArgument, match="wanted at least the 150"):
        bound.suspend(one.cache, one.ids[:100], "s")
    with pytest.raises(torpor.InvalidArgument, match="got 0 layers|ids: got 1"):
        bound.suspend(transformers.DynamicCache(), [1], "s")
    half = Session(tiny_model(torch.bfloat16), one.ids[:-1])
    half.step()
    with pytest.raises(torpor.InvalidArgument, match="has rows of 128 bytes"):
        bound.suspend(half.cache, half.ids, "s")
    receipt = bound.suspend(one.cache, one.ids, "s")
    awake = bound.resume("s")
    changed = [*one.ids]
    changed[3] ^= 1
    with pytest.raises(torpor.InvalidArgument, match="151 tokens of the session"):
        bound.suspend(one.cache, changed, "s", after=awake)
    with pytest.raises(torpor.Aborted):
        bound.suspend(one.cache, one.ids, "s")
    assert receipt.version == 1
    other = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=8,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
        )
    )
    with pytest.raises(torpor.InvalidArgument, match="got 'llama'"):
        hf.register(bound.client, other, "llama")
