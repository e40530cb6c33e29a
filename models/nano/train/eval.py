#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure a trained nano model on the held-out text.

    python eval.py --model run --corpus corpus --out eval.json

Losses are nats per byte.  The position of a loss is that of the byte that
predicts, so position p has seen p + 1 bytes.

curve      loss by position over windows at seeded random offsets
full       loss on the 128 bytes after a cut at H when the two full layers find
           zeros in the stored key and value rows below H
sliding    the same when the sliding layers find no stored row at all
"""
import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from model import load_model

EDGES = [0, 16, 64, 256, 512, 1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192]
AFTER = 128                                   # bytes scored after a cut


def mean_and_error(x):
    x = np.asarray(x, dtype=np.float64)
    return float(x.mean()), float(x.std(ddof=1) / math.sqrt(len(x)))


def kinds_of(corpus, size):
    """For every held-out byte: 0 in a Python source, 1 in a manual page."""
    kinds = np.zeros(size, dtype=np.uint8)
    for line in (corpus / "heldout_index.tsv").read_text().splitlines():
        offset, length, kind = line.split("\t")[:3]
        kinds[int(offset):int(offset) + int(length)] = kind == "manual"
    return kinds


def curve(model, data, kinds, windows, length, rng):
    starts = rng.integers(0, len(data) - length - 1, windows)
    losses, kind = np.empty((windows, length), np.float32), np.empty((windows, length), np.uint8)
    for i, s in enumerate(starts):
        rows = torch.from_numpy(data[s:s + length + 1].astype(np.int64))[None]
        losses[i] = model.loss(rows[:, :-1], rows[:, 1:])[0].numpy()
        kind[i] = kinds[s + 1:s + length + 1]
    buckets = []
    for a, b in zip(EDGES, EDGES[1:]):
        mean, error = mean_and_error(losses[:, a:b].mean(1))
        buckets.append({"from": a, "to": b, "loss": round(mean, 5), "error": round(error, 5)})
    early, late = losses[:, 1024:2048].mean(1), losses[:, 4096:8192].mean(1)
    difference, error = mean_and_error(late - early)
    after = losses[:, 1024:], kind[:, 1024:]
    return {
        "windows": windows, "length": length, "by_position": buckets,
        "loss_all": round(float(losses.mean()), 5),
        "loss_from_1024": round(float(after[0].mean()), 5),
        "loss_from_1024_python": round(float(after[0][after[1] == 0].mean()), 5),
        "loss_from_1024_manual": round(float(after[0][after[1] == 1].mean()), 5),
        "loss_1024_to_2047": round(float(early.mean()), 5),
        "loss_4096_to_8191": round(float(late.mean()), 5),
        "late_minus_early": round(difference, 5),
        "late_minus_early_error": round(error, 5),
        "pass": bool(difference <= 2 * error),
    }


def resume(model, cache, start, tokens):
    """Logits of the bytes from position `start` on, over stored rows; an empty
    store of a layer leaves it only the new rows."""
    count = tokens.shape[1]
    new = torch.arange(start, start + count)
    x = model.embed(tokens)
    for i, (layer, (past_k, past_v)) in enumerate(zip(model.layers, cache)):
        attention = layer.self_attn
        q, k, v = attention.project(layer.input_layernorm(x), model.rope(i, new), torch.bfloat16)
        rows = torch.cat((torch.arange(past_k.shape[1]), new))
        distance = new[:, None] - rows
        mask = distance >= 0
        if attention.window:
            mask &= distance < attention.window
        q, k, v = (t.transpose(1, 2).float() for t in
                   (q, torch.cat((past_k, k), 1), torch.cat((past_v, v), 1)))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        x = x + layer.post_attention_layernorm(
            attention.output(out.transpose(1, 2).bfloat16()))
        x = x + layer.post_feedforward_layernorm(
            layer.mlp(layer.pre_feedforward_layernorm(x), torch.bfloat16))
    return model.head(x, torch.bfloat16)


def ablations(model, data, cuts, rng):
    losses = {"normal": [], "full": [], "sliding": []}
    for _ in range(cuts):
        h = int(rng.integers(2048, 8001))
        s = int(rng.integers(0, len(data) - h - AFTER - 1))
        rows = torch.from_numpy(data[s:s + h + AFTER + 1].astype(np.int64))[None]
        before = F.pad(rows[:, :h], (0, -h % 64))     # the kernels want whole blocks
        cache = []
        model(before, cache=cache)
        cache = [(k[:, :h], v[:, :h]) for k, v in cache]
        full = [(k * 0, v * 0) if model.c.is_full(i) else (k, v)
                for i, (k, v) in enumerate(cache)]
        sliding = [(k, v) if model.c.is_full(i) else (k[:, :0], v[:, :0])
                   for i, (k, v) in enumerate(cache)]
        for name, stored in (("normal", cache), ("full", full), ("sliding", sliding)):
            logits = resume(model, stored, h, rows[:, h:-1])
            losses[name].append(F.cross_entropy(logits[0], rows[0, h + 1:]).item())
    result = {"cuts": cuts, "bytes_after_cut": AFTER,
              "normal_loss": round(mean_and_error(losses["normal"])[0], 5)}
    for name in ("full", "sliding"):
        rise, error = mean_and_error(np.subtract(losses[name], losses["normal"]))
        result[name] = {"loss": round(mean_and_error(losses[name])[0], 5),
                        "rise": round(rise, 5), "error": round(error, 5),
                        "pass": bool(rise >= 0.05 and rise >= 5 * error)}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--windows", type=int, default=256)
    parser.add_argument("--cuts", type=int, default=128)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    model = load_model(args.model)
    data = np.fromfile(args.corpus / "heldout.bin", np.uint8)
    kinds = kinds_of(args.corpus, len(data))
    rng = np.random.default_rng(args.seed)
    with torch.no_grad():
        result = {"heldout_bytes": len(data), "seed": args.seed,
                  "curve": curve(model, data, kinds, args.windows, EDGES[-1], rng),
                  "ablation": ablations(model, data, args.cuts, rng)}
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
