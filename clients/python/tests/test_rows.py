# SPDX-License-Identifier: Apache-2.0
"""How rows are cut, ordered and bounded on their way."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import xxhash

import toy
import torpor
from daemon import Daemon
from torpor import ResumeSpec, SuspendSpec, rows

MIB = 1 << 20


def outgoing(layout: torpor.Layout, n: int) -> list[rows.OutgoingSlot]:
    wanted = {i: layout.slots[i].rows_at(n) for i in layout.compact()}
    return rows.outgoing(layout, toy.rows_for(1, n, layout), wanted, n)


def test_pieces_are_block_major_and_whole() -> None:
    slots = outgoing(toy.LAYOUT, 100)
    seen: dict[int, int] = {s.slot: 0 for s in slots}
    blocks = []
    for piece, flat in rows.pieces(slots, toy.BLOCK):
        assert piece.row_begin == seen[piece.slot]
        seen[piece.slot] += piece.n_rows
        wanted = toy.rows_of(1, piece.slot, piece.row_begin, seen[piece.slot])
        assert flat.tobytes() == wanted.tobytes()
        assert piece.checksum == xxhash.xxh3_64_intdigest(wanted.tobytes())
        span = toy.LAYOUT.slots[piece.slot].tokens_per_row
        blocks.append(piece.row_begin * span // toy.BLOCK)
    assert seen == {toy.HEADS: 100, toy.PLAIN: 100, toy.POOLED: 25}
    # Every slot of a block before the next block.
    assert blocks == sorted(blocks)
    assert len(blocks) == 3 * 7


def test_messages_hold_at_most_a_mebibyte() -> None:
    layout = toy.wide_layout(3000)
    slots = outgoing(layout, 1500)
    total = 0
    sizes = []
    for described, data in rows.messages(slots, 512):
        assert len(data) == sum(p.n_rows * p.row_bytes for p in described)
        assert all(p.n_rows * p.row_bytes <= MIB for p in described)
        sizes.append(len(data))
        total += len(data)
    assert total == 1500 * 6000
    assert max(sizes) <= MIB
    # Small pieces travel together.
    assert len(list(rows.messages(outgoing(toy.LAYOUT, 4000), toy.BLOCK))) == 1


def peak_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def pass_through(address: str, plane: str, n: int) -> None:
    """A suspend and a resume that hold no more than a few MiB."""
    block = np.arange(1024 * 4096, dtype=np.uint32).view(np.uint8).reshape(-1, 4096)

    def source(begin: int, end: int) -> toy.Bytes:
        return block[begin % 1024 : begin % 1024 + end - begin]

    def look(piece: torpor.Piece) -> None:
        assert (piece.rows == source(piece.first, piece.first + len(piece.rows))).all()

    with torpor.connect(address, plane=plane) as client:  # type: ignore[arg-type]
        toy.register(client, "wide", toy.wide_layout(4096), block=256)
        spec = SuspendSpec("s", "wide", np.zeros(n, np.uint32))
        # From here on: a new process starts with the peak of its parent.
        Path("/proc/self/clear_refs").write_text("5")
        before = peak_kib()
        client.suspend(spec, {"k": source, "v": source})
        client.resume(
            ResumeSpec("s", mode="exact", engine_replays=True),
            sink=look,
        )
        grown = peak_kib() - before
        print(f"{plane}: {n * 8192 / MIB:.0f} MiB, memory grew by {grown} KiB")
        assert grown < 48 * 1024


@pytest.mark.parametrize("plane", ["grpc", "shm"])
def test_memory_is_bounded_not_the_session(daemon: Daemon, plane: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(
        target=pass_through, args=(daemon.address, plane, 24 * 1024)
    )
    process.start()
    process.join()
    assert process.exitcode == 0
