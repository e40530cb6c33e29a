# SPDX-License-Identifier: Apache-2.0
"""Models as the daemon knows them: layouts, fingerprints, plans."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from torpor import errors
from torpor._message import message
from torpor.v1 import model_service_pb2 as pb
from torpor.v1 import session_service_pb2 as session_pb
from torpor.v1 import types_pb2 as types_pb


class WireEnum(enum.IntEnum):
    """Numbers as proto/ has them."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise errors.Unimplemented(
            f"{cls.__name__}: got {value}, which this client does not know"
        )


class SlotKind(WireEnum):
    FULL = 1
    SLIDING = 2
    CHUNKED = 3
    POOLED = 4
    OPEN_GROUP = 5
    RECURRENT = 6


class ComeBack(WireEnum):
    """How a slot's rows come back at a resume."""

    PERSIST = 1
    REPLAY = 2
    DERIVE = 3
    SNAPSHOT = 4


class ShardAxis(WireEnum):
    REPLICATED = 1
    HEADS = 2
    LAYERS = 3


class ReplayMode(WireEnum):
    BOUNDED = 1
    EXACT = 2
    SNAPSHOT = 3
    COLD = 4
    AUTO = 5

    @classmethod
    def of(cls, mode: ReplayMode | str) -> ReplayMode:
        """A mode or its name: "bounded", "exact", "snapshot", "cold", "auto"."""
        if isinstance(mode, ReplayMode):
            return mode
        try:
            return cls[mode.upper()]
        except KeyError:
            raise errors.InvalidArgument(
                f"mode: got '{mode}', wanted bounded, exact, snapshot, cold or auto"
            ) from None

    @property
    def wire_name(self) -> str:
        return f"REPLAY_MODE_{self.name}"


@dataclass(frozen=True)
class Fingerprint:
    """What makes KV bytes mean the same. Empty fields take the model's."""

    weights: str = ""
    adapter: str = ""
    layout: str = ""
    kv_dtype: str = ""
    rope: str = ""
    quantiser: str = ""
    format_version: int = 0

    @classmethod
    def from_pb(cls, m: types_pb.Fingerprint) -> Fingerprint:
        return cls(
            weights=m.weights,
            adapter=m.adapter,
            layout=m.layout,
            kv_dtype=m.kv_dtype,
            rope=m.rope,
            quantiser=m.quantiser,
            format_version=m.format_version,
        )

    def to_pb(self) -> types_pb.Fingerprint:
        return message(
            types_pb.Fingerprint,
            weights=self.weights,
            adapter=self.adapter,
            layout=self.layout,
            kv_dtype=self.kv_dtype,
            rope=self.rope,
            quantiser=self.quantiser,
            format_version=self.format_version,
        )


@dataclass(frozen=True)
class Slot:
    """One buffer of an engine. Rows have `row_bytes` bytes, whatever they mean."""

    name: str
    kind: SlotKind
    owner_layer: int
    row_bytes: int
    reader_layers: tuple[int, ...] = ()
    window: int = 0
    chunk: int = 0
    tokens_per_row: int = 1
    overlap_tokens: int = 0
    format: str = "bf16"
    shard_axis: ShardAxis = ShardAxis.REPLICATED
    n_heads: int = 1
    come_back: ComeBack = ComeBack.PERSIST

    @property
    def is_window(self) -> bool:
        return self.kind in (SlotKind.SLIDING, SlotKind.CHUNKED)

    @property
    def reach(self) -> int:
        """Tokens that a reader looks back, itself included; 0 for other kinds."""
        if self.kind is SlotKind.SLIDING:
            return self.window
        return self.chunk if self.kind is SlotKind.CHUNKED else 0

    def rows_at(self, cut: int) -> tuple[int, int]:
        """Rows that stand for a session of `cut` tokens: all of them, the window
        or open group at the cut, or the one state."""
        whole = self.kind in (SlotKind.FULL, SlotKind.POOLED)
        if whole or self.come_back is ComeBack.PERSIST:
            return 0, cut // self.tokens_per_row
        if self.kind is SlotKind.SLIDING:
            return max(0, cut + 1 - self.window), cut
        if self.kind is SlotKind.CHUNKED:
            return cut // self.chunk * self.chunk, cut
        if self.kind is SlotKind.OPEN_GROUP:
            closed = cut // self.tokens_per_row * self.tokens_per_row
            return max(0, closed - self.overlap_tokens), cut
        return 0, 1

    @classmethod
    def from_pb(cls, m: pb.Slot) -> Slot:
        return cls(
            name=m.name,
            kind=SlotKind(m.kind),
            owner_layer=m.owner_layer,
            row_bytes=m.row_bytes,
            reader_layers=tuple(m.reader_layers),
            window=m.window,
            chunk=m.chunk,
            tokens_per_row=max(1, m.tokens_per_row),
            overlap_tokens=m.overlap_tokens,
            format=m.format,
            shard_axis=ShardAxis(m.shard_axis or ShardAxis.REPLICATED),
            n_heads=m.n_heads,
            come_back=ComeBack(m.come_back),
        )

    def to_pb(self) -> pb.Slot:
        return message(
            pb.Slot,
            name=self.name,
            kind=f"SLOT_KIND_{self.kind.name}",
            owner_layer=self.owner_layer,
            reader_layers=self.reader_layers,
            window=self.window,
            chunk=self.chunk,
            tokens_per_row=self.tokens_per_row,
            overlap_tokens=self.overlap_tokens,
            row_bytes=self.row_bytes,
            format=self.format,
            shard_axis=f"SHARD_AXIS_{self.shard_axis.name}",
            n_heads=self.n_heads,
            come_back=f"COME_BACK_{self.come_back.name}",
        )


@dataclass(frozen=True)
class Layout:
    """Every buffer that an engine holds for a session, in a fixed order."""

    family: str
    n_layers: int
    vocab_size: int
    slots: tuple[Slot, ...]

    def index(self, slot: int | str) -> int:
        """Index of a slot, given by name or index."""
        if isinstance(slot, int):
            if 0 <= slot < len(self.slots):
                return slot
            raise errors.InvalidArgument(
                f"slot: got {slot}, the layout has {len(self.slots)}"
            )
        for i, one in enumerate(self.slots):
            if one.name == slot:
                return i
        names = ", ".join(s.name for s in self.slots[:8])
        raise errors.InvalidArgument(
            f"slot '{slot}': not of this layout, which begins with {names}"
        )

    def compact(self) -> list[int]:
        """Indices of the slots whose rows are stored."""
        return [i for i, s in enumerate(self.slots) if s.come_back is ComeBack.PERSIST]

    def snapshot(self) -> list[int]:
        """Indices of the slots that a snapshot stores too."""
        kinds = (ComeBack.REPLAY, ComeBack.SNAPSHOT)
        return [i for i, s in enumerate(self.slots) if s.come_back in kinds]

    @classmethod
    def from_pb(cls, m: pb.ModelLayout) -> Layout:
        return cls(
            family=m.family,
            n_layers=m.n_layers,
            vocab_size=m.vocab_size,
            slots=tuple(Slot.from_pb(s) for s in m.slots),
        )

    def to_pb(self) -> pb.ModelLayout:
        return message(
            pb.ModelLayout,
            family=self.family,
            n_layers=self.n_layers,
            vocab_size=self.vocab_size,
            slots=[s.to_pb() for s in self.slots],
        )


@dataclass(frozen=True)
class Model:
    name: str
    layout: Layout
    fingerprint: Fingerprint
    # Tokens a block.
    block_size: int
    # Who can replay it here: "daemon", "engine".
    executors: tuple[str, ...]
    # Why the daemon cannot; empty when it can.
    daemon_executor_reason: str
    numerics_id: str
    model_dir: str

    @classmethod
    def from_pb(cls, m: pb.ModelState) -> Model:
        return cls(
            name=m.name,
            layout=Layout.from_pb(m.layout),
            fingerprint=Fingerprint.from_pb(m.fingerprint),
            block_size=m.block_size,
            executors=tuple(m.executors),
            daemon_executor_reason=m.daemon_executor_reason,
            numerics_id=m.numerics_id,
            model_dir=m.model_dir,
        )


@dataclass(frozen=True)
class LayerPlan:
    layer: int
    # First position whose KV this layer writes, and that it runs.
    kv_begin: int
    run_begin: int


@dataclass(frozen=True)
class FloorRange:
    """Window reads of rows [row_begin, row_end) in layers >= layer_begin stop
    at `floor`."""

    row_begin: int
    row_end: int
    floor: int
    layer_begin: int


@dataclass(frozen=True)
class ReplayPlan:
    mode: ReplayMode
    # Tokens [0, resume_at) come back; rows [replay_start, resume_at) are run.
    resume_at: int
    replay_start: int
    exact: bool
    layers: tuple[LayerPlan, ...]
    floors: tuple[FloorRange, ...]
    token_layers: int
    replay_memory_bytes: int

    @classmethod
    def from_pb(cls, m: session_pb.ReplayPlan) -> ReplayPlan:
        return cls(
            mode=ReplayMode(m.mode),
            resume_at=m.resume_at,
            replay_start=m.replay_start,
            exact=m.exact,
            layers=tuple(LayerPlan(x.layer, x.kv_begin, x.run_begin) for x in m.layers),
            floors=tuple(
                FloorRange(x.row_begin, x.row_end, x.floor, x.layer_begin)
                for x in m.floors
            ),
            token_layers=m.token_layers,
            replay_memory_bytes=m.replay_memory_bytes,
        )


@dataclass(frozen=True)
class Figures:
    """Sizes and replay lengths of a layout."""

    family: str
    compact_bytes_per_token: float
    all_window_bytes_per_token: float
    # None when nothing but tokens is stored.
    ratio: float | None
    snapshot_bytes: int
    bounded_tokens: int
    exact_tokens: int
    exact_token_layers: int
    # Of the cut that was asked.
    plan: ReplayPlan | None

    @classmethod
    def from_pb(cls, m: pb.PlanResponse) -> Figures:
        return cls(
            family=m.family,
            compact_bytes_per_token=m.compact_bytes_per_token,
            all_window_bytes_per_token=m.all_window_bytes_per_token,
            ratio=m.ratio or None,
            snapshot_bytes=m.snapshot_bytes,
            bounded_tokens=m.bounded_tokens,
            exact_tokens=m.exact_tokens,
            exact_token_layers=m.exact_token_layers,
            plan=ReplayPlan.from_pb(m.plan) if m.HasField("plan") else None,
        )
