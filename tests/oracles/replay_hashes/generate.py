#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hashes of replay/, computed without any code of this project.

Prints `name value` lines; golden.txt holds them, and the tests of witnesses,
fingerprints and weight digests in tests/replay compare. BLAKE2b comes from
hashlib, XXH3 from the PyPI package xxhash (4.1.0):

    python3 -m venv venv && venv/bin/pip install xxhash
    venv/bin/python generate.py > golden.txt
"""

import hashlib
import struct

import xxhash


print("# SPDX-License-Identifier: Apache-2.0")
print("# Written by generate.py; never by hand.")


def golden(name, value):
    print(name, value.hex() if isinstance(value, bytes) else value)


def blake(b):
    return hashlib.blake2b(b, digest_size=32).digest()


def field(value):
    """Length in decimal, a colon, the text: no two lists read the same."""
    b = str(value).encode()
    return b"%d:%s" % (len(b), b)


# Fingerprint ----------------------------------------------------------------

FIELDS = ("5f3a", "lora-7", "90cd", "bf16", "split-half theta 1e+06", "none", 1)
golden("fingerprint", blake(b"".join(map(field, FIELDS))))
golden("fingerprint_empty", blake(b"".join(map(field, ("",) * 6 + (1,)))))

# Layout ---------------------------------------------------------------------

# name, kind, owner, readers, window, chunk, tokens a row, overlap, row bytes,
# format, shard axis, heads, how it comes back; enumerators as their numbers.
SLOTS = (
    ("layer.0.k", 2, 0, (0, 1), 512, 0, 1, 0, 64, "bf16", 2, 4, 2),
    ("layer.1.pool", 4, 1, (1,), 0, 0, 2, 0, 356, "fp4", 1, 1, 1),
    ("layer.2.chunk", 3, 2, (), 0, 8192, 1, 0, 128, "f32", 3, 2, 4),
)


def layout_digest(family, n_layers, vocab_size, slots):
    text = b"".join(map(field, (family, n_layers, vocab_size, len(slots))))
    for slot in slots:
        for value in slot:
            if isinstance(value, tuple):
                text += field(len(value)) + b"".join(map(field, value))
            else:
                text += field(value)
    return blake(text)


golden("layout", layout_digest("golden_family", 3, 262144, SLOTS))
golden("layout_no_slots", layout_digest("", 0, 0, ()))

# Weights --------------------------------------------------------------------

TENSORS = (
    ("b.bias", "BF16", (3,), bytes(range(1, 7))),
    ("a.weight", "F32", (2, 2), bytes(range(100, 116))),
    ("scalar", "F32", (), bytes(range(200, 204))),
    ("empty", "F32", (5, 0), b""),
)
golden("weights", blake(b"".join(
    b"%d:%s %s [%s] " % (len(name), name.encode(), dtype.encode(),
                         ",".join(map(str, shape)).encode()) + data
    for name, dtype, shape, data in sorted(TENSORS))))

# Witness --------------------------------------------------------------------


def row(slot, pos, row_bytes):
    return bytes((slot * 97 + pos * 31 + i * 7 + 1) & 0xFF
                 for i in range(row_bytes))


def witness(name, slots, begin, end, samples, row_bytes):
    rows = {pos: b"".join(row(slot, pos, row_bytes) for slot in slots)
            for pos in range(begin, end)}
    hashes = b"".join(struct.pack("<Q", xxhash.xxh3_64_intdigest(rows[pos]))
                      for pos in range(begin, end))
    golden(name + "_digest", xxhash.xxh3_128_digest(hashes))
    for pos in samples:
        golden("%s_row_%d" % (name, pos), rows[pos])


# A cut at 20. Layer 0: K in slot 0, V in slot 1, a window of 8, so rows 13 to
# 19, samples at H-7, H-6, H-4, H-2, H-1. Layer 2: slots 4 and 5, a window of 3.
witness("layer0", (0, 1), 13, 20, (13, 14, 16, 18, 19), 4)
witness("layer2", (4, 5), 18, 20, (18, 19), 4)
# A cut at 3, below both windows: all there is, samples at H-2 and H-1 (layer 0;
# H-4 and before are not there).
witness("short0", (0, 1), 0, 3, (1, 2), 4)
