# SPDX-License-Identifier: Apache-2.0
"""How close a case comes to a discontinuity (code, scale, pick, expert): the smallest distances.

Used once to choose the seeds in model.py: `margins.py CASE FIRST COUNT` tries seeds and prints
the margins, best last. Distances of codes are relative to the RMS of the quantised row.
"""
import json
import os
import sys
import tempfile

import numpy as np

import formats as fm
import model
import reference as ref


def watch():
    """Replace the three quantisers of `formats` by ones that also record their margins."""
    seen = {"fp8": [np.inf], "main": [np.inf], "mxfp4": [np.inf]}

    def record(kind, x, block, mid, unit, scales):
        n, width = x.shape
        b = np.abs(x.reshape(n, width // block, block))
        size = np.sqrt((x * x).mean(-1)) + 1e-300
        edge = mid * scales[..., None, None]
        gap = np.abs(b[..., None] - edge).min((-1, -2)) / size[:, None]
        amax = b.max(-1)
        if kind == "main":
            top = np.abs(amax[..., None] - 6 * fm.E4M3_MID).min(-1) / size[:, None]
        else:
            m = np.frexp(amax)[0]
            top = np.abs(m - unit) * amax / np.maximum(m, 1e-300) / size[:, None]
        top = top[top > 0]                       # exact equality: exact input, not a hazard
        seen[kind].append(min(gap.min(), top.min() if top.size else np.inf))

    fp8, main, mx = fm.fp8_encode, fm.fp4_main_encode, fm.mxfp4_encode

    def fp8_encode(x, block=32):
        rec = fp8(x, block)
        record("fp8", x, block, fm.E4M3_MID, 0.875, fm.ue8m0_decode(rec[:, x.shape[1]:]))
        return rec

    def fp4_main_encode(x):
        rec = main(x)
        record("main", x, 16, fm.E2M1_MID, 0, fm.e4m3_decode(rec[:, x.shape[1] // 2:]))
        return rec

    def mxfp4_encode(x):
        rec = mx(x)
        record("mxfp4", x, 32, fm.E2M1_MID, 0.75, fm.ue8m0_decode(rec[:, x.shape[1] // 2:]))
        return rec

    fm.fp8_encode, fm.fp4_main_encode, fm.mxfp4_encode = fp8_encode, fp4_main_encode, mxfp4_encode

    def restore():
        fm.fp8_encode, fm.fp4_main_encode, fm.mxfp4_encode = fp8, main, mx
    return seen, restore


def of_case(folder):
    m = ref.Model(folder)
    with open(os.path.join(folder, "ids.json")) as f:
        ids = json.load(f)
    seen, restore = watch()
    d, n, k = {}, len(ids), m.cfg["index_topk"]
    ref.forward(m, ref.State(m, n), ids, 0, n, dump=d)
    restore()
    res = {kind: float(min(v)) for kind, v in seen.items()}
    gaps = []
    for i in m.index_sources:
        for row in d[f"layer.{i}.scores"]:
            v = np.sort(row[np.isfinite(row)])[::-1]
            if len(v) > k:
                gaps.append(v[k - 1] - v[k])
    res["picks"] = float(min(gaps))
    gaps = []
    if m.candidate_source is not None:
        size, keep = m.cfg["candidate_block_size"], m.cfg["candidate_topk_blocks"]
        for row in d[f"layer.{m.candidate_source}.scores"]:
            count = int(np.isfinite(row).sum())
            best = [row[a: min(a + size, count)].max() for a in range(0, count, size)][:-1]
            v = np.sort(best)[::-1]              # the newest block is forced in
            if len(v) >= keep:
                gaps.append(v[keep - 2] - v[keep - 1])
        res["blocks"] = float(min(gaps))
    gaps, used = [], True
    for layer in range(m.layers):
        p = f"layers.{layer}.ffn.gate."
        logit = d[f"layer.{layer}.ffn_in"] @ m.t[p + "weight"].T / m.cfg.get("gate_temp", 1.0)
        v = np.sort(np.sqrt(ref.softplus(logit)) + m.t[p + "bias"], -1)[:, ::-1]
        a = m.cfg["num_experts_per_tok"]
        gaps.append((v[:, a - 1] - v[:, a]).min())
        used &= len(np.unique(d[f"layer.{layer}.experts"])) == m.cfg["n_routed_experts"]
    res["experts"] = float(min(gaps))
    res["all_experts_used"] = bool(used)
    return res


if __name__ == "__main__":
    case, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    found = []
    with tempfile.TemporaryDirectory() as tmp:
        for seed in range(first, first + count):
            model.write_model(case, tmp, seed)
            r = of_case(tmp)
            worst = min(v for key, v in r.items() if key != "all_experts_used")
            found.append((r["all_experts_used"], worst, seed, r))
    for f in sorted(found, key=lambda f: f[:2])[-3:]:
        print(f)
