# SPDX-License-Identifier: Apache-2.0
"""A session from daemon to daemon: into a file, out of one, or straight."""

from __future__ import annotations

import fcntl
import os
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torpor import _methods as m
from torpor import errors
from torpor._rpc import Connection, Deadline
from torpor.container import ContainerReader, import_operation
from torpor.session import SessionState, SuspendReceipt
from torpor.v1 import session_service_pb2 as pb

_READ_BYTES = 1 << 20
# Of the daemon's choosing at most 1 MiB; a transfer that breaks loses little.
_CHUNK_BYTES = 256 << 10


@dataclass(frozen=True)
class Exported:
    session: bytes
    version: int
    n_tokens: int
    # Of the file; blocks of it that an earlier try had left.
    n_bytes: int
    from_block: int


@dataclass(frozen=True)
class Imported:
    state: SessionState
    receipt: SuspendReceipt
    # True when the operation was committed before.
    repeated: bool
    # Whole blocks that an earlier try had brought, and bytes sent this time.
    from_block: int
    n_bytes: int


class PartFile:
    """`path`, written as PATH.part and renamed at its end. Whole units of an
    earlier try are kept when they are of the same session at the same version."""

    def __init__(self, path: Path, session: bytes, version: int) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        # Rows and token ids are prompt text: nobody else's to read.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._file = os.fdopen(os.open(self._part, flags, 0o600), "r+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise errors.FailedPrecondition(
                f"{self._part}: another export writes it"
            ) from None
        self.reader = ContainerReader()
        try:
            while data := self._file.read(_READ_BYTES):
                self.reader.feed(data)
        except (errors.DataLoss, errors.FailedPrecondition):
            pass
        if (self.reader.session, self.reader.version) != (session, version):
            self.reader = ContainerReader()
        self.go_back()

    def go_back(self) -> None:
        """To the last whole block, so that an export goes on behind it."""
        self.reader.drop_rest()
        if self.reader.blocks == 0 or self.reader.done:
            self.reader = ContainerReader()
        self._file.truncate(self.reader.offset)
        self._file.seek(self.reader.offset)

    def append(self, data: bytes) -> None:
        for unit in self.reader.feed(data):
            self._file.write(unit)

    def finish(self) -> None:
        """Durable under its own name."""
        self.reader.finish()
        self._file.flush()
        os.fsync(self._file.fileno())
        os.rename(self._part, self._path)
        parent = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)

    def close(self) -> None:
        self._file.close()


def export_file(
    connection: Connection, state: SessionState, path: Path, deadline: Deadline
) -> Exported:
    part = PartFile(path, state.session, state.version)
    try:
        from_block = part.reader.blocks

        def run() -> None:
            part.go_back()
            request = pb.ExportRequest(
                session=state.session,
                version=state.version,
                from_block=part.reader.blocks,
                chain=part.reader.chain,
            )
            for chunk in connection.receive(m.EXPORT, request, deadline):
                part.append(chunk.data)

        connection.retrying(deadline, run)
        part.finish()
        return Exported(
            session=state.session,
            version=state.version,
            n_tokens=state.n_tokens,
            n_bytes=part.reader.offset,
            from_block=from_block,
        )
    finally:
        part.close()


# The container's bytes behind what the first answer says is there.
Rest = Callable[[pb.ImportResponse], Iterator[bytes]]


def _import(
    connection: Connection,
    name: bytes,
    outline_chain: bytes,
    rest: Rest,
    deadline: Deadline,
) -> Imported:
    header = pb.ImportHeader(
        session=name, operation_id=import_operation(outline_chain, name)
    )
    # None: nothing is sent any more.
    begun: queue.SimpleQueue[pb.ImportResponse | None] = queue.SimpleQueue()
    sent = 0

    def messages() -> Iterator[pb.ImportRequest]:
        nonlocal sent
        yield pb.ImportRequest(header=header)
        first = begun.get()
        if first is None:
            return
        for data in rest(first):
            sent += len(data)
            yield pb.ImportRequest(chunk=pb.TransferChunk(data=data))

    answers = connection.exchange(m.IMPORT, messages(), deadline)
    try:
        first = next(answers, None)
        if first is None:
            raise errors.DataLoss("import: the stream ended without an answer")
        begun.put(first)
        last: pb.ImportResponse | None = None
        for last in answers:
            pass
        if last is None or not last.HasField("receipt"):
            raise errors.DataLoss("import: the stream ended without a receipt")
        return Imported(
            state=SessionState.from_pb(last.state),
            receipt=SuspendReceipt.from_pb(last.receipt),
            repeated=last.repeated,
            from_block=first.from_block,
            n_bytes=sent,
        )
    finally:
        begun.put(None)
        answers.close()


def import_file(
    connection: Connection, path: Path, name: bytes, deadline: Deadline
) -> Imported:
    # All of it is judged before the daemon hears of it.
    reader = ContainerReader()
    with open(path, "rb") as file:
        try:
            while data := file.read(_READ_BYTES):
                reader.feed(data)
            reader.finish()
        except errors.TorporError as error:
            raise type(error)(f"{path}: {error.message}") from None

        # The thread of a call that failed may read on for a while.
        def rest(first: pb.ImportResponse) -> Iterator[bytes]:
            at = reader.unit_offset(first.from_block)
            while data := os.pread(file.fileno(), _CHUNK_BYTES, at):
                at += len(data)
                yield data

        return connection.retrying(
            deadline,
            lambda: _import(connection, name, reader.outline_chain, rest, deadline),
        )


def pull(
    to: Connection, source: Connection, session: bytes, name: bytes, deadline: Deadline
) -> Imported:
    return to.retrying(deadline, lambda: _pull_once(to, source, session, name, deadline))


def _pull_once(
    to: Connection, source: Connection, session: bytes, name: bytes, deadline: Deadline
) -> Imported:
    # Reads the outline; the importer judges the rest.
    reader = ContainerReader()
    head: list[bytes] = []
    exports = [source.receive(m.EXPORT, pb.ExportRequest(session=session), deadline)]
    try:
        while not reader.outline_chain:
            chunk = next(exports[0], None)
            if chunk is None:
                reader.finish()
                break
            head.append(chunk.data)
            reader.feed(chunk.data)

        def rest(first: pb.ImportResponse) -> Iterator[bytes]:
            if first.from_block == 0:
                yield from head
            else:
                exports[0].close()
                request = pb.ExportRequest(
                    session=session,
                    version=reader.version,
                    from_block=first.from_block,
                    chain=first.chain,
                )
                exports.append(source.receive(m.EXPORT, request, deadline))
            for chunk in exports[-1]:
                yield chunk.data

        return _import(to, name, reader.outline_chain, rest, deadline)
    finally:
        for export in exports:
            export.close()
