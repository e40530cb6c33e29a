# SPDX-License-Identifier: Apache-2.0
"""Rows of slots: what a suspend is given, and what a resume gives.

A row is `row_bytes` opaque bytes (a shard's part of them, where a slot is cut
by heads). Arrays of any dtype are taken by their bytes, first axis = rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
import numpy.typing as npt
import xxhash

from torpor import errors
from torpor.model import ComeBack, Layout, ShardAxis, Slot
from torpor.v1 import types_pb2 as pb

Bytes = npt.NDArray[np.uint8]

# Of a piece and of a message.
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Rows:
    """Rows from `first` on."""

    first: int
    array: npt.NDArray[Any]


# Rows [begin, end) when they are wanted: they need not be in memory at once. It
# may be asked twice for the same ones, when a call is retried.
RowSource = Callable[[int, int], npt.NDArray[Any]]
# A bare array holds all rows of its slot, or exactly those that are wanted.
RowsLike = Union[npt.NDArray[Any], Rows, RowSource]
# By slot name or by index.
GivenRows = Union[Mapping[str, RowsLike], Mapping[int, RowsLike]]


def checksum(rows: Bytes) -> int:
    """XXH3-64, seed 0."""
    return xxhash.xxh3_64_intdigest(rows.data)


def as_bytes(array: npt.NDArray[Any], row_bytes: int, what: str) -> Bytes:
    """[n_rows, row_bytes] uint8, without a copy where the array allows it."""
    given = np.asarray(array)
    n = given.shape[0] if given.ndim else 0
    if given.ndim == 0 or given.nbytes != n * row_bytes:
        got = given.nbytes / n if n else given.nbytes
        raise errors.InvalidArgument(
            f"rows of {what}: got {got:g} bytes a row (shape {given.shape} of "
            f"{given.dtype}), wanted {row_bytes}"
        )
    flat = np.ascontiguousarray(given).reshape(-1)
    return flat.view(np.uint8).reshape(n, row_bytes)


@dataclass(frozen=True)
class OutgoingSlot:
    """Rows [begin, end) of one slot that a suspend sends."""

    slot: int
    shard: int
    row_bytes: int
    tokens_per_row: int
    begin: int
    end: int
    read: Callable[[int, int], Bytes]

    @property
    def n_bytes(self) -> int:
        return (self.end - self.begin) * self.row_bytes


def sharded_row_bytes(slot: Slot, n_shards: int) -> int:
    if n_shards <= 1 or slot.shard_axis is not ShardAxis.HEADS:
        return slot.row_bytes
    return slot.row_bytes // n_shards


def rows_span(slot: Slot) -> int:
    """Tokens that a row of this slot stands for: an open group's rows are of
    one token each."""
    return slot.tokens_per_row if slot.come_back is ComeBack.PERSIST else 1


def _reader(
    given: RowsLike, wanted: tuple[int, int], end: int, row_bytes: int, what: str
) -> Callable[[int, int], Bytes]:
    """How rows of a slot are read; InvalidArgument when some are missing."""
    if callable(given):
        source = given

        def call(begin: int, end: int) -> Bytes:
            rows = as_bytes(source(begin, end), row_bytes, what)
            if len(rows) != end - begin:
                raise errors.InvalidArgument(
                    f"rows of {what}: got {len(rows)} rows for [{begin}, {end})"
                )
            return rows

        return call
    begin, stop = wanted
    if isinstance(given, Rows):
        first, rows = given.first, as_bytes(given.array, row_bytes, what)
    else:
        rows = as_bytes(given, row_bytes, what)
        if len(rows) not in (end, stop - begin):
            raise errors.InvalidArgument(
                f"rows of {what}: got {len(rows)}, wanted all {end} or those that "
                f"are new, {stop - begin}; Rows(first, array) says which they are"
            )
        first = 0 if len(rows) == end else begin
    if begin < stop and (first > begin or first + len(rows) < stop):
        raise errors.InvalidArgument(
            f"rows of {what}: got [{first}, {first + len(rows)}), "
            f"wanted [{begin}, {stop})"
        )
    return lambda a, b: rows[a - first : b - first]


def outgoing(
    layout: Layout,
    given: GivenRows,
    wanted: Mapping[int, tuple[int, int]],
    kv_len: int,
    shard: int = 0,
    n_shards: int = 1,
) -> list[OutgoingSlot]:
    """The rows of `given` that are wanted. Slots that are not given are left
    out; the daemon names what is missing at the commit."""
    by_index = {layout.index(slot): rows for slot, rows in given.items()}
    out = []
    for index, rows in sorted(by_index.items()):
        slot = layout.slots[index]
        begin, end = wanted.get(index, (0, 0))
        if begin == end:
            continue
        row_bytes = sharded_row_bytes(slot, n_shards)
        what = f"slot '{slot.name}'"
        out.append(
            OutgoingSlot(
                slot=index,
                shard=shard if row_bytes != slot.row_bytes else 0,
                row_bytes=row_bytes,
                tokens_per_row=rows_span(slot),
                begin=begin,
                end=end,
                read=_reader(
                    rows, (begin, end), slot.rows_at(kv_len)[1], row_bytes, what
                ),
            )
        )
    return out


def pieces(
    slots: list[OutgoingSlot], block_size: int
) -> Iterator[tuple[pb.RowPiece, Bytes]]:
    """Pieces of at most 1 MiB, block by block, every slot of a block before the
    next block. The bytes are flat."""
    begin = min((s.begin * s.tokens_per_row for s in slots), default=0)
    end = max((s.end * s.tokens_per_row for s in slots), default=0)
    for at in range(begin // block_size * block_size, end, block_size):
        for s in slots:
            first = max(at // s.tokens_per_row, s.begin)
            stop = min((at + block_size) // s.tokens_per_row, s.end)
            most = max(1, MAX_BYTES // s.row_bytes)
            for row in range(first, stop, most):
                until = min(stop, row + most)
                rows = s.read(row, until).reshape(-1)
                yield (
                    pb.RowPiece(
                        slot=s.slot,
                        shard=s.shard,
                        row_begin=row,
                        n_rows=until - row,
                        checksum=checksum(rows),
                        row_bytes=s.row_bytes,
                    ),
                    rows,
                )


def messages(
    slots: list[OutgoingSlot], block_size: int
) -> Iterator[tuple[list[pb.RowPiece], bytes]]:
    """The same as messages with their bytes, each at most 1 MiB."""
    described: list[pb.RowPiece] = []
    parts: list[memoryview] = []
    n_bytes = 0
    for piece, rows in pieces(slots, block_size):
        if described and n_bytes + rows.size > MAX_BYTES:
            yield described, b"".join(parts)
            described, parts, n_bytes = [], [], 0
        described.append(piece)
        parts.append(rows.data)
        n_bytes += rows.size
    if described:
        yield described, b"".join(parts)


# ---- what comes back


@dataclass(frozen=True)
class Piece:
    """A run of rows as it arrives. `rows` is [n, row_bytes] uint8, read-only;
    in shared memory it is the daemon's own copy and must not be kept."""

    slot: int
    name: str
    first: int
    rows: Bytes
    # True for rows that were rebuilt, or come from a snapshot.
    window: bool = False


Sink = Callable[[Piece], None]


class RowSet(Mapping[str, Rows]):
    """Rows by slot name; slots may be asked by index too."""

    def __init__(self, layout: Layout, rows: Mapping[int, Rows]) -> None:
        self._layout = layout
        self._rows = dict(rows)

    def __getitem__(self, slot: str | int) -> Rows:
        index = self._layout.index(slot)
        if index not in self._rows:
            raise KeyError(slot)
        return self._rows[index]

    def __contains__(self, slot: object) -> bool:
        if isinstance(slot, int):
            return slot in self._rows
        return any(slot == name for name in self)

    def __iter__(self) -> Iterator[str]:
        return (self._layout.slots[i].name for i in self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class Collector:
    """A sink that copies pieces into arrays of their final size."""

    def __init__(
        self, layout: Layout, expected: Mapping[int, tuple[int, int]], n_shards: int = 1
    ) -> None:
        self._layout = layout
        self._rows = {
            i: Rows(
                begin,
                np.empty(
                    (end - begin, sharded_row_bytes(layout.slots[i], n_shards)),
                    np.uint8,
                ),
            )
            for i, (begin, end) in expected.items()
        }
        # Position order: where each slot's next piece begins.
        self._next = {i: begin for i, (begin, _) in expected.items()}

    def __call__(self, piece: Piece) -> None:
        into = self._rows.get(piece.slot)
        n, row_bytes = piece.rows.shape
        if (
            into is None
            or piece.first != self._next[piece.slot]
            or piece.first + n > into.first + len(into.array)
            or row_bytes != into.array.shape[1]
        ):
            raise errors.DataLoss(
                f"rows [{piece.first}, +{n}) of slot '{piece.name}': not what "
                "this answer was to bring next"
            )
        at = piece.first - into.first
        into.array[at : at + n] = piece.rows
        self._next[piece.slot] = piece.first + n

    def finish(self, *, partial: bool = False) -> RowSet:
        """DataLoss when rows did not come, unless `partial`."""
        for i, rows in self._rows.items():
            end = rows.first + len(rows.array)
            if partial:
                came = rows.array[: self._next[i] - rows.first]
                self._rows[i] = Rows(rows.first, came)
            elif self._next[i] != end:
                raise errors.DataLoss(
                    f"rows of slot '{self._layout.slots[i].name}': got rows up to "
                    f"{self._next[i]}, wanted up to {end}"
                )
        return RowSet(self._layout, self._rows)
