# SPDX-License-Identifier: Apache-2.0
"""Holds torpor's logits of Gemma 3 270M against transformers', by hand.

    scripts/get-gemma3-270m DIR
    python tests/oracles/gemma3/check_270m.py DIR build/release/bin/torpor

Wants torch, transformers and safetensors from PyPI. Both sides widen the same
bf16 weights to f32; cold, and woken exactly and bounded from 1,200 tokens.
Within 1e-4 means max|a - b| <= 1e-4 x max|b| of a token's row. Exits non-zero
when cold or exact is not.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

N_TOKENS = 1500
CUT = 1200
SEED = 20_261_130


def torpor_logits(torpor, model, tokens, rows, *more):
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "out.safetensors"
        ids = pathlib.Path(scratch) / "ids.json"
        ids.write_text(json.dumps(tokens))
        command = [torpor, "dump", "--model", model, "--tokens", ids]
        command += ["--out", out, "--rows", rows, "--dtype", "f32", *more]
        subprocess.run(command, check=True)
        return load_file(out)["logits"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("torpor")
    args = parser.parse_args()

    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(0, 262144, (N_TOKENS,), generator=generator)
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        wanted = model(tokens[None]).logits[0, CUT:].float()

    failed = False
    rows = f"{CUT}:{N_TOKENS}"
    for name, more in {
        "cold": [],
        "exact": ["--resume-at", str(CUT), "--mode", "exact"],
        "bounded": ["--resume-at", str(CUT), "--mode", "bounded"],
    }.items():
        got = torpor_logits(
            args.torpor, args.model, tokens.tolist(), rows, *more
        )
        error = (got - wanted).abs().amax(-1) / wanted.abs().amax(-1)
        same = (got.argmax(-1) == wanted.argmax(-1)).float().mean()
        print(
            f"{name}: largest row error {error.max():.3g}, "
            f"equal first choices {100 * same:.2f} %"
        )
        failed |= name != "bounded" and error.max().item() > 1e-4
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
