# SPDX-License-Identifier: Apache-2.0
"""A model of transformers and the name it is registered under."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from transformers import DynamicCache

from torpor import errors
from torpor._tokens import Ids, as_ids
from torpor.client import Client
from torpor.hf import _cache, _inputs, _layout, _replay
from torpor.lease import EngineReplay
from torpor.model import Fingerprint, Model, ReplayMode
from torpor.resume import Begun, ResumeSpec, Tokens
from torpor.rows import RowSet
from torpor.session import (
    Floor,
    Provenance,
    ProvenanceRange,
    ResumeReceipt,
    SuspendReceipt,
)
from torpor.suspend import SuspendSpec, new_operation_id
from torpor.witness import make_witness

_EXECUTORS = ("daemon", "engine")
_ENGINE_MODES = (ReplayMode.BOUNDED, ReplayMode.EXACT)
# What a resume brings: rows by slot index, [1, n_kv_heads, n_rows, head_dim].
_Woken = tuple[Begun, Tokens, dict[int, torch.Tensor], ResumeReceipt]


@dataclass(frozen=True)
class Awake:
    """A session that woke. `cache` holds KV of the first `kv_len` of `ids`."""

    cache: Any
    ids: npt.NDArray[np.uint32]
    kv_len: int
    version: int
    receipt: ResumeReceipt
    client_state: bytes
    # For the next suspend.
    floors: tuple[Floor, ...]
    provenance: Provenance
    device: torch.device

    @property
    def n_tokens(self) -> int:
        return len(self.ids)

    def pending(self) -> torch.Tensor:
        """[1, n] int64: tokens that the model has yet to run."""
        left = self.ids[self.kv_len :].astype(np.int64)
        return torch.from_numpy(left)[None].to(self.device)


@dataclass(frozen=True)
class Binding:
    """Made by `register`."""

    client: Client
    model: Any
    registered: Model

    @property
    def numerics_id(self) -> str:
        """Who computes rows here: bits compare under an equal id only."""
        return "/".join(
            (
                f"transformers-{transformers.__version__}",
                f"torch-{torch.__version__}",
                str(self.model.device.type),
                str(self.model.config._attn_implementation),
                _layout.dtype_name(self.model.dtype),
            )
        )

    def suspend(
        self,
        cache: Any,
        ids: Ids,
        session: bytes | str,
        *,
        after: Awake | SuspendReceipt | None = None,
        snapshot: bool = True,
        client_state: bytes = b"",
        operation_id: str | None = None,
        timeout: float | None = None,
    ) -> SuspendReceipt:
        """Puts a session to sleep. `ids` are all of its tokens, of which the
        cache has the first; those that have no KV yet are pending.

        `after`: what this session woke or slept as, whose tokens `ids` begin
        with; then only what is new is sent. Without `snapshot` a resume needs
        the daemon or the engine to replay.
        """
        all_ids = as_ids(ids)
        layout = self.registered.layout
        _cache.check_class(cache, layout)
        kv_len = _cache.length(cache.layers[0])
        if not 0 < kv_len <= len(all_ids):
            raise errors.InvalidArgument(
                f"ids: got {len(all_ids)}, wanted at least the {kv_len} of the "
                "cache, and those above 0"
            )
        _inputs.check(self.model, cache, all_ids)
        rows = _cache.sources(cache, layout, kv_len, self.model.dtype)
        kept = 0 if after is None else after.n_tokens
        if isinstance(after, Awake):
            self._check_prefix(after, all_ids)
        provenance = after.provenance if isinstance(after, Awake) else Provenance.EXACT
        new_from = min(kept, kv_len if after is None else after.kv_len)
        spec = SuspendSpec(
            session,
            self.registered.name,
            all_ids[kept:],
            kv_len=kv_len,
            expected_version=0 if after is None else after.version,
            tokens_kept=kept,
            operation_id=operation_id or new_operation_id(),
            fingerprint=self.registered.fingerprint,
            numerics_id=self.numerics_id,
            floors=after.floors if isinstance(after, Awake) else (),
            provenance=(
                [ProvenanceRange(new_from, kv_len, provenance)]
                if new_from < kv_len
                else []
            ),
            with_snapshot=snapshot,
            holder="torpor.hf",
        )
        windows = {s.name: rows[s.name] for s in layout.slots if s.is_window}
        return self.client.suspend(
            spec,
            rows,
            witness=make_witness(layout, kv_len, windows, self.numerics_id),
            client_state=client_state,
            timeout=timeout,
        )

    @staticmethod
    def _check_prefix(after: Awake, ids: npt.NDArray[np.uint32]) -> None:
        n = after.n_tokens
        if len(ids) < n or not np.array_equal(ids[:n], after.ids):
            raise errors.InvalidArgument(
                f"ids: wanted the {n} tokens of the session that woke at the start; "
                "after a change resume with `cut`, or suspend without `after`"
            )

    def resume(
        self,
        session: bytes | str,
        ids: Ids = (),
        *,
        mode: ReplayMode | str = ReplayMode.SNAPSHOT,
        executor: str = "daemon",
        into: Any = None,
        cut: int = 0,
        replay_tokens: int = 0,
        max_error: float = 0.0,
        timeout: float | None = None,
    ) -> Awake:
        """Wakes a session; with `ids` (a prompt) what it shares with them.

        "snapshot" gives the bits that slept, at the suspended tip alone. "exact"
        and "bounded" cut anywhere. What replays is the daemon, which wants a model
        registered with its directory, or the "engine": `model` itself, here, whose
        stored rows stay as they are. An engine's window that misses `max_error` is
        FailedPrecondition; the daemon climbs first.

        `into`: an empty DynamicCache or StaticCache of the model to wake in; a new
        DynamicCache without. `timeout` is for each call of the daemon.
        """
        mode = ReplayMode.of(mode)
        if mode is ReplayMode.SNAPSHOT and not self.registered.layout.snapshot():
            # No layer has a window: the stored rows are all there is.
            mode = ReplayMode.EXACT
        if executor not in _EXECUTORS:
            raise errors.InvalidArgument(
                f"executor: got '{executor}', wanted {' or '.join(_EXECUTORS)}"
            )
        cache = DynamicCache(config=self.model.config) if into is None else into
        _cache.check_target(cache, self.registered.layout)
        spec = ResumeSpec(
            session,
            ids=ids,
            mode=mode,
            model=self.registered.name,
            cut=cut,
            replay_tokens=replay_tokens,
            max_error=max_error,
            engine_replays=executor == "engine",
            numerics_id=self.numerics_id,
        )
        if executor == "daemon":
            begun, tokens, rows, receipt = self._from_daemon(spec, timeout)
        elif mode in _ENGINE_MODES:
            begun, tokens, rows, receipt = self._replayed_here(spec, timeout)
        else:
            raise errors.InvalidArgument(
                f"mode: got '{mode.name.lower()}' of the engine, wanted bounded or "
                "exact"
            )
        kv_len = begun.plan.resume_at
        _cache.fill(cache, self.registered.layout, kv_len, rows)
        _inputs.forget(cache)
        # A cut, or a prompt that parts from the session: what follows is not its.
        whole = kv_len == begun.state.kv_len and not cut
        own = tokens.ids if whole else tokens.ids[:kv_len]
        given = as_ids(ids)
        if len(given):
            own = own[: _common(own, given)]
        exact = receipt.floor is None and all(
            p.provenance is Provenance.EXACT for p in begun.state.provenance
        )
        return Awake(
            cache=cache,
            ids=own,
            kv_len=kv_len,
            version=begun.state.version,
            receipt=receipt,
            client_state=begun.client_state,
            floors=() if receipt.floor is None else (receipt.floor,),
            provenance=Provenance.EXACT if exact else Provenance.APPROXIMATE,
            device=self.model.device,
        )

    def _tensors(self, rows: RowSet, slots: Sequence[int]) -> dict[int, torch.Tensor]:
        return {
            i: _cache.as_tensor(
                rows[i].array,
                self.registered.layout.slots[i],
                self.model.dtype,
                self.model.device,
            )
            for i in slots
        }

    def _from_daemon(self, spec: ResumeSpec, timeout: float | None) -> _Woken:
        layout = self.registered.layout
        woken = self.client.resume(spec, with_tokens=True, timeout=timeout)
        if woken.window is None or woken.tokens is None:
            raise errors.DataLoss("resume: got neither window nor tokens")
        rows = self._tensors(woken.compact, layout.compact())
        rows |= self._tensors(woken.window.rows, layout.snapshot())
        return woken.begun, woken.tokens, rows, woken.receipt

    def _replayed_here(self, spec: ResumeSpec, timeout: float | None) -> _Woken:
        layout = self.registered.layout
        with self.client.begin_resume(spec, timeout=timeout) as lease:
            plan = lease.plan
            tokens = lease.read_tokens(timeout=timeout)
            _replay.check(self.model, plan, tokens.extra_keys)
            rows = self._tensors(lease.read_rows(timeout=timeout), layout.compact())
            began = time.monotonic()
            replayed = _replay.run(self.model, layout, plan, tokens.ids, rows)
            windows = {
                i: _cache.as_rows(held[0]) for i, held in replayed.windows.items()
            }
            spent_us = int((time.monotonic() - began) * 1e6)
            witness = make_witness(layout, plan.resume_at, windows, self.numerics_id)
            receipt = lease.release(
                EngineReplay(replayed.token_layers, witness, spent_us), timeout=timeout
            )
        if 0 < spec.max_error < receipt.max_error:
            raise errors.FailedPrecondition(
                f"resume: the largest relative error is {receipt.max_error:.3g}, "
                f"max_error is {spec.max_error:.3g}; resume exactly, or bounded with "
                "more replay_tokens"
            )
        return lease.begun, tokens, {**rows, **replayed.windows}, receipt


def _common(a: npt.NDArray[np.uint32], b: npt.NDArray[np.uint32]) -> int:
    """How many tokens both begin with."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def weights_digest(model: Any) -> str:
    """BLAKE2b-256 over names, shapes, dtypes and bytes of the weights."""
    digest = hashlib.blake2b(digest_size=32)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        raw = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
        digest.update(raw.numpy().data)
    return "torch-blake2b:" + digest.hexdigest()


def _rope(model: Any) -> str:
    """The same weights under another rope are another model."""
    parameters = getattr(_layout.text_config(model), "rope_parameters", None)
    return "" if parameters is None else json.dumps(parameters, sort_keys=True)


def register(
    client: Client,
    model: Any,
    name: str,
    *,
    directory: str | Path | None = None,
    timeout: float | None = None,
) -> Binding:
    """Registers a transformers model. With `directory` (config.json and weights
    on the daemon's host, those that `model` has) the daemon can replay it, where
    it knows the family; without, the weights are hashed here, and sessions wake
    from a snapshot or by the engine's replay. Runs one token to see the cache.

    A tenant that is no operator may not register; it gets the model that an
    operator registered under `name`, if layout, dtype and, without `directory`,
    weights and rope are those of `model`. FailedPrecondition names what differs,
    PermissionDenied stands where there is none.
    """
    layout = _layout.layout_of(model)
    kv_dtype = _layout.dtype_name(model.dtype)
    if directory is not None:
        # Its files say what the weights are.
        wanted = Fingerprint(kv_dtype=kv_dtype)
        source: dict[str, Any] = {"directory": directory, "kv_dtype": kv_dtype}
    else:
        wanted = Fingerprint(
            weights=weights_digest(model), kv_dtype=kv_dtype, rope=_rope(model)
        )
        source = {"layout": layout, "fingerprint": wanted}
    try:
        registered = client.models.register(name, timeout=timeout, **source)
    except errors.PermissionDenied as denied:
        registered = _registered_before(client, name, wanted, denied, timeout)
    _layout.check_same(registered.layout, layout)
    _inputs.watch(model)
    return Binding(client, model, registered)


def _registered_before(
    client: Client,
    name: str,
    wanted: Fingerprint,
    denied: errors.PermissionDenied,
    timeout: float | None,
) -> Model:
    try:
        registered = client.models.describe(name, timeout=timeout)
    except errors.NotFound:
        raise denied from None
    for field, want in asdict(wanted).items():
        got = getattr(registered.fingerprint, field)
        if want and got != want:
            raise errors.FailedPrecondition(
                f"model '{name}': fingerprint.{field}: an operator registered "
                f"{got!r}, this model has {want!r}"
            )
    return registered
