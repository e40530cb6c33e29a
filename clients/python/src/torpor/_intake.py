# SPDX-License-Identifier: Apache-2.0
"""Rows of an answer on their way to a sink, each piece verified first."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np

from torpor import errors, rows
from torpor._shm import Consumer, Segment
from torpor.model import Layout
from torpor.v1 import types_pb2 as pb

# Told to the producer in steps, not piece by piece.
_RELEASES_IN_RING = 16


class Intake:
    """The pieces of one stream. `segment` is the stream's, or None."""

    def __init__(self, layout: Layout, segment: Segment | None) -> None:
        self._layout = layout
        self._segment = segment
        self._ring = None if segment is None else Consumer(segment)
        self._unreleased = 0
        self.n_pieces = 0

    def take(
        self,
        pieces: Sequence[pb.RowPiece],
        data: bytes,
        sink: rows.Sink,
        window: bool = False,
    ) -> None:
        """DataLoss when bytes are not those that their sender hashed."""
        at = 0
        for piece in pieces:
            n_bytes = piece.n_rows * piece.row_bytes
            if self._ring is not None and not data:
                self._take_shared(piece, n_bytes, sink, window)
                continue
            if at + n_bytes > len(data):
                raise errors.DataLoss(
                    f"{self._name(piece)}: {len(data) - at} bytes of the message "
                    f"are left, wanted {n_bytes}"
                )
            flat = np.frombuffer(data, np.uint8, n_bytes, at)
            at += n_bytes
            self._hand_on(piece, flat, sink, window)
        if at != len(data):
            raise errors.DataLoss(
                f"row message: {len(data) - at} bytes that no piece describes"
            )
        self._release()

    def _take_shared(
        self, piece: pb.RowPiece, n_bytes: int, sink: rows.Sink, window: bool
    ) -> None:
        assert self._ring is not None and self._segment is not None
        flat = self._ring.view(piece.position, n_bytes)
        looked_at = weakref.ref(flat)
        self._hand_on(piece, flat, sink, window)
        del flat
        if looked_at() is not None:
            # Not released: nobody writes there before the stream ends.
            raise errors.ViewHeld(
                f"{self._name(piece)}: a view of shared memory was kept; copy "
                "what is to be kept"
            )
        self._unreleased += n_bytes
        if self._unreleased > self._segment.size // _RELEASES_IN_RING:
            self._release()

    def _hand_on(
        self, piece: pb.RowPiece, flat: rows.Bytes, sink: rows.Sink, window: bool
    ) -> None:
        if rows.checksum(flat) != piece.checksum:
            raise errors.DataLoss(f"{self._name(piece)}: damaged on the way")
        self.n_pieces += 1
        sink(
            rows.Piece(
                slot=piece.slot,
                name=self._layout.slots[piece.slot].name,
                first=piece.row_begin,
                rows=flat.reshape(piece.n_rows, piece.row_bytes),
                window=window,
            )
        )

    def _release(self) -> None:
        if self._ring is not None and self._unreleased:
            self._ring.release()
            self._unreleased = 0

    def _name(self, piece: pb.RowPiece) -> str:
        slots = self._layout.slots
        name = f"'{slots[piece.slot].name}'" if piece.slot < len(slots) else piece.slot
        return f"rows [{piece.row_begin}, +{piece.n_rows}) of slot {name}"
