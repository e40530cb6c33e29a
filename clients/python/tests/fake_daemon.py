# SPDX-License-Identifier: Apache-2.0
"""A server in this process that answers as a test wants."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc

# Takes the messages of a call, raw; returns those of the answer.
Answer = Callable[[list[bytes], grpc.ServicerContext], list[bytes]]
# Takes them as they come, and answers between them.
LiveAnswer = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]


class FakeDaemon(grpc.GenericRpcHandler):
    """`answers` and `live` by the verb's name; `calls` records what the former
    got."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.live: dict[str, LiveAnswer] = {}
        self.calls: list[tuple[str, list[bytes]]] = []

    def count(self, verb: str) -> int:
        return sum(name == verb for name, _ in self.calls)

    def service(self, details: Any) -> Any:
        verb = details.method.rpartition("/")[2]

        def serve(
            requests: Iterator[bytes], context: grpc.ServicerContext
        ) -> Iterator[bytes]:
            if verb in self.live:
                yield from self.live[verb](requests, context)
                return
            got = list(requests)
            self.calls.append((verb, got))
            if verb not in self.answers:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, verb)
            yield from self.answers[verb](got, context)

        # Streams on both sides read as any other kind of call does.
        return grpc.stream_stream_rpc_method_handler(serve)


def refuse(code: grpc.StatusCode, times: int, then: Answer) -> Answer:
    left = [times]

    def answer(got: list[bytes], context: grpc.ServicerContext) -> list[bytes]:
        if left[0] > 0:
            left[0] -= 1
            context.abort(code, f"refused, {left[0]} more to come")
        return then(got, context)

    return answer


@contextmanager
def serving(fake: FakeDaemon) -> Iterator[str]:
    """Its address."""
    with tempfile.TemporaryDirectory(prefix="torpor-py-") as directory:
        address = f"unix://{directory}/s"
        server = grpc.server(futures.ThreadPoolExecutor(8))
        server.add_generic_rpc_handlers((fake,))
        server.add_insecure_port(address)
        server.start()
        try:
            yield address
        finally:
            server.stop(None).wait()
