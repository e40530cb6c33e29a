# SPDX-License-Identifier: Apache-2.0
"""selfcheck.py CASES_FOLDER: derives everything a second time, in torch float64 and another style
(dense masks instead of lists, complex rope, torch casts and brute force for the codecs), and
compares with expected.safetensors. Only the folder layout is shared with reference.py."""
import json
import math
import os
import sys
from fractions import Fraction

import numpy as np
import torch
from safetensors.torch import load_file

T64 = torch.float64
E4 = torch.float8_e4m3fn
FP4 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], dtype=T64)


def two_to_ceil_log2(v, unit):
    """Exact power of two 2^k >= v/unit by rational comparison, elementwise (small inputs)."""
    out = []
    for a in v.flatten().tolist():
        f = Fraction(a) / unit
        k = math.floor(math.log2(a) - math.log2(unit)) - 2
        while Fraction(2) ** k < f:
            k += 1
        out.append(2.0 ** k)
    return torch.tensor(out, dtype=T64).reshape(v.shape)


def q8(x, block=32):
    """E4M3 / UE8M0. torch's cast from float64 may round twice, so go through exact residues."""
    b = x.reshape(-1, block)
    s = two_to_ceil_log2(b.abs().amax(-1, keepdim=True).clamp(min=1e-4), 448)
    v = (b / s).clamp(-448, 448)
    near = v.to(torch.float32).to(E4)
    alt = near.to(T64)
    for step in (-1, 1):                                    # neighbours of the cast: pick nearest
        mag = (near.view(torch.uint8) & 127).to(torch.int16) + step
        c = (mag.clamp(0, 126).to(torch.uint8) | (near.view(torch.uint8) & 128)).view(E4).to(T64)
        alt = torch.where((c - v).abs() < (alt - v).abs(), c, alt)
    return (alt * s).reshape(x.shape)


def q4(x, block):
    b = x.reshape(-1, block)
    top = b.abs().amax(-1, keepdim=True)
    if block == 16:
        s = (top.clamp(min=6 * 2.0 ** -9) / 6).clamp(max=448).to(torch.float32).to(E4).to(T64)
    else:
        s = two_to_ceil_log2(top.clamp(min=6 * 2.0 ** -126), 6)
    v = (b / s).clamp(-6, 6)
    dist = (v[..., None].abs() - FP4[:8]).abs()
    low = dist.amin(-1, keepdim=True)
    hit = dist == low
    even = hit & (torch.arange(8) % 2 == 0)
    code = torch.where(even.any(-1), even.float().argmax(-1), hit.float().argmax(-1))
    return (torch.copysign(FP4[:8][code], v) * s).reshape(x.shape)


class Net:
    def __init__(self, folder):
        self.c = json.load(open(os.path.join(folder, "config.json")))["text_config"]
        raw = load_file(os.path.join(folder, "model.safetensors"))
        self.w, self.low = {}, set()
        for k, v in raw.items():
            if k.endswith(".scale"):
                continue
            s = raw.get(k[:-6] + "scale")
            if s is None:
                self.w[k] = v.to(T64)
                continue
            s = s.to(torch.float32).to(T64)
            if v.dtype == torch.uint8:
                lo, hi = FP4[(v & 15).long()], FP4[(v >> 4).long()]
                full = torch.stack([lo, hi], -1).flatten(1)
                self.w[k] = full * s.repeat_interleave(32, 1)
            elif "engram.embed" in k:
                self.w[k] = v.to(T64) * s.repeat_interleave(32, 1)
            else:
                self.w[k] = v.to(T64) * s.repeat_interleave(32, 0).repeat_interleave(32, 1)
            if "engram.embed" not in k and "wo_a" not in k:
                self.low.add(k)
        path = os.path.join(folder, "engram.json")
        self.e = json.load(open(path)) if os.path.exists(path) else None

    def lin(self, name, x):
        x = q8(x) if name in self.low else x
        return torch.nn.functional.linear(x, self.w[name])

    def norm(self, name, x):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.w[name], 1e-20)

    def turn(self, x, pos, ratio, back=False):
        """Complex rotation of the trailing channels; x [S, D] or [S, H, D]."""
        c, rd = self.c, self.c["qk_rope_head_dim"]
        base = c["compress_rope_theta"] if ratio else c["rope_theta"]
        f = torch.tensor([base ** (-2 * j / rd) for j in range(rd // 2)], dtype=T64)
        if ratio:
            y = c["rope_scaling"]
            o = y["original_max_position_embeddings"]
            where = [rd * math.log(o / (t * 2 * math.pi)) / (2 * math.log(base))
                     for t in (y["beta_fast"], y["beta_slow"])]
            lo, hi = math.floor(where[0]), math.ceil(where[1])
            for j in range(rd // 2):
                part = min(max((j - lo) / (hi - lo), 0), 1)
                f[j] = f[j] * ((1 - part) + part / y["factor"])
        ang = torch.as_tensor(pos, dtype=T64)[:, None] * f * (-1 if back else 1)
        z = torch.view_as_complex(x[..., -rd:].reshape(*x.shape[:-1], rd // 2, 2).contiguous())
        if x.ndim == 3:
            ang = ang[:, None]
        z = torch.view_as_real(z * torch.polar(torch.ones_like(ang), ang)).flatten(-2)
        return torch.cat([x[..., :-rd], z], -1)

    def site(self, name, X):
        f = X.flatten(1)
        m = (f @ self.w[name + "_fn"].T) / (f.pow(2).mean(-1, keepdim=True) + 1e-20).sqrt()
        s, b = self.w[name + "_scale"], self.w[name + "_base"]
        pre = torch.sigmoid(m[:, :4] * s[0] + b[:4]) + 1e-6
        post = 2 * torch.sigmoid(m[:, 4:8] * s[1] + b[4:8])
        C = torch.softmax((m[:, 8:] * s[2] + b[8:]).reshape(-1, 4, 4), 2) + 1e-6
        C = C / (C.sum(1, keepdim=True) + 1e-6)
        for _ in range(19):
            C = C / (C.sum(2, keepdim=True) + 1e-6)
            C = C / (C.sum(1, keepdim=True) + 1e-6)
        return pre, post, C

    def run(self, ids, start=0, stored=None, tail_floor=0):
        """Rows [start, len(ids)). stored: layer -> (main, keys) read instead of made (replay; the
        window floor is then `start` by itself). tail_floor: window floor after the last source;
        rows before it are junk there, and nobody reads them."""
        c, n, res = self.c, len(ids) - start, {}
        d, D, H = c["hidden_size"], c["head_dim"], c["num_attention_heads"]
        pos = torch.arange(start, start + n)
        X = self.w["embed.weight"][ids[start:]][:, None].expand(n, 4, d).clone()
        p = torch.zeros(n, 4, dtype=T64)
        p[:, 0] = 1
        dist = pos[:, None] - pos[None]
        win_mask = (dist >= 0) & (dist < c["sliding_window"])
        for L in range(c["num_hidden_layers"]):
            r, P = c["compress_ratios"][L], f"layers.{L}."
            if L in c["engram_layer_ids"]:
                X = self.engram(L, X, ids, start)
            pre, post, C = self.site(P + "hc_attn", X)
            h = self.norm(P + "attn_norm.weight", (p[:, :, None] * X).sum(1))
            A = P + "attn."
            qr = self.norm(A + "q_norm.weight", self.lin(A + "wq_a.weight", h))
            q = self.turn(self.lin(A + "wq_b.weight", qr).reshape(n, H, D), pos, r)
            kv = q8(self.turn(self.norm(A + "kv_norm.weight", self.lin(A + "wkv.weight", h)),
                              pos, r))
            res[f"layer.{L}.q"], res[f"layer.{L}.window"] = q, kv
            if L in c["kv_source_layer_ids"] and stored:
                main, key = stored[L]
                if r == 2 and len(ids) % 2:
                    res[f"open.{L}"] = torch.cat([self.lin(A + f"compressor.{k}.weight", h[-1:])
                                                  for k in ("wkv", "wgate")], 1)
            elif L in c["kv_source_layer_ids"]:
                a, G = self.lin(A + "compressor.wkv.weight", h), n // r
                if r == 2:
                    z = self.lin(A + "compressor.wgate.weight", h)
                    a, z = a[:2 * G].reshape(G, 2, D), z[:2 * G].reshape(G, 2, D)
                    g = torch.sigmoid(z[:, 0] - z[:, 1])           # softmax of two
                    a = g * a[:, 0] + (1 - g) * a[:, 1]
                lat = self.norm(A + "compressor.norm.weight", a)
                at = torch.arange(G) * r
                main = q4(self.turn(lat, at, r), 16)
                key = self.norm(A + "indexer.k_norm.weight", self.lin(A + "indexer.wk.weight",
                                                                      lat))
                key = q4(self.turn(key, at, r), 32)
                res[f"layer.{L}.main"], res[f"layer.{L}.key"] = main, key
            keys, vals = kv, kv
            mask = win_mask
            if L > c["kv_source_layer_ids"][-1]:
                mask = mask & ((pos >= tail_floor)[None] | (pos < tail_floor)[:, None])
            if r:
                if L in c["index_source_layer_ids"]:
                    pick = self.index(L, A, h, qr, pos, r, key, res)
                keys = vals = torch.cat([kv, main])
                mask = torch.cat([mask, pick], 1)
            logit = torch.einsum("shd,kd->shk", q, keys) / math.sqrt(D)
            logit = logit.masked_fill(~mask[:, None], -math.inf)
            sink = self.w[A + "attn_sink"][None, :, None].expand(n, H, 1)
            prob = torch.softmax(torch.cat([logit, sink], 2), 2)[..., :-1]
            o = torch.einsum("shk,kd->shd", prob, vals)
            res[f"layer.{L}.attn_o"] = o
            o = self.turn(o, pos, r, back=True).flatten(1)
            groups = c["o_groups"]
            parts, wa = o.chunk(groups, 1), self.w[A + "wo_a.weight"].chunk(groups, 0)
            y = self.lin(A + "wo_b.weight", torch.cat([u @ w.T for u, w in zip(parts, wa)], 1))
            res[f"layer.{L}.attn_y"] = y
            X = post[:, :, None] * y[:, None] + C.transpose(1, 2) @ X
            p = pre
            pre, post, C = self.site(P + "hc_ffn", X)
            h = self.norm(P + "ffn_norm.weight", (p[:, :, None] * X).sum(1))
            y = self.ffn(P + "ffn.", h)
            res[f"layer.{L}.ffn_y"] = y
            X = post[:, :, None] * y[:, None] + C.transpose(1, 2) @ X
            p = pre
        res["final.x"], res["final.p"] = X, p
        res["logits"] = self.norm("norm.weight", (p[:, :, None] * X).sum(1)) @ self.w[
            "head.weight"].T
        return res

    def index(self, L, A, h, qr, pos, r, key, res):
        c, n, G = self.c, len(h), len(key)
        nI, Di = c["index_n_heads"], c["index_head_dim"]
        qi = q4(self.turn(self.lin(A + "indexer.wq_b.weight", qr).reshape(n, nI, Di), pos, r), 32)
        w = self.lin(A + "indexer.weights_proj.weight", h) / math.sqrt(nI)
        s = (torch.relu(torch.einsum("shd,gd->shg", qi, key)) * w[:, :, None]).sum(1)
        s = s / math.sqrt(Di)
        end = torch.arange(G) * r + r - 1                       # closing position of each group
        s = s.masked_fill(end[None] > pos[:, None], -math.inf)
        src = c.get("candidate_source_layer_id")
        if L == src:
            B, nb = c["candidate_block_size"], -(-G // c["candidate_block_size"])
            best = torch.nn.functional.pad(s, (0, nb * B - G), value=-math.inf)
            best = best.reshape(n, nb, B).amax(-1)
            new = (pos + 1) // r - 1
            for i in range(n):
                if new[i] >= 0:
                    best[i, new[i] // B] = math.inf
            self.allowed = self.choose(best, c["candidate_topk_blocks"])
            self.allowed = self.allowed.repeat_interleave(B, 1)[:, :G]
        elif src is not None and L > src:
            s = s.masked_fill(~self.allowed, -math.inf)
        res[f"layer.{L}.scores"] = s
        return self.choose(s, c["index_topk"])

    @staticmethod
    def choose(s, k):
        """True where fewer than k entries beat this one (bigger, or equal with a lower id)."""
        a, b = s[:, :, None], s[:, None, :]
        lower = torch.arange(s.shape[1])[None, :] < torch.arange(s.shape[1])[:, None]
        beaten = ((b > a) | ((b == a) & lower)).sum(-1)
        return (beaten < k) & (s > -math.inf)

    def ffn(self, F, h):
        c, lim = self.c, self.c["swiglu_limit"]

        def glu(name, x, weight):
            g = self.lin(name + ".w1.weight", x).clamp(max=lim)
            u = self.lin(name + ".w3.weight", x).clamp(-lim, lim)
            return self.lin(name + ".w2.weight", torch.nn.functional.silu(g) * u * weight)

        s = torch.log1p(torch.exp(h @ self.w[F + "gate.weight"].T)).sqrt()
        on = self.choose(s + self.w[F + "gate.bias"], c["num_experts_per_tok"]).to(T64)
        w = on * s / ((on * s).sum(1, keepdim=True) + 1e-20) * c["routed_scaling_factor"]
        y = glu(F + "shared_experts", h, 1.0)
        for e in range(c["n_routed_experts"]):                   # dense: weight 0 where not chosen
            y = y + glu(F + f"experts.{e}", h, w[:, e:e + 1])
        return y

    def engram(self, L, X, ids, start):
        e, k = self.e, self.e["layer_ids"].index(L)
        n, d = len(ids), self.c["hidden_size"]
        small = np.array(e["token_map"], np.int64)[ids]
        padded = np.concatenate([np.full(3, e["pad_compressed_id"], np.int64), small])
        mult = np.array(e["multipliers"][k], np.int64)
        hashes, h = [], padded[3:] * mult[0]
        cols = []
        for order in range(1, 4):
            h = h ^ (padded[3 - order: 3 - order + n] * mult[order])
            hashes.append(h)
            for prime in e["primes"][k][order - 1]:
                cols.append(h % prime + e["offsets"][k][len(cols)])
        P = f"layers.{L}.engram."
        rows = self.w[P + "embed.weight"][torch.tensor(np.stack(cols, 1))[start:]].flatten(1)
        out = self.lin(P + "wkv.weight", rows).reshape(n - start, 5, d)
        new = X.clone()
        for j in range(4):
            key = out[:, j]
            a = X[:, j] / (X[:, j].pow(2).mean(-1, keepdim=True) + 1e-20).sqrt()
            b = key / (key.pow(2).mean(-1, keepdim=True) + 1e-20).sqrt()
            t = (a * self.w[P + "q_weight"][j] * b * self.w[P + "k_weight"][j]).sum(-1)
            t = t / math.sqrt(d)
            g = torch.sigmoid(t.sign() * t.abs().clamp(min=1e-6).sqrt())
            new[:, j] = X[:, j] + g[:, None] * out[:, 4]
        return new


def record_values(raw, block, element_bytes, width):
    """Dequantise stored records of the expected file with torch alone."""
    v, s = raw[:, : raw.shape[1] - width // block], raw[:, raw.shape[1] - width // block:]
    if element_bytes == 1:
        v = v.contiguous().view(E4).to(T64)
    else:
        v = torch.stack([FP4[(v & 15).long()], FP4[(v >> 4).long()]], -1).flatten(1)
    s = s.contiguous().view(E4 if block == 16 else torch.float8_e8m0fnu).to(torch.float32).to(T64)
    return v * s.repeat_interleave(block, 1)


def check(folder):
    net = Net(folder)
    ids = json.load(open(os.path.join(folder, "ids.json")))
    got, exp = net.run(ids), load_file(os.path.join(folder, "expected.safetensors"))
    D, Di = net.c["head_dim"], net.c["index_head_dim"]
    worst, count = 0.0, 0
    for name, a in got.items():
        layer = name.rsplit(".", 1)[0]
        if name.endswith(".window"):
            b = record_values(exp[layer + ".window_bytes"], 32, 1, D)
        elif name.endswith(".main"):
            b = record_values(exp[layer + ".main_bytes"], 16, 0, D)
        elif name.endswith(".key"):
            b = record_values(exp[layer + ".index_bytes"], 32, 0, Di)
        elif name in exp:
            b = exp[name].to(T64)
        else:
            continue
        count += 1
        same = torch.isinf(a) & (a == b)
        err = (torch.where(same, 0, a) - torch.where(same, 0, b)).abs().max().item()
        worst = max(worst, err / max(1.0, torch.where(same, 0, b).abs().max().item()))
    print(f"{folder}: {count} tensors, largest relative difference {worst:.2e}")
    assert worst < 2e-7 and count > 10


def check_replay(folder):
    net = Net(folder)
    ids = json.load(open(os.path.join(folder, "ids.json")))
    exp = load_file(os.path.join(folder, "expected.safetensors"))
    rep = load_file(os.path.join(folder, "replay.safetensors"))
    D, Di, W = net.c["head_dim"], net.c["index_head_dim"], net.c["sliding_window"]
    seen = set()

    def same(name, a, tol):
        b = rep[name] if tol else record_values(rep[name], 32, 1, D)
        seen.add(name)
        assert a.shape == b.shape and (a - b).abs().max() <= tol, name

    for h in sorted({int(k.split(".")[0]) for k in rep if not k.startswith("tail")}):
        stored = {}
        for s in net.c["kv_source_layer_ids"]:
            g = h // net.c["compress_ratios"][s]
            stored[s] = (record_values(exp[f"layer.{s}.main_bytes"][:g], 16, 0, D),
                         record_values(exp[f"layer.{s}.index_bytes"][:g], 32, 0, Di))
        got = net.run(ids[:h], max(0, h - W), stored)
        for name, a in got.items():
            if name.endswith(".window"):
                same(f"{h}.window_bytes.{name.split('.')[1]}", a, 0)
            if name.startswith("open."):
                same(f"{h}.{name}", a, 1e-6)
        same(f"{h}.logits", got["logits"][-1], 1e-6)
    n = len(ids)
    got = net.run(ids, tail_floor=n - W)
    for name, a in got.items():
        if name.endswith(".window"):
            same(f"tail.{n}.window_bytes.{name.split('.')[1]}", a[-W:], 0)
    same(f"tail.{n}.logits", got["logits"][-1], 1e-6)
    assert seen == set(rep)
    print(f"{folder}: replay and tail agree ({len(seen)} tensors)")


def check_ops(path):
    o = load_file(path)
    for name, block, element in (("main", 16, 0), ("mxfp4", 32, 0), ("fp8", 32, 1)):
        x = o[name + ".input"].to(T64)
        v = record_values(o[name + ".bytes"], block, element, x.shape[1])
        mine = q8(x) if element else q4(x, block)
        assert torch.equal(v, o[name + ".values"].to(T64)) and torch.equal(v, mine), name
        assert torch.equal(torch.signbit(v), torch.signbit(x)), name
    r = o["v4.bytes"]
    assert (r[:, 583] == 0).all()
    x = o["v4.input"]
    rope = r[:, 448:576].contiguous().view(torch.bfloat16)
    assert torch.equal(rope.view(torch.int16), x[:, 448:].to(torch.bfloat16).view(torch.int16))
    body = torch.cat([r[:, :448], r[:, 576:583]], 1)
    v = record_values(body, 64, 1, 448)
    assert torch.equal(v, q8(x[:, :448].to(T64), 64))
    assert torch.equal(torch.cat([v, rope.to(T64)], 1), o["v4.values"].to(T64))
    print("ops: bytes and values agree with torch casts, rational scales and brute force")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in ("plain", "no_engram", "ratio1", "release"):
        check(os.path.join(sys.argv[1], case))
    for case in ("plain", "no_engram"):
        check_replay(os.path.join(sys.argv[1], case))
    check_ops(os.path.join(sys.argv[1], "ops.safetensors"))
