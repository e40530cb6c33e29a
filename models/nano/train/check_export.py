#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the training model with transformers' Gemma3ForCausalLM.

    python check_export.py --model run --text corpus/heldout.bin

Same bf16 weights, fp32 arithmetic, 700 bytes; also the bf16 kernels, as used in
training, against the fp32 logits.
"""
import argparse
import math
from pathlib import Path

import torch
from transformers import Gemma3ForCausalLM

from model import load_model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--length", type=int, default=700)
    args = parser.parse_args()
    theirs = Gemma3ForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="eager").eval()
    ours = load_model(args.model)
    tokens = torch.tensor([list(args.text.read_bytes()[:704])])
    with torch.no_grad():
        c = ours(tokens)[:, :args.length]
        ours.factor = math.sqrt(ours.c.hidden)    # not rounded to bf16 in fp32
        a = theirs(tokens[:, :args.length]).logits
        b = ours(tokens[:, :args.length], exact=True)
    print(f"largest |logit|            {a.abs().max():.4f}")
    print(f"largest difference, fp32   {(a - b).abs().max():.2e}")
    print(f"rms difference, bf16       {(a - c).square().mean().sqrt():.2e}")
    if (a - b).abs().max() > 1e-3 * a.abs().max():
        raise SystemExit("logits differ")


if __name__ == "__main__":
    main()
