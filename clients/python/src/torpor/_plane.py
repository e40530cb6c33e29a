# SPDX-License-Identifier: Apache-2.0
"""Which plane carries rows, and why."""

from __future__ import annotations

from typing import Literal

from torpor import _shm, errors
from torpor.v1 import session_service_pb2 as pb

Plane = Literal["auto", "grpc", "shm"]

# Below this a suspend's rows are not worth the calls that set a segment up.
WORTH_SHARING = 16 << 20

# Segments in a row that could not be taken before no more are offered.
_MOST_FAILURES = 3


class SegmentUnreachable(errors.Unavailable):
    """The descriptor socket does not answer; the call goes again over gRPC."""


class Planes:
    """The choice of one client. `reason` says why rows last went over gRPC;
    empty while shared memory serves."""

    def __init__(self, mode: Plane, address: str) -> None:
        if mode not in ("auto", "grpc", "shm"):
            raise errors.InvalidArgument(
                f"plane: got '{mode}', wanted auto, grpc or shm"
            )
        self._mode = mode
        self._path = _shm.unix_path(address)
        self._never = self._why_never()
        self._failures = 0
        self.reason = self._never
        if mode == "shm" and self._never:
            raise errors.FailedPrecondition(self._never)

    def _why_never(self) -> str:
        if self._mode == "grpc":
            return "gRPC was asked"
        if not self._path:
            return "shared memory: this connection is no unix socket"
        return _shm.unsupported()

    def offer(self, n_bytes: int | None = None) -> pb.DataPlaneOffer | None:
        """What a call offers whose rows have `n_bytes` (None: any number)."""
        if self._never:
            return None
        if self._mode == "auto" and n_bytes is not None and n_bytes < WORTH_SHARING:
            self.reason = (
                f"shared memory: {n_bytes} bytes of rows, worth it from "
                f"{WORTH_SHARING}"
            )
            return None
        return pb.DataPlaneOffer(planes=[pb.DATA_PLANE_SHARED_MEMORY])

    def take(
        self, choice: pb.DataPlaneChoice, *, writable: bool
    ) -> _shm.Segment | None:
        """The segment of an answer to an offer; None for gRPC."""
        if choice.plane != pb.DATA_PLANE_SHARED_MEMORY:
            self.reason = (
                choice.reason or "shared memory: this daemon does not negotiate it"
            )
            if self._mode == "shm":
                raise errors.FailedPrecondition(self.reason)
            return None
        try:
            segment = _shm.Segment(self._path, choice, writable=writable)
        except errors.TorporError as error:
            self.reason = error.message
            if self._mode == "shm":
                raise
            # Once may be a daemon that is going away. More often it is, for
            # example, a container that sees the daemon's main socket only.
            self._failures += 1
            if self._failures >= _MOST_FAILURES:
                self._never = error.message
            raise SegmentUnreachable(error.message) from None
        self._failures = 0
        self.reason = ""
        return segment
