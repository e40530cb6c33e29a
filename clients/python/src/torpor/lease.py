# SPDX-License-Identifier: Apache-2.0
"""Waking in parts: a lease pins a session, its parts are read apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from torpor import _methods as m
from torpor import errors, rows
from torpor._intake import Intake
from torpor._message import message
from torpor._plane import Planes, SegmentUnreachable
from torpor._rpc import Connection, Deadline
from torpor._shm import Segment
from torpor.model import Model, ReplayPlan
from torpor.resume import Begun, ResumeSpec, TokenList, Tokens, Window, WindowReader
from torpor.session import ResumeReceipt, SessionState
from torpor.v1 import session_service_pb2 as pb
from torpor.witness import Witness

_RELEASE_S = 2.0


@dataclass(frozen=True)
class EngineReplay:
    """What an engine ran to rebuild the window of a lease; for its receipt."""

    # Layer runs of single tokens, all of them.
    token_layers: int
    # Of the window it rebuilt; compared with the stored one.
    witness: Witness
    replay_us: int = 0

    def to_pb(self) -> pb.EngineReplay:
        return message(
            pb.EngineReplay,
            token_layers=self.token_layers,
            witness=self.witness.to_pb(),
            replay_us=self.replay_us,
        )


class Lease:
    """What a resume pins. Leaving its `with` block releases it."""

    def __init__(
        self,
        connection: Connection,
        planes: Planes,
        timeout: float,
        model: Model,
        answer: pb.BeginResumeResponse,
        segment: Segment | None,
    ) -> None:
        self._connection = connection
        self._planes = planes
        self._timeout = timeout
        self._segment = segment
        self.id = answer.lease
        self.model = model
        self.begun = Begun.from_pb(answer)
        # Set by `release`.
        self.receipt: ResumeReceipt | None = None

    @property
    def plan(self) -> ReplayPlan:
        return self.begun.plan

    @property
    def state(self) -> SessionState:
        return self.begun.state

    def read_tokens(
        self, begin: int = 0, end: int = 0, *, timeout: float | None = None
    ) -> Tokens:
        """Stored tokens [begin, end); end 0 = all, those without KV included."""
        tokens = TokenList()
        request = message(pb.ReadTokensRequest, lease=self.id, begin=begin, end=end)
        for chunk in self._connection.receive(
            m.READ_TOKENS, request, self._deadline(timeout)
        ):
            tokens.add(chunk)
        return tokens.finish()

    def read_rows(
        self,
        slots: Sequence[int | str] = (),
        *,
        begin: int = 0,
        end: int = 0,
        shard: int = 0,
        n_shards: int = 1,
        sink: rows.Sink | None = None,
        timeout: float | None = None,
    ) -> rows.RowSet:
        """Compact rows of tokens [begin, end), verified; end 0 = up to the cut.

        No slots = every compact one. With a sink nothing is copied: it sees
        read-only views, which must not outlive its call (ViewHeld, which ends
        the lease: its memory is the view's from then on).
        """
        layout = self.model.layout
        indices = [layout.index(s) for s in slots] or layout.compact()
        span = {i: rows.rows_span(layout.slots[i]) for i in indices}
        stop = end or self.plan.resume_at
        expected = {i: (begin // span[i], stop // span[i]) for i in indices}
        collector = rows.Collector(layout, expected if sink is None else {}, n_shards)
        deadline = self._deadline(timeout)
        segment = self._use_segment()
        try:
            intake = Intake(layout, segment)
            request = message(
                pb.ReadRowsRequest,
                lease=self.id,
                slots=indices,
                shard=shard,
                n_shards=n_shards,
                begin=begin,
                end=end,
                segment="" if segment is None else segment.id,
            )
            for chunk in self._connection.receive(m.READ_ROWS, request, deadline):
                intake.take(chunk.pieces, chunk.data, sink or collector)
        except errors.ViewHeld:
            self._drop_segment()
            raise
        finally:
            if segment is not None:
                segment.end_use()
        return collector.finish()

    def window(
        self,
        *,
        shard: int = 0,
        n_shards: int = 1,
        sink: rows.Sink | None = None,
        timeout: float | None = None,
    ) -> Window:
        """Rebuilds the window (once for each lease) and returns it. Nothing
        comes before the witness has judged it."""
        deadline = self._deadline(timeout)
        segment = self._use_segment()
        try:
            intake = Intake(self.model.layout, segment)
            reader = WindowReader(self.model.layout, intake, sink, n_shards)
            request = message(
                pb.WindowRequest,
                lease=self.id,
                shard=shard,
                n_shards=n_shards,
                segment="" if segment is None else segment.id,
            )
            for chunk in self._connection.receive(m.WINDOW, request, deadline):
                if chunk.HasField("header"):
                    reader.begin(chunk.header)
                if chunk.pieces:
                    reader.take(chunk.pieces, chunk.data)
        except errors.ViewHeld:
            self._drop_segment()
            raise
        finally:
            if segment is not None:
                segment.end_use()
        return reader.finish()

    def release(
        self, replay: EngineReplay | None = None, *, timeout: float | None = None
    ) -> ResumeReceipt:
        """Ends the lease. Its receipt is checked: every token accounted for.

        `replay`: what the engine ran, where the lease was begun with
        `engine_replays`; the receipt has it, and the witness's verdict."""
        if self.receipt is None:
            request = pb.ReleaseRequest(
                lease=self.id, replay=None if replay is None else replay.to_pb()
            )
            answer = self._connection.unary(
                m.RELEASE, request, self._deadline(timeout)
            )
            self.receipt = ResumeReceipt.from_pb(answer)
            self.close()
        self.receipt.check()
        return self.receipt

    def close(self) -> None:
        """Lets go of the lease's segment without a word to the daemon."""
        self._drop_segment()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.release()
            return
        try:
            self.release(timeout=_RELEASE_S)
        except errors.TorporError:
            # The first error counts; the daemon ends idle leases.
            self.close()

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self._timeout if timeout is None else timeout)

    def _use_segment(self) -> Segment | None:
        """The lease's segment, for one stream at a time."""
        if self._segment is None:
            return None
        if self._segment.begin_use():
            return self._segment
        self._planes.reason = "shared memory: another stream of the lease uses it"
        return None

    def _drop_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None


def begin_resume(
    connection: Connection,
    planes: Planes,
    timeout: float,
    model_of: m.ModelOf,
    spec: ResumeSpec,
    deadline: Deadline,
) -> Lease:
    """One BeginResume."""

    def once(offer: pb.DataPlaneOffer | None) -> Lease:
        answer = connection.send(
            m.BEGIN_RESUME, spec.messages(offer, send_tokens=False), deadline
        )
        model = model_of(spec.model or answer.state.model)
        lease = Lease(connection, planes, timeout, model, answer, None)
        if offer is not None:
            try:
                lease._segment = planes.take(answer.plane, writable=False)
            except errors.TorporError:
                with lease:
                    raise
        return lease

    try:
        return once(planes.offer())
    except SegmentUnreachable:
        return once(None)
