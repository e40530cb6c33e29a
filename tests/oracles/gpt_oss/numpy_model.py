# SPDX-License-Identifier: Apache-2.0
"""A float64 reference of gpt-oss, in plain NumPy.

It shares no code with transformers: it reads config.json and the safetensors
file itself, MXFP4 included, and every formula is written out.  Slow and small
on purpose.

The model, for one token row x at position i:

    x = embed[token]
    for each layer:
        h = norm(x, input_layernorm)
        q, k, v = W h + b                              per head of head_dim
        q, k = rope(q, i), rope(k, i)
        a = sum_j p_j v_j,  p = softmax over (q . k_j / sqrt(head_dim), sink)
        x = x + W_o a + b_o
        h = norm(x, post_attention_layernorm)
        r = W_r h + b_r;  the top_k of r, weighted by the softmax of those
        gate, up = the even and the odd columns of h W_gate_up + b_gate_up
        g = min(gate, limit);  u = clip(up, -limit, limit)
        x = x + sum of weight * (((u + 1) g sigmoid(alpha g)) W_down + b_down)
    logits = W_head norm(x, norm)

    norm(x, w) = x / sqrt(mean(x*x) + eps) * w

A full layer reads the rows j in [0, i], a sliding one those in [i - W + 1, i].
"""

import json
import math
from pathlib import Path

import numpy as np

FULL = "full_attention"

# E2M1: sign, two bits of exponent, one of mantissa.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = np.concatenate([E2M1, -E2M1])


def decode_mxfp4(blocks, scales):
    """[.., rows, groups, 16] bytes and [.., rows, groups] as [.., rows, columns].

    The low half of a byte is the even column; a scale is 2^(byte - 127).
    """
    pairs = np.stack([E2M1[blocks & 15], E2M1[blocks >> 4]], axis=-1)
    values = pairs.reshape(*blocks.shape[:-1], -1)
    values = values * 2.0 ** (scales.astype(np.float64) - 127)[..., None]
    return values.reshape(*blocks.shape[:-2], -1)


def read_safetensors(path):
    """Every tensor: U8 as bytes, others as float64."""
    blob = Path(path).read_bytes()
    begin = 8 + int.from_bytes(blob[:8], "little")
    tensors = {}
    for name, entry in json.loads(blob[8:begin]).items():
        if name == "__metadata__":
            continue
        first, last = (begin + at for at in entry["data_offsets"])
        raw = blob[first:last]
        if entry["dtype"] == "BF16":  # the upper half of a float32
            wide = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
            values = wide.view(np.float32).astype(np.float64)
        elif entry["dtype"] == "F32":
            values = np.frombuffer(raw, "<f4").astype(np.float64)
        else:
            assert entry["dtype"] == "U8", entry
            values = np.frombuffer(raw, np.uint8)
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def read_weights(directory):
    """By transformers' names; packed experts as [experts, in, out]."""
    tensors = read_safetensors(Path(directory) / "model.safetensors")
    weights = {}
    for name, values in tensors.items():
        if name.endswith("_scales"):
            continue
        if name.endswith("_blocks"):
            base = name.removesuffix("_blocks")
            rows = decode_mxfp4(values, tensors[base + "_scales"])
            weights[base] = rows.swapaxes(1, 2)
        else:
            weights[name] = values
    return weights


def softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def rope_frequencies(config):
    """Frequencies of the pairs, and what cos and sin are multiplied by."""
    rope = config.get("rope_scaling") or config["rope_parameters"]
    theta = rope.get("rope_theta", config.get("rope_theta", 150000.0))
    dim = config["head_dim"]
    frequency = theta ** (-np.arange(0, dim, 2) / dim)
    if rope["rope_type"] == "default":
        return frequency, 1.0
    factor = rope["factor"]
    original = rope["original_max_position_embeddings"]

    def pair_of(turns):
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_of(rope.get("beta_fast", 32)), pair_of(rope.get("beta_slow", 1))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    slow = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    frequency = frequency / factor * slow + frequency * (1 - slow)

    def mscale(m):
        return 0.1 * m * math.log(factor) + 1 if factor > 1 else 1.0

    scale = rope.get("attention_factor")
    if scale is None:
        scale = mscale(1)
        if rope.get("mscale") and rope.get("mscale_all_dim"):
            scale = mscale(rope["mscale"]) / mscale(rope["mscale_all_dim"])
    return frequency, scale


class KVStore:
    """K and V of every layer by absolute position; absent rows are NaN."""

    def __init__(self, config, rows):
        shape = (
            config["num_hidden_layers"],
            rows,
            config["num_key_value_heads"],
            config["head_dim"],
        )
        self.k = np.full(shape, np.nan)
        self.v = np.full(shape, np.nan)


class Reference:
    def __init__(self, directory):
        self.config = json.loads((Path(directory) / "config.json").read_text())
        self.weights = read_weights(directory)
        self.frequency, self.scale = rope_frequencies(self.config)
        # The least distance of a chosen expert's logit from the next one's.
        self.margin = math.inf
        # The most of |gate| and |up|.
        self.largest = 0.0

    def _linear(self, x, name):
        y = x @ self.weights[name + ".weight"].T
        bias = self.weights.get(name + ".bias")
        return y if bias is None else y + bias

    def _norm(self, x, name):
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean + self.config["rms_norm_eps"]) * self.weights[name + ".weight"]

    def _rope(self, x, positions):
        half = x.shape[-1] // 2
        angle = positions[:, None, None] * self.frequency
        cos, sin = np.cos(angle) * self.scale, np.sin(angle) * self.scale
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def _attend(self, q, k, v, sinks):
        """One query row: q [heads, d] over the rows k, v [rows, kv_heads, d]."""
        group = q.shape[0] // k.shape[1]
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("hd,jhd->hj", q, k) / math.sqrt(q.shape[-1])
        shares = softmax(np.concatenate([scores, sinks[:, None]], axis=-1))
        return np.einsum("hj,jhd->hd", shares[:, :-1], v)

    def _experts(self, h, name):
        """One row."""
        w, c = self.weights, self.config
        logits = w[name + "router.weight"] @ h + w[name + "router.bias"]
        order = np.argsort(-logits)
        top_k = c["num_experts_per_tok"]
        if top_k < len(order):
            self.margin = min(self.margin, logits[order[top_k - 1]] - logits[order[top_k]])
        chosen = order[:top_k]
        out = np.zeros_like(h)
        e = name + "experts."
        limit, alpha = c["swiglu_limit"], c.get("swiglu_alpha", 1.702)
        for expert, weight in zip(chosen, softmax(logits[chosen])):
            both = h @ w[e + "gate_up_proj"][expert] + w[e + "gate_up_proj_bias"][expert]
            self.largest = max(self.largest, np.abs(both).max())
            gate = np.minimum(both[0::2], limit)
            up = np.clip(both[1::2], -limit, limit)
            act = (up + 1) * gate / (1 + np.exp(-alpha * gate))
            out += weight * (
                act @ w[e + "down_proj"][expert] + w[e + "down_proj_bias"][expert]
            )
        return out

    def run(self, tokens, first, last, kv, floor=0, keep_full_below=0):
        """Logits of the rows [first, last); reads and extends the KVStore `kv`.

        floor: sliding layers do not look at rows below it.
        keep_full_below: full layers read, and never write, the rows below it.
        """
        c, w = self.config, self.weights
        positions = np.arange(first, last)
        x = w["model.embed_tokens.weight"][np.asarray(tokens)[first:last]]
        for layer, kind in enumerate(c["layer_types"]):
            p = f"model.layers.{layer}."
            h = self._norm(x, p + "input_layernorm")
            heads = (len(positions), -1, c["head_dim"])
            q = self._linear(h, p + "self_attn.q_proj").reshape(heads)
            k = self._linear(h, p + "self_attn.k_proj").reshape(heads)
            v = self._linear(h, p + "self_attn.v_proj").reshape(heads)
            q, k = self._rope(q, positions), self._rope(k, positions)
            write_from = max(first, keep_full_below) if kind == FULL else first
            if write_from < last:
                kv.k[layer, write_from:last] = k[write_from - first :]
                kv.v[layer, write_from:last] = v[write_from - first :]
            attention = np.empty_like(q)
            for row, i in enumerate(positions):
                low = 0 if kind == FULL else max(floor, i - c["sliding_window"] + 1)
                attention[row] = self._attend(
                    q[row],
                    kv.k[layer, low : i + 1],
                    kv.v[layer, low : i + 1],
                    w[p + "self_attn.sinks"],
                )
            flat = attention.reshape(len(positions), -1)
            x = x + self._linear(flat, p + "self_attn.o_proj")
            h = self._norm(x, p + "post_attention_layernorm")
            x = x + np.stack([self._experts(row, p + "mlp.") for row in h])
        head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
        return self._norm(x, "model.norm") @ head.T

    def cold(self, tokens):
        """Logits of all rows, and the KVStore, of a run from nothing."""
        kv = KVStore(self.config, len(tokens))
        return self.run(tokens, 0, len(tokens), kv), kv

    def replay(self, tokens, stored, cut, replayed):
        """Rebuild at `cut` from the full layers of `stored`, then run the rest."""
        kv = KVStore(self.config, len(tokens))
        for layer, kind in enumerate(self.config["layer_types"]):
            if kind == FULL:
                kv.k[layer, :cut] = stored.k[layer, :cut]
                kv.v[layer, :cut] = stored.v[layer, :cut]
        floor = cut - replayed
        self.run(tokens, floor, cut, kv, floor=floor, keep_full_below=cut)
        rebuilt = KVStore(self.config, 0)
        rebuilt.k, rebuilt.v = kv.k.copy(), kv.v.copy()
        logits = self.run(tokens, cut, len(tokens), kv, floor=floor)
        return rebuilt, logits
