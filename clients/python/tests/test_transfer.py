# SPDX-License-Identifier: Apache-2.0
"""Sessions from daemon to daemon, whole or not at all; what breaks goes on."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

import torpor
import toy
from daemon import Daemon
from fake_daemon import FakeDaemon, LiveAnswer, serving
from torpor import ResumeSpec, SuspendSpec
from torpor.container import ContainerReader
from torpor.v1 import session_service_pb2 as pb

QUICK = torpor.Retry(attempts=5, first_s=0.001, most_s=0.01)
TOKENS = 203


@pytest.fixture
def other() -> Iterator[torpor.Client]:
    """A client of a second daemon, which knows the toy model."""
    one = Daemon()
    try:
        one.start()
        client = one.connect(retry=QUICK)
        toy.register(client)
        yield client
    finally:
        one.close()


def sleep(client: torpor.Client, session: str, salt: int = 1) -> None:
    client.suspend(
        SuspendSpec(session, "toy", toy.ids_of(salt, TOKENS), labels={"a": "b"}),
        toy.rows_for(salt, TOKENS),
        client_state=b"sampler",
    )


def expect_moved(client: torpor.Client, session: str, salt: int = 1) -> None:
    woken = client.resume(
        ResumeSpec(session, mode="exact", engine_replays=True), with_tokens=True
    )
    toy.expect_rows(woken, salt)
    assert woken.tokens is not None
    assert (woken.tokens.ids == toy.ids_of(salt, TOKENS)).all()
    assert woken.client_state == b"sampler"
    assert woken.state.labels == {"a": "b"}
    assert woken.state.version == 1


def test_by_a_file(
    daemon: Daemon, client: torpor.Client, other: torpor.Client, tmp_path: Path
) -> None:
    sleep(client, "s")
    file = tmp_path / "s.torpor"
    exported = client.export("s", file)
    assert (exported.session, exported.version) == (b"s", 1)
    assert (exported.n_tokens, exported.from_block) == (TOKENS, 0)
    assert exported.n_bytes == file.stat().st_size
    assert file.stat().st_mode & 0o777 == 0o600
    assert not file.with_name("s.torpor.part").exists()
    # The bytes are those of the command line.
    daemon.torpor("export", "s", str(tmp_path / "cli"))
    assert file.read_bytes() == (tmp_path / "cli").read_bytes()
    with pytest.raises(torpor.AlreadyExists):
        client.export("s", file)
    client.export("s", file, replace=True)

    imported = other.import_(file)
    assert not imported.repeated
    assert (imported.from_block, imported.n_bytes) == (0, exported.n_bytes)
    assert (imported.receipt.version, imported.state.n_tokens) == (1, TOKENS)
    expect_moved(other, "s")
    # Done is done; under another name it is another session.
    assert other.import_(file).repeated
    assert not other.import_(file, session="t").repeated
    expect_moved(other, "t")
    # An import replaces nothing.
    sleep(client, "t", 2)
    with pytest.raises(torpor.Aborted):
        client.import_(file, session="t")
    expect_moved(client, "t", 2)


def test_the_command_line_knows_an_import_of_this_client(
    daemon: Daemon, client: torpor.Client, tmp_path: Path
) -> None:
    sleep(client, "s")
    client.export("s", tmp_path / "s")
    client.delete("s", expected_version=1)
    words = ["import", str(tmp_path / "s"), "--json"]
    assert not client.import_(tmp_path / "s").repeated
    assert json.loads(daemon.torpor(*words))["repeated"]
    assert not client.import_(tmp_path / "s", session="ä").repeated
    assert json.loads(daemon.torpor(*words, "--as", "ä"))["repeated"]


def test_straight_from_daemon_to_daemon(
    client: torpor.Client, other: torpor.Client
) -> None:
    sleep(client, "s")
    assert not other.pull(client, "s").repeated
    expect_moved(other, "s")
    assert other.pull(client, "s").repeated
    # It stays there, and takes another name here.
    assert other.pull(client, "s", as_session="t").state.session == b"t"
    expect_moved(client, "s")
    with pytest.raises(torpor.NotFound):
        other.pull(client, "nobody")
    sleep(client, "new", 2)
    sleep(other, "new", 3)
    with pytest.raises(torpor.Aborted):
        other.pull(client, "new")
    expect_moved(other, "new", 3)


def test_an_importer_without_the_model_refuses(
    client: torpor.Client, tmp_path: Path
) -> None:
    sleep(client, "s")
    client.export("s", tmp_path / "s")
    stranger = Daemon()
    try:
        stranger.start()
        to = stranger.connect()
        calls: list[Callable[[], object]] = [
            lambda: to.import_(tmp_path / "s"),
            lambda: to.pull(client, "s"),
        ]
        for call in calls:
            with pytest.raises(torpor.FailedPrecondition, match="no model is"):
                call()
    finally:
        stranger.close()


def test_files_that_are_not_whole_are_refused(
    client: torpor.Client, other: torpor.Client, tmp_path: Path
) -> None:
    sleep(client, "s")
    client.export("s", tmp_path / "s")
    whole = (tmp_path / "s").read_bytes()
    seed = int(os.environ.get("TORPOR_TEST_SEED", random.randrange(1 << 32)))
    print("TORPOR_TEST_SEED =", seed)
    draw = random.Random(seed)
    bad = [b"", whole[:-1], whole + b"x", b"TPRX", b"no container" * 9]
    bad += [whole[: draw.randrange(len(whole))] for _ in range(20)]
    for _ in range(60):
        flipped = bytearray(whole)
        flipped[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        bad.append(bytes(flipped))
    file = tmp_path / "bad"
    for data in bad:
        file.write_bytes(data)
        with pytest.raises(
            (torpor.DataLoss, torpor.FailedPrecondition), match="bad: container"
        ):
            other.import_(file)
    assert list(other.list()) == []
    with pytest.raises(FileNotFoundError):
        other.import_(tmp_path / "nothing")


def test_an_export_goes_on_behind_the_blocks_of_its_part_file(
    client: torpor.Client, tmp_path: Path
) -> None:
    sleep(client, "s")
    client.export("s", tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    reader = ContainerReader()
    reader.feed(whole)
    assert reader.blocks == TOKENS // toy.BLOCK + 1
    file = tmp_path / "s"
    part = tmp_path / "s.part"
    third = reader.unit_offset(3)
    damaged = bytearray(whole[:-9])
    damaged[third + 200] ^= 1
    sleep(client, "t", 2)
    client.export("t", tmp_path / "t")
    for left, blocks in (
        (b"", 0),
        (whole[:100], 0),
        (whole[: third - 1], 2),
        (whole[:third], 3),
        (whole[: third + 77], 3),
        (bytes(damaged), 3),
        ((tmp_path / "t").read_bytes()[:-9], 0),
        (whole, 0),
        (b"something else", 0),
    ):
        part.write_bytes(left)
        done = client.export("s", file, replace=True)
        assert done.from_block == blocks
        assert file.read_bytes() == whole
    # Of another version: begun anew.
    client.rewind("s", 150, expected_version=1)
    part.write_bytes(whole[:third])
    assert client.export("s", file, replace=True).from_block == 0
    assert ContainerReader().feed(file.read_bytes())


class Source:
    """Serves a container as a daemon would; breaks where a test says."""

    def __init__(self, container: bytes, breaks: list[int]) -> None:
        self._container = container
        # Bytes after which a call ends UNAVAILABLE, call by call.
        self._breaks = breaks
        self.reader = ContainerReader()
        self.reader.feed(container)
        self.asked: list[int] = []

    def export(
        self, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        request = pb.ExportRequest.FromString(next(requests))
        self.asked.append(request.from_block)
        begin = self.reader.unit_offset(request.from_block)
        if request.from_block > 0:
            kept = ContainerReader()
            kept.feed(self._container[:begin])
            assert request.chain == kept.chain
        end = self._breaks.pop(0) if self._breaks else len(self._container)
        for at in range(begin, end, 100_000):
            data = self._container[at : min(end, at + 100_000)]
            yield pb.TransferChunk(data=data).SerializeToString()
        if end < len(self._container):
            context.abort(grpc.StatusCode.UNAVAILABLE, "the source went away")


@pytest.fixture
def wide(client: torpor.Client, tmp_path: Path) -> bytes:
    """A container of some 8 MB, of a session "wide" of 64 blocks."""
    layout = toy.wide_layout(4096)
    toy.register(client, "wide", layout)
    client.suspend(
        SuspendSpec("wide", "wide", toy.ids_of(1, 1024)),
        toy.rows_for(1, 1024, layout),
    )
    client.export("wide", tmp_path / "wide")
    return (tmp_path / "wide").read_bytes()


def test_a_pull_goes_on_where_its_source_broke(
    wide: bytes, other: torpor.Client
) -> None:
    layout = toy.wide_layout(4096)
    toy.register(other, "wide", layout)
    source = Source(wide, [len(wide) * 9 // 10])
    fake = FakeDaemon()
    fake.live["Export"] = source.export
    with serving(fake) as address, torpor.connect(address, retry=QUICK) as there:
        pulled = other.pull(there, "wide")
    assert pulled.state.n_tokens == 1024
    assert pulled.from_block > 0
    assert pulled.n_bytes == len(wide) - source.reader.unit_offset(pulled.from_block)
    # The second try reads the outline, and goes on behind what is there.
    assert source.asked == [0, 0, pulled.from_block]
    woken = other.resume(ResumeSpec("wide", mode="exact", engine_replays=True))
    toy.expect_rows(woken, 1, layout)


def test_damage_on_the_way_is_nobodys_session(
    wide: bytes, other: torpor.Client
) -> None:
    toy.register(other, "wide", toy.wide_layout(4096))
    damaged = bytearray(wide)
    damaged[len(wide) // 2] ^= 4
    source = Source(wide, [])
    source._container = bytes(damaged)
    fake = FakeDaemon()
    fake.live["Export"] = source.export
    with serving(fake) as address, torpor.connect(address, retry=QUICK) as there:
        with pytest.raises(torpor.DataLoss, match="container byte"):
            other.pull(there, "wide")
    with pytest.raises(torpor.NotFound):
        other.describe("wide")


def importer(got: list[tuple[str, bytes]], answers: list[object]) -> LiveAnswer:
    """An Import that refuses with a code, or says where to go on, takes what
    comes, and answers with a receipt."""

    def answer(
        requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        header = pb.ImportRequest.FromString(next(requests)).header
        first = answers.pop(0)
        if isinstance(first, grpc.StatusCode):
            got.append((header.operation_id, b""))
            context.abort(first, "refused")
        assert isinstance(first, pb.ImportResponse)
        yield first.SerializeToString()
        data = b"".join(pb.ImportRequest.FromString(r).chunk.data for r in requests)
        got.append((header.operation_id, data))
        last = pb.ImportResponse()
        last.receipt.version = 1
        yield last.SerializeToString()

    return answer


def test_an_import_is_tried_again_as_the_same_operation(
    wide: bytes, tmp_path: Path
) -> None:
    reader = ContainerReader()
    reader.feed(wide)
    got: list[tuple[str, bytes]] = []
    unavailable = grpc.StatusCode.UNAVAILABLE
    fake = FakeDaemon()
    fake.live["Import"] = importer(
        got, [unavailable, unavailable, pb.ImportResponse(from_block=7)]
    )
    with serving(fake) as address, torpor.connect(address, retry=QUICK) as client:
        done = client.import_(tmp_path / "wide")
        assert (done.from_block, done.receipt.version) == (7, 1)
        assert len({operation for operation, _ in got}) == 1
        assert got[-1][1] == wide[reader.unit_offset(7) :]
        assert done.n_bytes == len(got[-1][1])
        # Only that code is.
        fake.live["Import"] = importer(got, [grpc.StatusCode.RESOURCE_EXHAUSTED])
        with pytest.raises(torpor.ResourceExhausted):
            client.import_(tmp_path / "wide")
        assert len(got) == 4
        # A daemon with more blocks than there are is not believed.
        fake.live["Import"] = importer(got, [pb.ImportResponse(from_block=999)])
        with pytest.raises(torpor.Internal, match="999"):
            client.import_(tmp_path / "wide")


def test_an_export_is_tried_again_behind_what_it_has(
    wide: bytes, tmp_path: Path
) -> None:
    source = Source(wide, [len(wide) // 2, len(wide) - 10])
    fake = FakeDaemon()
    fake.live["Export"] = source.export
    state = pb.SessionState(session=b"wide", version=1, n_tokens=1024)
    fake.answers["Describe"] = lambda got, context: [state.SerializeToString()]
    with serving(fake) as address, torpor.connect(address, retry=QUICK) as client:
        done = client.export("wide", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == wide
    assert source.asked[0] == 0 and done.from_block == 0
    assert 0 < source.asked[1] < source.asked[2] == source.reader.blocks
