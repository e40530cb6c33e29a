# SPDX-License-Identifier: Apache-2.0
"""Waking sessions in one call; what a resume asks and what it brings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from torpor import _methods as m
from torpor import _tokens, errors, rows
from torpor._intake import Intake
from torpor._message import message
from torpor._plane import Planes, SegmentUnreachable
from torpor._rpc import Connection, Deadline
from torpor._shm import Segment
from torpor.model import ComeBack, Fingerprint, Layout, ReplayMode, ReplayPlan
from torpor.session import (
    Divergence,
    ExtraKeySpan,
    LayerError,
    ResumeReceipt,
    SessionState,
    Verdict,
)
from torpor.v1 import session_service_pb2 as pb
from torpor.v1 import types_pb2 as types_pb
from torpor.witness import Witness


@dataclass(frozen=True, eq=False)
class ResumeSpec:
    """What a resume asks; see BeginResumeHeader and ResumeLimits.

    `ids` is the prompt from position 0; empty takes what the session has. An
    empty `session` finds the longest stored prefix of `ids`.
    """

    session: bytes | str = b""
    ids: _tokens.Ids = ()
    extra_keys: Sequence[ExtraKeySpan] = ()
    mode: ReplayMode | str = ReplayMode.AUTO
    version: int = 0
    model: str = ""
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    cut: int = 0
    replay_tokens: int = 0
    max_replay_tokens: int = 0
    max_error: float = 0.0
    # None: only where cold is the mode that is asked.
    allow_cold: bool | None = None
    allow_shorter: bool = False
    engine_replays: bool = False
    want_logits: bool = False
    numerics_id: str = ""

    def __post_init__(self) -> None:
        # The dataclass is frozen; its fields are what was given, checked.
        object.__setattr__(self, "ids", _tokens.as_ids(self.ids))
        object.__setattr__(self, "mode", ReplayMode.of(self.mode))

    def header(
        self, offer: pb.DataPlaneOffer | None = None, send_tokens: bool = False
    ) -> pb.BeginResumeHeader:
        mode = ReplayMode.of(self.mode)
        cold = mode is ReplayMode.COLD if self.allow_cold is None else self.allow_cold
        return message(
            pb.BeginResumeHeader,
            session=_tokens.as_session(self.session),
            version=self.version,
            model=self.model,
            fingerprint=self.fingerprint.to_pb(),
            cut=self.cut,
            mode=mode.wire_name,
            limits=message(
                pb.ResumeLimits,
                replay_tokens=self.replay_tokens,
                max_replay_tokens=self.max_replay_tokens,
                max_error=self.max_error,
                allow_cold=cold,
                allow_shorter=self.allow_shorter,
            ),
            planes=offer,
            engine_replays=self.engine_replays,
            want_logits=self.want_logits,
            numerics_id=self.numerics_id,
            send_tokens=send_tokens,
        )

    def messages(
        self, offer: pb.DataPlaneOffer | None, send_tokens: bool
    ) -> Iterator[pb.BeginResumeRequest]:
        yield pb.BeginResumeRequest(header=self.header(offer, send_tokens))
        for chunk in _tokens.chunks(_tokens.as_ids(self.ids), self.extra_keys):
            yield pb.BeginResumeRequest(tokens=chunk)


@dataclass(frozen=True)
class Begun:
    """What a resume begins with."""

    plan: ReplayPlan
    state: SessionState
    client_state: bytes
    divergence: Divergence | None
    # Tokens from here on are the engine's to run.
    recompute_from: int
    # For an engine that replays; None when nothing was stored.
    witness: Witness | None

    @classmethod
    def from_pb(cls, a: pb.BeginResumeResponse) -> Begun:
        return cls(
            plan=ReplayPlan.from_pb(a.plan),
            state=SessionState.from_pb(a.state),
            client_state=a.client_state,
            divergence=(
                Divergence.from_pb(a.divergence) if a.HasField("divergence") else None
            ),
            recompute_from=a.recompute_from,
            witness=Witness.from_pb(a.witness) if a.HasField("witness") else None,
        )


@dataclass(frozen=True)
class Window:
    """The rebuilt window. `rows` is empty where a sink took them."""

    plan: ReplayPlan
    verdict: Verdict
    errors: tuple[LayerError, ...]
    # [vocab] float32; None unless they were wanted.
    logits: npt.NDArray[np.float32] | None
    rows: rows.RowSet


@dataclass(frozen=True)
class Tokens:
    ids: npt.NDArray[np.uint32]
    extra_keys: tuple[ExtraKeySpan, ...]


@dataclass(frozen=True)
class Woken:
    """A session that is awake. Rows are empty where a sink took them."""

    begun: Begun
    # Stored tokens, those without KV included; None unless asked for.
    tokens: Tokens | None
    compact: rows.RowSet
    # None when an engine replays.
    window: Window | None
    receipt: ResumeReceipt

    @property
    def state(self) -> SessionState:
        return self.begun.state

    @property
    def client_state(self) -> bytes:
        return self.begun.client_state

    @property
    def plan(self) -> ReplayPlan:
        """The plan that served."""
        return self.begun.plan if self.window is None else self.window.plan


class TokenList:
    def __init__(self) -> None:
        self._ids: list[npt.NDArray[np.uint32]] = []
        self._spans: list[ExtraKeySpan] = []

    def add(self, chunk: types_pb.TokenChunk) -> None:
        self._ids.append(np.fromiter(chunk.ids, np.uint32, len(chunk.ids)))
        self._spans += [ExtraKeySpan.from_pb(s) for s in chunk.extra_keys]

    def finish(self) -> Tokens:
        empty = np.empty(0, np.uint32)
        return Tokens(np.concatenate([empty, *self._ids]), tuple(self._spans))


class WindowReader:
    """The messages of a window: a header, then rows."""

    def __init__(
        self, layout: Layout, intake: Intake, sink: rows.Sink | None, n_shards: int = 1
    ) -> None:
        self._layout = layout
        self._intake = intake
        self._sink = sink
        self._n_shards = n_shards
        self._header: pb.WindowHeader | None = None
        self._collector: rows.Collector | None = None

    def begin(self, header: pb.WindowHeader) -> None:
        self._header = header
        if self._sink is None:
            expected = window_rows(self._layout, ReplayPlan.from_pb(header.plan))
            self._collector = rows.Collector(self._layout, expected, self._n_shards)
            self._sink = self._collector

    def take(self, pieces: Sequence[types_pb.RowPiece], data: bytes) -> None:
        if self._header is None or self._sink is None:
            raise errors.DataLoss("window: rows came before the verdict")
        self._intake.take(pieces, data, self._sink, window=True)

    @property
    def begun(self) -> bool:
        return self._header is not None

    def finish(self) -> Window:
        header = self._header
        if header is None:
            raise errors.DataLoss("window: the stream ended without a verdict")
        got = self._collector
        return Window(
            plan=ReplayPlan.from_pb(header.plan),
            verdict=Verdict(header.verdict),
            errors=tuple(LayerError.from_pb(e) for e in header.errors),
            logits=(
                np.frombuffer(header.logits, "<f4").astype(np.float32)
                if header.logits
                else None
            ),
            rows=rows.RowSet(self._layout, {}) if got is None else got.finish(),
        )


def compact_rows(layout: Layout, cut: int) -> dict[int, tuple[int, int]]:
    return {i: layout.slots[i].rows_at(cut) for i in layout.compact()}


def window_rows(layout: Layout, plan: ReplayPlan) -> dict[int, tuple[int, int]]:
    """What a plan's window brings: what replays, and from a snapshot the rest,
    or all of it."""
    if plan.mode is ReplayMode.COLD:
        return {}
    runs = plan.replay_start < plan.resume_at or plan.mode is ReplayMode.SNAPSHOT
    return {
        i: layout.slots[i].rows_at(plan.resume_at)
        for i in layout.snapshot()
        if runs or layout.slots[i].come_back is ComeBack.SNAPSHOT
    }


class OneResume:
    """One Resume stream; `handed_on` says whether a sink has seen a row."""

    def __init__(
        self, connection: Connection, planes: Planes, model_of: m.ModelOf
    ) -> None:
        self._connection = connection
        self._planes = planes
        self._model_of = model_of
        self.handed_on = False

    def run(
        self,
        spec: ResumeSpec,
        with_tokens: bool,
        sink: rows.Sink | None,
        deadline: Deadline,
    ) -> Woken:
        try:
            return self._run(spec, with_tokens, sink, self._planes.offer(), deadline)
        except SegmentUnreachable:
            return self._run(spec, with_tokens, sink, None, deadline)

    def _run(
        self,
        spec: ResumeSpec,
        with_tokens: bool,
        sink: rows.Sink | None,
        offer: pb.DataPlaneOffer | None,
        deadline: Deadline,
    ) -> Woken:
        answers = self._connection.exchange(
            m.RESUME, spec.messages(offer, with_tokens), deadline
        )
        segment: Segment | None = None
        try:
            first = next(answers, None)
            if first is None or not first.HasField("begin"):
                raise errors.DataLoss("resume: the stream began without a plan")
            if offer is not None:
                segment = self._take(first.begin.plane, answers)
            return self._read(spec, first.begin, answers, segment, with_tokens, sink)
        finally:
            # Ends the call when something went wrong before its end.
            answers.close()
            if segment is not None:
                segment.close()

    def _take(
        self, choice: pb.DataPlaneChoice, answers: Iterator[pb.ResumeChunk]
    ) -> Segment | None:
        try:
            return self._planes.take(choice, writable=False)
        except errors.NotFound:
            # The segment ended with its call, which says why.
            for _ in answers:
                pass
            raise

    def _read(
        self,
        spec: ResumeSpec,
        begin: pb.BeginResumeResponse,
        answers: Iterator[pb.ResumeChunk],
        segment: Segment | None,
        with_tokens: bool,
        sink: rows.Sink | None,
    ) -> Woken:
        begun = Begun.from_pb(begin)
        layout = self._model_of(spec.model or begun.state.model).layout
        expected = compact_rows(layout, begun.plan.resume_at)
        collector = rows.Collector(layout, expected if sink is None else {})
        intake = Intake(layout, segment)
        tokens = TokenList()
        window = WindowReader(layout, intake, sink)
        receipt: ResumeReceipt | None = None
        for chunk in answers:
            if chunk.HasField("tokens"):
                tokens.add(chunk.tokens)
            if chunk.HasField("window"):
                window.begin(chunk.window)
            if chunk.HasField("receipt"):
                receipt = ResumeReceipt.from_pb(chunk.receipt)
            if chunk.pieces:
                self.handed_on = sink is not None
                if window.begun:
                    window.take(chunk.pieces, chunk.data)
                else:
                    intake.take(chunk.pieces, chunk.data, sink or collector)
        if receipt is None:
            raise errors.DataLoss("resume: the stream ended without a receipt")
        receipt.check()
        # A climb to cold ends what was to be sent.
        cold = receipt.mode_used is ReplayMode.COLD
        return Woken(
            begun=begun,
            tokens=tokens.finish() if with_tokens else None,
            compact=collector.finish(partial=cold),
            window=window.finish() if window.begun else None,
            receipt=receipt,
        )
