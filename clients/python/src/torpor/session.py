# SPDX-License-Identifier: Apache-2.0
"""What is known of a session, and what a suspend or resume returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torpor import errors
from torpor._message import message
from torpor.model import Fingerprint, ReplayMode, WireEnum
from torpor.v1 import session_service_pb2 as pb
from torpor.v1 import types_pb2 as types_pb


class SessionClass(WireEnum):
    # Leaves only by delete or by its own TTL.
    DURABLE = 1
    # May be evicted, least recently used first.
    CACHE = 2


class Provenance(WireEnum):
    EXACT = 1
    APPROXIMATE = 2
    LOSSY = 3
    UNKNOWN = 4


class Verdict(WireEnum):
    """What the witness said of a rebuilt window."""

    # No window was rebuilt, or an engine did it and has not said what it ran.
    NONE = 0
    UNWITNESSED = 1
    EXACT = 2
    MEASURED = 3


@dataclass(frozen=True)
class ProvenanceRange:
    begin: int
    end: int
    provenance: Provenance

    def to_pb(self) -> types_pb.ProvenanceRange:
        return message(
            types_pb.ProvenanceRange,
            begin=self.begin,
            end=self.end,
            provenance=f"PROVENANCE_{self.provenance.name}",
        )


@dataclass(frozen=True)
class Floor:
    """A past bounded wake; goes into the next suspend."""

    resume_at: int
    replay_start: int
    layer_begin: int = 0

    @classmethod
    def from_pb(cls, m: types_pb.Floor) -> Floor:
        return cls(m.resume_at, m.replay_start, m.layer_begin)

    def to_pb(self) -> types_pb.Floor:
        return message(
            types_pb.Floor,
            resume_at=self.resume_at,
            replay_start=self.replay_start,
            layer_begin=self.layer_begin,
        )


@dataclass(frozen=True)
class ExtraKeySpan:
    """What else makes tokens [begin, end) what they are, such as an image."""

    begin: int
    end: int
    key: bytes
    bidirectional: bool = False

    @classmethod
    def from_pb(cls, m: types_pb.ExtraKeySpan) -> ExtraKeySpan:
        return cls(m.begin, m.end, m.key, m.bidirectional)

    def to_pb(self) -> types_pb.ExtraKeySpan:
        return message(
            types_pb.ExtraKeySpan,
            begin=self.begin,
            end=self.end,
            key=self.key,
            bidirectional=self.bidirectional,
        )


@dataclass(frozen=True)
class PhaseTimes:
    """Microseconds; 0 for a phase that did not happen."""

    queue_us: int
    index_us: int
    read_us: int
    verify_us: int
    transfer_us: int
    replay_us: int
    commit_us: int

    @classmethod
    def from_pb(cls, m: types_pb.PhaseTimes) -> PhaseTimes:
        return cls(
            queue_us=m.queue_us,
            index_us=m.index_us,
            read_us=m.read_us,
            verify_us=m.verify_us,
            transfer_us=m.transfer_us,
            replay_us=m.replay_us,
            commit_us=m.commit_us,
        )


@dataclass(frozen=True)
class SuspendReceipt:
    """Every byte of a suspend, accounted for."""

    session: bytes
    version: int
    n_tokens: int
    kv_len: int
    tokens_kept: int
    row_bytes_received: int
    row_bytes_copied: int
    token_bytes: int
    witness_bytes: int
    client_state_bytes: int
    snapshot_bytes: int
    blocks_shared: int
    blocks_written: int
    stored_bytes: int
    shared_memory_bytes: int
    times: PhaseTimes

    @classmethod
    def from_pb(cls, m: types_pb.SuspendReceipt) -> SuspendReceipt:
        return cls(
            session=m.session,
            version=m.version,
            n_tokens=m.n_tokens,
            kv_len=m.kv_len,
            tokens_kept=m.tokens_kept,
            row_bytes_received=m.row_bytes_received,
            row_bytes_copied=m.row_bytes_copied,
            token_bytes=m.token_bytes,
            witness_bytes=m.witness_bytes,
            client_state_bytes=m.client_state_bytes,
            snapshot_bytes=m.snapshot_bytes,
            blocks_shared=m.blocks_shared,
            blocks_written=m.blocks_written,
            stored_bytes=m.stored_bytes,
            shared_memory_bytes=m.shared_memory_bytes,
            times=PhaseTimes.from_pb(m.times),
        )


@dataclass(frozen=True)
class LayerError:
    layer: int
    max_relative: float
    mean_relative: float
    digest_equal: bool

    @classmethod
    def from_pb(cls, m: types_pb.LayerError) -> LayerError:
        return cls(m.layer, m.max_relative, m.mean_relative, m.digest_equal)


@dataclass(frozen=True)
class ResumeReceipt:
    """Every token of a resume, accounted for."""

    session: bytes
    version: int
    prompt_tokens: int
    # Stored row used, token not run.
    loaded_tokens: int
    # Stored row used, token run.
    replayed_tokens: int
    # No stored row used: the engine runs these.
    recomputed_tokens: int
    replayed_token_layers: int
    bytes_read: int
    bytes_sent: int
    shared_memory_bytes: int
    mode_asked: ReplayMode
    mode_used: ReplayMode
    exact: bool
    rung: int
    verdict: Verdict
    errors: tuple[LayerError, ...]
    # (tokens, why they were not reused).
    reasons: tuple[tuple[int, str], ...]
    times: PhaseTimes
    # True when a prefetch had rebuilt the window: then `bytes_read` and `times`
    # are of this resume alone.
    prefetched: bool
    # Goes into the next suspend; None when the wake was exact.
    floor: Floor | None
    # What ran the replay; empty when no token was run.
    replay_numerics_id: str

    @property
    def max_error(self) -> float:
        return max((e.max_relative for e in self.errors), default=0.0)

    def check(self) -> None:
        """DataLoss unless loaded + replayed + recomputed is the prompt."""
        total = self.loaded_tokens + self.replayed_tokens + self.recomputed_tokens
        if total != self.prompt_tokens:
            raise errors.DataLoss(
                f"receipt: {self.loaded_tokens} loaded + {self.replayed_tokens} "
                f"replayed + {self.recomputed_tokens} recomputed = {total} tokens, "
                f"wanted the {self.prompt_tokens} of the prompt"
            )

    @classmethod
    def from_pb(cls, m: types_pb.ResumeReceipt) -> ResumeReceipt:
        return cls(
            session=m.session,
            version=m.version,
            prompt_tokens=m.prompt_tokens,
            loaded_tokens=m.loaded_tokens,
            replayed_tokens=m.replayed_tokens,
            recomputed_tokens=m.recomputed_tokens,
            replayed_token_layers=m.replayed_token_layers,
            bytes_read=m.bytes_read,
            bytes_sent=m.bytes_sent,
            shared_memory_bytes=m.shared_memory_bytes,
            mode_asked=ReplayMode(m.mode_asked),
            mode_used=ReplayMode(m.mode_used),
            exact=m.exact,
            rung=m.rung,
            verdict=Verdict(m.verdict),
            errors=tuple(LayerError.from_pb(e) for e in m.errors),
            reasons=tuple((r.tokens, r.reason) for r in m.reasons),
            times=PhaseTimes.from_pb(m.times),
            prefetched=m.prefetched,
            floor=Floor.from_pb(m.floor) if m.HasField("floor") else None,
            replay_numerics_id=m.replay_numerics_id,
        )


@dataclass(frozen=True)
class Divergence:
    """Where the stored tokens and the prompt part ways."""

    position: int
    stored_id: int
    prompt_id: int
    extra_key_differs: bool

    @classmethod
    def from_pb(cls, m: pb.Divergence) -> Divergence:
        return cls(m.position, m.stored_id, m.prompt_id, m.extra_key_differs)


@dataclass(frozen=True)
class SessionBytes:
    compact: int
    stored: int
    tokens: int
    witness: int
    client_state: int
    snapshot: int


@dataclass(frozen=True)
class SessionState:
    session: bytes
    version: int
    n_tokens: int
    kv_len: int
    model: str
    fingerprint: Fingerprint
    numerics_id: str
    session_class: SessionClass
    # Unix seconds; 0 = never.
    expires_at: int
    pinned_until: int
    created_at: int
    updated_at: int
    labels: Mapping[str, str]
    provenance: tuple[ProvenanceRange, ...]
    floors: tuple[Floor, ...]
    has_witness: bool
    has_snapshot: bool
    sizes: SessionBytes
    holder: str
    # Tokens before the first damaged block; kv_len when sound.
    usable_len: int
    open_tickets: int
    open_leases: int
    n_blocks: int

    @classmethod
    def from_pb(cls, m: pb.SessionState) -> SessionState:
        b = m.bytes
        return cls(
            session=m.session,
            version=m.version,
            n_tokens=m.n_tokens,
            kv_len=m.kv_len,
            model=m.model,
            fingerprint=Fingerprint.from_pb(m.fingerprint),
            numerics_id=m.numerics_id,
            session_class=SessionClass(m.session_class or SessionClass.DURABLE),
            expires_at=m.expires_at,
            pinned_until=m.pinned_until,
            created_at=m.created_at,
            updated_at=m.updated_at,
            labels=dict(m.labels),
            provenance=tuple(
                ProvenanceRange(
                    p.begin, p.end, Provenance(p.provenance or Provenance.UNKNOWN)
                )
                for p in m.provenance
            ),
            floors=tuple(Floor.from_pb(f) for f in m.floors),
            has_witness=m.has_witness,
            has_snapshot=m.has_snapshot,
            sizes=SessionBytes(
                b.compact, b.stored, b.tokens, b.witness, b.client_state, b.snapshot
            ),
            holder=m.holder,
            usable_len=m.usable_len,
            open_tickets=m.open_tickets,
            open_leases=m.open_leases,
            n_blocks=m.n_blocks,
        )
