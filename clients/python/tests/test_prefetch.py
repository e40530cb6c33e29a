# SPDX-License-Identifier: Apache-2.0
"""What is done ahead of a resume, and what the resume says of it."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

import torpor
import toy
from daemon import ROOT, Daemon
from fake_daemon import FakeDaemon, refuse, serving
from torpor import ResumeSpec, SuspendSpec
from torpor.v1 import session_service_pb2 as pb


@pytest.fixture(scope="module")
def nano() -> Iterator[torpor.Client]:
    """A daemon with a session "a" of the built-in engine."""
    daemon = Daemon("[prefetch]\nhold_limit_seconds = 300")
    try:
        daemon.start()
        client = daemon.connect()
        client.models.register("nano", directory=ROOT / "models/nano")
        words = ["--session", "a", "--model", "nano", "--prompt", "hello " * 100]
        daemon.torpor("run", *words, "--generate", "20")
        yield client
    finally:
        daemon.close()


@pytest.mark.parametrize("mode", ["exact", "bounded"])
def test_a_resume_takes_the_window_that_is_held(
    nano: torpor.Client, mode: str
) -> None:
    spec = ResumeSpec("a", mode=mode, want_logits=True)
    before = nano.resume(spec)
    assert before.window is not None and not before.receipt.prefetched
    begun = nano.prefetch(spec, replay=True, hold_seconds=300)
    assert begun.replaying and not begun.renewed and begun.reason == ""
    assert begun.resume_at == before.plan.resume_at
    assert begun.plan is not None and begun.plan.mode == before.plan.mode
    assert begun.held_bytes > 0 and begun.held_until > 0
    assert begun.read_bytes == sum(r.array.nbytes for r in before.compact.values())
    assert nano.prefetch(spec, replay=True).renewed
    woken = nano.resume(spec)
    assert woken.window is not None
    assert woken.receipt.prefetched
    assert woken.receipt.times.replay_us == 0
    assert woken.receipt.replayed_tokens == before.receipt.replayed_tokens > 0
    assert woken.window.verdict is before.window.verdict
    assert woken.window.errors == before.window.errors
    assert woken.window.logits is not None and before.window.logits is not None
    assert (woken.window.logits == before.window.logits).all()
    for slot in before.window.rows:
        assert (woken.window.rows[slot].array == before.window.rows[slot].array).all()
    # It was for one.
    assert not nano.resume(spec).receipt.prefetched


def test_reading_alone(nano: torpor.Client) -> None:
    begun = nano.prefetch("a")
    assert begun.read_bytes > 0
    assert not begun.replaying and begun.plan is None and begun.held_bytes == 0


def test_what_cannot_be_is_refused(nano: torpor.Client) -> None:
    with pytest.raises(torpor.NotFound):
        nano.prefetch("nobody")
    with pytest.raises(torpor.InvalidArgument, match="301"):
        nano.prefetch("a", replay=True, hold_seconds=301)
    with pytest.raises(torpor.InvalidArgument, match="2 ids"):
        nano.prefetch(ResumeSpec("a", ids=[1, 2]))
    with pytest.raises(torpor.InvalidArgument, match="engine_replays"):
        nano.prefetch(ResumeSpec("a", engine_replays=True), replay=True)


def test_an_engines_model_is_read_alone(client: torpor.Client) -> None:
    client.suspend(SuspendSpec("s", "toy", toy.ids_of(1, 50)), toy.rows_for(1, 50))
    begun = client.prefetch("s", replay=True)
    assert not begun.replaying
    assert "engine_replays" in begun.reason
    assert begun.read_bytes == 50 * (24 + 40) + 50 // 4 * 20


def test_it_is_tried_again() -> None:
    fake = FakeDaemon()
    answer = pb.PrefetchResponse(version=3).SerializeToString()
    fake.answers["Prefetch"] = refuse(
        grpc.StatusCode.UNAVAILABLE, 2, lambda got, context: [answer]
    )
    quick = torpor.Retry(attempts=5, first_s=0.001, most_s=0.01)
    with serving(fake) as address, torpor.connect(address, retry=quick) as client:
        assert client.prefetch("s").version == 3
    assert fake.count("Prefetch") == 3
