# SPDX-License-Identifier: Apache-2.0
"""What is tried again, what never is, and what arrives damaged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import grpc
import pytest

import torpor
import toy
from fake_daemon import Answer, FakeDaemon, refuse, serving
from torpor import ResumeSpec, SuspendSpec
from torpor.v1 import model_service_pb2 as model_pb
from torpor.v1 import session_service_pb2 as pb
from torpor.v1 import types_pb2

QUICK = torpor.Retry(attempts=5, first_s=0.001, most_s=0.01)


def always(*messages: bytes) -> Answer:
    return lambda got, context: list(messages)


@pytest.fixture
def fake() -> FakeDaemon:
    one = FakeDaemon()
    state = model_pb.ModelState(
        name="toy", layout=toy.LAYOUT.to_pb(), block_size=toy.BLOCK
    )
    one.answers["Describe"] = always(state.SerializeToString())
    return one


@pytest.fixture
def client(fake: FakeDaemon) -> Iterator[torpor.Client]:
    with serving(fake) as address, torpor.connect(address, retry=QUICK) as client:
        yield client


def test_writes_are_tried_again_with_their_operation_id(
    fake: FakeDaemon, client: torpor.Client
) -> None:
    state = pb.SessionState(session=b"b", version=3).SerializeToString()
    fake.answers["Fork"] = refuse(grpc.StatusCode.UNAVAILABLE, 3, always(state))
    assert client.fork("a", "b").version == 3
    ids = {pb.ForkRequest.FromString(got[0]).operation_id for _, got in fake.calls}
    assert fake.count("Fork") == 4
    assert len(ids) == 1
    assert len(ids.pop()) == 32
    client.fork("a", "c")
    again = pb.ForkRequest.FromString(fake.calls[-1][1][0]).operation_id
    assert again not in ids


def test_a_suspend_is_tried_again_whole(
    fake: FakeDaemon, client: torpor.Client
) -> None:
    receipt = types_pb2.SuspendReceipt(version=1).SerializeToString()
    fake.answers["Suspend"] = refuse(grpc.StatusCode.UNAVAILABLE, 2, always(receipt))
    client.suspend(SuspendSpec("s", "toy", toy.ids_of(1, 40)), toy.rows_for(1, 40))
    sent = [got for verb, got in fake.calls if verb == "Suspend"]
    assert len(sent) == 3
    assert sent[0] == sent[1] == sent[2]
    last = pb.SuspendRequest.FromString(sent[0][-1])
    assert last.HasField("commit")


def test_a_ticket_that_died_with_its_daemon_is_opened_again(
    fake: FakeDaemon, client: torpor.Client
) -> None:
    begun = pb.BeginSuspendResponse(ticket="t", block_size=toy.BLOCK)
    begun.wanted.add(slot=toy.PLAIN, row_begin=16, row_end=20)
    fake.answers["BeginSuspend"] = always(begun.SerializeToString())
    fake.answers["AbandonSuspend"] = always(b"")
    fake.answers["PutRows"] = refuse(grpc.StatusCode.NOT_FOUND, 1, always(b""))
    receipt = types_pb2.SuspendReceipt(version=2).SerializeToString()
    fake.answers["Commit"] = refuse(grpc.StatusCode.NOT_FOUND, 1, always(receipt))
    spec = SuspendSpec(
        "s", "toy", toy.ids_of(1, 20)[16:], expected_version=1, tokens_kept=16
    )
    assert client.suspend(spec, {"plain": toy.rows_of(1, 1, 0, 20)}).version == 2
    headers = {got[0] for verb, got in fake.calls if verb == "BeginSuspend"}
    assert fake.count("BeginSuspend") == 3
    assert len(headers) == 1


def test_attempts_end(fake: FakeDaemon, client: torpor.Client) -> None:
    fake.answers["Rewind"] = refuse(grpc.StatusCode.UNAVAILABLE, 99, always())
    with pytest.raises(torpor.Unavailable, match="refused"):
        client.rewind("s", 1, expected_version=1)
    assert fake.count("Rewind") == QUICK.attempts


@pytest.mark.parametrize(
    "code", ["ABORTED", "RESOURCE_EXHAUSTED", "INTERNAL", "DATA_LOSS", "UNKNOWN"]
)
def test_no_other_code_is_tried_again(
    fake: FakeDaemon, client: torpor.Client, code: str
) -> None:
    fake.answers["Delete"] = refuse(grpc.StatusCode[code], 1, always(b""))
    with pytest.raises(torpor.TorporError) as caught:
        client.delete("s", expected_version=1)
    assert caught.value.code == code
    assert fake.count("Delete") == 1


def test_what_has_no_operation_id_goes_once(
    fake: FakeDaemon, client: torpor.Client
) -> None:
    for verb in ("Touch", "Backup", "Commit", "PutRows", "Release"):
        fake.answers[verb] = refuse(grpc.StatusCode.UNAVAILABLE, 1, always(b""))
    begun = pb.BeginSuspendResponse(ticket="t", block_size=toy.BLOCK)
    begun.wanted.add(slot=1, row_begin=0, row_end=16)
    fake.answers["BeginSuspend"] = always(begun.SerializeToString())
    fake.answers["AbandonSuspend"] = always(b"")
    ticket = client.begin_suspend(SuspendSpec("s", "toy", toy.ids_of(1, 16)))
    calls: dict[str, Callable[[], object]] = {
        "Touch": lambda: client.touch("s", pin_seconds=5),
        "Backup": lambda: client.backup("/nowhere"),
        "PutRows": lambda: ticket.put({"plain": toy.rows_of(1, 1, 0, 16)}),
        "Commit": ticket.commit,
    }
    for verb, call in calls.items():
        with pytest.raises(torpor.Unavailable):
            call()
        assert fake.count(verb) == 1


def test_a_deadline_holds_for_all_attempts(fake: FakeDaemon) -> None:
    fake.answers["Delete"] = refuse(grpc.StatusCode.UNAVAILABLE, 9999, always())
    patient = torpor.Retry(attempts=9999, first_s=0.05, most_s=0.05)
    with serving(fake) as address, torpor.connect(address, retry=patient) as client:
        begin = time.monotonic()
        with pytest.raises((torpor.Unavailable, torpor.DeadlineExceeded)):
            client.delete("s", expected_version=1, timeout=0.5)
        assert time.monotonic() - begin < 5
        assert fake.count("Delete") > 1


def stored_rows(fake: FakeDaemon, damage: bool) -> toy.Bytes:
    """A lease of 16 tokens whose rows arrive in two pieces."""
    rows = toy.rows_of(1, toy.PLAIN, 0, 16)
    begun = pb.BeginResumeResponse(lease="l")
    begun.plan.mode = types_pb2.REPLAY_MODE_EXACT
    begun.plan.resume_at = 16
    begun.state.model = "toy"
    fake.answers["BeginResume"] = always(begun.SerializeToString())
    exact = types_pb2.REPLAY_MODE_EXACT
    receipt = types_pb2.ResumeReceipt(
        mode_asked=exact, mode_used=exact
    ).SerializeToString()
    fake.answers["Release"] = always(receipt)
    chunks = []
    for first in (0, 8):
        part = rows[first : first + 8]
        piece = types_pb2.RowPiece(
            slot=toy.PLAIN, row_begin=first, n_rows=8, row_bytes=40
        )
        piece.checksum = torpor.rows.checksum(part)
        data = bytearray(part.tobytes())
        if damage and first == 8:
            data[100] ^= 1
        chunks.append(types_pb2.RowChunk(pieces=[piece], data=bytes(data)))
    fake.answers["ReadRows"] = always(*(c.SerializeToString() for c in chunks))
    return rows


def test_one_wrong_bit_is_an_error_with_slot_and_rows(
    fake: FakeDaemon, client: torpor.Client
) -> None:
    spec = ResumeSpec("s", engine_replays=True)
    rows = stored_rows(fake, damage=False)
    with client.begin_resume(spec) as lease:
        assert (lease.read_rows(["plain"])["plain"].array == rows).all()
    stored_rows(fake, damage=True)
    seen: list[toy.Bytes] = []
    with client.begin_resume(spec) as lease:
        with pytest.raises(torpor.DataLoss, match=r"\[8, \+8\) of slot 'plain'"):
            lease.read_rows(["plain"])
        with pytest.raises(torpor.DataLoss):
            lease.read_rows(["plain"], sink=lambda p: seen.append(p.rows))
    # The sound piece alone was handed on.
    assert len(seen) == 1
    assert (seen[0] == rows[:8]).all()


def test_rows_that_do_not_come_are_missed(
    fake: FakeDaemon, client: torpor.Client
) -> None:
    stored_rows(fake, damage=False)
    whole = fake.answers["ReadRows"]
    for pick in (slice(0, 1), slice(1, 2), slice(0, 0), slice(None, None, -1)):
        fake.answers["ReadRows"] = lambda got, context: whole(got, context)[pick]
        with client.begin_resume(ResumeSpec("s", engine_replays=True)) as lease:
            with pytest.raises(torpor.DataLoss, match="plain"):
                lease.read_rows(["plain"])


def test_a_receipt_that_does_not_add_up_is_refused(
    fake: FakeDaemon, client: torpor.Client
) -> None:
    stored_rows(fake, damage=False)
    receipt = types_pb2.ResumeReceipt(
        prompt_tokens=16, loaded_tokens=9, replayed_tokens=4, recomputed_tokens=2
    )
    receipt.mode_asked = receipt.mode_used = types_pb2.REPLAY_MODE_EXACT
    fake.answers["Release"] = always(receipt.SerializeToString())
    lease = client.begin_resume(ResumeSpec("s", engine_replays=True))
    with pytest.raises(torpor.DataLoss, match="= 15 tokens, wanted the 16"):
        lease.release()


def test_an_error_of_a_row_source_is_the_calls(client: torpor.Client) -> None:
    def broken(begin: int, end: int) -> toy.Bytes:
        raise RuntimeError("the engine's GPU is gone")

    given: dict[str, torpor.rows.RowsLike] = dict(toy.rows_for(1, 40))
    given["plain"] = broken
    with pytest.raises(RuntimeError, match="GPU is gone"):
        client.suspend(SuspendSpec("s", "toy", toy.ids_of(1, 40)), given)
