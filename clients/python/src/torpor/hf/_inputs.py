# SPDX-License-Identifier: Apache-2.0
"""What went into a cache beside token ids. Rows of images, audio or given
embeddings cannot be made again from ids, so such sessions are refused."""

from __future__ import annotations

import inspect
import re
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.cache_utils import Cache

from torpor import errors

_EMBEDDED = re.compile(r"inputs_embeds|pixel_values|input_features|input_values")
_MEDIA_TOKEN = re.compile(r"(image|video|audio)_token_(id|index)")
# On a cache: the argument that brought it other input.
_MARK = "_torpor_embedded"
_watched: weakref.WeakSet[Any] = weakref.WeakSet()


def watch(model: Any) -> None:
    """Marks each cache that a call of `model` fills from other input than ids."""
    if model in _watched:
        return
    _watched.add(model)
    names = list(inspect.signature(model.forward).parameters)

    def after(_: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        given = {**dict(zip(names, args)), **kwargs}
        brought = [
            n for n, v in given.items() if v is not None and _EMBEDDED.match(n)
        ]
        for cache in (*given.values(), getattr(output, "cache", None)):
            if not isinstance(cache, Cache):
                continue
            if brought:
                setattr(cache, _MARK, brought[0])
            elif hasattr(cache, _MARK) and _holds(cache, given.get("input_ids")):
                forget(cache)

    model.register_forward_hook(after, with_kwargs=True)


def _holds(cache: Cache, ids: Any) -> bool:
    """Whether these ids are all that the cache has: it was emptied before."""
    return ids is not None and int(cache.get_seq_length()) == ids.shape[-1]


def forget(cache: Any) -> None:
    """For a cache that was emptied and holds another session now."""
    vars(cache).pop(_MARK, None)


def check(model: Any, cache: Any, ids: npt.NDArray[np.uint32]) -> None:
    """InvalidArgument when rows of the session do not follow from its ids."""
    name = getattr(cache, _MARK, None)
    if name is not None:
        raise errors.InvalidArgument(
            f"cache: a forward filled it from {name}: its rows cannot be made again "
            "from token ids, wanted a session of token ids alone"
        )
    for name, token in model.config.to_dict().items():
        if token is not None and _MEDIA_TOKEN.fullmatch(name):
            at = np.flatnonzero(ids == token)
            if len(at):
                raise errors.InvalidArgument(
                    f"ids: token {token} at {at[0]} is the config's {name}: what "
                    "stands there is not in the ids, wanted text alone"
                )
