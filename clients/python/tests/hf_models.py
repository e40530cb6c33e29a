# SPDX-License-Identifier: Apache-2.0
"""Tiny decoders of transformers, and an engine's session over one of them."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from typing import Any

import numpy as np
import pytest

# Before torch loads MKL, whose products otherwise depend on where memory lies: a
# process would not compute the bits of another, whatever KV it has.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.24")

# Small models: more threads would only wait for each other.
torch.set_num_threads(1)

WINDOW = 8
PROMPT = 150
N_LAYERS = 6
_SLIDE, _FULL = "sliding_attention", "full_attention"
_SHAPE: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "sliding_window": WINDOW,
    "attn_implementation": "eager",
    "pad_token_id": 0,
}
_THIRD = ([_SLIDE, _SLIDE, _FULL] * N_LAYERS)[:N_LAYERS]
_SECOND = ([_SLIDE, _FULL] * N_LAYERS)[:N_LAYERS]


def config_of(family: str, **changes: Any) -> Any:
    t = transformers
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "gemma3": (
            t.Gemma3TextConfig,
            {"layer_types": _THIRD, "query_pre_attn_scalar": 32},
        ),
        "gemma2": (
            t.Gemma2Config,
            {"layer_types": _SECOND, "query_pre_attn_scalar": 32},
        ),
        "gpt_oss": (
            t.GptOssConfig,
            {"layer_types": _SECOND, "num_local_experts": 4, "num_experts_per_tok": 2},
        ),
        "qwen3": (
            t.Qwen3Config,
            {"layer_types": _THIRD, "use_sliding_window": True},
        ),
        "olmo3": (t.Olmo3Config, {"layer_types": _THIRD}),
        # Every layer slides, and none does.
        "mistral": (t.MistralConfig, {}),
        "llama": (t.LlamaConfig, {"sliding_window": None}),
    }
    kind, own = kinds[family]
    return kind(**{**_SHAPE, **own, **changes})


def tiny_model(family: str, dtype: Any = torch.float32, **changes: Any) -> Any:
    config = config_of(family, **changes)
    return with_weights(
        transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    )


def stored_model(directory: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def with_weights(model: Any) -> Any:
    """Weights from names: wild enough that a wrong row shows, and that greedy
    tokens vary."""
    # A norm's weight counts from 1 in Gemma.
    norm = 0.0 if "gemma" in model.config.model_type else 1.0
    with torch.no_grad():
        for name, weight in model.named_parameters():
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            values = rng.standard_normal(weight.shape, np.float32)
            values *= 0.02 if "embed" in name else 0.2
            values += norm if "norm" in name else 0.0
            weight.copy_(torch.from_numpy(values).to(weight.dtype))
    return model.eval()


def prompt_of(seed: int, n: int = PROMPT) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(1, 256, n)]


class Session:
    """A session of an engine: the last token has no KV."""

    def __init__(self, model: Any, ids: list[int], cache: Any = None) -> None:
        self.model = model
        self.ids = list(ids)
        self.cache = cache or transformers.DynamicCache(config=model.config)

    def step(self) -> Any:
        """Runs what is pending, appends the most likely token; its logits."""
        ids = torch.tensor([self.ids[int(self.cache.get_seq_length()) :]])
        with torch.no_grad():
            ran = self.model(ids, cache=self.cache, logits_to_keep=1)
        logits = ran.logits[0, -1]
        self.ids.append(int(logits.argmax()))
        return logits

    @classmethod
    def woken(cls, model: Any, awake: Any) -> Session:
        return cls(model, awake.ids.tolist(), awake.cache)


def slept(model: Any, seed: int, steps: int = 5) -> Session:
    """One that is about to sleep: a prefill, then a few steps."""
    session = Session(model, prompt_of(seed))
    for _ in range(steps):
        session.step()
    return session


def poison(cache: Any) -> None:
    """The window is gone: whoever still reads it gets NaN."""
    for layer in cache.layers:
        if layer.is_sliding:
            layer.keys.fill_(torch.nan)
            layer.values.fill_(torch.nan)


def rows(layer: Any) -> tuple[Any, Any]:
    """What later tokens read of a dynamic or static layer: [heads, rows, dim]."""
    n = int(layer.get_seq_length())
    if layer.is_sliding:
        held = min(n, getattr(layer, "sliding_window", WINDOW) - 1)
        stop = min(n, layer.keys.shape[-2])
        return tuple(t[0, :, stop - held : stop] for t in (layer.keys, layer.values))
    return layer.keys[0, :, :n], layer.values[0, :, :n]


def same_caches(a: Any, b: Any) -> None:
    assert len(a.layers) == len(b.layers)
    for x, y in zip(a.layers, b.layers):
        assert type(x) is type(y)
        assert int(x.get_seq_length()) == int(y.get_seq_length())
        for got, wanted in zip(rows(x), rows(y)):
            assert torch.equal(got, wanted)


def window_error(cache: Any, wanted: Any, stored: Any = None) -> float:
    """Largest |a - b| of a window row over that row's largest |b|. Rows of full
    layers must be the first of those in `stored`, bit for bit."""
    worst = 0.0
    for x, y, z in zip(cache.layers, wanted.layers, (stored or wanted).layers):
        for got, true, kept in zip(rows(x), rows(y), rows(z)):
            assert got.shape == true.shape
            if not x.is_sliding:
                assert torch.equal(got, kept[:, : got.shape[1]])
                continue
            error = (got - true).abs().amax((0, 2)) / true.abs().amax((0, 2))
            worst = max(worst, float(error.max()))
    return worst


class RowCount:
    """Tokens that each decoder layer of a model runs, by hooks."""

    def __init__(self, model: Any) -> None:
        self.by_layer: Counter[int] = Counter()
        self.n_layers = len(model.base_model.layers)
        for i, layer in enumerate(model.base_model.layers):
            layer.register_forward_pre_hook(self._hook(i))

    def take(self) -> list[int]:
        """Since the last call."""
        ran = [self.by_layer[i] for i in range(self.n_layers)]
        self.by_layer.clear()
        return ran

    def _hook(self, layer: int) -> Any:
        def count(_: Any, args: Any) -> None:
            self.by_layer[layer] += args[0].shape[0] * args[0].shape[1]

        return count
