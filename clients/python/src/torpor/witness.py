# SPDX-License-Identifier: Apache-2.0
"""What a suspend stores so that a resume can prove, or measure, its window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from torpor import errors
from torpor._message import message
from torpor.model import Layout
from torpor.rows import GivenRows, Rows, as_bytes
from torpor.v1 import types_pb2 as pb

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class LayerWitness:
    layer: int
    # 16 bytes: XXH3-128 over the little-endian XXH3-64s of the window's rows.
    digest: bytes
    # Position to bytes of sample rows.
    rows: Mapping[int, bytes]


@dataclass(frozen=True)
class Witness:
    # Who computed the rows: bits compare under an equal id only.
    numerics_id: str
    layers: tuple[LayerWitness, ...]

    def to_pb(self) -> pb.Witness:
        return message(
            pb.Witness,
            numerics_id=self.numerics_id,
            layers=[
                message(
                    pb.LayerWitness,
                    layer=layer.layer,
                    digest=layer.digest,
                    rows=[
                        message(pb.WitnessRow, position=at, row=row)
                        for at, row in layer.rows.items()
                    ],
                )
                for layer in self.layers
            ],
        )

    @classmethod
    def from_pb(cls, m: pb.Witness) -> Witness:
        return cls(
            numerics_id=m.numerics_id,
            layers=tuple(
                LayerWitness(x.layer, x.digest, {r.position: r.row for r in x.rows})
                for x in m.layers
            ),
        )


def make_witness(
    layout: Layout, kv_len: int, window: GivenRows, numerics_id: str = ""
) -> Witness:
    """The witness of a session of `kv_len` tokens. `window` has the rows of
    every window slot at the cut (`Slot.rows_at`), or all of them."""
    by_index = {layout.index(slot): given for slot, given in window.items()}
    layers: dict[int, list[tuple[int, Bytes]]] = {}
    reach: dict[int, int] = {}
    for i, slot in enumerate(layout.slots):
        # Every slot that replays and has a window, in layout order: K, then V.
        if not slot.is_window or i not in layout.snapshot():
            continue
        if i not in by_index:
            raise errors.InvalidArgument(
                f"witness: got no rows of slot '{slot.name}', wanted its window"
            )
        begin, end = slot.rows_at(kv_len)
        given = by_index[i]
        if callable(given):
            given = Rows(begin, given(begin, end))
        array = given.array if isinstance(given, Rows) else given
        part = as_bytes(array, slot.row_bytes, f"slot '{slot.name}'")
        first = given.first if isinstance(given, Rows) else end - len(part)
        if first > begin or first + len(part) < end:
            raise errors.InvalidArgument(
                f"witness: got rows [{first}, {first + len(part)}) of slot "
                f"'{slot.name}', wanted [{begin}, {end})"
            )
        layers.setdefault(slot.owner_layer, []).append((begin, part[begin - first :]))
        owner = slot.owner_layer
        reach[owner] = max(reach.get(owner, 0), slot.reach)
    return Witness(
        numerics_id,
        tuple(
            _of_layer(layer, layers[layer], kv_len, reach[layer])
            for layer in sorted(layers)
        ),
    )


def _of_layer(
    layer: int, parts: list[tuple[int, Bytes]], kv_len: int, reach: int
) -> LayerWitness:
    def row(at: int) -> bytes:
        # A shorter window of the layer does not reach every position.
        return b"".join(p[at - b].tobytes() for b, p in parts if at >= b)

    first = min(begin for begin, _ in parts)
    hashes = [xxhash.xxh3_64_intdigest(row(at)) for at in range(first, kv_len)]
    packed = np.array(hashes, "<u8").tobytes()
    back = (1, reach // 4, reach // 2, 3 * reach // 4, reach - 1)
    at = sorted({kv_len - b for b in back if 0 < b <= kv_len - first})
    return LayerWitness(layer, xxhash.xxh3_128_digest(packed), {p: row(p) for p in at})
