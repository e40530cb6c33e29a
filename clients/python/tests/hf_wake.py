# SPDX-License-Identifier: Apache-2.0
"""A process that wakes a session, and goes on beside the one that never slept.

    hf_wake.py ADDRESS MODEL DIRECTORY TWIN WAY...

MODEL is the name it is registered under, DIRECTORY has it, TWIN is what was saved
of the other session, WAY is SESSION,MODE,EXECUTOR. Prints what was found, a line
of JSON for each way.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import hf_models as tiny
import torpor
import torpor.hf
from hf_models import torch


def wake(bound: Any, count: tiny.RowCount, way: str, twin: Any) -> dict[str, Any]:
    session, mode, executor = way.split(",")
    awake = bound.resume(session, mode=mode, executor=executor)
    receipt = awake.receipt
    return {
        "ran": count.take(),
        "ids": awake.ids.tolist(),
        "replayed": receipt.replayed_tokens,
        "token_layers": receipt.replayed_token_layers,
        "by_engine": receipt.replay_numerics_id == bound.numerics_id,
        "verdict": receipt.verdict.name,
        "exact": receipt.exact,
        "max_error": receipt.max_error,
        "window_error": tiny.window_error(awake.cache, twin["cache"]),
        **go_on(bound.model, awake, twin),
    }


def go_on(model: Any, awake: Any, twin: Any) -> dict[str, Any]:
    """Follows the twin's tokens, and compares the logits that led to each."""
    session = tiny.Session.woken(model, awake)
    error, all_bits = 0.0, True
    # Margins of the twin's tokens where the woken session would take another.
    margins = []
    for true in twin["logits"]:
        logits = session.step()
        scale = true.abs().max()
        error = max(error, float((logits - true).abs().max() / scale))
        all_bits &= torch.equal(logits, true)
        wanted = int(true.argmax())
        if session.ids[-1] != wanted:
            best = true.topk(2).values
            margins.append(float((best[0] - best[1]) / scale))
            session.ids[-1] = wanted
    return {"logit_error": error, "margins": margins, "all_bits": all_bits}


def main() -> None:
    address, name, directory, saved, *ways = sys.argv[1:]
    model = tiny.stored_model(directory)
    twin = torch.load(saved, weights_only=False)
    with torpor.connect(address, timeout=3600) as client:
        bound = torpor.hf.register(client, model, name, directory=directory)
        count = tiny.RowCount(model)
        for way in ways:
            print(json.dumps(wake(bound, count, way, twin)), flush=True)
            count.take()


if __name__ == "__main__":
    main()
