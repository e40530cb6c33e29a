# SPDX-License-Identifier: Apache-2.0
"""A DynamicCache as rows, and back.

A row is a token's K or V of one layer: [n_kv_heads, head_dim] of the cache's
dtype, K after rope, as transformers holds it. Batch size 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache

from torpor import errors
from torpor.model import Layout, Slot, SlotKind
from torpor.rows import RowSet, RowSource

# As registrations name them.
DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def dtype_name(dtype: torch.dtype) -> str:
    if dtype not in DTYPES:
        raise errors.InvalidArgument(
            f"dtype: got {dtype}, wanted {', '.join(str(d) for d in DTYPES)}"
        )
    return DTYPES[dtype]


def _held(cache: Any, slot: Slot) -> torch.Tensor:
    """[n_kv_heads, n_rows, head_dim] of a slot; its last row is the newest."""
    layer = cache.layers[slot.owner_layer]
    held = layer.keys if slot.name.endswith(".k") else layer.values
    if held.shape[0] != 1:
        raise errors.InvalidArgument(
            f"cache: got a batch of {held.shape[0]}, wanted one session"
        )
    n_heads, _, head_dim = held.shape[1:]
    row_bytes = n_heads * head_dim * held.element_size()
    if row_bytes != slot.row_bytes:
        raise errors.InvalidArgument(
            f"cache: slot '{slot.name}' has rows of {row_bytes} bytes ({n_heads} "
            f"heads of {head_dim}, {held.dtype}), the model's have {slot.row_bytes}"
        )
    tensor: torch.Tensor = held[0]
    return tensor


def rows_of(cache: Any, slot: Slot, kv_len: int) -> RowSource:
    """A source of the slot's rows. InvalidArgument when some are not held."""
    held = _held(cache, slot)
    begin, end = slot.rows_at(kv_len)
    first = end - held.shape[1]
    if first > begin:
        raise errors.InvalidArgument(
            f"cache: slot '{slot.name}' holds rows from {first} on, wanted from {begin}"
        )

    def read(a: int, b: int) -> npt.NDArray[np.uint8]:
        part = held[:, a - first : b - first].transpose(0, 1).contiguous()
        raw: npt.NDArray[np.uint8] = part.cpu().view(torch.uint8).numpy()
        return raw.reshape(b - a, -1)

    return read


def sources(cache: Any, layout: Layout, kv_len: int) -> dict[str, RowSource]:
    """Every slot of the cache, windows included."""
    if len(cache.layers) != layout.n_layers:
        raise errors.InvalidArgument(
            f"cache: got {len(cache.layers)} layers, wanted {layout.n_layers}"
        )
    return {slot.name: rows_of(cache, slot, kv_len) for slot in layout.slots}


def _tensor(array: npt.NDArray[np.uint8], model: Any, head_dim: int) -> torch.Tensor:
    """[1, n_kv_heads, n_rows, head_dim] on the model's device."""
    n = array.shape[0]
    rows = torch.from_numpy(array).view(model.dtype).reshape(n, -1, head_dim)
    return rows.transpose(0, 1).unsqueeze(0).contiguous().to(model.device)


def cache_of(
    model: Any, layout: Layout, kv_len: int, compact: RowSet, window: RowSet
) -> Any:
    """The cache of a session of `kv_len` tokens."""
    cache = DynamicCache(config=model.config)
    if kv_len == 0:
        return cache
    head_dim = model.config.head_dim
    by_layer: dict[int, dict[str, torch.Tensor]] = {}
    for i, slot in enumerate(layout.slots):
        rows = compact if slot.kind is SlotKind.FULL else window
        part = by_layer.setdefault(slot.owner_layer, {})
        part[slot.name[-1]] = _tensor(rows[i].array, model, head_dim)
    for i, layer in enumerate(cache.layers):
        keys, values = by_layer[i]["k"], by_layer[i]["v"]
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        if hasattr(layer, "cumulative_length"):
            # Positions come from here; an update would count the rows alone.
            layer.cumulative_length = kv_len
    return cache
