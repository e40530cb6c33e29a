# SPDX-License-Identifier: Apache-2.0
"""Values that no message can hold: refused here, by field, got and wanted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import torpor
import toy
from torpor import (
    Floor,
    Provenance,
    ProvenanceRange,
    ResumeSpec,
    Slot,
    SlotKind,
    SuspendSpec,
)

Ask = Callable[[torpor.Client], object]

U32 = "a whole number from 0 to 4294967295"
U64 = "a whole number from 0 to 18446744073709551615"
I64 = "a whole number from -9223372036854775808 to 9223372036854775807"


def suspend(**more: object) -> Ask:
    spec = SuspendSpec("s", "toy", toy.ids_of(1, 20), **more)  # type: ignore[arg-type]
    return lambda c: c.begin_suspend(spec)


def resume(**more: object) -> Ask:
    return lambda c: c.resume(ResumeSpec("s", **more))  # type: ignore[arg-type]


def slot(**more: object) -> Ask:
    given = {"owner_layer": 0, "row_bytes": 8, **more}
    one = Slot("k", SlotKind.FULL, **given)  # type: ignore[arg-type]
    layout = torpor.Layout("one", 1, 10, (one,))
    return lambda c: c.models.register("m", layout=layout)


CASES: list[tuple[str, object, str, Ask]] = [
    ("at", -1, U64, lambda c: c.fork("s", "t", at=-1)),
    (
        "source_version",
        1 << 64,
        U64,
        lambda c: c.fork("s", "t", source_version=1 << 64),
    ),
    ("at", 1 << 80, U64, lambda c: c.rewind("s", 1 << 80, expected_version=1)),
    ("expected_version", -1, U64, lambda c: c.delete("s", expected_version=-1)),
    ("page_size", -1, U32, lambda c: next(c.list(page_size=-1))),
    ("ttl_seconds", 1 << 63, I64, lambda c: c.touch("s", ttl_seconds=1 << 63)),
    ("pin_seconds", 1 << 63, I64, lambda c: c.touch("s", pin_seconds=1 << 63)),
    ("n_tokens", -1, U64, lambda c: c.models.plan("toy", n_tokens=-1)),
    ("resume_at", -2, U64, lambda c: c.models.plan("toy", resume_at=-2)),
    ("block_size", -1, U32, lambda c: c.models.register("m", block_size=-1)),
    ("expected_version", -1, U64, suspend(expected_version=-1)),
    ("tokens_kept", -16, U64, suspend(tokens_kept=-16, kv_len=4)),
    ("kv_len", -1, U64, suspend(kv_len=-1)),
    ("n_ranks", -1, U32, suspend(n_ranks=-1)),
    ("ttl_seconds", -(1 << 64), I64, suspend(ttl_seconds=-(1 << 64))),
    ("resume_at", -1, U64, suspend(floors=[Floor(-1, 0)])),
    ("end", -1, U64, suspend(provenance=[ProvenanceRange(0, -1, Provenance.EXACT)])),
    ("version", -1, U64, resume(version=-1)),
    ("cut", -1, U64, resume(cut=-1)),
    ("replay_tokens", -1, U64, resume(replay_tokens=-1)),
    ("hold_seconds", -1, U32, lambda c: c.prefetch("s", replay=True, hold_seconds=-1)),
    ("row_bytes", -1, U32, slot(row_bytes=-1)),
    ("reader_layers", (0, -1), U32, slot(reader_layers=(0, -1))),
    (
        "name",
        "\udc00",
        "text that UTF-8 can hold",
        lambda c: c.models.describe("\udc00"),
    ),
]


def test_the_field_is_named(client: torpor.Client) -> None:
    client.suspend(SuspendSpec("s", "toy", toy.ids_of(1, 20)), toy.rows_for(1, 20))
    for name, got, wanted, ask in CASES:
        with pytest.raises(torpor.InvalidArgument) as caught:
            ask(client)
        assert caught.value.message == f"{name}: got {got!r}, wanted {wanted}"
        assert caught.value.field == name
    with client.begin_resume(
        ResumeSpec("s", mode="exact", engine_replays=True)
    ) as lease:
        for read in (
            lambda: lease.read_tokens(-1),
            lambda: lease.read_rows([0], begin=-1),
        ):
            with pytest.raises(torpor.InvalidArgument) as caught:
                read()
            assert caught.value.field == "begin"
    assert client.describe("s").version == 1


def test_what_fits_is_the_daemons_to_judge(client: torpor.Client) -> None:
    with pytest.raises(torpor.NotFound):
        client.rewind("s", (1 << 64) - 1, expected_version=1)
