# SPDX-License-Identifier: Apache-2.0
"""A float64 reference of the Gemma 3 text model, in plain NumPy.

It shares no code with transformers: it reads config.json and the safetensors
files itself, and every formula is written out.  It is slow and small on
purpose; use it to check other implementations on tiny models.

The model, for one token row x at position i:

    x = embed[token] * sqrt(hidden_size)
    for each layer:
        h = norm(x, input_layernorm)
        q, k, v = W h (+ bias)                 per head of head_dim
        q, k = norm(q, q_norm), norm(k, k_norm)          over head_dim
        q, k = rope(q, i), rope(k, i)          theta depends on the layer type
        a = softmax_j(q . k_j * query_pre_attn_scalar**-0.5) v_j
        x = x + norm(W_o a (+ bias), post_attention_layernorm)
        h = norm(x, pre_feedforward_layernorm)
        m = W_down(gelu_tanh(W_gate h) * (W_up h))
        x = x + norm(m, post_feedforward_layernorm)
    logits = W_head norm(x, norm)              then the optional tanh soft cap

    norm(x, w) = x / sqrt(mean(x*x) + eps) * (1 + w)

A full layer reads the rows j in [0, i].  A sliding layer with window W reads
j in [i - W + 1, i], that is W rows with its own row among them.

Replay (see `Gemma3Reference.replay`) rebuilds the window rows of the sliding
layers from token ids and the stored K/V of the full layers only.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FULL = "full_attention"
SLIDING = "sliding_attention"


# --------------------------------------------------------------------------
# Files
# --------------------------------------------------------------------------


def read_safetensors(path):
    """All tensors of one safetensors file as float64, by name."""
    blob = Path(path).read_bytes()
    header_size = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + header_size])
    data = blob[8 + header_size :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[begin:end]
        if entry["dtype"] == "BF16":  # the upper half of a float32
            bits = np.frombuffer(raw, dtype="<u2").astype(np.uint32) << 16
            values = bits.view(np.float32)
        else:
            dtype = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[entry["dtype"]]
            values = np.frombuffer(raw, dtype=dtype)
        tensors[name] = values.astype(np.float64).reshape(entry["shape"])
    return tensors


def canonical_name(name):
    """Checkpoint name -> name as in a text-only model ("model.layers.0....").

    Multimodal checkpoints store the language model under
    "language_model.model." (the public ones, and what save_pretrained writes)
    or under "model.language_model." (module names of transformers 5.x, written
    with save_original_format=False).  Vision tensors map to None.
    """
    for prefix in ("language_model.model.", "model.language_model."):
        if name.startswith(prefix):
            return "model." + name[len(prefix) :]
    if name.startswith("language_model.lm_head."):
        return name[len("language_model.") :]
    if name.startswith(("model.embed_tokens.", "model.layers.", "model.norm.", "lm_head.")):
        return name
    return None


def read_weights(directory):
    """Tensors of a model directory (one file, or shards with an index)."""
    directory = Path(directory)
    index = directory / "model.safetensors.index.json"
    if index.exists():
        weight_map = json.loads(index.read_text())["weight_map"]
        files = sorted(set(weight_map.values()))
    else:
        weight_map, files = None, ["model.safetensors"]
    weights = {}
    for file in files:
        for name, tensor in read_safetensors(directory / file).items():
            if weight_map is not None and weight_map.get(name) != file:
                raise ValueError(f"{file}: {name} is not where the index says")
            canonical = canonical_name(name)
            if canonical is not None:
                weights[canonical] = tensor
    return weights


# --------------------------------------------------------------------------
# Configuration
# --------------------------------------------------------------------------


@dataclass
class Rope:
    theta: float
    factor: float = 1.0  # linear scaling: positions are divided by it


@dataclass
class Config:
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layer_types: list
    window: int
    eps: float
    query_scale: float
    rope: dict  # layer type -> Rope
    final_softcap: float | None
    attn_softcap: float | None

    @property
    def num_layers(self):
        return len(self.layer_types)

    @property
    def sliding_layers(self):
        return [i for i, kind in enumerate(self.layer_types) if kind == SLIDING]

    @property
    def full_layers(self):
        return [i for i, kind in enumerate(self.layer_types) if kind == FULL]

    @property
    def exact_replay_tokens(self):
        """E: this many replayed tokens rebuild every window row exactly."""
        return len(self.sliding_layers) * (self.window - 1)


def parse_rope(scaling, theta):
    # The old key "type" is honoured; transformers 5.24 warns and ignores it here.
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, float(scaling["factor"]))
    raise ValueError(f"rope type {kind!r} is not supported")


def parse_config(raw):
    """A Config from the dict of a config.json, of either style.

    Old style: `rope_theta` and `rope_scaling` hold for the full layers,
    `rope_local_base_freq` for the sliding layers, which are never scaled.
    New style (transformers 5): `rope_parameters` has one dict per layer type;
    a theta missing there falls back to the old keys, then to the defaults.
    Without `layer_types`, every `sliding_window_pattern`-th layer is full.
    """
    text = raw.get("text_config", raw)
    count = text["num_hidden_layers"]
    layer_types = text.get("layer_types")
    if layer_types is None:
        pattern = text.get("sliding_window_pattern", 6)
        layer_types = [SLIDING if (i + 1) % pattern else FULL for i in range(count)]
    if len(layer_types) != count:
        raise ValueError("layer_types and num_hidden_layers disagree")

    parameters = text.get("rope_parameters") or {}
    full = dict(parameters.get(FULL) or {})
    full.update(text.get("rope_scaling") or {})
    sliding = dict(parameters.get(SLIDING) or {})
    rope = {
        FULL: parse_rope(full, full.get("rope_theta", text.get("rope_theta", 1e6))),
        SLIDING: parse_rope(
            sliding, sliding.get("rope_theta", text.get("rope_local_base_freq", 1e4))
        ),
    }
    if text.get("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise ValueError("only gelu_pytorch_tanh is supported")
    if text.get("use_bidirectional_attention"):
        raise ValueError("bidirectional attention is not supported")
    return Config(
        vocab_size=text.get("vocab_size", 262208),
        hidden_size=text["hidden_size"],
        num_heads=text.get("num_attention_heads", 8),
        num_kv_heads=text.get("num_key_value_heads", 4),
        head_dim=text.get("head_dim", 256),
        layer_types=list(layer_types),
        window=text.get("sliding_window", 4096),
        eps=text.get("rms_norm_eps", 1e-6),
        query_scale=text.get("query_pre_attn_scalar", 256) ** -0.5,
        rope=rope,
        final_softcap=text.get("final_logit_softcapping"),
        attn_softcap=text.get("attn_logit_softcapping"),
    )


# --------------------------------------------------------------------------
# Model
# --------------------------------------------------------------------------


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * (1.0 + weight)


def gelu_tanh(x):
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def softcap(x, cap):
    return x if cap is None else cap * np.tanh(x / cap)


def apply_rope(x, positions, rope):
    """Rotates x [rows, heads, head_dim]; dimension d pairs with d + head_dim/2."""
    half = x.shape[-1] // 2
    frequency = rope.theta ** (-np.arange(half) / half) / rope.factor
    angle = positions[:, None, None] * frequency
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


class KVStore:
    """K and V of every layer by absolute position; absent rows are NaN."""

    def __init__(self, config, rows):
        shape = (config.num_layers, rows, config.num_kv_heads, config.head_dim)
        self.k = np.full(shape, np.nan)
        self.v = np.full(shape, np.nan)


class Gemma3Reference:
    def __init__(self, config, weights):
        self.config = config
        self.weights = weights

    @classmethod
    def from_directory(cls, directory):
        raw = json.loads((Path(directory) / "config.json").read_text())
        return cls(parse_config(raw), read_weights(directory))

    def _linear(self, x, name):
        y = x @ self.weights[name + ".weight"].T
        bias = self.weights.get(name + ".bias")
        return y if bias is None else y + bias

    def _norm(self, x, name):
        return rms_norm(x, self.weights[name + ".weight"], self.config.eps)

    def _attend(self, q, k, v):
        """One query row: q [heads, d] over the rows k, v [rows, kv_heads, d]."""
        c = self.config
        group = c.num_heads // c.num_kv_heads
        k = np.repeat(k, group, axis=1)
        v = np.repeat(v, group, axis=1)
        scores = softcap(np.einsum("hd,jhd->hj", q, k) * c.query_scale, c.attn_softcap)
        return np.einsum("hj,jhd->hd", softmax(scores), v)

    def run(self, tokens, first, last, kv, floor=0, keep_full_below=0):
        """Logits of the rows [first, last); reads and extends the KVStore `kv`.

        floor: sliding layers do not look at rows below it.
        keep_full_below: full layers read, and never write, the rows below it.
        """
        c = self.config
        positions = np.arange(first, last)
        x = self.weights["model.embed_tokens.weight"][np.asarray(tokens)[first:last]]
        x = x * math.sqrt(c.hidden_size)
        for layer, kind in enumerate(c.layer_types):
            p = f"model.layers.{layer}."
            h = self._norm(x, p + "input_layernorm")
            heads = (len(positions), -1, c.head_dim)
            q = self._linear(h, p + "self_attn.q_proj").reshape(heads)
            k = self._linear(h, p + "self_attn.k_proj").reshape(heads)
            v = self._linear(h, p + "self_attn.v_proj").reshape(heads)
            q = apply_rope(self._norm(q, p + "self_attn.q_norm"), positions, c.rope[kind])
            k = apply_rope(self._norm(k, p + "self_attn.k_norm"), positions, c.rope[kind])

            write_from = max(first, keep_full_below) if kind == FULL else first
            if write_from < last:
                kv.k[layer, write_from:last] = k[write_from - first :]
                kv.v[layer, write_from:last] = v[write_from - first :]

            attention = np.empty_like(q)
            for row, i in enumerate(positions):
                low = 0 if kind == FULL else max(floor, i - c.window + 1)
                attention[row] = self._attend(
                    q[row], kv.k[layer, low : i + 1], kv.v[layer, low : i + 1]
                )
            a = self._linear(attention.reshape(len(positions), -1), p + "self_attn.o_proj")
            x = x + self._norm(a, p + "post_attention_layernorm")

            h = self._norm(x, p + "pre_feedforward_layernorm")
            gate = gelu_tanh(self._linear(h, p + "mlp.gate_proj"))
            m = self._linear(gate * self._linear(h, p + "mlp.up_proj"), p + "mlp.down_proj")
            x = x + self._norm(m, p + "post_feedforward_layernorm")

        x = self._norm(x, "model.norm")
        head = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        return softcap(x @ head.T, c.final_softcap)

    def cold(self, tokens):
        """Logits of all rows, and the KVStore, of a run from nothing."""
        kv = KVStore(self.config, len(tokens))
        return self.run(tokens, 0, len(tokens), kv), kv

    def replay(self, tokens, stored, cut, replayed):
        """Rebuild at `cut` from the full layers of `stored`, then run the rest.

        Rows [cut - replayed, cut) are replayed: sliding layers start empty and
        do not look below the first replayed row; full layers read the stored
        rows and keep them.  Returns the KVStore right after the rebuild, with
        only the last W-1 rows kept in the sliding layers, and the logits of
        the rows [cut, len(tokens)).
        """
        c = self.config
        start = cut - replayed
        kv = KVStore(c, len(tokens))
        for layer in c.full_layers:
            kv.k[layer, :cut] = stored.k[layer, :cut]
            kv.v[layer, :cut] = stored.v[layer, :cut]
        self.run(tokens, start, cut, kv, floor=start, keep_full_below=cut)
        for layer in c.sliding_layers:
            kv.k[layer, : max(0, cut - (c.window - 1))] = np.nan
            kv.v[layer, : max(0, cut - (c.window - 1))] = np.nan
        rebuilt = KVStore(c, len(tokens))
        rebuilt.k[:], rebuilt.v[:] = kv.k, kv.v
        logits = self.run(tokens, cut, len(tokens), kv, floor=start, keep_full_below=cut)
        return rebuilt, logits
