# SPDX-License-Identifier: Apache-2.0
"""Calls of the daemon: deadlines, credentials, retries, errors.

A deadline is that of the whole logical call, retries included. A call is
retried after UNAVAILABLE alone, and only where its caller says that a second
one is harmless.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import grpc

from torpor import errors

# Far above a row message (1 MiB and its frame): a witness may be large.
MAX_RECEIVE_BYTES = 64 << 20


class Message(Protocol):
    def SerializeToString(self) -> bytes: ...


Req = TypeVar("Req", bound=Message)
Res = TypeVar("Res")
Res_co = TypeVar("Res_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True)
class Method(Generic[Req, Res]):
    """One verb: "SessionService/Fork", and how its answer is read."""

    name: str
    parse: Callable[[bytes], Res]

    @property
    def path(self) -> str:
        return f"/torpor.v1.{self.name}"


@dataclass(frozen=True)
class Retry:
    """Pauses double from `first_s` to `most_s`, each with up to half jitter."""

    attempts: int = 8
    first_s: float = 0.05
    most_s: float = 2.0

    def pause(self, attempt: int) -> float:
        longest = min(self.most_s, self.first_s * 2.0**attempt)
        return longest * random.uniform(0.5, 1.0)


@dataclass(frozen=True)
class Tls:
    """PEM files. Without `ca` the system's roots are trusted."""

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        def read(path: str | Path | None) -> bytes | None:
            return None if path is None else Path(path).read_bytes()

        return grpc.ssl_channel_credentials(
            root_certificates=read(self.ca),
            private_key=read(self.key),
            certificate_chain=read(self.certificate),
        )


class Deadline:
    """When a logical call ends."""

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise errors.InvalidArgument(
                f"timeout: got {seconds} seconds, wanted more than 0"
            )
        self._seconds = seconds
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds; DeadlineExceeded when there are none."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise errors.DeadlineExceeded(
                f"timeout: {self._seconds:g} seconds are over; give the call more time"
            )
        return left


class Guarded(Generic[Req]):
    """A request iterator for gRPC's thread, which would swallow its error."""

    def __init__(self, messages: Iterable[Req]) -> None:
        self._messages = iter(messages)
        self.error: Exception | None = None
        self.on_error: Callable[[], object] = lambda: None

    def __iter__(self) -> Iterator[Req]:
        try:
            yield from self._messages
        except Exception as error:
            self.error = error
            self.on_error()
            raise


class Connection:
    """A channel and how to call through it. Thread-safe."""

    def __init__(
        self, address: str, token: str | None, tls: Tls | None, retry: Retry
    ) -> None:
        self.address = address
        self.retry = retry
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        options = [
            ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            # Clients of one process share no connection: closing is closing.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._channel = (
            grpc.insecure_channel(address, options)
            if tls is None
            else grpc.secure_channel(address, tls.credentials(), options)
        )

    def await_ready(self, seconds: float) -> None:
        try:
            grpc.channel_ready_future(self._channel).result(timeout=seconds)
        except grpc.FutureTimeoutError:
            raise errors.Unavailable(
                f"connect to {self.address}: nobody answers; is torpord running there?"
            ) from None

    def close(self) -> None:
        self._channel.close()

    def retrying(
        self,
        deadline: Deadline,
        call: Callable[[], T],
        may_repeat: Callable[[], bool] = lambda: True,
    ) -> T:
        """`call`, again after Unavailable while attempts and time are left."""
        for attempt in range(self.retry.attempts):
            try:
                return call()
            except errors.Unavailable:
                pause = self.retry.pause(attempt)
                last = attempt + 1 == self.retry.attempts
                if last or deadline.left() < pause or not may_repeat():
                    raise
                time.sleep(pause)
        raise AssertionError("attempts: wanted at least 1")

    # ---- one call each, never retried here

    def unary(self, method: Method[Req, Res], request: Req, deadline: Deadline) -> Res:
        stub = self._channel.unary_unary(
            method.path, _serialize, response_deserializer=method.parse
        )
        try:
            return stub(request, timeout=deadline.left(), metadata=self._metadata)
        except grpc.RpcError as error:
            raise errors.of_rpc(error) from None

    def send(
        self, method: Method[Req, Res], messages: Iterable[Req], deadline: Deadline
    ) -> Res:
        """A client stream; an error of `messages` cancels it and is raised."""
        guarded = Guarded(messages)
        stub = self._channel.stream_unary(
            method.path, _serialize, response_deserializer=method.parse
        )
        call = stub.future(
            iter(guarded), timeout=deadline.left(), metadata=self._metadata
        )
        guarded.on_error = call.cancel
        try:
            return call.result()
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            if guarded.error is not None:
                raise guarded.error from None
            if isinstance(error, grpc.RpcError):
                raise errors.of_rpc(error) from None
            raise errors.Cancelled(f"{method.name}: cancelled") from None
        finally:
            # Also when the waiting thread is interrupted.
            call.cancel()

    def receive(
        self, method: Method[Req, Res], request: Req, deadline: Deadline
    ) -> Answers[Res]:
        """A server stream."""
        stub = self._channel.unary_stream(
            method.path, _serialize, response_deserializer=method.parse
        )
        return Answers(stub(request, timeout=deadline.left(), metadata=self._metadata))

    def exchange(
        self, method: Method[Req, Res], messages: Iterable[Req], deadline: Deadline
    ) -> Answers[Res]:
        """Both ways."""
        guarded = Guarded(messages)
        stub = self._channel.stream_stream(
            method.path, _serialize, response_deserializer=method.parse
        )
        call = stub(iter(guarded), timeout=deadline.left(), metadata=self._metadata)
        guarded.on_error = call.cancel
        return Answers(call, guarded)

    def raw_unary(self, path: str, request: bytes, deadline: Deadline) -> bytes:
        """A verb of another package, bytes in and out."""
        stub = self._channel.unary_unary(path, _same, response_deserializer=_same)
        try:
            return stub(request, timeout=deadline.left(), metadata=self._metadata)
        except grpc.RpcError as error:
            raise errors.of_rpc(error) from None


class _Call(Protocol[Res_co]):
    """A gRPC call that is read."""

    def __next__(self) -> Res_co: ...
    def cancel(self) -> object: ...


class Answers(Generic[Res]):
    """What a call streams. Any thread may close it, which cancels the call."""

    def __init__(self, call: _Call[Res], guarded: Guarded[Any] | None = None) -> None:
        self._call = call
        self._guarded = guarded

    def __iter__(self) -> Answers[Res]:
        return self

    def __next__(self) -> Res:
        try:
            return next(self._call)
        except grpc.RpcError as error:
            if self._guarded is not None and self._guarded.error is not None:
                raise self._guarded.error from None
            raise errors.of_rpc(error) from None

    def close(self) -> None:
        self._call.cancel()

    def __del__(self) -> None:
        self.close()


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _same(raw: bytes) -> bytes:
    return raw
