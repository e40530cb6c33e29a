# SPDX-License-Identifier: Apache-2.0
"""A session as one run of bytes, as Export sends it and a file holds it.

docs/FORMAT.md has the bytes. A container is cut into units: its outline, its
blocks, its tail. A transfer goes on behind a unit.
"""

from __future__ import annotations

import hashlib
import struct

import xxhash

from torpor import errors

_MAGIC = 0x58525054
_VERSION = 1
# Magic, version, kind, block, id, first, rows, row bytes, payload bytes, the
# payload's checksum, the header's.
_PIECE = struct.Struct("<IHBxIIQIIQQQ")
_CHECKED = _PIECE.size - 8
_MOST_BYTES = 1 << 30
_HEADER, _INDEX, _END = 1, 4, 8


def _digest(*parts: bytes) -> bytes:
    chain = hashlib.blake2b(digest_size=32)
    for part in parts:
        chain.update(part)
    return chain.digest()


class ContainerReader:
    """Takes a container's bytes in order, verifies them, and returns whole units.

    Every error is DataLoss, or FailedPrecondition for a newer format.
    """

    def __init__(self) -> None:
        # Of the outline.
        self.session = b""
        self.version = 0
        self.outline_chain = b""
        # Whole blocks that were read, bytes up to there, and the chain there.
        self.blocks = 0
        self.offset = 0
        self.chain = b""
        self.done = False
        # Bytes behind `offset`, of which `_at` are whole pieces.
        self._rest = bytearray()
        self._at = 0
        # Where each block begins, and then the tail.
        self._begins: list[int] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The units that `data` completes."""
        if self.done and data:
            raise self._bad(f"{len(data)} bytes behind its end")
        self._rest += data
        units: list[bytes] = []
        while self._take_piece():
            end = self.offset + self._at
            if not self.outline_chain:
                ended = bool(self._begins)
            elif self.blocks + 1 < len(self._begins):
                limit = self._begins[self.blocks + 1]
                if end > limit:
                    raise self._bad("a piece ends behind its block")
                ended = end == limit
            else:
                ended = self.done
            if ended:
                units.append(self._end_unit())
                if self.done and self._rest:
                    raise self._bad(f"{len(self._rest)} bytes behind its end")
        return units

    def drop_rest(self) -> None:
        """Forgets what came behind the last whole unit."""
        self._rest.clear()
        self._at = 0

    def finish(self) -> None:
        if not self.done:
            raise self._bad("it ends here, before its end", len(self._rest))

    def unit_offset(self, blocks: int) -> int:
        """Where the unit behind so many blocks begins; 0 for none."""
        if blocks == 0:
            return 0
        if blocks >= len(self._begins):
            raise errors.Internal(
                f"container: the daemon has {blocks} blocks of it, "
                f"it has {len(self._begins) - 1}"
            )
        return self._begins[blocks]

    def _take_piece(self) -> bool:
        if len(self._rest) < self._at + _PIECE.size:
            return False
        header = bytes(self._rest[self._at : self._at + _PIECE.size])
        magic, version, kind, *_, n_bytes, checksum, own = _PIECE.unpack(header)
        if magic != _MAGIC or xxhash.xxh3_64_intdigest(header[:_CHECKED]) != own:
            raise self._bad("no header of a piece", self._at)
        if version > _VERSION:
            raise errors.FailedPrecondition(
                f"container: its format is version {version}, "
                f"this client reads {_VERSION}"
            )
        if n_bytes > _MOST_BYTES:
            raise self._bad(f"a piece of {n_bytes} bytes", self._at)
        begin = self._at + _PIECE.size
        if len(self._rest) < begin + n_bytes:
            return False
        payload = bytes(self._rest[begin : begin + n_bytes])
        if xxhash.xxh3_64_intdigest(payload) != checksum:
            raise self._bad("its bytes and their checksum differ", self._at)
        self._take(kind, payload)
        self._at = begin + n_bytes
        return True

    def _take(self, kind: int, payload: bytes) -> None:
        if not self.outline_chain:
            if kind == _HEADER:
                (length,) = struct.unpack_from("<I", payload)
                self.session = payload[4 : 4 + length]
                (self.version,) = struct.unpack_from("<Q", payload, 4 + length)
            elif kind == _INDEX:
                base = self.offset + self._at + _PIECE.size + len(payload)
                self._begins = [
                    base + at for (at,) in struct.iter_unpack("<Q", payload)
                ]
        elif kind == _END:
            if payload != _digest(self.chain, bytes(self._rest[: self._at])):
                raise self._bad("its bytes and its last digest differ", self._at)
            self.done = True

    def _end_unit(self) -> bytes:
        unit = bytes(self._rest[: self._at])
        del self._rest[: self._at]
        self.offset += self._at
        self._at = 0
        if not self.outline_chain:
            self.outline_chain = self.chain = _digest(unit)
        elif not self.done:
            self.chain = _digest(self.chain, unit)
            self.blocks += 1
        return unit

    def _bad(self, what: str, at: int = 0) -> errors.DataLoss:
        return errors.DataLoss(f"container byte {self.offset + at}: {what}")


def import_operation(outline_chain: bytes, name: bytes) -> str:
    """The same for the same container under the same name, whoever asks (the
    command line, too): an import that was done is not done again."""
    return "import-" + _digest(outline_chain, name).hex()[:48]
