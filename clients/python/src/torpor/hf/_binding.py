# SPDX-License-Identifier: Apache-2.0
"""A model of transformers and the name it is registered under."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from torpor import errors
from torpor._tokens import Ids, as_ids
from torpor.client import Client
from torpor.hf import _cache
from torpor.model import Fingerprint, Model, ReplayMode
from torpor.resume import ResumeSpec
from torpor.session import (
    Floor,
    Provenance,
    ProvenanceRange,
    ResumeReceipt,
    SuspendReceipt,
)
from torpor.suspend import SuspendSpec, new_operation_id
from torpor.witness import make_witness

_FAMILY = "gemma3_text"


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
                _cache.dtype_name(self.model.dtype),
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
        the daemon to replay.
        """
        all_ids = as_ids(ids)
        kv_len = int(cache.get_seq_length())
        if not 0 < kv_len <= len(all_ids):
            raise errors.InvalidArgument(
                f"ids: got {len(all_ids)}, wanted at least the {kv_len} of the "
                "cache, and those above 0"
            )
        layout = self.registered.layout
        rows = _cache.sources(cache, layout, kv_len)
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
        cut: int = 0,
        replay_tokens: int = 0,
        max_error: float = 0.0,
        timeout: float | None = None,
    ) -> Awake:
        """Wakes a session; with `ids` (a prompt) what it shares with them.

        "snapshot" gives the bits that slept, at the suspended tip alone. Other
        modes cut anywhere and want a model registered with its directory; their
        windows are the daemon's.
        """
        woken = self.client.resume(
            ResumeSpec(
                session,
                ids=ids,
                mode=mode,
                model=self.registered.name,
                cut=cut,
                replay_tokens=replay_tokens,
                max_error=max_error,
                numerics_id=self.numerics_id,
            ),
            with_tokens=True,
            timeout=timeout,
        )
        if woken.window is None or woken.tokens is None:
            raise errors.DataLoss("resume: got neither window nor tokens")
        kv_len = woken.plan.resume_at
        stored = woken.tokens.ids
        given = as_ids(ids)
        # A cut, or a prompt that parts from the session: what follows is not its.
        end = len(stored) if kv_len == woken.state.kv_len and not cut else kv_len
        receipt = woken.receipt
        exact = receipt.floor is None and all(
            p.provenance is Provenance.EXACT for p in woken.state.provenance
        )
        own = stored[:end]
        if len(given):
            own = own[: _common(own, given)]
        return Awake(
            cache=_cache.cache_of(
                self.model,
                self.registered.layout,
                kv_len,
                woken.compact,
                woken.window.rows,
            ),
            ids=own,
            kv_len=kv_len,
            version=woken.state.version,
            receipt=receipt,
            client_state=woken.client_state,
            floors=() if receipt.floor is None else (receipt.floor,),
            provenance=Provenance.EXACT if exact else Provenance.APPROXIMATE,
            device=self.model.device,
        )


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


def register(
    client: Client,
    model: Any,
    name: str,
    *,
    directory: str | Path | None = None,
    timeout: float | None = None,
) -> Binding:
    """Registers a transformers model. With `directory` (config.json and weights
    on the daemon's host, those that `model` has) the daemon can replay it;
    without, the weights are hashed here and sessions need a snapshot.
    """
    family = model.config.model_type
    if family != _FAMILY:
        raise errors.InvalidArgument(f"model_type: got '{family}', wanted '{_FAMILY}'")
    kv_dtype = _cache.dtype_name(model.dtype)
    if directory is not None:
        registered = client.models.register(
            name, directory=directory, kv_dtype=kv_dtype, timeout=timeout
        )
    else:
        registered = client.models.register(
            name,
            config_json=model.config.to_json_string(use_diff=False),
            kv_dtype=kv_dtype,
            fingerprint=Fingerprint(weights=weights_digest(model), kv_dtype=kv_dtype),
            timeout=timeout,
        )
    return Binding(client, model, registered)
