# SPDX-License-Identifier: Apache-2.0
"""Draws of NumPy's default generator, which the release takes Engram's multipliers from.

Lines: `raw SEED WORD...` are the generator's own 64-bit words, `below SEED N DRAW...` are
integers(0, N) one by one, `multipliers LAYER COMPRESSED_VOCAB M...` are those of facts 2.11.

    python numpy_draws.py > numpy_draws.txt      (NumPy 2.4.6; any from 1.17 on gives the same)
"""
import numpy as np

SEEDS = [0, 1, 2, 10007, 140098, 400280, 2**31, 2**32 - 1, 2**32, 2**32 + 5, 2**63, 2**64 - 1]
# the least N of 64-bit draws, that of the release, and some that draw again often
BELOW = [2**32 + 1, 2**33, (2**63 - 1) // 99092 // 2, 10**15 + 37, 2**62 + 1, 2**63 + 1,
         3 * 2**62, 2**64 - 1]


def line(*words):
    print(" ".join(str(w) for w in words))


print("# SPDX-License-Identifier: Apache-2.0")
print("# Written by numpy_draws.py; never by hand.")
for seed in SEEDS:
    line("raw", seed, *np.random.default_rng(seed).bit_generator.random_raw(6))
for seed in SEEDS:
    for n in BELOW:
        rng = np.random.default_rng(seed)
        line("below", seed, n, *[rng.integers(0, n, dtype=np.uint64) for _ in range(8)])
for layer in (1, 14):
    most = (2**63 - 1) // 99092 // 2
    draws = np.random.default_rng(10007 * layer).integers(0, most, size=4, dtype=np.int64)
    line("multipliers", layer, 99092, *(2 * draws + 1))
