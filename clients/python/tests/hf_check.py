# SPDX-License-Identifier: Apache-2.0
"""By hand, not a test: a session of a model in a directory sleeps, and wakes in
another process in every way, beside one that never slept (f32, eager, CPU).

    TORPOR_BIN=DIR hf_check.py MODEL_DIR [--ids FILE] [--tokens N] [--goes-on N]

FILE has token ids, the first N of which are the session's; random ones of seed 1
without. A line of JSON for each way: `hf_wake.py` says what is in it, `ids` left
out.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import hf_models as tiny
import torpor.hf
from daemon import Daemon
from hf_models import torch

_CHUNK = 512


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--ids", type=Path)
    parser.add_argument("--tokens", type=int, default=9000)
    parser.add_argument("--goes-on", type=int, default=200)
    args = parser.parse_args()
    where = str(Path(args.model).resolve())
    model = tiny.stored_model(where)
    if args.ids is None:
        vocab = model.config.vocab_size
        ids = np.random.default_rng(1).integers(0, vocab, args.tokens).tolist()
    else:
        ids = [int(i) for i in re.findall(r"\d+", args.ids.read_text())][: args.tokens]
    one = tiny.Session(model, [])
    # In chunks: a mask of all tokens by all tokens is large.
    for at in range(0, len(ids), _CHUNK):
        del one.ids[at:]
        one.ids += ids[at : at + _CHUNK]
        one.step()
    daemon = Daemon()
    try:
        daemon.start()
        client = daemon.connect(timeout=3600)
        bound = torpor.hf.register(client, model, "model", directory=where)
        bound.suspend(one.cache, one.ids, "kept")
        bound.suspend(one.cache, one.ids, "dropped", snapshot=False)
        twin = {"cache": copy.deepcopy(one.cache), "logits": []}
        twin["logits"] = [one.step() for _ in range(args.goes_on)]
        with tempfile.NamedTemporaryFile() as saved:
            torch.save(twin, saved.name)
            words = [daemon.address, "model", where, saved.name]
            wakes(words, bound.registered.executors)
    finally:
        daemon.close()


def wakes(words: list[str], executors: tuple[str, ...]) -> None:
    ways = ["kept,snapshot,daemon"]
    for executor in executors:
        ways += [f"dropped,{mode},{executor}" for mode in ("exact", "bounded")]
    script = str(Path(__file__).with_name("hf_wake.py"))
    for way in ways:
        done = subprocess.run(
            [sys.executable, script, *words, way], capture_output=True, text=True
        )
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        found = json.loads(done.stdout)
        del found["ids"]
        found["margins"] = found["margins"][:8]
        print(json.dumps({"way": way, **found}), flush=True)


if __name__ == "__main__":
    main()
