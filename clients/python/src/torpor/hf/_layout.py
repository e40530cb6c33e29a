# SPDX-License-Identifier: Apache-2.0
"""What a decoder's cache holds, from its config and the cache it fills.

A row is a token's K or V of one layer: [n_kv_heads, head_dim] of the model's
dtype, K after rope, as transformers holds it.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from torpor import errors
from torpor.model import ComeBack, Layout, ShardAxis, Slot, SlotKind

# As registrations name them.
DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
# Layers of a cache whose rows are known; True for those that slide.
LAYERS = {
    DynamicLayer: False,
    DynamicSlidingWindowLayer: True,
    StaticLayer: False,
    StaticSlidingWindowLayer: True,
}
_TYPES = ("full_attention", "sliding_attention")


def dtype_name(dtype: torch.dtype) -> str:
    if dtype not in DTYPES:
        raise errors.InvalidArgument(
            f"dtype: got {dtype}, wanted {', '.join(str(d) for d in DTYPES)}"
        )
    return DTYPES[dtype]


def text_config(model: Any) -> Any:
    return model.config.get_text_config(decoder=True)


def layout_of(model: Any) -> Layout:
    """Runs one token to see the shapes. InvalidArgument names what no row of
    full or sliding attention holds."""
    _check(model)
    config = text_config(model)
    cache = DynamicCache(config=model.config)
    for i, layer in enumerate(cache.layers):
        if type(layer) not in LAYERS:
            raise errors.InvalidArgument(
                f"layer {i}: its cache is a {type(layer).__name__}, wanted full or "
                "sliding attention with KV of its own"
            )
    with torch.no_grad():
        ids = torch.zeros((1, 1), dtype=torch.long, device=model.device)
        model(input_ids=ids, cache=cache, use_cache=True)
    slots = []
    for i, layer in enumerate(cache.layers):
        if not layer.is_initialized:
            raise errors.InvalidArgument(
                f"layer {i}: a forward left its cache empty, wanted KV of its own"
            )
        window = int(layer.sliding_window) if LAYERS[type(layer)] else 0
        if window == 1:
            raise errors.InvalidArgument("sliding_window: got 1, wanted 2 or more")
        for part, held in (("k", layer.keys), ("v", layer.values)):
            slots.append(_slot(i, part, held, window))
    return Layout(config.model_type, len(cache.layers), config.vocab_size, tuple(slots))


def _check(model: Any) -> None:
    config = text_config(model)
    for i, kind in enumerate(getattr(config, "layer_types", None) or ()):
        if kind not in _TYPES:
            raise errors.InvalidArgument(
                f"layer_types: layer {i} is '{kind}', wanted {' or '.join(_TYPES)}"
            )
    for key, wanted in (
        ("is_encoder_decoder", False),
        ("use_bidirectional_attention", False),
        ("is_causal", True),
    ):
        for one in (model.config, config):
            if bool(getattr(one, key, wanted)) is not wanted:
                raise errors.InvalidArgument(
                    f"{key}: got {not wanted}, wanted a causal decoder"
                )
    devices = set((getattr(model, "hf_device_map", None) or {}).values())
    if len(devices) > 1:
        raise errors.InvalidArgument(
            f"device_map: got {len(devices)} devices, wanted the model on one"
        )


def _slot(layer: int, part: str, held: torch.Tensor, window: int) -> Slot:
    _, n_heads, _, head_dim = held.shape
    return Slot(
        name=f"layer.{layer}.{part}",
        kind=SlotKind.SLIDING if window else SlotKind.FULL,
        owner_layer=layer,
        row_bytes=n_heads * head_dim * held.element_size(),
        reader_layers=(layer,),
        window=window,
        format=dtype_name(held.dtype),
        shard_axis=ShardAxis.HEADS,
        n_heads=n_heads,
        come_back=ComeBack.REPLAY if window else ComeBack.PERSIST,
    )


def check_same(registered: Layout, of_model: Layout) -> None:
    """FailedPrecondition when what the daemon registered is another model."""

    def parts(s: Slot) -> tuple[object, ...]:
        return s.name, s.kind.name, s.owner_layer, s.row_bytes, s.window, s.format

    got = [parts(s) for s in registered.slots]
    wanted = [parts(s) for s in of_model.slots]
    if got != wanted:
        at = next(
            (i for i, (a, b) in enumerate(zip(got, wanted)) if a != b),
            min(len(got), len(wanted)),
        )
        raise errors.FailedPrecondition(
            f"registered layout: its slot {at} is {got[at:at + 1]}, the model's is "
            f"{wanted[at:at + 1]}"
        )
