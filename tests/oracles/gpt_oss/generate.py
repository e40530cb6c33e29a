# SPDX-License-Identifier: Apache-2.0
"""Makes tiny gpt-oss models with fixtures for cold runs and window replay.

    python generate.py --out DIR

Files, tensors and metadata are those that ../gemma3/generate.py describes; its
cold runs and replays on transformers run here on GptOssForCausalLM: float32,
one thread, eager attention and experts.  numpy_model.py, a float64 model that
shares no code with transformers, checks all numbers.  transformers has no MXFP4
on a CPU: its model gets the weights that numpy_model.py decodes, and its own
decoder has to agree with those.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
import transformers
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "gemma3"))
import generate as common  # noqa: E402  (that of ../gemma3)

sys.path.insert(1, str(Path(__file__).resolve().parent))
import numpy_model  # noqa: E402

# Least distance between the logits of the last chosen expert and the next, so
# that rounding changes no choice.
MIN_MARGIN = 2e-4


@dataclass
class Spec:
    name: str
    seed: int
    config: dict  # config.json, as written
    cuts: list
    dtype: torch.dtype = torch.float32
    packed: bool = False


def make_specs():
    release = {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 256,
        "model_type": "gpt_oss",
        "output_router_logits": False,
        "rms_norm_eps": 1e-05,
        "router_aux_loss_coef": 0.9,
        "tie_word_embeddings": False,
        "use_cache": True,
    }
    return [
        # yarn: the release's keys. YaRN as the release has it, on positions on
        # both sides of its original length; clamps that bite.
        Spec(
            name="yarn",
            seed=9001,
            dtype=torch.bfloat16,
            cuts=[4, 9, 17],
            config={
                **release,
                "experts_per_token": 2,
                "head_dim": 16,
                "hidden_size": 32,
                "initial_context_length": 8,
                "intermediate_size": 20,
                "layer_types": common.layer_types("sfsf"),
                "num_attention_heads": 4,
                "num_experts_per_tok": 2,
                "num_hidden_layers": 4,
                "num_key_value_heads": 2,
                "num_local_experts": 5,
                "rope_scaling": {
                    "beta_fast": 0.8,
                    "beta_slow": 0.05,
                    "factor": 8.0,
                    "original_max_position_embeddings": 8,
                    "rope_type": "yarn",
                    "truncate": False,
                },
                "rope_theta": 150000,
                "sliding_window": 5,
                "swiglu_limit": 1.25,
                "torch_dtype": "bfloat16",
                "transformers_version": "4.55.0",
                "vocab_size": 48,
            },
        ),
        # plain: the keys of transformers 5, no YaRN, no biases of attention,
        # tied embeddings, one expert a row, two sliding layers in a row.
        Spec(
            name="plain",
            seed=9102,
            cuts=[7, 13, 22],
            config={
                **release,
                "attention_bias": False,
                "dtype": "float32",
                "head_dim": 16,
                "hidden_size": 24,
                "intermediate_size": 10,
                "layer_types": common.layer_types("fssfs"),
                "num_attention_heads": 3,
                "num_experts_per_tok": 1,
                "num_hidden_layers": 5,
                "num_key_value_heads": 1,
                "num_local_experts": 3,
                "rms_norm_eps": 0.001,
                "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
                "sliding_window": 7,
                "swiglu_alpha": 1.3,
                "swiglu_limit": 7.0,
                "tie_word_embeddings": True,
                "vocab_size": 40,
            },
        ),
        # mxfp4: packed experts; truncated YaRN with its scale from mscale.
        Spec(
            name="mxfp4",
            seed=9205,
            dtype=torch.bfloat16,
            packed=True,
            cuts=[8, 15, 24],
            config={
                **release,
                "dtype": "bfloat16",
                "head_dim": 32,
                "hidden_size": 64,
                "intermediate_size": 32,
                "layer_types": common.layer_types("sfsf"),
                "num_attention_heads": 2,
                "num_experts_per_tok": 3,
                "num_hidden_layers": 4,
                "num_key_value_heads": 1,
                "num_local_experts": 4,
                "quantization_config": {
                    "modules_to_not_convert": [
                        "model.layers.*.self_attn",
                        "model.layers.*.mlp.router",
                        "model.embed_tokens",
                        "lm_head",
                    ],
                    "quant_method": "mxfp4",
                },
                "rope_parameters": {
                    "beta_fast": 2.0,
                    "beta_slow": 0.05,
                    "factor": 4.0,
                    "mscale": 0.8,
                    "mscale_all_dim": 0.3,
                    "original_max_position_embeddings": 16,
                    "rope_theta": 10000.0,
                    "rope_type": "yarn",
                },
                "sliding_window": 8,
                "swiglu_limit": 7.0,
                "vocab_size": 56,
            },
        ),
    ]


# --------------------------------------------------------------------------
# Weights
# --------------------------------------------------------------------------


def is_expert_matrix(name):
    return name.endswith(("gate_up_proj", "down_proj"))


def make_tensor(seed, name, shape):
    rng = common.generator(seed, name)
    if name.endswith("norm.weight"):
        values = rng.uniform(0.7, 1.3, size=shape)
    elif name.endswith(("bias", "sinks")):
        values = rng.uniform(-1.0, 1.5, size=shape)
    else:
        values = rng.standard_normal(size=shape) * rng.uniform(0.2, 0.4)
    return torch.from_numpy(values.astype(np.float32))


def pack(seed, name, shape):
    """Any codes, with scales that keep the values small; [E, in, out] unpacked."""
    experts, columns, rows = shape
    rng = common.generator(seed, name)
    groups = columns // 32
    blocks = rng.integers(0, 256, size=(experts, rows, groups, 16)).astype(np.uint8)
    scales = rng.integers(121, 125, size=(experts, rows, groups)).astype(np.uint8)
    return blocks, scales


def make_weights(spec, model):
    """What is stored, by name, and what transformers computes with."""
    stored, state = {}, {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        shape = tuple(tensor.shape)
        if spec.packed and is_expert_matrix(name):
            blocks, scales = pack(spec.seed, name, shape)
            stored[name + "_blocks"] = torch.from_numpy(blocks)
            stored[name + "_scales"] = torch.from_numpy(scales)
            rows = numpy_model.decode_mxfp4(blocks, scales)
            state[name] = torch.from_numpy(rows.swapaxes(1, 2).astype(np.float32))
            theirs = convert_moe_packed_tensors(
                stored[name + "_blocks"], stored[name + "_scales"], dtype=torch.float32
            )
            assert torch.equal(theirs, state[name]), name
        else:
            stored[name] = make_tensor(spec.seed, name, shape).to(spec.dtype)
            state[name] = stored[name].float()
    return stored, state


# --------------------------------------------------------------------------
# One model
# --------------------------------------------------------------------------


def check_replay(ref, ref_kv, tokens, cold, model, replay, result, checks):
    config, cut = model.config, replay["H"]
    kind, low = replay["kind"], replay["window_first_row"]
    if replay["equals_cold"]:
        checks.close(f"{kind}: logits equal the cold logits", result.logits, cold.logits[cut:])
    else:
        checks.differs(
            f"{kind}: logits differ from the cold logits", result.logits, cold.logits[cut:]
        )
    rebuilt, logits = ref.replay(tokens.numpy(), ref_kv, cut, replay["R"])
    checks.close(f"{kind}: numpy_model.py has the same logits", logits, result.logits)
    for layer, (k, v) in result.windows.items():
        name = f"{kind}: numpy_model.py has the same windows"
        checks.close(name, rebuilt.k[layer, low:cut], k)
        checks.close(name, rebuilt.v[layer, low:cut], v)
    # Nothing but the full rows [0, cut) is read.
    clean = common.run_replay(
        model, tokens, common.poisoned(cold, config, cut), cut, replay["R"]
    )
    checks.true("NaN in every dropped row changes no bit", torch.equal(clean.logits, result.logits))


def check_parts(model, tokens, cold, checks):
    """What the fixture is to show has an effect on it."""
    with torch.no_grad():
        for part, change in {
            "sinks": lambda name, t: t.fill_(-100.0) if name.endswith("sinks") else None,
            "expert biases": lambda name, t: t.zero_() if name.endswith("proj_bias") else None,
            "router biases": lambda name, t: t.zero_() if "router.bias" in name else None,
        }.items():
            kept = {name: t.clone() for name, t in model.state_dict().items()}
            for name, tensor in model.named_parameters():
                change(name, tensor)
            other = common.run_cold(model, tokens).logits
            checks.differs(f"{part} have an effect", other, cold.logits)
            model.load_state_dict(kept)


def make_model(spec, out):
    directory = out / spec.name
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(spec.config, indent=2, sort_keys=True) + "\n"
    (directory / "config.json").write_text(text)
    config = GptOssConfig.from_pretrained(directory)
    if spec.packed:
        del config.quantization_config
    model = GptOssForCausalLM._from_config(
        config,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
    ).eval()
    assert model.config._experts_implementation == "eager"
    stored, state = make_weights(spec, model)
    safetensors.torch.save_file(
        stored, directory / "model.safetensors", metadata={"format": "pt"}
    )
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and missing in ([], ["lm_head.weight"])
    assert bool(missing) == config.tie_word_embeddings
    model.tie_weights()

    checks = common.Checks(spec.name)
    ref = numpy_model.Reference(directory)
    window, kinds = config.sliding_window, config.layer_types
    sliding = [i for i, kind in enumerate(kinds) if kind == common.SLIDING]
    enough = len(sliding) * (window - 1)
    counts = [1, window, 4 * window + 3]
    longest = max(counts)
    drawn = common.generator(spec.seed, "tokens").integers(0, config.vocab_size, size=longest)
    tokens = torch.from_numpy(drawn.astype(np.int32))
    assert enough < max(spec.cuts) < longest

    fixture, colds = {"tokens": tokens}, {}
    for count in counts:
        cold = colds[count] = common.run_cold(model, tokens[:count])
        fixture[f"cold.{count}.logits"] = cold.logits
        logits, kv = ref.cold(tokens[:count].numpy())
        checks.close("cold: numpy_model.py has the same logits", logits, cold.logits)
        for layer in range(config.num_hidden_layers):
            fixture[f"cold.{count}.k.{layer}"] = cold.k[layer]
            fixture[f"cold.{count}.v.{layer}"] = cold.v[layer]
            checks.close("cold: numpy_model.py has the same K", kv.k[layer], cold.k[layer])
            checks.close("cold: numpy_model.py has the same V", kv.v[layer], cold.v[layer])
    cold = colds[longest]
    _, ref_kv = ref.cold(tokens.numpy())
    check_parts(model, tokens, cold, checks)

    replays = []
    for cut in spec.cuts:
        for kind, replayed in (("exact", min(cut, enough)), ("bounded", min(window, cut))):
            key = f"exact.{cut}" if kind == "exact" else f"bounded.{cut}.{replayed}"
            result = common.run_replay(model, tokens, cold, cut, replayed)
            fixture[f"{key}.logits"] = result.logits
            for layer, (k, v) in result.windows.items():
                fixture[f"{key}.window.{layer}.k"] = k
                fixture[f"{key}.window.{layer}.v"] = v
            replay = {
                "key": key,
                "kind": kind,
                "H": cut,
                "R": replayed,
                "start": cut - replayed,
                "window_first_row": max(0, cut - (window - 1)),
                "equals_cold": replayed >= min(cut, enough),
            }
            check_replay(ref, ref_kv, tokens, cold, model, replay, result, checks)
            replays.append(replay)
    checks.true("no choice of experts is close", ref.margin > MIN_MARGIN)
    limit = config.swiglu_limit
    checks.worst[f"largest gate or up, clamped at {limit}"] = ref.largest
    if spec.name == "yarn":
        checks.true("the clamps bite", ref.largest > 2 * limit)

    metadata = {
        "format_version": "1",
        "generator": "generate.py",
        "model": spec.name,
        "window": window,
        "sliding_layers": sliding,
        "full_layers": [i for i in range(len(kinds)) if i not in sliding],
        "E": enough,
        "N": counts,
        "cuts": spec.cuts,
        "replays": replays,
        "margin": ref.margin,
        "seed": spec.seed,
        "sha256": common.sha256(directory / "model.safetensors"),
        "sha256_config": common.sha256(directory / "config.json"),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "license": "Apache-2.0",
    }
    for name, tensor in fixture.items():
        assert name == "tokens" or tensor.isfinite().all(), name
    path = directory / "fixture.safetensors"
    safetensors.torch.save_file(
        {name: tensor.contiguous() for name, tensor in fixture.items()},
        path,
        metadata={k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata.items()},
    )
    common.sort_header(path)
    checks.worst["smallest distance between a chosen expert and the next"] = ref.margin
    return checks.worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True, type=Path, help="directory to write to")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.set_verbosity_error()
    total = 0
    for spec in make_specs():
        numbers = make_model(spec, args.out)
        print(f"\n{spec.name}: all checks passed")
        for name, value in numbers.items():
            shown = "yes" if value is True else f"{value:.2e}"
            print(f"  {shown:>9}  {name}")
        for path in sorted((args.out / spec.name).iterdir()):
            print(f"  {path.stat().st_size:>9}  {spec.name}/{path.name}")
            total += path.stat().st_size
    print(f"\ntotal {total} bytes")


if __name__ == "__main__":
    main()
