# SPDX-License-Identifier: Apache-2.0
"""Fork, rewind, list, delete, touch, the node, and errors by their class."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

import torpor
import toy
from daemon import ROOT, Daemon
from torpor import ResumeSpec, SuspendSpec


def sleep(client: torpor.Client, session: str, salt: int, n: int = 40) -> None:
    client.suspend(
        SuspendSpec(session, "toy", toy.ids_of(salt, n), holder="tests"),
        toy.rows_for(salt, n),
    )


def wake(client: torpor.Client, session: str) -> torpor.Woken:
    return client.resume(ResumeSpec(session, mode="exact", engine_replays=True))


def test_fork_and_rewind_share_rows(client: torpor.Client) -> None:
    sleep(client, "a", 1, 100)
    forked = client.fork("a", "b", at=37)
    assert (forked.session, forked.version, forked.n_tokens) == (b"b", 1, 37)
    whole = client.fork("a", "c")
    assert whole.n_tokens == 100
    back = client.rewind("a", 61, expected_version=1)
    assert (back.version, back.n_tokens) == (2, 61)
    for session, cut in (("a", 61), ("b", 37), ("c", 100)):
        woken = wake(client, session)
        assert woken.plan.resume_at == cut
        toy.expect_rows(woken, 1)
    # `at` 0 is not "all": the daemon says what it thinks of it.
    with pytest.raises(torpor.TorporError):
        client.fork("a", "d", at=0)
        wake(client, "d")


def test_repeated_operations_answer_alike(client: torpor.Client) -> None:
    sleep(client, "a", 1)
    first = client.fork("a", "b", operation_id="fork-1")
    assert client.fork("a", "b", operation_id="fork-1").version == first.version
    with pytest.raises(torpor.Aborted):
        client.fork("a", "b", operation_id="fork-2")
    once = client.rewind("a", 20, expected_version=1, operation_id="cut")
    assert client.rewind("a", 20, expected_version=1, operation_id="cut") == once
    gone = client.delete("b", expected_version=1, operation_id="rm")
    assert client.delete("b", expected_version=1, operation_id="rm") == gone
    with pytest.raises(torpor.NotFound):
        client.describe("b")


def test_lists_page_by_page(client: torpor.Client) -> None:
    names = [f"page-{i:02}".encode() for i in range(23)]
    for name in names[::-1]:
        sleep(client, name.decode(), 1, 5)
    sleep(client, "other", 1, 5)
    for page_size in (1, 7, 23, 24, 1000):
        got = [s.session for s in client.list("page-", page_size=page_size)]
        assert got == names
    assert len(list(client.list(page_size=10))) == 24
    # A page is asked for when it is wanted.
    pages = client.list("page-", page_size=1)
    assert next(pages).session == names[0]
    client.delete(names[1], expected_version=1)
    assert next(pages).session == names[2]
    with pytest.raises(torpor.InvalidArgument) as caught:
        next(client.list(page_size=5000))
    assert caught.value.field == "page_size"


def test_touch_and_describe(client: torpor.Client) -> None:
    sleep(client, "s", 1)
    state = client.touch(
        "s",
        session_class=torpor.SessionClass.CACHE,
        ttl_seconds=3600,
        pin_seconds=60,
        labels={"team": "a", "turn": "7"},
    )
    assert state.session_class is torpor.SessionClass.CACHE
    assert state.expires_at > state.updated_at
    assert client.touch("s", labels={"turn": ""}).labels == {"team": "a"}
    state = client.touch("s", ttl_seconds=-1)
    assert state == client.describe(b"s")
    assert state.expires_at == 0
    assert state.version == 1
    assert (state.model, state.holder, state.usable_len) == ("toy", "tests", 40)
    assert state.sizes.compact == 40 * 64 + 10 * 20


def test_models(client: torpor.Client) -> None:
    model = client.models.describe("toy")
    assert model.layout == toy.LAYOUT
    assert model.block_size == toy.BLOCK
    assert model.executors == ("engine",)
    assert "engine" in model.daemon_executor_reason
    nano = client.models.register("nano", directory=ROOT / "models/nano")
    assert "daemon" in nano.executors
    assert nano.numerics_id
    assert {m.name for m in client.models.list()} == {"toy", "nano"}
    figures = client.models.plan("nano", n_tokens=8000, resume_at=8000, mode="exact")
    # 14 sliding layers of 128.
    assert figures.exact_tokens == 14 * 127
    assert figures.plan is not None
    assert figures.plan.exact
    config = (ROOT / "models/nano/config.json").read_text()
    by_config = client.models.plan(config_json=config, n_tokens=8000)
    assert by_config.ratio == figures.ratio == 8
    again = client.models.register("nano", directory=ROOT / "models/nano")
    assert again == nano
    other = torpor.Layout("toy", 1, 10, toy.LAYOUT.slots[:1])
    with pytest.raises(torpor.AlreadyExists):
        client.models.register("toy", layout=other)


def test_the_node(client: torpor.Client, daemon: Daemon, tmp_path: Path) -> None:
    sleep(client, "s", 1)
    info = client.server_info()
    assert info.data_dir == str(daemon.data)
    assert not info.draining
    assert client.stats().sessions == 1
    for kind in ("Session", "Model", "Admin"):
        assert client.healthy(f"torpor.v1.{kind}Service")
    assert client.healthy()
    with pytest.raises(torpor.NotFound):
        client.healthy("torpor.v1.NoSuchService")
    seen: list[torpor.VerifyReport] = []
    report = client.verify(deep=True, progress=seen.append)
    assert report == seen[-1]
    assert (report.sessions_checked, report.problems) == (1, ())
    copy = tmp_path / "copy"
    assert client.backup(copy).sessions_copied == 1
    with pytest.raises(torpor.TorporError, match="not empty"):
        client.backup(copy)


def test_errors_by_their_class(client: torpor.Client) -> None:
    sleep(client, "s", 1)
    ids, rows = toy.ids_of(1, 40), toy.rows_for(1, 40)
    with pytest.raises(torpor.NotFound) as missing:
        client.describe("nobody")
    assert missing.value.code == "NOT_FOUND"
    assert missing.value.field == "session"
    with pytest.raises(torpor.NotFound, match="model 'none'"):
        client.suspend(SuspendSpec("x", "none", ids), rows)
    with pytest.raises(torpor.Aborted) as stale:
        client.suspend(SuspendSpec("s", "toy", ids), rows)
    assert (stale.value.holder, stale.value.version) == ("tests", 1)
    assert "begin from its version" in stale.value.advice
    with pytest.raises(torpor.FailedPrecondition) as other:
        client.suspend(
            SuspendSpec("x", "toy", ids, fingerprint=torpor.Fingerprint(rope="yarn")),
            rows,
        )
    assert other.value.field == "fingerprint.rope"
    assert other.value.advice == "wanted 'plain'"
    with pytest.raises(torpor.InvalidArgument) as long:
        client.suspend(SuspendSpec("x", "toy", ids, kv_len=41), rows)
    assert "rows of slot" in long.value.message
    with pytest.raises(torpor.InvalidArgument) as vocabulary:
        client.suspend(SuspendSpec("x", "toy", [7, 1000]), toy.rows_for(1, 2))
    assert vocabulary.value.field == "token"
    with pytest.raises(torpor.FailedPrecondition) as cold:
        client.resume(ResumeSpec("s", mode="snapshot"))
    assert "snapshot" in cold.value.message
    with pytest.raises(torpor.FailedPrecondition) as nothing:
        client.resume(ResumeSpec("s", ids=[999, 999], mode="exact"))
    assert nothing.value.advice == "prefill cold"
    with pytest.raises(torpor.InvalidArgument) as cut:
        client.resume(ResumeSpec("s", cut=41, mode="exact"))
    assert cut.value.field == "cut"


def test_bad_arguments_never_reach_the_daemon(client: torpor.Client) -> None:
    ids, rows = toy.ids_of(1, 40), toy.rows_for(1, 40)
    bad: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"session": 5}, rows, r"session: got 5 of int, wanted str or bytes"),
        ({"ids": [-1]}, rows, r"ids: got -1 at index 0"),
        ({"ids": [[1]]}, rows, r"ids: got shape"),
        ({"ids": [0.5]}, rows, r"float64, wanted one dimension of integers"),
        ({}, {**rows, "plain": rows["plain"][:, :39]}, r"got 39 bytes a row"),
        ({}, {**rows, "plain": rows["plain"][:39]}, r"got 39, wanted all 40"),
        ({}, {**rows, "nope": rows["plain"]}, r"slot 'nope': not of this layout"),
        ({}, {**rows, "heads": torpor.Rows(1, rows["heads"])}, r"got \[1, 41\)"),
        ({}, {**rows, "heads": lambda a, b: rows["heads"][:1]}, r"got 1 rows for"),
    ]
    before = client.stats().commits
    for header, given, message in bad:
        fields: dict[str, Any] = {"session": "x", "model": "toy", "ids": ids, **header}
        with pytest.raises(torpor.InvalidArgument, match=message):
            client.suspend(SuspendSpec(**fields), given)
    with pytest.raises(torpor.InvalidArgument, match="mode: got 'warm'"):
        ResumeSpec("x", mode="warm")
    with pytest.raises(torpor.InvalidArgument, match="timeout: got 0"):
        client.describe("x", timeout=0)
    assert client.stats().commits == before
    assert client.stats().open_tickets == 0


def test_missing_rows_are_named(client: torpor.Client) -> None:
    rows = toy.rows_for(1, 40)
    del rows["plain"]
    with pytest.raises(torpor.FailedPrecondition, match="rows are missing") as caught:
        client.suspend(SuspendSpec("x", "toy", toy.ids_of(1, 40)), rows)
    assert "slot 1" in caught.value.message
    assert client.stats().open_tickets == 0


def test_tokens_are_tenants() -> None:
    daemon = Daemon()
    daemon.only_tenants(operator="secret")
    try:
        daemon.start()
        client = daemon.connect(token="secret")
        toy.register(client)
        sleep(client, "s", 1)
        toy.expect_rows(wake(client, "s"), 1)
        for token in (None, "wrong"):
            with pytest.raises(torpor.Unauthenticated) as caught:
                daemon.connect(token=token).describe("s")
            assert caught.value.field == "authorization"
    finally:
        daemon.close()


def test_tls_over_tcp(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("wanted openssl to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=torpor"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*words.split(), *names, *files], check=True, capture_output=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    daemon = Daemon(f"tls = {{ certificate = '{certificate}', key = '{key}' }}")
    daemon.listen.append(address)
    try:
        daemon.start()
        with torpor.connect(address, tls=certificate) as client:
            toy.register(client)
            sleep(client, "s", 1)
            toy.expect_rows(wake(client, "s"), 1)
            assert "no unix socket" in client.plane_reason
        # Another trust, or none: nobody answers.
        for tls in (None, True):
            with pytest.raises(torpor.Unavailable):
                torpor.connect(address, tls=tls)
    finally:
        daemon.close()


def test_nobody_answers(tmp_path: Path) -> None:
    with pytest.raises(torpor.Unavailable, match="is torpord running there"):
        torpor.connect(f"unix://{tmp_path}/none")
    with pytest.raises(torpor.FailedPrecondition, match="no unix socket"):
        torpor.connect("127.0.0.1:1", plane="shm")


def test_directories_are_told_absolutely(
    client: torpor.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = client.backup("copy")
    assert report.done and (tmp_path / "copy").is_dir()
    for call in (
        lambda: client.backup(""),
        lambda: client.models.register("m", directory=""),
    ):
        with pytest.raises(torpor.InvalidArgument, match="directory: got ''"):
            call()
