# SPDX-License-Identifier: Apache-2.0
"""Token ids on their way: at most 65,536 a message, spans with their tokens."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from torpor import errors
from torpor.session import ExtraKeySpan
from torpor.v1 import types_pb2 as pb

IDS_PER_MESSAGE = 65_536

Ids = Union[Sequence[int], npt.NDArray[Any]]


def as_ids(ids: Ids) -> npt.NDArray[np.uint32]:
    """One dimension of uint32; InvalidArgument names the first that is none."""
    given = np.asarray(ids)
    if given.size == 0:
        return np.empty(0, np.uint32)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise errors.InvalidArgument(
            f"ids: got shape {given.shape} of {given.dtype}, "
            "wanted one dimension of integers"
        )
    low, high = int(given.min()), int(given.max())
    if low < 0 or high > 0xFFFFFFFF:
        bad = low if low < 0 else high
        at = int(np.argmax(given == bad))
        raise errors.InvalidArgument(
            f"ids: got {bad} at index {at}, wanted 0 to 4294967295"
        )
    return given.astype(np.uint32, copy=False)


def as_session(session: bytes | str) -> bytes:
    """A session's id; text is its UTF-8."""
    if isinstance(session, str):
        return session.encode()
    # bytes(5) would be five zeros.
    if not isinstance(session, (bytes, bytearray, memoryview)):
        raise errors.InvalidArgument(
            f"session: got {session!r} of {type(session).__name__}, "
            "wanted str or bytes"
        )
    return bytes(session)


def chunks(
    ids: npt.NDArray[np.uint32],
    spans: Iterable[ExtraKeySpan] = (),
    position: int = 0,
) -> Iterator[pb.TokenChunk]:
    """Messages of tokens that begin at `position`. Every span travels with the
    token that it begins at."""
    left = sorted(spans, key=operator.attrgetter("begin"))
    for span in left:
        if not position <= span.begin < position + len(ids):
            raise errors.InvalidArgument(
                f"extra key span [{span.begin}, {span.end}): wanted it to begin "
                f"in the tokens that are sent, [{position}, {position + len(ids)})"
            )
    for at in range(0, len(ids), IDS_PER_MESSAGE):
        part = ids[at : at + IDS_PER_MESSAGE]
        end = position + at + len(part)
        own = [s.to_pb() for s in left if position + at <= s.begin < end]
        yield pb.TokenChunk(ids=part.tolist(), extra_keys=own)
