#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small floats as torch and ml_dtypes have them, without any code of ours.

E4M3 and UE8M0 are torch's casts (2.9.1, CPU), E2M1 ml_dtypes' (0.6.0); the
power-of-two ceiling is in rationals. torch and ml_dtypes do not saturate the
same way, so inputs are clamped first, as every quantiser here does. Lines are
`type decode code f32-bits` and `type encode f32-bits code`, all in hex:

    python3 -m venv venv && venv/bin/pip install -r requirements.txt
    venv/bin/python generate.py small_floats > small_floats.txt
    venv/bin/python generate.py rows > rows.txt
    venv/bin/python generate.py example > example.txt
"""

import random
import sys
from fractions import Fraction

import ml_dtypes
import numpy as np
import torch

RANDOM = random.Random(20261129)
NAN = 0x7FC00000


def bits(x):
    return int(np.float32(x).view(np.uint32))


def floats(words):
    return np.array(words, dtype=np.uint32).view(np.float32)


def line(*fields):
    print(*fields[:2], *("%x" % f for f in fields[2:]))


def around_ties(values, largest, octaves):
    """Each value, the ties between neighbours, their neighbours, randoms over
    so many octaves; then all of them with a sign."""
    out = set()
    values = sorted(values)
    for low, high in zip(values, values[1:]):
        tie = np.float32((float(low) + float(high)) / 2)
        out.update(
            bits(v)
            for v in (
                low,
                tie,
                np.nextafter(tie, np.float32(0)),
                np.nextafter(tie, np.float32(1e9)),
            )
        )
    out.add(bits(largest))
    for _ in range(100):
        out.add(bits(largest * 2.0 ** -RANDOM.uniform(0, octaves)))
    words = sorted(out)
    return words + [w | 0x80000000 for w in words]


def small_floats():
    # E4M3
    codes = torch.arange(256, dtype=torch.uint8)
    decoded = codes.view(torch.float8_e4m3fn).float().numpy()
    for code, value in enumerate(decoded):
        line("e4m3", "decode", code, NAN if np.isnan(value) else bits(value))
    words = around_ties(decoded[:0x7F], 448.0, 20)
    for word, code in zip(words, fp8_codes(floats(words))):
        line("e4m3", "encode", word, code)

    # E2M1
    decoded = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn)
    decoded = decoded.astype(np.float32)
    for code, value in enumerate(decoded):
        line("e2m1", "decode", code, bits(value))
    words = around_ties(decoded[:8], 6.0, 5)
    encoded = floats(words).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    for word, code in zip(words, encoded.tolist()):
        line("e2m1", "encode", word, code)

    # UE8M0
    decoded = codes.view(torch.float8_e8m0fnu).float().numpy()
    for code, value in enumerate(decoded):
        line("ue8m0", "decode", code, NAN if np.isnan(value) else bits(value))
    for exponent in range(-126, 127):
        power = bits(np.float32(2.0) ** np.float32(exponent))
        for word in (power - 1, power, power + 1, power + 0x400000):
            line("ue8m0", "encode", word, ceil_to_ue8m0(floats([word])[0])[0])


def ceil_to_ue8m0(value):
    """Byte and value of the smallest power of two that is not below it."""
    wanted = Fraction(float(value))
    byte = next(c for c in range(255) if Fraction(2) ** (c - 127) >= wanted)
    return byte, np.float32(2.0 ** (byte - 127))


def e4m3(x):
    clamped = torch.tensor(x).clamp(-448, 448)
    return clamped.to(torch.float8_e4m3fn)


def packed_e2m1(x):
    codes = x.clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return [int(lo) | int(hi) << 4 for lo, hi in zip(codes[::2], codes[1::2])]


def quantised(x, block, scale_of, codes_of):
    codes, scales = [], []
    for at in range(0, len(x), block):
        part = x[at : at + block]
        byte, scale = scale_of(np.abs(part).max())
        scales.append(byte)
        codes += codes_of(part / scale)
    return codes, scales


def main_scale(amax):
    ratio = np.maximum(amax, np.float32(6 * 2.0**-9)) / np.float32(6)
    scale = e4m3(ratio)
    return int(scale.view(torch.uint8)), np.float32(scale.float())


def index_scale(amax):
    floor = np.float32(6 * 2.0**-126)
    return ceil_to_ue8m0(np.maximum(amax, floor) * np.float32(1 / 6))


def fp8_scale(amax):
    return ceil_to_ue8m0(
        np.maximum(amax, np.float32(1e-4)) * np.float32(1 / 448)
    )


def fp8_codes(x):
    return e4m3(x).view(torch.uint8).tolist()


def encode(name, x, rope_dim):
    if name == "main":
        codes, scales = quantised(x, 16, main_scale, packed_e2m1)
        return codes + scales
    if name == "index":
        codes, scales = quantised(x, 32, index_scale, packed_e2m1)
        return codes + scales
    if name == "window":
        codes, scales = quantised(x, 32, fp8_scale, fp8_codes)
        return codes + scales
    head = x[: len(x) - rope_dim]
    codes, scales = quantised(head, 64, fp8_scale, fp8_codes)
    tail = torch.tensor(x[len(head) :]).bfloat16().view(torch.uint8).tolist()
    row = codes + tail + scales
    return row + [0] * (-len(row) % 8)


def rows():
    for name, dim, rope_dim in (
        ("main", 64, 0),
        ("index", 64, 0),
        ("window", 64, 0),
        ("v4", 208, 32),
    ):
        for i in range(12):
            # Magnitudes over a few octaves within a block, many between rows.
            top = 2.0 ** RANDOM.uniform(-14, 10) if i else 0.0
            x = np.array(
                [top * 2.0 ** -RANDOM.expovariate(0.4) for _ in range(dim)],
                dtype=np.float32,
            )
            x *= np.array([RANDOM.choice([1, -1]) for _ in x], np.float32)
            if i % 3 == 2:
                # Few bits: ties are met.
                x = torch.tensor(x).to(torch.float8_e5m2).float().numpy()
            row = encode(name, x, rope_dim)
            words = x.view(np.uint32)
            print(
                name,
                dim,
                rope_dim,
                "".join("%08x" % w for w in words),
                bytes(row).hex(),
            )


def example():
    x = np.arange(64, dtype=np.float32) - 8
    for name in "main", "index", "window", "v4":
        print(name, bytes(encode(name, x, 16)).hex())


print("# SPDX-License-Identifier: Apache-2.0")
print("# Written by generate.py; never by hand.")
{"small_floats": small_floats, "rows": rows, "example": example}[sys.argv[1]]()
