# SPDX-License-Identifier: Apache-2.0
"""Putting sessions to sleep: in one call, or in parts from several processes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from torpor import _methods as m
from torpor import _tokens, errors, rows
from torpor._message import message
from torpor._plane import Planes, SegmentUnreachable
from torpor._rpc import Connection, Deadline
from torpor._shm import Producer, Segment
from torpor.model import Fingerprint, Layout, Model
from torpor.session import (
    ExtraKeySpan,
    Floor,
    ProvenanceRange,
    SessionClass,
    SuspendReceipt,
)
from torpor.witness import Witness
from torpor.v1 import session_service_pb2 as pb
from torpor.v1 import types_pb2 as types_pb

_MOST_BATCH_BYTES = 1 << 20
_BATCHES_IN_RING = 4
_MOST_PIECES = 1024
_POLL_S = 0.0005
_PROBE_S = 0.05
_ABANDON_S = 2.0


def new_operation_id() -> str:
    """One for each logical operation; the same one when it is tried again."""
    return secrets.token_hex(16)


@dataclass(frozen=True, eq=False)
class SuspendSpec:
    """What a suspend says of its session; see BeginSuspendHeader.

    `ids` are the tokens after `tokens_kept`; positions count from the start of
    the session. `kv_len` None: every token has KV.
    """

    session: bytes | str
    model: str
    ids: _tokens.Ids
    kv_len: int | None = None
    expected_version: int = 0
    tokens_kept: int = 0
    operation_id: str = field(default_factory=new_operation_id)
    fingerprint: Fingerprint = Fingerprint()
    numerics_id: str = ""
    floors: Sequence[Floor] = ()
    provenance: Sequence[ProvenanceRange] = ()
    session_class: SessionClass | None = None
    # Seconds from the commit; 0 keeps what is set, -1 clears it.
    ttl_seconds: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    with_snapshot: bool = False
    n_ranks: int = 1
    holder: str = ""
    extra_keys: Sequence[ExtraKeySpan] = ()

    def __post_init__(self) -> None:
        # The dataclass is frozen; its fields are what was given, checked.
        object.__setattr__(self, "ids", _tokens.as_ids(self.ids))

    def kv_end(self) -> int:
        return self.tokens_kept + len(self.ids) if self.kv_len is None else self.kv_len

    def header(self, offer: pb.DataPlaneOffer | None) -> pb.BeginSuspendHeader:
        return message(
            pb.BeginSuspendHeader,
            session=_tokens.as_session(self.session),
            expected_version=self.expected_version,
            operation_id=self.operation_id,
            model=self.model,
            fingerprint=self.fingerprint.to_pb(),
            tokens_kept=self.tokens_kept,
            kv_len=self.kv_end(),
            numerics_id=self.numerics_id,
            floors=[f.to_pb() for f in self.floors],
            provenance=[p.to_pb() for p in self.provenance],
            session_class=class_name(self.session_class),
            ttl_seconds=self.ttl_seconds,
            labels=self.labels,
            with_snapshot=self.with_snapshot,
            planes=offer,
            n_ranks=self.n_ranks,
            holder=self.holder,
        )

    def chunks(self) -> Iterator[types_pb.TokenChunk]:
        return _tokens.chunks(
            _tokens.as_ids(self.ids), self.extra_keys, self.tokens_kept
        )

    def wanted_of_new(self, layout: Layout) -> dict[int, tuple[int, int]]:
        """Rows of a session that is written whole."""
        slots = layout.compact() + (layout.snapshot() if self.with_snapshot else [])
        wanted = {i: layout.slots[i].rows_at(self.kv_end()) for i in slots}
        return {i: (begin, end) for i, (begin, end) in wanted.items() if begin < end}

    def least_bytes(self, layout: Layout) -> int:
        """Bytes of the rows that are sure to be wanted."""
        n = 0
        for i in layout.compact():
            slot = layout.slots[i]
            kept, end = (
                t // slot.tokens_per_row for t in (self.tokens_kept, self.kv_end())
            )
            n += max(0, end - kept) * slot.row_bytes
        return n


def class_name(session_class: SessionClass | None) -> str:
    name = "UNSPECIFIED" if session_class is None else session_class.name
    return f"SESSION_CLASS_{name}"


@dataclass(frozen=True)
class TicketHandle:
    """A ticket for another process of this host or another; can be pickled."""

    id: str
    model: Model
    wanted: Mapping[int, tuple[int, int]]
    block_size: int
    kv_len: int
    n_ranks: int


class Ticket:
    """A suspend under way. Leaving its `with` block without a commit gives it
    up, unless it was attached from a handle.

    `receipt` is set when the operation was committed before: then there is
    nothing to do.
    """

    def __init__(
        self,
        connection: Connection,
        planes: Planes,
        timeout: float,
        handle: TicketHandle,
        *,
        receipt: SuspendReceipt | None = None,
        segment: Segment | None = None,
        owner: bool = True,
    ) -> None:
        self._connection = connection
        self._planes = planes
        self._timeout = timeout
        self._segment = segment
        self._owner = owner
        self._open = receipt is None
        self.handle = handle
        self.receipt = receipt

    @property
    def id(self) -> str:
        return self.handle.id

    @property
    def wanted(self) -> Mapping[int, tuple[int, int]]:
        """Rows [begin, end) that the daemon wants, by slot index."""
        return self.handle.wanted

    def put(
        self,
        given: rows.GivenRows,
        *,
        shard: int = 0,
        begin: int = 0,
        end: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Sends the rows of `given` that stand for tokens [begin, end); returns
        their bytes.

        Never retried here; to repeat one as it was is harmless. Streams of one ticket may run beside each other, but each
        block's rows wait for all of its slots and shards: name them all here, or
        send the same token range from every rank before the next one.
        """
        h = self.handle
        slots = rows.outgoing(
            h.model.layout,
            given,
            self._wanted_in(begin, end),
            h.kv_len,
            shard,
            h.n_ranks,
        )
        if not slots:
            return 0
        deadline = Deadline(self._timeout if timeout is None else timeout)
        segment, own = self._segment_for(sum(s.n_bytes for s in slots), deadline)
        try:
            stream = (
                _in_messages(h.id, slots, h.block_size)
                if segment is None
                else _through_segment(h.id, slots, h.block_size, segment)
            )
            return self._connection.send(m.PUT_ROWS, stream, deadline).bytes_received
        finally:
            if segment is not None:
                segment.end_use()
                if own:
                    segment.close()

    def _wanted_in(self, begin: int, end: int | None) -> dict[int, tuple[int, int]]:
        out = {}
        for i, (first, stop) in self.wanted.items():
            span = rows.rows_span(self.handle.model.layout.slots[i])
            last = stop if end is None else min(stop, end // span)
            out[i] = (max(first, begin // span), last)
        return {i: (a, b) for i, (a, b) in out.items() if a < b}

    def _segment_for(
        self, n_bytes: int, deadline: Deadline
    ) -> tuple[Segment | None, bool]:
        """A segment in use, and whether it ends with this stream."""
        if self._segment is not None and self._segment.begin_use():
            return self._segment, False
        offer = self._planes.offer(n_bytes)
        if offer is None:
            return None, False
        choice = self._connection.unary(
            m.OPEN_PLANE, pb.OpenPlaneRequest(ticket=self.id, planes=offer), deadline
        )
        try:
            segment = self._planes.take(choice, writable=True)
        except SegmentUnreachable:
            return None, False
        if segment is not None:
            segment.begin_use()
        return segment, True

    def commit(
        self,
        *,
        witness: Witness | None = None,
        client_state: bytes = b"",
        timeout: float | None = None,
    ) -> SuspendReceipt:
        """Publishes the version; when it returns, it is durable.

        Never retried: after Unavailable, begin again with the same operation id,
        which answers with the receipt when the commit had happened.
        """
        if self.receipt is not None:
            return self.receipt
        request = message(
            pb.CommitRequest,
            ticket=self.id,
            witness=None if witness is None else witness.to_pb(),
            client_state=client_state,
        )
        answer = self._connection.unary(
            m.COMMIT,
            request,
            Deadline(self._timeout if timeout is None else timeout),
        )
        self.receipt = SuspendReceipt.from_pb(answer)
        self.close()
        return self.receipt

    def abandon(self) -> None:
        """Gives the ticket up and frees what it holds. Idempotent."""
        request = pb.AbandonSuspendRequest(ticket=self.id)
        try:
            if self.id:
                deadline = Deadline(_ABANDON_S)
                self._connection.unary(m.ABANDON_SUSPEND, request, deadline)
        finally:
            self.close()

    def close(self) -> None:
        """Lets go of the ticket's segment without a word to the daemon."""
        self._open = False
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not (self._open and self._owner):
            self.close()
            return
        try:
            self.abandon()
        except errors.TorporError:
            # The daemon gives up tickets that nobody touches.
            pass


def begin(
    connection: Connection,
    planes: Planes,
    timeout: float,
    model: Model,
    spec: SuspendSpec,
    deadline: Deadline,
    offer: pb.DataPlaneOffer | None = None,
) -> Ticket:
    """One BeginSuspend."""

    def stream() -> Iterator[pb.BeginSuspendRequest]:
        yield pb.BeginSuspendRequest(header=spec.header(offer))
        for chunk in spec.chunks():
            yield pb.BeginSuspendRequest(tokens=chunk)

    answer = connection.send(m.BEGIN_SUSPEND, stream(), deadline)
    handle = TicketHandle(
        id=answer.ticket,
        model=model,
        wanted={w.slot: (w.row_begin, w.row_end) for w in answer.wanted},
        block_size=answer.block_size or model.block_size,
        kv_len=spec.kv_end(),
        n_ranks=spec.n_ranks,
    )
    if answer.HasField("receipt"):
        receipt = SuspendReceipt.from_pb(answer.receipt)
        return Ticket(connection, planes, timeout, handle, receipt=receipt)
    ticket = Ticket(connection, planes, timeout, handle)
    if offer is not None:
        try:
            ticket._segment = planes.take(answer.plane, writable=True)
        except errors.TorporError:
            with ticket:
                raise
    return ticket


def suspend(
    connection: Connection,
    planes: Planes,
    model: Model,
    spec: SuspendSpec,
    given: rows.GivenRows,
    witness: Witness | None,
    client_state: bytes,
    deadline: Deadline,
) -> SuspendReceipt:
    """Once, from begin to commit. Repeated with the same operation id it
    commits once."""
    offer = planes.offer(spec.least_bytes(model.layout))
    if offer is None and spec.tokens_kept == 0:
        return _in_one(connection, model, spec, given, witness, client_state, deadline)
    try:
        ticket = begin(
            connection, planes, deadline.left(), model, spec, deadline, offer
        )
    except SegmentUnreachable:
        ticket = begin(connection, planes, deadline.left(), model, spec, deadline)
    with ticket:
        if ticket.receipt is not None:
            return ticket.receipt
        try:
            ticket.put(given, timeout=deadline.left())
            return ticket.commit(
                witness=witness, client_state=client_state, timeout=deadline.left()
            )
        except errors.NotFound as error:
            # The daemon that knew the ticket is gone: as if it had not answered.
            raise errors.Unavailable(error.message) from None


def _in_one(
    connection: Connection,
    model: Model,
    spec: SuspendSpec,
    given: rows.GivenRows,
    witness: Witness | None,
    client_state: bytes,
    deadline: Deadline,
) -> SuspendReceipt:
    if spec.n_ranks > 1:
        raise errors.InvalidArgument(
            f"n_ranks: got {spec.n_ranks}, wanted 1; ranks suspend in parts"
        )
    slots = rows.outgoing(
        model.layout, given, spec.wanted_of_new(model.layout), spec.kv_end()
    )

    def stream() -> Iterator[pb.SuspendRequest]:
        yield pb.SuspendRequest(header=spec.header(None))
        for chunk in spec.chunks():
            yield pb.SuspendRequest(tokens=chunk)
        for described, data in rows.messages(slots, model.block_size):
            yield pb.SuspendRequest(pieces=described, data=data)
        yield pb.SuspendRequest(
            commit=message(
                pb.CommitRequest,
                witness=None if witness is None else witness.to_pb(),
                client_state=client_state,
            )
        )

    return SuspendReceipt.from_pb(connection.send(m.SUSPEND, stream(), deadline))


def _in_messages(
    ticket: str, slots: list[rows.OutgoingSlot], block_size: int
) -> Iterator[pb.PutRowsRequest]:
    yield pb.PutRowsRequest(ticket=ticket)
    for described, data in rows.messages(slots, block_size):
        yield pb.PutRowsRequest(pieces=described, data=data)


def _through_segment(
    ticket: str, slots: list[rows.OutgoingSlot], block_size: int, segment: Segment
) -> Iterator[pb.PutRowsRequest]:
    """Ends early when the daemon let the segment go: the call says why."""
    ring = Producer(segment)
    yield pb.PutRowsRequest(ticket=ticket, segment=segment.id)
    most = min(_MOST_BATCH_BYTES, segment.size // _BATCHES_IN_RING)
    batch: list[types_pb.RowPiece] = []
    n_bytes = 0
    for piece, flat in rows.pieces(slots, block_size):
        at = ring.place(flat.size)
        # The daemon cannot be done with what it was not told of.
        if batch and (at is None or n_bytes >= most or len(batch) >= _MOST_PIECES):
            yield pb.PutRowsRequest(pieces=batch)
            batch, n_bytes = [], 0
        probe = time.monotonic() + _PROBE_S
        while at is None:
            if segment.lost:
                return
            time.sleep(_POLL_S)
            if time.monotonic() >= probe:
                # Only a write tells that the daemon has ended the call.
                yield pb.PutRowsRequest()
                probe = time.monotonic() + _PROBE_S
            at = ring.place(flat.size)
        ring.put(at, flat)
        piece.position = at
        batch.append(piece)
        n_bytes += flat.size
    if batch:
        yield pb.PutRowsRequest(pieces=batch)
