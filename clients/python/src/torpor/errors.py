# SPDX-License-Identifier: Apache-2.0
"""One exception class for each code of the daemon.

The daemon answers with a code and a message; the message names the thing, what
was got and what was wanted. `field` and `advice` are read from it.
"""

from __future__ import annotations

import re
from typing import ClassVar

import grpc

# "session 'a': ...", "kv_len: ...", "floor at 9: ..."
_THING = re.compile(
    r"^(?P<name>[a-z][A-Za-z_. ]*?)(?: '(?:[^']|'(?!:))*')?(?: (?:at|of) [^:]*)?: "
)
_FINGERPRINT = re.compile(r"fingerprint field '(?P<name>\w+)'")
_HOLDER = re.compile(r"it is at version (?P<version>\d+), held by '(?P<holder>.*)'")
_USABLE = re.compile(r"resume at most (?P<usable>\d+) of them")


class TorporError(Exception):
    """What a call of the daemon, or a check of this client, ended with."""

    code: ClassVar[str] = "UNKNOWN"
    # What helps where the message does not say it.
    default_advice: ClassVar[str] = ""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def field(self) -> str:
        """What the message is about: a request's field, or a thing; or empty."""
        if found := _FINGERPRINT.search(self.message):
            return "fingerprint." + found["name"]
        found = _THING.match(self.message)
        return found["name"] if found else ""

    @property
    def advice(self) -> str:
        """What to do about it; empty when nothing is known."""
        _, cut, after = self.message.rpartition("; ")
        if cut:
            return after
        at = self.message.rfind("wanted ")
        return self.message[at:] if at >= 0 else self.default_advice

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class Cancelled(TorporError):
    code = "CANCELLED"


class Unknown(TorporError):
    code = "UNKNOWN"


class InvalidArgument(TorporError):
    """A request that no state of the daemon would accept."""

    code = "INVALID_ARGUMENT"


class DeadlineExceeded(TorporError):
    code = "DEADLINE_EXCEEDED"
    default_advice = "give the call more time"


class NotFound(TorporError):
    """An unknown session, model, ticket or lease."""

    code = "NOT_FOUND"


class AlreadyExists(TorporError):
    code = "ALREADY_EXISTS"


class PermissionDenied(TorporError):
    code = "PERMISSION_DENIED"


class ResourceExhausted(TorporError):
    """Quota, disk, memory or the number of calls."""

    code = "RESOURCE_EXHAUSTED"
    default_advice = "make room, or try again when others are done"


class FailedPrecondition(TorporError):
    """Another fingerprint, nothing to reuse, or a mode that cannot serve."""

    code = "FAILED_PRECONDITION"


class Aborted(TorporError):
    """Another writer was first."""

    code = "ABORTED"
    default_advice = "describe the session and begin from its version"

    @property
    def holder(self) -> str:
        """Who wrote the version that stands; empty when it did not say."""
        found = _HOLDER.search(self.message)
        return found["holder"] if found else ""

    @property
    def version(self) -> int | None:
        """The version that stands."""
        found = _HOLDER.search(self.message)
        return int(found["version"]) if found else None


class OutOfRange(TorporError):
    code = "OUT_OF_RANGE"


class Unimplemented(TorporError):
    code = "UNIMPLEMENTED"


class Internal(TorporError):
    code = "INTERNAL"


class Unavailable(TorporError):
    """Nobody answers, or the daemon is draining. Safe calls were retried."""

    code = "UNAVAILABLE"
    default_advice = "try again"


class DataLoss(TorporError):
    """Damage: of stored rows, or of rows on their way."""

    code = "DATA_LOSS"
    default_advice = "prefill cold"

    @property
    def usable_len(self) -> int | None:
        """Tokens before the damage, when the daemon said it."""
        found = _USABLE.search(self.message)
        return int(found["usable"]) if found else None


class Unauthenticated(TorporError):
    code = "UNAUTHENTICATED"


class ViewHeld(TorporError):
    """A view of shared memory was kept behind the sink that was given it.

    The stream has ended and the memory stays as it is for as long as the view
    lives. Copy what is to be kept.
    """

    code = "FAILED_PRECONDITION"


_BY_CODE: dict[str, type[TorporError]] = {
    c.code: c
    for c in (
        Cancelled,
        Unknown,
        InvalidArgument,
        DeadlineExceeded,
        NotFound,
        AlreadyExists,
        PermissionDenied,
        ResourceExhausted,
        FailedPrecondition,
        Aborted,
        OutOfRange,
        Unimplemented,
        Internal,
        Unavailable,
        DataLoss,
        Unauthenticated,
    )
}


def of_code(code: str, message: str) -> TorporError:
    """The exception of a code's name."""
    return _BY_CODE.get(code, Unknown)(message)


def of_rpc(error: grpc.RpcError) -> TorporError:
    """The exception of a call that gRPC ended."""
    if isinstance(error, grpc.Call):
        return of_code(error.code().name, error.details() or "")
    return Unknown(str(error))
