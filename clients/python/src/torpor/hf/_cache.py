# SPDX-License-Identifier: Apache-2.0
"""A DynamicCache or StaticCache as rows, and back. Batch size 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import StaticLayer

from torpor import errors
from torpor.hf._layout import LAYERS
from torpor.model import Layout, Slot
from torpor.rows import RowSource


def _refuse(message: str) -> errors.InvalidArgument:
    return errors.InvalidArgument(f"cache: {message}")


def check_class(cache: Any, layout: Layout) -> None:
    """InvalidArgument unless the cache's rows can be read and written here."""
    if type(cache) not in (DynamicCache, StaticCache):
        raise _refuse(
            f"got a {type(cache).__name__}, wanted a DynamicCache or StaticCache"
        )
    if cache.offloading:
        raise _refuse("got one that is offloaded, wanted its layers on one device")
    if len(cache.layers) != layout.n_layers:
        raise _refuse(f"got {len(cache.layers)} layers, wanted {layout.n_layers}")
    for i, layer in enumerate(cache.layers):
        if type(layer) not in LAYERS:
            names = ", ".join(c.__name__ for c in LAYERS)
            raise _refuse(f"layer {i} is a {type(layer).__name__}, wanted {names}")


def length(layer: Any) -> int:
    """Tokens that the layer has seen."""
    return int(layer.get_seq_length())


def _held(layer: Any, slot: Slot) -> torch.Tensor:
    """[n_kv_heads, n_rows, head_dim] of a slot; its last row is the newest."""
    held = layer.keys if slot.name.endswith(".k") else layer.values
    if isinstance(layer, StaticLayer):
        held = held[:, :, : min(length(layer), layer.max_cache_len)]
    if held.shape[0] != 1:
        raise _refuse(f"got a batch of {held.shape[0]}, wanted one session")
    tensor: torch.Tensor = held[0]
    return tensor


def as_rows(held: torch.Tensor) -> npt.NDArray[np.uint8]:
    """[n_kv_heads, n_rows, head_dim] as [n_rows, row_bytes]."""
    part = held.transpose(0, 1).contiguous().cpu()
    raw: npt.NDArray[np.uint8] = part.view(torch.uint8).numpy()
    return raw.reshape(part.shape[0], -1)


def _rows_of(layer: Any, slot: Slot, kv_len: int) -> RowSource:
    """A source of the slot's rows. InvalidArgument when some are not held."""
    held = _held(layer, slot)
    n_heads, _, head_dim = held.shape
    row_bytes = n_heads * head_dim * held.element_size()
    if row_bytes != slot.row_bytes:
        raise _refuse(
            f"slot '{slot.name}' has rows of {row_bytes} bytes ({n_heads} heads of "
            f"{head_dim}, {held.dtype}), the model's have {slot.row_bytes}"
        )
    begin, end = slot.rows_at(kv_len)
    first = end - held.shape[1]
    if first > begin:
        raise _refuse(
            f"slot '{slot.name}' holds rows from {first} on, wanted from {begin}"
        )

    def read(a: int, b: int) -> npt.NDArray[np.uint8]:
        return as_rows(held[:, a - first : b - first])

    return read


def sources(
    cache: Any, layout: Layout, kv_len: int, dtype: torch.dtype
) -> dict[str, RowSource]:
    """Every slot of the cache, windows included."""
    for i, layer in enumerate(cache.layers):
        if length(layer) != kv_len:
            raise _refuse(
                f"layer {i} has {length(layer)} tokens, wanted the {kv_len} of layer 0"
            )
        if layer.keys.dtype != dtype or layer.values.dtype != dtype:
            raise _refuse(
                f"layer {i} is {layer.keys.dtype} and {layer.values.dtype}, wanted "
                f"the model's {dtype}"
            )
    return {
        slot.name: _rows_of(cache.layers[slot.owner_layer], slot, kv_len)
        for slot in layout.slots
    }


def as_tensor(
    rows: npt.NDArray[np.uint8], slot: Slot, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """[1, n_kv_heads, n_rows, head_dim] on the device."""
    n = rows.shape[0]
    parted = torch.from_numpy(rows).view(dtype).reshape(n, slot.n_heads, -1)
    return parted.transpose(0, 1).unsqueeze(0).contiguous().to(device)


def check_target(cache: Any, layout: Layout) -> None:
    """InvalidArgument unless a session can wake in this cache."""
    check_class(cache, layout)
    windows = {s.owner_layer: s.window for s in layout.slots}
    for i, layer in enumerate(cache.layers):
        if length(layer) != 0:
            raise _refuse(f"layer {i} has {length(layer)} tokens, wanted an empty one")
        if not _slides_as(layer, windows[i]):
            raise _refuse(
                f"layer {i} is a {type(layer).__name__} of another window than the "
                f"model's, {windows[i]} tokens (0: none)"
            )


def _slides_as(layer: Any, window: int) -> bool:
    if not LAYERS[type(layer)]:
        return window == 0
    if isinstance(layer, StaticLayer):
        # Shorter where the whole cache is: then it has no room for more.
        return bool(layer.max_cache_len <= window)
    return bool(layer.sliding_window == window)


def fill(
    cache: Any, layout: Layout, kv_len: int, rows: Mapping[int, torch.Tensor]
) -> None:
    """Puts the rows of a session of `kv_len` tokens, by slot index, into an empty
    cache."""
    by_layer: dict[int, list[torch.Tensor]] = {}
    for i, slot in enumerate(layout.slots):
        by_layer.setdefault(slot.owner_layer, []).append(rows[i])
    for i, layer in enumerate(cache.layers):
        if isinstance(layer, StaticLayer):
            # A window needs no room for the tokens that have left it.
            needed = by_layer[i][0].shape[-2] if LAYERS[type(layer)] else kv_len
            if needed > layer.max_cache_len:
                raise _refuse(
                    f"layer {i} has room for {layer.max_cache_len} tokens, wanted "
                    f"{needed}"
                )
    for i, layer in enumerate(cache.layers):
        keys, values = by_layer[i]
        if isinstance(layer, StaticLayer):
            _fill_static(layer, keys, values, kv_len)
            continue
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        if hasattr(layer, "cumulative_length"):
            # Positions come from here; an update would count the rows alone.
            layer.cumulative_length = kv_len


def _fill_static(
    layer: Any, keys: torch.Tensor, values: torch.Tensor, kv_len: int
) -> None:
    if not layer.is_initialized:
        layer.lazy_initialization(keys, values)
    n, room = keys.shape[-2], layer.max_cache_len
    slides = LAYERS[type(layer)]
    # A window that is whole ends at the end; its oldest place is read by nobody.
    at = room - n if slides and kv_len >= room else 0
    # In place: compiled code knows these tensors by their addresses.
    layer.keys[:, :, at : at + n].copy_(keys)
    layer.values[:, :, at : at + n].copy_(values)
    layer.cumulative_length.fill_(kv_len)
    if slides:
        layer.cumulative_length_int = kv_len
