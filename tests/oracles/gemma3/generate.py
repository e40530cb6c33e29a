# SPDX-License-Identifier: Apache-2.0
"""Makes tiny Gemma 3 models with fixtures for cold runs and window replay.

    python generate.py --out DIR

Each model becomes DIR/<name>/ with config.json, model*.safetensors and
fixture.safetensors.  The numbers come from transformers' Gemma3ForCausalLM:
float32, one thread, eager attention.  reference.py, a float64 model that
shares no code with it, checks all of them.

Tensors in fixture.safetensors (N rows, L a layer, V the vocabulary):

    tokens                       int32 [Nmax]; every run uses a prefix of it
    cold.N.logits                [N, V]      one forward over the first N tokens
    cold.N.k.L, cold.N.v.L       [N, kv_heads, head_dim], every row of every
                                 layer; K is after its norm and after rope
    exact.H.window.L.k / .v      rows [max(0, H-(W-1)), H) of sliding layer L,
                                 rebuilt by replaying R = min(H, E) tokens
    exact.H.logits               [Nmax-H, V] logits of the tokens [H, Nmax), run
                                 after that rebuild
    bounded.H.R.window.L.k / .v  the same after replaying only R tokens
    bounded.H.R.logits

E = (number of sliding layers) * (W-1).  A replay at H starts from the K/V rows
[0, H) of the full layers, nothing else.  It runs the tokens [s, H), s = H-R:
full layers read the stored rows and write none; sliding layers start empty,
and row i reads the rows [max(s, i-W+1), i].

The metadata of the fixture (string to string) names the window, the layer
types, E, the lists of N, H and R, versions, seeds and SHA-256 sums.
"""

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
import transformers
from transformers import (
    AutoConfig,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
)
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

import reference

FULL, SLIDING = reference.FULL, reference.SLIDING

REL_TOLERANCE = 1e-5  # max |a - b| / max |b| for numbers that must agree
MIN_DIFFERENCE = 1e-3  # max |a - b| for numbers that must not


# --------------------------------------------------------------------------
# The models
# --------------------------------------------------------------------------


@dataclass
class Spec:
    name: str
    seed: int
    config: dict  # config.json, as written
    meaning: dict  # the Gemma3TextConfig it has to be read as
    cuts: list
    dtype: torch.dtype = torch.float32
    prefix: str = "model."  # of the tensor names on disk
    shards: int = 1
    notes: dict = field(default_factory=dict)  # more metadata


def layer_types(letters):
    return [{"s": SLIDING, "f": FULL}[letter] for letter in letters]


def rope(theta, factor=None):
    if factor is None:
        return {"rope_type": "default", "rope_theta": theta}
    return {"rope_type": "linear", "factor": factor, "rope_theta": theta}


def make_specs():
    specs = []

    # w8: new style, as save_pretrained of transformers 5.x writes it. It writes
    # `_sliding_window_pattern` 6 whatever the layer types are; they win.
    shape = dict(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        query_pre_attn_scalar=24,
        sliding_window=8,
    )
    specs.append(
        Spec(
            name="w8",
            seed=8001,
            dtype=torch.bfloat16,
            config={
                "_sliding_window_pattern": 6,
                "architectures": ["Gemma3ForCausalLM"],
                "attention_bias": False,
                "attention_dropout": 0.0,
                "attn_logit_softcapping": None,
                "bos_token_id": 2,
                "dtype": "bfloat16",
                "eos_token_id": 1,
                "final_logit_softcapping": None,
                "hidden_activation": "gelu_pytorch_tanh",
                "initializer_range": 0.02,
                "layer_types": layer_types("sfsfs"),
                "max_position_embeddings": 2048,
                "model_type": "gemma3_text",
                "num_hidden_layers": 5,
                "pad_token_id": 0,
                "rms_norm_eps": 1e-06,
                "rope_parameters": {FULL: rope(1e6), SLIDING: rope(1e4)},
                "tie_word_embeddings": True,
                "transformers_version": "5.24.0",
                "use_bidirectional_attention": False,
                "use_cache": True,
                **shape,
            },
            meaning=dict(
                shape,
                num_hidden_layers=5,
                layer_types=layer_types("sfsfs"),
                rope_parameters={FULL: rope(1e6), SLIDING: rope(1e4)},
                max_position_embeddings=2048,
            ),
            cuts=[9, 16, 26],
        )
    )

    # w7: old style, as transformers 4.5x wrote it, with layer_types. The linear
    # scaling holds for the full layers only. Untied head, capped logits.
    shape = dict(
        vocab_size=80,
        hidden_size=48,
        intermediate_size=32,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        query_pre_attn_scalar=40,
        sliding_window=7,
        final_logit_softcapping=30.0,
        tie_word_embeddings=False,
    )
    specs.append(
        Spec(
            name="w7",
            seed=7001,
            config={
                "_sliding_window_pattern": 2,
                "architectures": ["Gemma3ForCausalLM"],
                "attention_bias": False,
                "attention_dropout": 0.0,
                "attn_logit_softcapping": None,
                "bos_token_id": 2,
                "eos_token_id": [1, 50],
                "hidden_activation": "gelu_pytorch_tanh",
                "initializer_range": 0.02,
                "layer_types": layer_types("sfsfs"),
                "max_position_embeddings": 2048,
                "model_type": "gemma3_text",
                "num_hidden_layers": 5,
                "pad_token_id": 0,
                "rms_norm_eps": 1e-06,
                "rope_local_base_freq": 10000.0,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "rope_theta": 1000000.0,
                "torch_dtype": "float32",
                "transformers_version": "4.55.0",
                "use_cache": True,
                **shape,
            },
            meaning=dict(
                shape,
                num_hidden_layers=5,
                layer_types=layer_types("sfsfs"),
                rope_parameters={FULL: rope(1e6, 8.0), SLIDING: rope(1e4)},
                max_position_embeddings=2048,
            ),
            cuts=[8, 14, 23],
        )
    )

    # w5: both styles of rope keys in one file, saying the same; thetas that are
    # not the defaults; attention biases; a large eps; a full layer first; a cut
    # below W.
    shape = dict(
        vocab_size=72,
        hidden_size=24,
        intermediate_size=40,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=5,
        attention_bias=True,
    )
    specs.append(
        Spec(
            name="w5",
            seed=5001,
            config={
                "architectures": ["Gemma3ForCausalLM"],
                "attention_dropout": 0.0,
                "attn_logit_softcapping": None,
                "bos_token_id": 2,
                "dtype": "float32",
                "eos_token_id": 1,
                "final_logit_softcapping": None,
                "hidden_activation": "gelu_pytorch_tanh",
                "initializer_range": 0.02,
                "layer_types": layer_types("fssfs"),
                "max_position_embeddings": 1024,
                "model_type": "gemma3_text",
                "num_hidden_layers": 5,
                "pad_token_id": 0,
                "rms_norm_eps": 0.001,
                "rope_local_base_freq": 20000.0,
                "rope_parameters": {FULL: rope(500000.0), SLIDING: rope(20000.0)},
                "rope_theta": 500000.0,
                "tie_word_embeddings": True,
                "transformers_version": "5.2.0",
                "use_bidirectional_attention": False,
                "use_cache": True,
                **shape,
            },
            meaning=dict(
                shape,
                num_hidden_layers=5,
                layer_types=layer_types("fssfs"),
                rope_parameters={FULL: rope(5e5), SLIDING: rope(2e4)},
                rms_norm_eps=1e-3,
                max_position_embeddings=1024,
            ),
            cuts=[3, 6, 10, 17],
            notes={
                "attn_logit_softcapping": "null: Gemma3Attention of this transformers "
                "version stores the value and never applies it"
            },
        )
    )

    # w8nested: the text model inside a multimodal config, as Gemma 3 4B has it:
    # few keys in text_config, the rest defaults. No vision tensors on disk.
    shape = dict(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        query_pre_attn_scalar=24,
        sliding_window=8,
    )
    specs.append(
        Spec(
            name="w8nested",
            seed=8002,
            dtype=torch.bfloat16,
            prefix="language_model.model.",
            shards=3,
            config={
                "architectures": ["Gemma3ForConditionalGeneration"],
                "boi_token_index": 255999,
                "eoi_token_index": 256000,
                "eos_token_id": [1, 106],
                "image_token_index": 262144,
                "initializer_range": 0.02,
                "mm_tokens_per_image": 4,
                "model_type": "gemma3",
                "text_config": {
                    "layer_types": layer_types("sfsf"),
                    "model_type": "gemma3_text",
                    "num_hidden_layers": 4,
                    "rope_scaling": None,
                    "rope_theta": 1000000.0,
                    **shape,
                },
                "torch_dtype": "bfloat16",
                "transformers_version": "4.54.0",
                "vision_config": {
                    "hidden_size": 16,
                    "image_size": 16,
                    "intermediate_size": 16,
                    "model_type": "siglip_vision_model",
                    "num_attention_heads": 2,
                    "num_hidden_layers": 1,
                    "patch_size": 4,
                    "vision_use_head": False,
                },
            },
            meaning=dict(
                shape,
                num_hidden_layers=4,
                layer_types=layer_types("sfsf"),
                rope_parameters={FULL: rope(1e6), SLIDING: rope(1e4)},
            ),
            cuts=[9, 26],
        )
    )

    # pattern: the first published style, no layer_types (Gemma 3 1B, 4.50).
    shape = dict(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=40,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        query_pre_attn_scalar=20,
        sliding_window=8,
    )
    specs.append(
        Spec(
            name="pattern",
            seed=3001,
            dtype=torch.bfloat16,
            config={
                "architectures": ["Gemma3ForCausalLM"],
                "attention_bias": False,
                "attention_dropout": 0.0,
                "attn_logit_softcapping": None,
                "bos_token_id": 2,
                "cache_implementation": "hybrid",
                "eos_token_id": [1, 50],
                "final_logit_softcapping": None,
                "hidden_activation": "gelu_pytorch_tanh",
                "initializer_range": 0.02,
                "max_position_embeddings": 2048,
                "model_type": "gemma3_text",
                "num_hidden_layers": 6,
                "pad_token_id": 0,
                "rms_norm_eps": 1e-06,
                "rope_local_base_freq": 10000,
                "rope_scaling": None,
                "rope_theta": 1000000,
                "sliding_window_pattern": 3,
                "torch_dtype": "bfloat16",
                "transformers_version": "4.50.0.dev0",
                "use_cache": True,
                **shape,
            },
            meaning=dict(
                shape,
                num_hidden_layers=6,
                layer_types=layer_types("ssfssf"),
                rope_parameters={FULL: rope(1e6), SLIDING: rope(1e4)},
                max_position_embeddings=2048,
            ),
            cuts=[9, 16, 30],
        )
    )
    return specs


# --------------------------------------------------------------------------
# Weights
# --------------------------------------------------------------------------


def generator(seed, name):
    """An independent generator for one named thing of one model."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def make_tensor(seed, name, shape):
    rng = generator(seed, name)
    if name.endswith("norm.weight"):
        values = rng.uniform(-0.3, 0.3, size=shape)
    elif name.endswith(".bias"):
        values = rng.uniform(-0.5, 0.5, size=shape)
    else:
        values = rng.standard_normal(size=shape) * rng.uniform(0.2, 0.4)
    return torch.from_numpy(values.astype(np.float32))


def make_weights(spec, model):
    """Every stored tensor of `model`, by its text-model name, in spec.dtype."""
    weights = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue  # tied: not stored
        weights[name] = make_tensor(spec.seed, name, tuple(tensor.shape)).to(spec.dtype)
    return weights


def disk_name(name, prefix):
    return prefix + name.removeprefix("model.") if name.startswith("model.") else name


def write_weights(directory, weights, prefix, shards):
    """Writes model.safetensors, or shards of about equal size and their index."""
    on_disk = {disk_name(name, prefix): tensor for name, tensor in weights.items()}
    sizes = {name: t.numel() * t.element_size() for name, t in on_disk.items()}
    total = sum(sizes.values())
    groups, filled = [{} for _ in range(shards)], 0
    for name in sorted(on_disk):
        groups[min(shards - 1, filled * shards // total)][name] = on_disk[name]
        filled += sizes[name]
    weight_map = {}
    for number, group in enumerate(groups, 1):
        file = "model.safetensors"
        if shards > 1:
            file = f"model-{number:05d}-of-{shards:05d}.safetensors"
            weight_map.update({name: file for name in group})
        safetensors.torch.save_file(group, directory / file, metadata={"format": "pt"})
    if shards > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (directory / "model.safetensors.index.json").write_text(text)


def sort_header(path):
    """Sorts the metadata of a safetensors file, which save_file leaves in any order."""
    blob = path.read_bytes()
    data_at = 8 + int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8:data_at])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + blob[data_at:])


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


# --------------------------------------------------------------------------
# Cold runs and replay on transformers
# --------------------------------------------------------------------------


class Recorder:
    """Mixin: keeps every K/V row that the forward hands to the cache layer."""

    def update(self, key_states, value_states, *args, **kwargs):
        if not hasattr(self, "seen"):
            self.seen = []
        self.seen.append((key_states.clone(), value_states.clone()))
        return super().update(key_states, value_states, *args, **kwargs)

    def rows(self):
        """K and V as [rows, kv_heads, head_dim]."""
        k, v = (torch.cat(parts, dim=-2) for parts in zip(*self.seen))
        return k[0].transpose(0, 1).contiguous(), v[0].transpose(0, 1).contiguous()


class RecordingFull(Recorder, DynamicLayer):
    pass


class RecordingSliding(Recorder, DynamicSlidingWindowLayer):
    pass


class ReplayFull(DynamicLayer):
    """A full layer that starts with stored rows [0, H) and reads at position s.

    Rows that are already held are kept: what the forward computes for them is
    dropped.  `get_seq_length` is the position, not the number of rows.
    """

    def __init__(self, k, v, position):
        super().__init__()
        self.lazy_initialization(k, v)
        self.keys, self.values = k, v
        self.position = position

    def update(self, key_states, value_states, *args, **kwargs):
        self.position += key_states.shape[-2]
        fresh = max(0, self.position - self.keys.shape[-2])
        skip = key_states.shape[-2] - fresh
        self.keys = torch.cat([self.keys, key_states[:, :, skip:]], dim=-2)
        self.values = torch.cat([self.values, value_states[:, :, skip:]], dim=-2)
        return self.keys, self.values

    def get_mask_sizes(self, query_length):
        return max(self.keys.shape[-2], self.position + query_length), 0

    def get_seq_length(self):
        return self.position


class ReplaySliding(DynamicSlidingWindowLayer):
    """A sliding layer that starts empty at position s."""

    def __init__(self, window, position):
        super().__init__(sliding_window=window)
        self.cumulative_length = position

    def get_mask_sizes(self, query_length):
        rows = self.keys.shape[-2] if self.is_initialized else 0
        return rows + query_length, self.cumulative_length - rows


def forward(model, cache, tokens, first, last):
    """Logits [last - first, V] of the tokens [first, last)."""
    assert cache.get_seq_length() == first
    with torch.no_grad():
        out = model(
            input_ids=tokens[None, first:last].long(),
            position_ids=torch.arange(first, last)[None],
            cache=cache,
            use_cache=True,
        )
    return out.logits[0]


@dataclass
class Cold:
    logits: torch.Tensor
    k: list  # per layer [N, kv_heads, head_dim]
    v: list


def run_cold(model, tokens):
    config = model.config
    cache = Cache(
        layers=[
            RecordingFull()
            if kind == FULL
            else RecordingSliding(sliding_window=config.sliding_window)
            for kind in config.layer_types
        ]
    )
    logits = forward(model, cache, tokens, 0, len(tokens))
    rows = [layer.rows() for layer in cache.layers]
    return Cold(logits, [k for k, _ in rows], [v for _, v in rows])


@dataclass
class Replayed:
    windows: dict  # sliding layer -> (k, v), each [rows, kv_heads, head_dim]
    logits: torch.Tensor


def to_rows(cached):
    return cached[0].transpose(0, 1).contiguous()


def to_cached(rows):
    return rows.transpose(0, 1).contiguous()[None]


def run_replay(model, tokens, stored, cut, replayed, chunk=None, overwrite=False):
    """Replay as described at the top of this file.

    stored: a Cold of which only the rows [0, cut) of the full layers are read.
    chunk: tokens per forward (default: one forward per phase).
    overwrite: the wrong variant, in which the replayed rows of the full layers
        are recomputed and stored; only for a negative check.
    """
    config = model.config
    start, window = cut - replayed, config.sliding_window
    held = start if overwrite else cut
    layers = []
    for index, kind in enumerate(config.layer_types):
        if kind == FULL:
            k, v = to_cached(stored.k[index][:held]), to_cached(stored.v[index][:held])
            layers.append(ReplayFull(k, v, start))
        else:
            layers.append(ReplaySliding(window, start))
    cache = Cache(layers=layers)

    def advance(first, last):
        step = chunk or last - first
        parts = [
            forward(model, cache, tokens, at, min(at + step, last))
            for at in range(first, last, step)
        ]
        return torch.cat(parts)

    advance(start, cut)
    rows = cut - max(0, cut - (window - 1))
    windows = {}
    for index, layer in enumerate(layers):
        if config.layer_types[index] == SLIDING:
            windows[index] = (to_rows(layer.keys), to_rows(layer.values))
            assert windows[index][0].shape[0] == rows
        elif not overwrite:  # nothing was written
            assert torch.equal(to_rows(layer.keys), stored.k[index][:cut])
            assert torch.equal(to_rows(layer.values), stored.v[index][:cut])
    return Replayed(windows, advance(cut, len(tokens)))


# --------------------------------------------------------------------------
# Checks
# --------------------------------------------------------------------------


def as_array(x):
    return x.double().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)


def max_difference(a, b):
    return float(np.max(np.abs(as_array(a) - as_array(b))))


def relative(a, b):
    """max |a - b| / max |b|; NaN or another shape never passes a check."""
    a, b = as_array(a), as_array(b)
    assert a.shape == b.shape, (a.shape, b.shape)
    return float(np.max(np.abs(a - b)) / np.max(np.abs(b)))


class Checks:
    """Runs named checks, keeps the worst number of each, stops at a failure."""

    def __init__(self, model_name):
        self.model_name = model_name
        self.worst = {}

    def _keep(self, name, value, pick):
        self.worst[name] = pick(self.worst.get(name, value), value)

    def close(self, name, a, b, tolerance=REL_TOLERANCE):
        error = relative(a, b)
        self._keep(name + " (largest relative error)", error, max)
        assert error <= tolerance, f"{self.model_name}: {name}: {error}"

    def differs(self, name, a, b, least=MIN_DIFFERENCE):
        error = max_difference(a, b)
        self._keep(name + " (smallest max difference)", error, min)
        assert error > least, f"{self.model_name}: {name}: {error}"

    def true(self, name, condition):
        self._keep(name, bool(condition), min)
        assert condition, f"{self.model_name}: {name}"


def check_loading(spec, directory, model, weights, checks):
    """transformers reads the directory as the model that spec.meaning names."""
    raw = AutoConfig.from_pretrained(directory)
    loaded_config = raw.get_text_config()
    twin_config = Gemma3TextConfig(**spec.meaning)
    for key, value in spec.meaning.items():
        checks.true("config.json is read as meant", getattr(loaded_config, key) == value)
    twin = Gemma3ForCausalLM._from_config(twin_config, attn_implementation="eager").eval()
    state = {name: tensor.float() for name, tensor in weights.items()}
    if twin_config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    twin.load_state_dict(state, strict=True)
    tokens = make_tokens(spec)
    expected = run_cold(model, tokens).logits
    checks.true(
        "a twin built from keyword arguments gives the same bits",
        torch.equal(run_cold(twin, tokens).logits, expected),
    )

    ours = reference.parse_config(spec.config)
    checks.true(
        "reference.py reads the same layer types", ours.layer_types == spec.meaning["layer_types"]
    )

    def load_from(source, auto):
        name = f"{auto.__name__}.from_pretrained"
        loaded, info = auto.from_pretrained(
            source, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        missing = [n for n in info["missing_keys"] if "vision" not in n and "multi_modal" not in n]
        complete = not (missing or info["unexpected_keys"] or info["mismatched_keys"])
        checks.true(f"{name} finds every text tensor", complete)
        with torch.no_grad():
            logits = loaded.eval()(input_ids=tokens[None].long()).logits[0]
        checks.true(f"{name} gives the same bits", torch.equal(logits, expected))

    if spec.prefix == "model.":
        load_from(directory, Gemma3ForCausalLM)
    else:
        load_from(directory, Gemma3ForConditionalGeneration)
        # The other prefix in use: the same tensors under names of the same length.
        with tempfile.TemporaryDirectory() as other:
            shutil.copy(directory / "config.json", other)
            write_weights(Path(other), weights, "model.language_model.", spec.shards)
            load_from(other, Gemma3ForConditionalGeneration)
            names = reference.read_weights(other).keys()
            checks.true("reference.py knows the other prefix", names == weights.keys())


def check_windowing(model, tokens, checks):
    """Each sliding layer alone: the last row sees W rows, its own among them."""
    window, last = model.config.sliding_window, len(tokens) - 1

    def last_row(layer, position):
        """Output of one decoder layer at the last row, its input row nudged."""
        block, seen = model.model.layers[layer], {}

        def nudge(module, args):
            hidden = args[0].clone()
            if position is not None:
                hidden[:, position] += 1.0 + torch.arange(hidden.shape[-1]) % 3
            return (hidden, *args[1:])

        def keep(module, args, output):
            seen["row"] = output[0, last].clone()

        handles = [block.register_forward_pre_hook(nudge), block.register_forward_hook(keep)]
        run_cold(model, tokens)
        for handle in handles:
            handle.remove()
        return seen["row"]

    for layer, kind in enumerate(model.config.layer_types):
        plain = last_row(layer, None)
        outside, inside = last_row(layer, last - window), last_row(layer, last - window + 1)
        first = last_row(layer, 0)
        if kind == SLIDING:
            checks.true(
                "a sliding layer does not see the row W back, nor row 0",
                torch.equal(outside, plain) and torch.equal(first, plain),
            )
            checks.differs("a sliding layer sees the row W-1 back", inside, plain)
        else:
            checks.differs("a full layer sees the row W back", outside, plain)
            checks.differs("a full layer sees row 0", first, plain)

    # The same through token ids, where the model begins with sliding layers:
    # the K/V of layer n at the last row see n(W-1) tokens back, not more.
    leading = 0
    while model.config.layer_types[leading] == SLIDING:
        leading += 1
    if leading:
        reach = leading * (window - 1)
        base = run_cold(model, tokens)
        for back, name in ((reach + 1, "beyond"), (reach, "at")):
            changed = tokens.clone()
            changed[last - back] = (changed[last - back] + 1) % model.config.vocab_size
            other = run_cold(model, changed)
            k, k_base = other.k[leading][last], base.k[leading][last]
            if name == "beyond":
                checks.true("a token beyond the reach of the leading sliding layers "
                            "does not change K of the next layer", torch.equal(k, k_base))
            else:
                # Through several layers little of it is left: any change will do.
                checks.differs("a token at their reach does", k, k_base, least=1e-6)


def check_softcap(model, weights, checks):
    """transformers ignores the config key; the eager function itself can cap."""
    tokens = torch.arange(12, dtype=torch.int32) % model.config.vocab_size
    capped_config = Gemma3TextConfig(**{**model.config.to_dict(), "attn_logit_softcapping": 2.0})
    capped = Gemma3ForCausalLM._from_config(capped_config, attn_implementation="eager").eval()
    capped.load_state_dict(model.state_dict(), strict=True)
    base = run_cold(model, tokens).logits
    ignored = torch.equal(run_cold(capped, tokens).logits, base)
    checks.true("attn_logit_softcapping in the config has no effect", ignored)
    with torch.no_grad():
        forced = model(input_ids=tokens[None].long(), softcap=2.0).logits[0]
    checks.differs("softcap=2.0 passed to forward has an effect", forced, base)
    ours = reference.parse_config(model.config.to_dict())
    ours.attn_softcap = 2.0
    arrays = {name: as_array(tensor.float()) for name, tensor in weights.items()}
    logits, _ = reference.Gemma3Reference(ours, arrays).cold(tokens.numpy())
    checks.close("reference.py with attn_softcap equals that", logits, forced)
    return not ignored


def poisoned(cold, config, cut):
    """`cold` with everything a replay must not read replaced by NaN."""
    k = [torch.full_like(x, float("nan")) for x in cold.k]
    v = [torch.full_like(x, float("nan")) for x in cold.v]
    for index, kind in enumerate(config.layer_types):
        if kind == FULL:
            k[index][:cut] = cold.k[index][:cut]
            v[index][:cut] = cold.v[index][:cut]
    return Cold(torch.full_like(cold.logits, float("nan")), k, v)


def check_replay(model, ref, ref_kv, tokens, cold, cut, replayed, result, kind, checks):
    """Checks of one replay; `kind` is "exact" or "bounded"."""
    config = model.config
    window = config.sliding_window
    sliding = [i for i, t in enumerate(config.layer_types) if t == SLIDING]
    first_full = config.layer_types.index(FULL)
    after_full = [layer for layer in sliding if layer > first_full]
    low, start = max(0, cut - (window - 1)), cut - replayed
    equals_cold = replayed >= min(cut, len(sliding) * (window - 1))

    def same_windows(name, other):
        for layer in sliding:
            for a, b in zip(other[layer], result.windows[layer]):
                checks.close(name, a, b)

    # Which rows have to be right: sliding layer number j (from 0) gets exact
    # input from row start + j(W-1) on, and in every row when start is 0.
    for j, layer in enumerate(sliding):
        good = max(low, start + j * (window - 1)) if start else low
        for ours, theirs in zip(result.windows[layer], (cold.k[layer], cold.v[layer])):
            if good < cut:
                name = f"{kind}: window rows with exact input equal the cold rows"
                checks.close(name, ours[good - low :], theirs[good:cut])
            if j == 0:
                name = f"{kind}: all window rows of the first sliding layer equal the cold rows"
                checks.close(name, ours, theirs[low:cut])
    if equals_cold:
        checks.close(f"{kind}: logits equal the cold logits", result.logits, cold.logits[cut:])
    else:
        checks.differs(
            f"{kind}: window rows of the last sliding layer differ from the cold rows",
            result.windows[sliding[-1]][0],
            cold.k[sliding[-1]][low:cut],
        )
        checks.differs(
            f"{kind}: logits differ from the cold logits", result.logits, cold.logits[cut:]
        )

    # The second implementation.
    rebuilt, logits = ref.replay(tokens.numpy(), ref_kv, cut, replayed)
    checks.close(f"{kind}: reference.py has the same logits", logits, result.logits)
    same_windows(
        f"{kind}: reference.py has the same windows",
        {i: (rebuilt.k[i, low:cut], rebuilt.v[i, low:cut]) for i in sliding},
    )

    # Nothing but the full rows [0, cut) is read; and those are.
    clean = run_replay(model, tokens, poisoned(cold, config, cut), cut, replayed)
    same = torch.equal(clean.logits, result.logits)
    for layer in sliding:
        for a, b in zip(clean.windows[layer], result.windows[layer]):
            same = same and torch.equal(a, b)
    checks.true("NaN in every dropped row changes no bit", same)
    if after_full:
        changed = poisoned(cold, config, cut)
        changed.v[first_full][0] += 10.0
        other = run_replay(model, tokens, changed, cut, replayed)
        checks.differs(
            "a change of the stored full row 0 reaches the rebuilt windows",
            other.windows[after_full[0]][0],
            result.windows[after_full[0]][0],
        )

    # How the tokens are split into forwards does not matter.
    for chunk in (1, 3):
        split = run_replay(model, tokens, cold, cut, replayed, chunk=chunk)
        checks.close("in chunks of 1 and 3 tokens: same logits", split.logits, result.logits)
        same_windows("in chunks of 1 and 3 tokens: same windows", split.windows)

    # Recomputing and storing the full rows instead is not a replay.
    if start > 0 and after_full:
        wrong = run_replay(model, tokens, cold, cut, replayed, overwrite=True)
        checks.differs(
            "overwriting the full rows gives other logits than cold",
            wrong.logits,
            cold.logits[cut:],
        )


# --------------------------------------------------------------------------
# One model
# --------------------------------------------------------------------------


def lengths(window):
    return [1, window - 1, window, window + 1, 4 * window + 3]


def make_tokens(spec):
    longest = max(lengths(spec.meaning["sliding_window"]))
    drawn = generator(spec.seed, "tokens").integers(0, spec.meaning["vocab_size"], size=longest)
    return torch.from_numpy(drawn.astype(np.int32))


def make_model(spec, out):
    directory = out / spec.name
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*.safetensors*"):
        old.unlink()
    (directory / "config.json").write_text(json.dumps(spec.config, indent=2, sort_keys=True) + "\n")

    config = AutoConfig.from_pretrained(directory).get_text_config()
    model = Gemma3ForCausalLM._from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    weights = make_weights(spec, model)
    write_weights(directory, weights, spec.prefix, spec.shards)
    # Computed in float32 from the values on disk, whatever their type there.
    missing, unexpected = model.load_state_dict(
        {name: tensor.float() for name, tensor in weights.items()}, strict=False
    )
    assert not unexpected and missing in ([], ["lm_head.weight"])
    assert bool(missing) == config.tie_word_embeddings
    model.tie_weights()

    checks = Checks(spec.name)
    check_loading(spec, directory, model, weights, checks)

    window = config.sliding_window
    sliding = [i for i, kind in enumerate(config.layer_types) if kind == SLIDING]
    enough = len(sliding) * (window - 1)
    tokens = make_tokens(spec)
    counts = lengths(window)
    longest = max(counts)
    assert max(spec.cuts) > enough and max(spec.cuts) < longest

    fixture = {"tokens": tokens}
    ref = reference.Gemma3Reference.from_directory(directory)
    colds = {}
    for count in counts:
        cold = colds[count] = run_cold(model, tokens[:count])
        fixture[f"cold.{count}.logits"] = cold.logits
        for layer in range(config.num_hidden_layers):
            fixture[f"cold.{count}.k.{layer}"] = cold.k[layer]
            fixture[f"cold.{count}.v.{layer}"] = cold.v[layer]
        logits, kv = ref.cold(tokens[:count].numpy())
        checks.close("cold: reference.py has the same logits", logits, cold.logits)
        for layer in range(config.num_hidden_layers):
            checks.close("cold: reference.py has the same K", kv.k[layer], cold.k[layer])
            checks.close("cold: reference.py has the same V", kv.v[layer], cold.v[layer])
    cold = colds[longest]
    _, ref_kv = ref.cold(tokens.numpy())
    for count in counts:
        checks.close("cold: runs of different lengths agree on their rows",
                     colds[count].logits, cold.logits[:count])
    spread = cold.logits.std(dim=-1).min().item()
    checks.true("logits are far from flat (std > 1 in every row)", spread > 1.0)
    check_windowing(model, tokens, checks)
    softcap_supported = check_softcap(model, weights, checks)

    replays = []
    for cut in spec.cuts:
        plans = [("exact", min(cut, enough), f"exact.{cut}")]
        sizes = {min(window, cut)}
        if window + 3 < min(cut, enough):
            sizes.add(window + 3)
        plans += [("bounded", size, f"bounded.{cut}.{size}") for size in sorted(sizes)]
        for kind, replayed, key in plans:
            result = run_replay(model, tokens, cold, cut, replayed)
            fixture[f"{key}.logits"] = result.logits
            for layer, (k, v) in result.windows.items():
                fixture[f"{key}.window.{layer}.k"] = k
                fixture[f"{key}.window.{layer}.v"] = v
            check_replay(model, ref, ref_kv, tokens, cold, cut, replayed, result, kind, checks)
            replays.append({
                "key": key,
                "kind": kind,
                "H": cut,
                "R": replayed,
                "start": cut - replayed,
                "window_first_row": max(0, cut - (window - 1)),
                "equals_cold": replayed >= min(cut, enough),
            })

    weight_files = sorted(p.name for p in directory.glob("model*.safetensors"))
    metadata = {
        "format_version": "1",
        "generator": "generate.py",
        "model": spec.name,
        "window": window,
        "layer_types": config.layer_types,
        "sliding_layers": sliding,
        "full_layers": [i for i in range(config.num_hidden_layers) if i not in sliding],
        "E": enough,
        "N": counts,
        "Nmax": longest,
        "cuts": spec.cuts,
        "R": {r["key"]: r["R"] for r in replays},
        "replays": replays,
        "dtype_compute": "float32",
        "tolerance": "max |a - b| / max |b| <= 1e-5 per tensor",
        "dtype_weights": str(spec.dtype).removeprefix("torch."),
        "tensor_prefix": spec.prefix,
        "seed": spec.seed,
        "sha256": {name: sha256(directory / name) for name in weight_files},
        "sha256_config": sha256(directory / "config.json"),
        "attn_softcap_supported": softcap_supported,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "license": "Apache-2.0",
        **spec.notes,
    }
    text = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in metadata.items()
    }
    for name, tensor in fixture.items():
        assert name == "tokens" or (tensor.dtype == torch.float32 and tensor.isfinite().all()), name
    path = directory / "fixture.safetensors"
    tensors = {name: tensor.contiguous() for name, tensor in fixture.items()}
    safetensors.torch.save_file(tensors, path, metadata=text)
    sort_header(path)
    checks.worst["smallest std of a row of logits"] = spread
    return checks.worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True, type=Path, help="directory to write to")
    parser.add_argument("--only", nargs="*", help="names of the models to make (default: all)")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"python {sys.version.split()[0]}, torch {torch.__version__}, "
          f"transformers {transformers.__version__}, numpy {np.__version__}, "
          f"safetensors {safetensors.__version__}")

    total = 0
    for spec in make_specs():
        if args.only and spec.name not in args.only:
            continue
        numbers = make_model(spec, args.out)
        print(f"\n{spec.name}: all checks passed")
        for name, value in numbers.items():
            shown = "yes" if value is True else f"{value:.2e}"
            print(f"  {shown:>9}  {name}")
        for path in sorted((args.out / spec.name).iterdir()):
            print(f"  {path.stat().st_size:>9}  {spec.name}/{path.name}  {sha256(path)[:16]}")
            total += path.stat().st_size
    print(f"\ntotal {total} bytes")


if __name__ == "__main__":
    main()
