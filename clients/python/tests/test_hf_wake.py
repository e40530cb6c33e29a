# SPDX-License-Identifier: Apache-2.0
"""Sessions of transformers wake in another process, in every mode. Skipped
without torch."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hf_models as tiny
from daemon import Daemon
from hf_models import torch
from torpor.model import Model, SlotKind

hf = pytest.importorskip("torpor.hf")

GOES_ON = 200
# (session, mode, who replays).
SNAPSHOT = ("kept", "snapshot", "daemon")
REPLAYS = [
    ("dropped", mode, executor)
    for executor in ("daemon", "engine")
    for mode in ("exact", "bounded")
]


def sleeps(daemon: Daemon, family: str, where: Path) -> list[int]:
    """Puts a session to sleep with a snapshot ("kept") and without ("dropped"),
    and into `where` how it would have gone on; its ids."""
    model = tiny.tiny_model(family)
    model.save_pretrained(where)
    bound = hf.register(daemon.connect(), model, family, directory=where)
    one = tiny.slept(model, 11)
    ids = list(one.ids)
    bound.suspend(one.cache, ids, "kept")
    bound.suspend(one.cache, ids, "dropped", snapshot=False)
    cache = copy.deepcopy(one.cache)
    twin = {"cache": cache, "logits": [one.step() for _ in range(GOES_ON)]}
    torch.save(twin, where.with_suffix(".twin"))
    assert len(set(one.ids[len(ids) :])) > 40, "a twin that says one thing"
    tiny.poison(one.cache)
    return ids


def wake(
    daemon: Daemon, family: str, where: Path, ways: list[tuple[str, str, str]]
) -> list[dict[str, Any]]:
    script = str(Path(tiny.__file__).with_name("hf_wake.py"))
    words = [daemon.address, family, str(where), str(where.with_suffix(".twin"))]
    done = subprocess.run(
        [sys.executable, script, *words, *(",".join(w) for w in ways)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    return [json.loads(line) for line in done.stdout.splitlines()]


def replayed_tokens(model: Model, mode: str) -> int:
    slides = sum(s.kind is SlotKind.SLIDING for s in model.layout.slots) // 2
    return tiny.WINDOW if mode == "bounded" else slides * (tiny.WINDOW - 1)


@pytest.mark.parametrize("family", ["gemma3", "gpt_oss"])
def test_each_mode_in_a_new_process(
    daemon: Daemon, family: str, tmp_path: Path
) -> None:
    ids = sleeps(daemon, family, tmp_path)
    model = daemon.connect().models.describe(family)
    assert "daemon" in model.executors, model.daemon_executor_reason
    kept, *found = wake(daemon, family, tmp_path, [SNAPSHOT, *REPLAYS])
    assert kept["ids"] == ids and kept["ran"] == [0] * tiny.N_LAYERS
    assert kept["verdict"] == "EXACT" and kept["all_bits"]
    assert kept["window_error"] == 0 and kept["margins"] == []
    bounded = []
    for (_, mode, executor), got in zip(REPLAYS, found):
        here = executor == "engine"
        assert got["ids"] == ids
        assert got["verdict"] == "MEASURED"
        # What ran, counted where it ran, is what the receipt says.
        wanted = replayed_tokens(model, mode)
        assert got["replayed"] == wanted
        assert got["ran"] == [wanted if here else 0] * tiny.N_LAYERS
        assert got["by_engine"] == here
        assert not here or got["token_layers"] == sum(got["ran"])
        assert got["exact"] == (mode == "exact")
        if mode == "bounded":
            bounded.append(got["max_error"])
            assert got["window_error"] > 1e-3
            continue
        assert got["window_error"] < (1e-5 if here else 1e-4)
        assert got["max_error"] < 1e-5
        assert got["logit_error"] < 1e-4
        # Another token only where the two best were as near as the error.
        assert all(m < 2 * got["logit_error"] for m in got["margins"])
    # The same cut, measured by the same rows: the daemon's error and the engine's.
    assert bounded and min(bounded) > 1e-3
    assert max(bounded) - min(bounded) < 1e-4 * max(bounded)
