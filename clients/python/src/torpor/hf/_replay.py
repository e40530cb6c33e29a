# SPDX-License-Identifier: Apache-2.0
"""The engine's replay: transformers runs the last tokens of a session again.

Full layers read their stored rows and what they compute anew is dropped; windows
begin empty at the first token that runs. A forward runs whole layers, so every
layer runs every token of the plan, also where the plan wants fewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from torpor import errors
from torpor.hf._layout import text_config
from torpor.model import Layout, ReplayPlan
from torpor.session import ExtraKeySpan

# Tokens of one forward: bounds the memory of masks and activations.
_CHUNK = 1024


class _StoredLayer(DynamicLayer):  # type: ignore[misc]
    """Rows [0, n) of a session, of which a forward at `position` sees those up
    to its own tokens. Takes none."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, position: int) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values
        self.position = position

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.position += key_states.shape[-2]
        return self.keys[:, :, : self.position], self.values[:, :, : self.position]

    def get_seq_length(self) -> int:
        return self.position

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.position + query_length, 0


class _RebuiltLayer(DynamicSlidingWindowLayer):  # type: ignore[misc]
    """A window that begins at `position` with nothing in it."""

    def __init__(self, window: int, position: int) -> None:
        super().__init__(sliding_window=window)
        self.cumulative_length = position

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        held = self.keys.shape[-2] if self.is_initialized else 0
        return held + query_length, self.cumulative_length - held


@dataclass(frozen=True)
class Replayed:
    # By slot index, [1, n_kv_heads, n_rows, head_dim]: the window at the cut.
    windows: Mapping[int, torch.Tensor]
    # Layer runs of single tokens.
    token_layers: int


def check(model: Any, plan: ReplayPlan, extra_keys: Sequence[ExtraKeySpan]) -> None:
    """FailedPrecondition when a forward of this model over token ids, run again,
    could not give the plan's rows."""
    if model.training:
        raise errors.FailedPrecondition(
            "engine replay: the model is in training mode, wanted model.eval()"
        )
    rope = getattr(text_config(model), "rope_parameters", None) or {}
    for one in (rope, *rope.values()):
        kind = one.get("rope_type") if isinstance(one, dict) else None
        if kind in ("dynamic", "longrope"):
            raise errors.FailedPrecondition(
                f"engine replay: rope type '{kind}' follows the length of each "
                "forward; resume from a snapshot"
            )
    for span in extra_keys:
        if span.begin < plan.resume_at and span.end > plan.replay_start:
            raise errors.FailedPrecondition(
                f"engine replay: tokens [{span.begin}, {span.end}) are more than their "
                "ids (an image, embeddings, an adapter); resume from a snapshot"
            )
    for floor in plan.floors:
        if floor.floor > plan.replay_start:
            raise errors.FailedPrecondition(
                f"engine replay: a floor at {floor.floor} cuts windows inside the "
                f"replay from {plan.replay_start}; let the daemon replay"
            )


def run(
    model: Any,
    layout: Layout,
    plan: ReplayPlan,
    ids: npt.NDArray[np.uint32],
    stored: Mapping[int, torch.Tensor],
) -> Replayed:
    """Runs tokens [replay_start, resume_at) of `ids`. `stored`: compact rows
    [0, resume_at) by slot index, [1, n_kv_heads, n_rows, head_dim]."""
    start, end = plan.replay_start, plan.resume_at
    slots: dict[int, list[int]] = {}
    for i, slot in enumerate(layout.slots):
        slots.setdefault(slot.owner_layer, []).append(i)
    layers = [
        (
            _StoredLayer(stored[k], stored[v], start)
            if k in stored
            else _RebuiltLayer(layout.slots[k].window, start)
        )
        for k, v in (slots[n] for n in range(layout.n_layers))
    ]
    cache = Cache(layers=layers)
    for at in range(start, end, _CHUNK):
        part = ids[at : min(at + _CHUNK, end)].astype(np.int64)
        with torch.no_grad():
            # Without the head: nobody wants logits of these tokens.
            model.base_model(
                input_ids=torch.from_numpy(part)[None].to(model.device),
                cache=cache,
                use_cache=True,
            )
    windows = {}
    for n, layer in enumerate(layers):
        if isinstance(layer, _RebuiltLayer):
            for i, held in zip(slots[n], (layer.keys, layer.values)):
                begin, stop = layout.slots[i].rows_at(end)
                first = held.shape[-2] - (stop - begin)
                windows[i] = held[:, :, first:].contiguous()
    return Replayed(windows, (end - start) * layout.n_layers)
