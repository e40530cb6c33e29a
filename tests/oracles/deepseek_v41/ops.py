# SPDX-License-Identifier: Apache-2.0
"""Inputs and expected bytes of the four record codecs: 200 float32 rows each, chosen to hit ties,
zeros of both signs, subnormal scales, saturation, exact powers of two and many magnitudes."""
import numpy as np

import formats as fm

F = np.float32
ROWS = 200


def tie_rows(rng, width, block, mid, top, scales):
    """Blocks whose scale is known: one element is +-top*scale, the rest sit on ties (even rows)
    or a few float32 steps beside them (odd rows)."""
    rows = []
    for r in range(40):
        row = np.empty(width)
        for a in range(0, width, block):
            s = rng.choice(scales)
            v = rng.choice(mid, block) * s
            if r % 2:
                v = v * (1 + rng.choice([-4, 4], block) * 2.0 ** -23)
            v[rng.integers(block)] = top * s
            row[a: a + block] = v * rng.choice([-1, 1], block)
        rows.append(row)
    return rows


def common_rows(rng, width, block, low, high):
    rows = []
    for r in range(60):                                    # one magnitude per row
        rows.append(rng.standard_normal(width) * 10.0 ** rng.uniform(low, high))
    for r in range(30):                                    # magnitudes mixed inside a block
        rows.append(rng.choice([-1, 1], width) * np.exp2(rng.uniform(-14, 6, width)))
    rows.append(np.zeros(width))
    rows.append(-np.zeros(width))
    rows.append(np.where(rng.integers(0, 2, width), 0.0, -0.0))
    for r in range(7):                                     # zero blocks and signed zeros inside
        v = rng.standard_normal(width)
        v[rng.integers(0, 2, width) == 0] = -0.0
        v[:block] = 0.0
        v[block: 2 * block] *= 1e-4 ** r
        rows.append(v)
    for r in range(20):                                    # exact powers of two
        rows.append(rng.choice([-1, 1], width) * np.exp2(rng.integers(-10, 8, width)))
    return rows


def edge_rows(rng, width, block, edges):
    """Block maxima exactly at, just below and a little above given edges."""
    rows = []
    for r in range(20):
        v = rng.uniform(-1, 1, (width // block, block))
        top = rng.choice(edges, width // block)
        v *= 0.9 * top[:, None]
        near = [1.0, 1 - 2.0 ** -24, 1 + 2.0 ** -19][r % 3]
        v[np.arange(len(top)), rng.integers(0, block, len(top))] = top * near
        rows.append(v.reshape(-1))
    return rows


def finish(rng, rows, extra):
    rows = [np.asarray(v) for v in rows]
    while len(rows) < ROWS:
        rows.append(extra())
    out = np.array(rows[:ROWS]).astype(F)
    out[(np.abs(out) < 2.0 ** -126)] *= F(0)               # no float32 subnormals; sign kept
    return out


def build():
    rng = np.random.default_rng(777)
    out = {}

    # main: E2M1, E4M3 per 16
    w, b = 512, 16
    normal = fm.E4M3_POS[8:]
    rows = common_rows(rng, w, b, -4, 4)
    rows += tie_rows(rng, w, b, fm.E2M1_MID, 6, fm.E4M3_POS[1:])
    rows += edge_rows(rng, w, b, 6 * fm.E4M3_POS[1:12])          # subnormal and small scales
    rows += edge_rows(rng, w, b, 6 * fm.E4M3_MID)                # scale itself on a tie
    out["main.input"] = finish(rng, rows, lambda: rng.standard_normal(w) * rng.uniform(500, 9000))
    assert normal[0] == 2.0 ** -6

    # index keys: E2M1, UE8M0 per 32
    w, b = 128, 32
    rows = common_rows(rng, w, b, -20, 20)
    rows += tie_rows(rng, w, b, fm.E2M1_MID, 6, np.exp2(np.arange(-30, 31)))
    rows += edge_rows(rng, w, b, 6 * np.exp2(np.arange(-20, 21)))
    rows += [rng.choice([0.0, 1.0, 1.5, 2.0, 3.0, -1.0, -3.0], w) * 2.0 ** -126 for _ in range(5)]
    out["mxfp4.input"] = finish(rng, rows, lambda: rng.standard_normal(w) * 1e30)

    # window rows: E4M3, UE8M0 per 32 (floor 1e-4)
    w, b = 512, 32
    rows = common_rows(rng, w, b, -7, 20)
    rows += tie_rows(rng, w, b, fm.E4M3_MID, 448, np.exp2(np.arange(-21, 21)))
    rows += edge_rows(rng, w, b, 448 * np.exp2(np.arange(-21, 10)))
    rows += edge_rows(rng, w, b, [1e-4, 2e-5, 3e-8, 2.0 ** -13, 1.0])
    out["fp8.input"] = finish(rng, rows, lambda: rng.standard_normal(w) * 1e30)

    # V4 record: E4M3 per 64 over 448, bf16 over 64
    w, b = 448, 64
    rows = common_rows(rng, w, b, -7, 20)
    rows += tie_rows(rng, w, b, fm.E4M3_MID, 448, np.exp2(np.arange(-21, 21)))
    rows += edge_rows(rng, w, b, 448 * np.exp2(np.arange(-21, 10)))
    left = finish(rng, rows, lambda: rng.standard_normal(w) * 1e25)
    right = rng.standard_normal((ROWS, 64)) * 10.0 ** rng.uniform(-30, 30, (ROWS, 64))
    tie = (rng.integers(128, 256, (ROWS, 64)) + 0.5) * np.exp2(rng.integers(-20, 20, (ROWS, 64)))
    right = np.where(rng.integers(0, 2, (ROWS, 64)), right, tie)  # bf16 ties
    right[:, 5], right[:, 6] = 0.0, -0.0
    out["v4.input"] = np.concatenate([left, right.astype(F)], 1)

    codecs = {"main": (fm.fp4_main_encode, fm.fp4_main_decode),
              "mxfp4": (fm.mxfp4_encode, fm.mxfp4_decode),
              "fp8": (fm.fp8_encode, fm.fp8_decode), "v4": (fm.v4_encode, fm.v4_decode)}
    for name, (encode, decode) in codecs.items():
        x = out[name + ".input"]
        assert x.shape[0] == ROWS and np.isfinite(x).all()
        out[name + ".bytes"] = encode(x.astype(np.float64) if name != "v4" else x)
        value = decode(out[name + ".bytes"])
        out[name + ".values"] = value.astype(F)
        assert np.array_equal(out[name + ".values"].astype(np.float64), value)
    check_fp32(out)
    return out


def check_fp32(out):
    """The rows do not depend on whether an engine forms scales and quotients in float32."""
    def pow2_fp32(amax, unit):                             # REF: amax * fp32(1/unit), bit ceil
        v = (amax * F(1 / unit)).astype(F)
        bits = v.view(np.uint32)
        return ((bits >> 23) + ((bits & 0x7FFFFF) != 0)).astype(np.uint8)

    for name, block, unit, floor, width, at in (("mxfp4", 32, 6, 6 * 2.0 ** -126, 128, 64),
                                                ("fp8", 32, 448, 1e-4, 512, 512),
                                                ("v4", 64, 448, 1e-4, 448, 576)):
        amax = np.abs(out[name + ".input"][:, :width]).reshape(ROWS, -1, block).max(-1)
        byte = pow2_fp32(np.maximum(amax, F(floor)), unit)
        assert np.array_equal(byte, out[name + ".bytes"][:, at: at + width // block]), name
    x = out["main.input"].reshape(ROWS, 32, 16)
    amax = np.maximum(np.abs(x).max(-1), F(6 * 2.0 ** -9))
    s = fm.e4m3_encode((amax / F(6)).astype(np.float64))
    assert np.array_equal(s, out["main.bytes"][:, 256:])
    q = np.clip(x / fm.e4m3_decode(s).astype(F)[..., None], -6, 6).astype(np.float64)
    code = fm._e2m1_with_scale(q, np.ones(q.shape[:-1])[..., None]).reshape(ROWS, 512)
    assert np.array_equal(fm.pack_nibbles(code), out["main.bytes"][:, :256])
