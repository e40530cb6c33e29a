#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the nano model on a corpus made by build_corpus.py.

    python train.py --corpus corpus --out run

Muon for the matrices, Adam for embedding and norms; warm-up, constant rate,
linear decay to 0.  Short sequences first, then long ones.  A run that was
stopped continues from its last checkpoint when started again.  At the end
run/model.safetensors and run/config.json hold the model in bf16, as
transformers reads it.
"""
import argparse
import csv
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from model import Config, Nano


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised by Newton-Schulz; equal shapes go as one batch."""

    def __init__(self, params, lr, momentum=0.95, decay=0.1):
        super().__init__(params, dict(lr=lr, momentum=momentum, decay=decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                shapes.setdefault(p.shape, []).append(p)
            for shape, params in shapes.items():
                updates = []
                for p in params:
                    buffer = self.state[p].setdefault("buffer", torch.zeros_like(p))
                    buffer.lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(buffer, group["momentum"]))
                lr = group["lr"]
                size = 0.2 * max(shape) ** 0.5
                for p, u in zip(params, orthogonal(torch.stack(updates))):
                    p.mul_(1 - lr * group["decay"]).add_(u, alpha=-lr * size)


def orthogonal(x, steps=5):
    """Roughly the nearest (semi-)orthogonal matrices."""
    a, b, c = 3.4445, -4.7750, 2.0315
    turned = x.shape[-2] > x.shape[-1]
    x = x.mT if turned else x
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if turned else x).float()


class Batches:
    """Windows of the corpus without repetition within an epoch, by step."""

    def __init__(self, path, seed):
        self.data = np.memmap(path, dtype=np.uint8, mode="r")
        self.seed = seed
        self.order = {}

    def windows(self, length, starts):
        rows = np.stack([self.data[s:s + length + 1] for s in starts]).astype(np.int64)
        rows = torch.from_numpy(rows)
        return rows[:, :-1], rows[:, 1:]

    def get(self, length, count, index):
        """Batch number `index` of `count` windows of `length` bytes."""
        per_epoch = (len(self.data) - length - 1) // length // count
        epoch, index = divmod(index, per_epoch)
        if (length, epoch) not in self.order:
            rng = np.random.default_rng([self.seed, length, epoch])
            shift = rng.integers(length)
            self.order = {(length, epoch): shift + length * rng.permutation(per_epoch * count)}
        picks = self.order[length, epoch][index * count:(index + 1) * count]
        return self.windows(length, picks)


def rate(step, steps, warmup, decay):
    """The factor of the learning rates."""
    return min(1.0, (step + 1) / warmup, (steps - step) / (steps * decay))


def export(model, folder):
    """Write the model as transformers reads it."""
    c = model.c
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"model." + n: p.detach().bfloat16().contiguous()
               for n, p in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": c.vocab,
        "hidden_size": c.hidden,
        "intermediate_size": c.mlp,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "query_pre_attn_scalar": c.head_dim,
        "sliding_window": c.window,
        "layer_types": ["full_attention" if c.is_full(i) else "sliding_attention"
                        for i in range(c.layers)],
        "rope_theta": c.rope_global,
        "rope_local_base_freq": c.rope_local,
        "rope_scaling": None,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": c.rope_global},
            "sliding_attention": {"rope_type": "default", "rope_theta": c.rope_local},
        },
        "max_position_embeddings": c.max_positions,
        "rms_norm_eps": c.eps,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "use_cache": True,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--tokens", type=int, default=16384, help="bytes in a batch")
    parser.add_argument("--short", type=int, default=2048)
    parser.add_argument("--long", type=int, default=8192)
    parser.add_argument("--long-part", type=float, default=0.4,
                        help="part of the steps that sees long sequences")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--adam-lr", type=float, default=4e-3)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--decay", type=float, default=0.5,
                        help="part of the steps over which the rate falls to 0")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--eval-every", type=int, default=200)
    parser.add_argument("--save-minutes", type=float, default=10)
    parser.add_argument("--stop-at", type=int, help="stop early, before this step")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    model = Nano(Config())
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "layers" in n]
    others = [p for n, p in model.named_parameters() if p.ndim == 1 or "embed" in n]
    optimizers = [Muon(matrices, args.lr),
                  torch.optim.AdamW(others, args.adam_lr, betas=(0.9, 0.95),
                                    weight_decay=0.0)]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    loss_of = torch.compile(model.loss, dynamic=False)

    train = Batches(args.corpus / "train.bin", args.seed)
    held = Batches(args.corpus / "heldout.bin", args.seed)
    held_starts = np.linspace(0, len(held.data) - args.long - 1, 16).astype(int)
    held_batches = [held.windows(args.long, held_starts[i:i + 2]) for i in range(0, 16, 2)]

    state_path, first, spent = args.out / "state.pt", 0, 0.0
    if state_path.exists():
        state = torch.load(state_path, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        first, spent = state["step"], state["seconds"]
    log_path = args.out / "loss_curve.csv"
    rows = []
    if first and log_path.exists():
        with open(log_path) as f:
            rows = [r for r in csv.reader(f)][1:]
        rows = [r for r in rows if int(r[0]) <= first]
    log = open(log_path, "w", newline="")
    writer = csv.writer(log, lineterminator="\n")
    writer.writerow("step tokens seq_len lr train_loss heldout_loss seconds".split())
    writer.writerows(rows)

    def save(step):
        part = state_path.with_suffix(".part")
        torch.save({"model": model.state_dict(), "step": step,
                    "optimizers": [o.state_dict() for o in optimizers],
                    "seconds": spent + time.time() - begun}, part)
        part.rename(state_path)

    begun = saved = time.time()
    switch = args.steps - round(args.steps * args.long_part)
    recent, last = [], args.stop_at or args.steps
    for step in range(first, last):
        long = step >= switch
        length = args.long if long else args.short
        tokens, targets = train.get(length, args.tokens // length,
                                    step - switch if long else step)
        factor = rate(step, args.steps, args.warmup, args.decay)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor
        loss = loss_of(tokens, targets).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        recent.append(loss.item())
        if not math.isfinite(recent[-1]):
            raise SystemExit(f"loss is {recent[-1]} at step {step}")
        done = step + 1
        if done % 20 == 0 or done == last:
            held_loss = ""
            if done % args.eval_every == 0 or done == last:
                with torch.no_grad():
                    held_loss = np.mean([loss_of(*b).mean().item() for b in held_batches])
                    held_loss = f"{held_loss:.4f}"
            writer.writerow([done, done * args.tokens, length,
                             f"{args.lr * factor:.3e}", f"{np.mean(recent):.4f}", held_loss,
                             round(spent + time.time() - begun)])
            log.flush()
            recent = []
        if time.time() - saved > args.save_minutes * 60 or done == last:
            save(done)
            saved = time.time()
    export(model, args.out)


if __name__ == "__main__":
    main()
