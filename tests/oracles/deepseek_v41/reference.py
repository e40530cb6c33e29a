# SPDX-License-Identifier: Apache-2.0
"""Float64 NumPy reference of the DeepSeek-V4.1 text model, written from a facts page alone.

`Model` loads a model directory; `State` holds what serving keeps between calls (window rows,
main entries, index keys, open pairs); `forward` runs the rows [a, b) of a request through all
layers. Whole prefill, single-token decode, bounded replay and decoder tail are all this one
function with different arguments. Activations are never rounded except by the quantisers.
"""
import json
import os

import numpy as np

import formats as fm

NEG = -np.inf


# ---- loading --------------------------------------------------------------------------------
class Linear:
    """y = x W^T. `quantised`: the input is fake-quantised per 32 channels (FP8/MXFP4 weights)."""

    def __init__(self, weight, quantised):
        self.weight, self.quantised = weight, quantised

    def __call__(self, x):
        if self.quantised:
            x = fm.fp8_decode(fm.fp8_encode(x))
        return x @ self.weight.T


class Model:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json")) as f:
            cfg = self.cfg = json.load(f)["text_config"]
        raw = fm.load(os.path.join(folder, "model.safetensors"))
        self.t, self.packed = {}, set()
        for name, (dtype, a) in raw.items():
            if name.endswith(".scale"):
                continue
            scale = raw.get(name[: -len("weight")] + "scale", (None, None))[1]
            if dtype in ("U8", "I8"):
                rec = np.concatenate([a.view(np.uint8), scale], 1)
                self.t[name] = fm.mxfp4_decode(rec)
                self.packed.add(name)
            elif dtype == "F8_E4M3" and name.endswith("engram.embed.weight"):
                self.t[name] = fm.fp8_decode(np.concatenate([a, scale], 1))
            elif dtype == "F8_E4M3":
                self.t[name] = fm.fp8_weight_decode(a, scale)
                self.packed.add(name)
            elif dtype == "BF16":
                self.t[name] = fm.bf16_value(a).astype(np.float64)
            else:
                self.t[name] = a.astype(np.float64)
        self.layers = cfg["num_hidden_layers"]
        self.window = cfg["sliding_window"]
        self.ratios = cfg["compress_ratios"]
        self.kv_sources = cfg["kv_source_layer_ids"]
        self.index_sources = cfg["index_source_layer_ids"]
        self.candidate_source = cfg.get("candidate_source_layer_id")
        self.engram = None
        if cfg["engram_layer_ids"]:
            with open(os.path.join(folder, "engram.json")) as f:
                self.engram = json.load(f)
        rd = cfg["qk_rope_head_dim"]
        j = np.arange(rd // 2)
        self.freq_main = cfg["rope_theta"] ** (-2.0 * j / rd)
        self.freq_compress = self._yarn(j, rd)

    def _yarn(self, j, rd):
        """Correction range and ramp of YaRN, facts 2.6 (attention factor 1)."""
        base, r = self.cfg["compress_rope_theta"], self.cfg["rope_scaling"]
        orig = r["original_max_position_embeddings"]

        def pair_of(turns):
            return rd * np.log(orig / (turns * 2 * np.pi)) / (2 * np.log(base))

        low = max(np.floor(pair_of(r["beta_fast"])), 0)
        high = min(np.ceil(pair_of(r["beta_slow"])), rd - 1)
        self.yarn_range = (low, high)
        ramp = np.clip((j - low) / max(high - low, 0.001), 0, 1)
        freq = base ** (-2.0 * j / rd)
        return freq * (1 - ramp) + freq / r["factor"] * ramp

    def linear(self, name):
        quantised = name in self.packed and not name.endswith("wo_a.weight")
        return Linear(self.t[name], quantised)

    def freq(self, layer):
        return self.freq_compress if self.ratios[layer] else self.freq_main

    def source_of(self, layer, sources):
        return max(s for s in sources if s <= layer)


class State:
    """Everything kept between calls, per layer. Window rows are indexed by position."""

    def __init__(self, model, capacity):
        m, dim = model, model.cfg["head_dim"]
        di = m.cfg["index_head_dim"]
        self.window = np.full((m.layers, capacity, dim), np.nan)
        self.window_bytes = np.zeros((m.layers, capacity, dim + dim // 32), np.uint8)
        self.main, self.main_bytes, self.keys, self.key_bytes = {}, {}, {}, {}
        self.latent, self.main_raw, self.key_raw, self.open = {}, {}, {}, {}
        for s in m.kv_sources:
            g = capacity // m.ratios[s]
            self.latent[s] = np.full((g, dim), np.nan)
            self.main_raw[s] = np.full((g, dim), np.nan)
            self.main[s] = np.full((g, dim), np.nan)
            self.main_bytes[s] = np.zeros((g, dim // 2 + dim // 16), np.uint8)
            self.key_raw[s] = np.full((g, di), np.nan)
            self.keys[s] = np.full((g, di), np.nan)
            self.key_bytes[s] = np.zeros((g, di // 2 + di // 32), np.uint8)
            self.open[s] = None                       # (position, a, z)

    def persisted(self, model, length):
        """What a store hands back for the prefix [0, length): main entries and index keys."""
        out = State(model, self.window.shape[1])
        for s in model.kv_sources:
            g = length // model.ratios[s]
            for kind in ("main", "main_bytes", "keys", "key_bytes"):
                getattr(out, kind)[s][:g] = getattr(self, kind)[s][:g]
        return out


# ---- small pieces ---------------------------------------------------------------------------
def sigmoid(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x))
                    / (1 + np.exp(-np.abs(x))))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def rms(x, eps):
    return 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def rope(x, positions, freq, sign=1.0):
    """Rotate the trailing 2*len(freq) channels; x [S, ..., D], positions [S]."""
    rd = 2 * len(freq)
    angle = np.asarray(positions, np.float64)[:, None] * freq
    shape = (len(x),) + (1,) * (x.ndim - 2) + (len(freq),)
    cos, sin = np.cos(angle).reshape(shape), sign * np.sin(angle).reshape(shape)
    out = x.copy()
    even, odd = x[..., -rd::2], x[..., -rd + 1::2]
    out[..., -rd::2] = even * cos - odd * sin
    out[..., -rd + 1::2] = even * sin + odd * cos
    return out


def top_ids(scores, k):
    """Ids of the k largest scores above -inf, ties to the lower id, ascending."""
    order = np.argsort(-scores, kind="stable")[:k]
    return np.sort(order[scores[order] > NEG])


def padded(lists, width):
    out = np.full((len(lists), width), -1, np.int32)
    for i, ids in enumerate(lists):
        out[i, : len(ids)] = ids
    return out


# ---- sub-layers -----------------------------------------------------------------------------
def hc_coefficients(m, prefix, x):
    """pre [S,4], post [S,4], comb [S,4,4] of one mHC site (facts 2.3, steps 1 to 4)."""
    hc, eps = m.cfg["hc_mult"], m.cfg["hc_eps"]
    f = x.reshape(len(x), -1)
    f = f * rms(f, m.cfg["rms_norm_eps"])
    mix = f @ m.t[prefix + "_fn"].T
    base, scale = m.t[prefix + "_base"], m.t[prefix + "_scale"]
    pre = sigmoid(mix[:, :hc] * scale[0] + base[:hc]) + eps
    post = 2 * sigmoid(mix[:, hc:2 * hc] * scale[1] + base[hc:2 * hc])
    c = (mix[:, 2 * hc:] * scale[2] + base[2 * hc:]).reshape(-1, hc, hc)
    c = softmax(c, -1) + eps
    c = c / (c.sum(-2, keepdims=True) + eps)
    for _ in range(m.cfg["hc_sinkhorn_iters"] - 1):
        c = c / (c.sum(-1, keepdims=True) + eps)
        c = c / (c.sum(-2, keepdims=True) + eps)
    return pre, post, c


def hc_update(x, y, post, comb):
    return post[:, :, None] * y[:, None, :] + np.einsum("sjk,sjd->skd", comb, x)


def engram_rows(m, which, ids, positions):
    """Table rows [S, orders*heads] of the Engram layer number `which` (facts 2.11)."""
    e = m.engram
    n = len(e["multipliers"][which])
    small = [e["token_map"][t] for t in ids]
    rows = []
    for p in positions:
        back = [small[p - k] if p - k >= 0 else e["pad_compressed_id"] for k in range(n)]
        h, row = back[0] * e["multipliers"][which][0], []
        for k in range(1, n):
            h ^= back[k] * e["multipliers"][which][k]
            for prime in e["primes"][which][k - 1]:
                row.append(h % prime + e["offsets"][which][len(row)])
        rows.append(row)
    return np.array(rows, np.int64)


def engram_apply(m, layer, x, ids, positions):
    p = f"layers.{layer}.engram."
    rows = engram_rows(m, m.engram["layer_ids"].index(layer), ids, positions)
    e = m.t[p + "embed.weight"][rows].reshape(len(x), -1)
    hc, d, eps = m.cfg["hc_mult"], m.cfg["hidden_size"], m.cfg["rms_norm_eps"]
    kv = m.linear(p + "wkv.weight")(e)
    key, value = kv[:, : hc * d].reshape(-1, hc, d), kv[:, hc * d:]
    mixed = x * (m.t[p + "q_weight"] * m.t[p + "k_weight"]) * key
    t = mixed.sum(-1) * rms(x, eps)[..., 0] * rms(key, eps)[..., 0] * d ** -0.5
    gate = sigmoid(np.copysign(np.sqrt(np.maximum(np.abs(t), 1e-6)), t))
    return x + gate[:, :, None] * value[:, None, :]


def compress(m, state, layer, x, positions, write_from):
    """Latents, main entries and index keys of the groups closed by these rows (facts 2.7)."""
    p, r, eps = f"layers.{layer}.attn.", m.ratios[layer], m.cfg["rms_norm_eps"]
    a = m.linear(p + "compressor.wkv.weight")(x)
    pooled, groups = [], []
    if r == 1:
        for i, pos in enumerate(positions):
            if pos >= write_from:
                pooled.append(a[i])
                groups.append(pos)
    else:
        z = m.linear(p + "compressor.wgate.weight")(x)
        for i, pos in enumerate(positions):
            if pos % 2 == 0:
                state.open[layer] = (pos, a[i], z[i])
                continue
            opened, state.open[layer] = state.open[layer], None
            if pos < write_from:
                continue
            assert opened is not None and opened[0] == pos - 1
            w = softmax(np.stack([opened[2], z[i]]), 0)
            pooled.append(w[0] * opened[1] + w[1] * a[i])
            groups.append(pos // 2)
    if not groups:
        return
    g = np.array(groups)
    latent = np.stack(pooled)
    latent = m.t[p + "compressor.norm.weight"] * latent * rms(latent, eps)
    main = rope(latent, g * r, m.freq_compress)
    k = m.linear(p + "indexer.wk.weight")(latent)
    k = rope(m.t[p + "indexer.k_norm.weight"] * k * rms(k, eps), g * r, m.freq_compress)
    state.latent[layer][g], state.main_raw[layer][g], state.key_raw[layer][g] = latent, main, k
    state.main_bytes[layer][g] = fm.fp4_main_encode(main)
    state.main[layer][g] = fm.fp4_main_decode(state.main_bytes[layer][g])
    state.key_bytes[layer][g] = fm.mxfp4_encode(k)
    state.keys[layer][g] = fm.mxfp4_decode(state.key_bytes[layer][g])


def index_picks(m, state, layer, x, q_r, positions, candidates, out):
    """Pick lists of an index source, and the candidate blocks if it is the candidate source."""
    p, cfg = f"layers.{layer}.attn.indexer.", m.cfg
    heads, di = cfg["index_n_heads"], cfg["index_head_dim"]
    raw = m.linear(p + "wq_b.weight")(q_r).reshape(-1, heads, di)
    raw = rope(raw, positions, m.freq_compress)
    q = fm.mxfp4_decode(fm.mxfp4_encode(raw.reshape(-1, di))).reshape(raw.shape)
    w = m.linear(p + "weights_proj.weight")(x) * heads ** -0.5
    r, source = m.ratios[layer], m.source_of(layer, m.kv_sources)
    keys = state.keys[source]
    block = cfg.get("candidate_block_size")
    full = np.full((len(positions), len(keys)), NEG)
    scores, picks, blocks = full.copy(), [], []
    for i, pos in enumerate(positions):
        n = (pos + 1) // r
        dots = np.maximum(q[i] @ keys[:n].T, 0)
        full[i, :n] = w[i] @ dots * di ** -0.5
        scores[i] = full[i]
        if layer == m.candidate_source:
            best = np.full(-(-n // block), NEG)
            np.maximum.at(best, np.arange(n) // block, full[i, :n])
            if n:
                best[(n - 1) // block] = np.inf
            blocks.append(top_ids(best, cfg["candidate_topk_blocks"]))
        elif candidates is not None:
            scores[i, ~np.isin(np.arange(len(keys)) // block, candidates[i])] = NEG
        picks.append(top_ids(scores[i], cfg["index_topk"]))
    out("index_q_raw", raw)
    out("index_q", q)
    out("index_weights", w)
    out("scores", scores)
    out("full_scores", full)
    out("picks", padded(picks, cfg["index_topk"]))
    if blocks:
        out("candidate_blocks", padded(blocks, cfg["candidate_topk_blocks"]))
    return picks, blocks or candidates


def attend(m, state, layer, q, positions, floor, picks):
    """Joint softmax over window rows, picked entries and the sink (facts 2.9)."""
    sink = m.t[f"layers.{layer}.attn.attn_sink"]
    main = state.main[m.source_of(layer, m.kv_sources)] if m.ratios[layer] else None
    o = np.empty(q.shape)
    for i, pos in enumerate(positions):
        kv = state.window[layer, max(floor, pos - m.window + 1): pos + 1]
        if main is not None:
            kv = np.concatenate([kv, main[picks[i]]])
        logit = q[i] @ kv.T * q.shape[-1] ** -0.5
        top = np.maximum(logit.max(-1), sink)
        e = np.exp(logit - top[:, None])
        o[i] = (e @ kv) / (e.sum(-1) + np.exp(sink - top))[:, None]
    return o


def expert(m, prefix, x, weight):
    limit = m.cfg["swiglu_limit"]
    g = np.minimum(m.linear(prefix + "w1.weight")(x), limit)
    u = np.clip(m.linear(prefix + "w3.weight")(x), -limit, limit)
    return m.linear(prefix + "w2.weight")(silu(g) * u * weight)


def moe(m, layer, x, out):
    p, cfg = f"layers.{layer}.ffn.", m.cfg
    logit = x @ m.t[p + "gate.weight"].T / cfg.get("gate_temp", 1.0)
    s = np.sqrt(softplus(logit))
    chosen = np.stack([top_ids(row, cfg["num_experts_per_tok"])
                       for row in s + m.t[p + "gate.bias"]])
    weight = np.take_along_axis(s, chosen, 1)
    weight = weight / (weight.sum(-1, keepdims=True) + 1e-20) * cfg["routed_scaling_factor"]
    y = expert(m, p + "shared_experts.", x, 1.0)
    for e in range(cfg["n_routed_experts"]):
        row, slot = np.nonzero(chosen == e)
        if len(row):
            y[row] += expert(m, p + f"experts.{e}.", x[row], weight[row, slot][:, None])
    out("experts", chosen.astype(np.int32))
    out("expert_weights", weight)
    return y


# ---- the forward pass -----------------------------------------------------------------------
def forward(m, state, ids, a, b, floor=0, write_from=0, tail=False, dump=None):
    """Run rows [a, b); return logits of the rows that reach the head.

    floor: window reads start here. write_from: global entries are written only for groups that
    close at or after it (bounded replay: the hit length). tail: decoder tail, i.e. after the
    last KV source has produced its entries and window rows only the last W rows go on.
    """
    cfg, eps = m.cfg, m.cfg["rms_norm_eps"]
    dump = {} if dump is None else dump
    pos = np.arange(a, b)
    x = np.repeat(m.t["embed.weight"][[ids[i] for i in pos]][:, None], cfg["hc_mult"], 1)
    p = np.zeros((len(pos), cfg["hc_mult"]))
    p[:, 0] = 1
    picks = candidates = None
    for layer in range(m.layers):
        pre_name = f"layers.{layer}."
        att = pre_name + "attn."

        def out(name, value):
            dump[f"layer.{layer}.{name}"] = value

        out("x", x)
        out("p", p)
        if layer in cfg["engram_layer_ids"]:
            x = engram_apply(m, layer, x, ids, pos)
            out("engram_x", x)

        # attention site
        pre, post, comb = hc_coefficients(m, pre_name + "hc_attn", x)
        u = np.einsum("sj,sjd->sd", p, x)
        h = m.t[pre_name + "attn_norm.weight"] * u * rms(u, eps)
        win = m.linear(att + "wkv.weight")(h)
        win = rope(m.t[att + "kv_norm.weight"] * win * rms(win, eps), pos, m.freq(layer))
        out("window_raw", win)
        state.window_bytes[layer, pos] = fm.fp8_encode(win)
        state.window[layer, pos] = fm.fp8_decode(state.window_bytes[layer, pos])
        out("window_bytes", state.window_bytes[layer, pos])
        if layer in m.kv_sources:
            compress(m, state, layer, h, pos, write_from)
        own_floor = floor
        if tail and layer == m.kv_sources[-1] and len(pos) > m.window:
            keep = slice(len(pos) - m.window, None)
            pos, x, p, h, pre = pos[keep], x[keep], p[keep], h[keep], pre[keep]
            post, comb = post[keep], comb[keep]
            floor = max(floor, b - m.window)             # for the layers after this one
        out("attn_hc.pre", pre)
        out("attn_hc.post", post)
        out("attn_hc.comb", comb)
        out("attn_in", h)
        q_r = m.linear(att + "wq_a.weight")(h)
        q_r = m.t[att + "q_norm.weight"] * q_r * rms(q_r, eps)
        q = m.linear(att + "wq_b.weight")(q_r).reshape(
            len(pos), cfg["num_attention_heads"], cfg["head_dim"])
        q = rope(q, pos, m.freq(layer))
        out("q", q)
        if layer in m.index_sources:
            picks, candidates = index_picks(m, state, layer, h, q_r, pos, candidates, out)
        o = attend(m, state, layer, q, pos, own_floor, picks)
        out("attn_o", o)
        o = rope(o, pos, m.freq(layer), -1.0)
        groups, rank = cfg["o_groups"], cfg["o_lora_rank"]
        wo_a = m.t[att + "wo_a.weight"].reshape(groups, rank, -1)
        mid = np.einsum("sgi,gri->sgr", o.reshape(len(pos), groups, -1), wo_a)
        y = m.linear(att + "wo_b.weight")(mid.reshape(len(pos), -1))
        out("attn_y", y)
        x, p = hc_update(x, y, post, comb), pre

        # FFN site
        pre, post, comb = hc_coefficients(m, pre_name + "hc_ffn", x)
        out("ffn_hc.pre", pre)
        out("ffn_hc.post", post)
        out("ffn_hc.comb", comb)
        u = np.einsum("sj,sjd->sd", p, x)
        h = m.t[pre_name + "ffn_norm.weight"] * u * rms(u, eps)
        out("ffn_in", h)
        y = moe(m, layer, h, out)
        out("ffn_y", y)
        x, p = hc_update(x, y, post, comb), pre
    dump["final.x"], dump["final.p"] = x, p
    u = np.einsum("sj,sjd->sd", p, x)
    logits = (m.t["norm.weight"] * u * rms(u, eps)) @ m.t["head.weight"].T
    dump["logits"] = logits
    return logits
