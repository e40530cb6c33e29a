# SPDX-License-Identifier: Apache-2.0
"""A made-up model whose rows follow from (salt, slot, row)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import torpor
from torpor import ComeBack, ShardAxis, Slot, SlotKind

Bytes = npt.NDArray[np.uint8]

WINDOW = 8
BLOCK = 16
HEADS, PLAIN, POOLED, SLIDING = range(4)

LAYOUT = torpor.Layout(
    family="toy",
    n_layers=3,
    vocab_size=1000,
    slots=(
        Slot(
            "heads", SlotKind.FULL, 0, 24, (0,), shard_axis=ShardAxis.HEADS, n_heads=2
        ),
        Slot("plain", SlotKind.FULL, 1, 40, (1,)),
        Slot("pooled", SlotKind.POOLED, 1, 20, (1,), tokens_per_row=4),
        Slot(
            "window",
            SlotKind.SLIDING,
            2,
            16,
            (2,),
            window=WINDOW,
            come_back=ComeBack.REPLAY,
        ),
    ),
)


def wide_layout(row_bytes: int) -> torpor.Layout:
    """Rows of a size that makes sessions large."""
    return torpor.Layout(
        family="wide",
        n_layers=2,
        vocab_size=1000,
        slots=(
            Slot("k", SlotKind.FULL, 0, row_bytes, (0,)),
            Slot("v", SlotKind.FULL, 0, row_bytes, (0,)),
            Slot(
                "w",
                SlotKind.SLIDING,
                1,
                64,
                (1,),
                window=WINDOW,
                come_back=ComeBack.REPLAY,
            ),
        ),
    )


def register(
    client: torpor.Client,
    name: str = "toy",
    layout: torpor.Layout = LAYOUT,
    block: int = BLOCK,
) -> torpor.Model:
    return client.models.register(
        name,
        layout=layout,
        block_size=block,
        fingerprint=torpor.Fingerprint(
            weights=f"{name} weights", kv_dtype="bf16", rope="plain"
        ),
    )


def rows_of(
    salt: int, slot: int, begin: int, end: int, layout: torpor.Layout = LAYOUT
) -> Bytes:
    """[end - begin, row_bytes]: no two rows alike, no two salts alike."""
    width = layout.slots[slot].row_bytes
    row = np.arange(begin, end, dtype=np.uint64)[:, None]
    at = np.arange(width, dtype=np.uint64)[None, :]
    seed = np.uint64((salt * 8 + slot) * 1_000_003)
    mixed = ((seed + row) * np.uint64(65_537) + at) * np.uint64(0x9E3779B97F4A7C15)
    rows: Bytes = (mixed >> np.uint64(56)).astype(np.uint8)
    return rows


def ids_of(salt: int, n: int) -> npt.NDArray[np.uint32]:
    """A longer run begins with the shorter one."""
    at = np.arange(n, dtype=np.uint64) + np.uint64(salt * 100_003)
    mixed = at * np.uint64(0x9E3779B97F4A7C15)
    ids: npt.NDArray[np.uint32] = (mixed >> np.uint64(40)) % np.uint64(1000)
    return ids.astype(np.uint32)


def rows_for(
    salt: int, kv_len: int, layout: torpor.Layout = LAYOUT, window: bool = False
) -> dict[str, Bytes]:
    """Every row of a session, by slot name."""
    slots = layout.compact() + (layout.snapshot() if window else [])
    return {
        layout.slots[i].name: rows_of(salt, i, *layout.slots[i].rows_at(kv_len), layout)
        for i in slots
    }


def expect_rows(woken: torpor.Woken, salt: int, layout: torpor.Layout = LAYOUT) -> None:
    """Every compact row is the one that slept."""
    for i in layout.compact():
        slot = layout.slots[i]
        wanted = rows_of(salt, i, *slot.rows_at(woken.plan.resume_at), layout)
        got = woken.compact[i]
        assert got.first == 0
        assert got.array.shape == wanted.shape, slot.name
        assert (got.array == wanted).all(), slot.name
