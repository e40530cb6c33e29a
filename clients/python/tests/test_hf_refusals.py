# SPDX-License-Identifier: Apache-2.0
"""What torpor.hf refuses, and by which name. Skipped without torch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import hf_models as tiny
import torpor
from daemon import Daemon
from hf_models import Session, torch, transformers

hf = pytest.importorskip("torpor.hf")
from torpor.hf import _cache  # noqa: E402

IMAGE = 250


@pytest.fixture
def bound(daemon: Daemon) -> Any:
    return hf.register(daemon.connect(), tiny.tiny_model("gemma3"), "tiny")


def test_caches_that_are_not_the_sessions(bound: Any) -> None:
    model = bound.model
    one = tiny.slept(model, 5, steps=1)

    def refused(text: str, cache: Any, ids: Any = one.ids) -> None:
        with pytest.raises(torpor.InvalidArgument, match=text):
            bound.suspend(cache, ids, "s")

    refused("wanted at least the 150", one.cache, one.ids[:100])
    refused("got 0 layers", transformers.DynamicCache())
    refused("layer 0 has 0 tokens|got 0|above 0", Session(model, []).cache)
    half = tiny.tiny_model("gemma3", torch.bfloat16)
    refused("layer 0 is torch.bfloat16", tiny.slept(half, 5, 1).cache)
    # As wide as the one that is wanted.
    other = tiny.tiny_model("gemma3", torch.float16)
    daemon = bound.client
    half_bound = hf.register(daemon, half, "half")
    with pytest.raises(torpor.InvalidArgument, match="is torch.float16"):
        half_bound.suspend(tiny.slept(other, 5, 1).cache, one.ids, "s")
    narrow = tiny.tiny_model("gemma3", num_key_value_heads=1)
    refused("has rows of 128 bytes", tiny.slept(narrow, 5, 1).cache)

    def changed(change: Any) -> Any:
        cache = copy.deepcopy(one.cache)
        change(cache)
        return cache

    def two(cache: Any) -> None:
        cache.batch_repeat_interleave(2)

    def shorter(cache: Any) -> None:
        cache.layers[2].crop(-1)

    def hole(cache: Any) -> None:
        cache.layers[3].keys = cache.layers[3].keys[:, :, 1:]

    def offloads(cache: Any) -> None:
        cache.offloading = True

    def foreign(cache: Any) -> None:
        cache.layers[1] = transformers.cache_utils.DummyLayer()

    refused("a batch of 2", changed(two))
    refused("layer 2 has 149 tokens, wanted the 150", changed(shorter))
    refused("'layer.3.k' holds rows from 144 on, wanted from 143", changed(hole))
    refused("offloaded", changed(offloads))
    refused("layer 1 is a DummyLayer", changed(foreign))
    layers = transformers.cache_utils.Cache(layers=one.cache.layers)
    refused("got a Cache, wanted a DynamicCache or StaticCache", layers)
    both = transformers.EncoderDecoderCache(one.cache, one.cache)
    refused("got a EncoderDecoderCache", both)

    receipt = bound.suspend(one.cache, one.ids, "s")
    awake = bound.resume("s")
    other_ids = [*one.ids]
    other_ids[3] ^= 1
    with pytest.raises(torpor.InvalidArgument, match="151 tokens of the session"):
        bound.suspend(one.cache, other_ids, "s", after=awake)
    with pytest.raises(torpor.Aborted):
        bound.suspend(one.cache, one.ids, "s")
    assert receipt.version == 1


def test_caches_that_nothing_can_wake_in(bound: Any) -> None:
    one = tiny.slept(bound.model, 6, steps=1)
    bound.suspend(one.cache, one.ids, "s")

    def refused(text: str, cache: Any) -> None:
        with pytest.raises(torpor.InvalidArgument, match=text):
            bound.resume("s", into=cache)

    config = bound.model.config
    refused("layer 0 has 150 tokens, wanted an empty one", one.cache)
    refused("got 0 layers", transformers.DynamicCache())
    for other, kind in (
        (tiny.config_of("llama"), "DynamicLayer"),
        (tiny.config_of("gemma3", sliding_window=9), "DynamicSlidingWindowLayer"),
    ):
        refused(
            f"layer 0 is a {kind} of another window than the model's, 8",
            transformers.DynamicCache(config=other),
        )
    cache = transformers.StaticCache(config=other, max_cache_len=150)
    refused("layer 0 is a StaticSlidingWindowLayer of another window", cache)
    short = transformers.StaticCache(config=config, max_cache_len=149)
    refused("layer 2 has room for 149 tokens, wanted 150", short)
    # Nothing of it was written.
    assert not any(layer.is_initialized for layer in short.layers)
    bound.resume("s", into=transformers.StaticCache(config=config, max_cache_len=150))


def test_ways_that_are_none(bound: Any) -> None:
    one = tiny.slept(bound.model, 7, steps=1)
    bound.suspend(one.cache, one.ids, "s")
    with pytest.raises(torpor.InvalidArgument, match="executor: got 'gpu'"):
        bound.resume("s", executor="gpu")
    with pytest.raises(torpor.InvalidArgument, match="'snapshot' of the engine"):
        bound.resume("s", executor="engine")
    with pytest.raises(torpor.FailedPrecondition, match="cannot replay it"):
        bound.resume("s", mode="exact")
    bound.model.train()
    with pytest.raises(torpor.FailedPrecondition, match="training mode"):
        bound.resume("s", mode="exact", executor="engine")
    assert bound.client.stats().open_leases == 0


def test_rope_that_follows_the_length(daemon: Daemon) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = tiny.tiny_model("mistral", rope_parameters=rope)
    bound = hf.register(daemon.connect(), model, "tiny")
    one = tiny.slept(model, 8)
    bound.suspend(one.cache, one.ids, "s")
    tiny.same_caches(bound.resume("s").cache, one.cache)
    with pytest.raises(torpor.FailedPrecondition, match="rope type 'dynamic'"):
        bound.resume("s", mode="exact", executor="engine")


SMALL: dict[str, Any] = {
    "vocab_size": 16,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            transformers.Llama4TextConfig(
                **SMALL, num_local_experts=1, pad_token_id=0
            ),
            "layer 0 is 'chunked_attention'",
        ),
        (
            transformers.Qwen3NextConfig(
                **SMALL, layer_types=["linear_attention", "full_attention"]
            ),
            "layer 0 is 'linear_attention'",
        ),
        (
            transformers.RecurrentGemmaConfig(**SMALL, lru_width=16),
            "layer 0 is 'linear_attention'",
        ),
        (
            transformers.Gemma3TextConfig(**SMALL, use_bidirectional_attention=True),
            "bidirectional",
        ),
        (
            transformers.Gemma4TextConfig(
                **SMALL,
                layer_types=["full_attention"] * 2,
                num_kv_shared_layers=1,
                pad_token_id=0,
            ),
            "layer 1: its cache is a DummyLayer",
        ),
        (transformers.MistralConfig(**SMALL, sliding_window=1), "wanted 2 or more"),
    ],
    ids=lambda c: getattr(c, "model_type", ""),
)
def test_models_that_are_more_than_full_and_sliding(
    daemon: Daemon, config: Any, text: str
) -> None:
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(torpor.InvalidArgument, match=text):
        hf.register(daemon.connect(), model, "m")


def test_models_that_run_otherwise(daemon: Daemon) -> None:
    client = daemon.connect()
    both = transformers.T5Config(
        vocab_size=16, d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2
    )
    with pytest.raises(torpor.InvalidArgument, match="is_encoder_decoder"):
        hf.register(client, transformers.T5ForConditionalGeneration(both), "m")
    short = tiny.tiny_model("gemma3")
    short.model.layers = short.model.layers[:-1]
    with pytest.raises(torpor.InvalidArgument, match="layer 5: a forward left its"):
        hf.register(client, short, "m")
    with pytest.raises(torpor.InvalidArgument, match="dtype: got torch.float64"):
        hf.register(client, tiny.tiny_model("llama", torch.float64), "m")
    model = tiny.tiny_model("llama")
    model.hf_device_map = {"model.layers.0": 0, "model.layers.1": 1}
    with pytest.raises(torpor.InvalidArgument, match="got 2 devices"):
        hf.register(client, model, "m")


def test_embeddings_that_are_given(bound: Any) -> None:
    model = bound.model
    ids = torch.tensor([tiny.prompt_of(9, 20)])
    one = Session(model, ids[0].tolist())
    with torch.no_grad():
        embeds = model.get_input_embeddings()(ids[:, :-1])
        model(inputs_embeds=embeds, cache=one.cache)
    one.step()
    for cache in (one.cache, copy.deepcopy(one.cache)):
        with pytest.raises(torpor.InvalidArgument, match="filled it from inputs_emb"):
            bound.suspend(cache, one.ids, "s")
    with torch.no_grad():
        made = model(inputs_embeds=embeds, use_cache=True).cache
    with pytest.raises(torpor.InvalidArgument, match="filled it from inputs_embeds"):
        bound.suspend(made, one.ids, "s")


def test_a_cache_that_is_used_again(bound: Any) -> None:
    model = bound.model
    cache = transformers.StaticCache(config=model.config, max_cache_len=64)
    ids = tiny.prompt_of(13, 20)
    with torch.no_grad():
        embeds = model.get_input_embeddings()(torch.tensor([ids]))
        model(inputs_embeds=embeds, cache=cache)
    cache.reset()
    one = Session(model, ids, cache)
    one.step()
    bound.suspend(cache, one.ids, "s")
    for given in (embeds[:, :2], None):
        with torch.no_grad():
            if given is None:
                one.ids += [4, 4, 4]
                one.step()
            else:
                model(inputs_embeds=given, cache=cache)
        with pytest.raises(torpor.InvalidArgument, match="filled it from inputs_emb"):
            bound.suspend(cache, one.ids + [1, 2, 3], "t")
    cache.reset()
    bound.resume("s", into=cache)
    bound.suspend(cache, ids + [5], "u")


def test_images(daemon: Daemon) -> None:
    """A model that sees images sleeps while it has seen none."""
    text = tiny.config_of("gemma3")
    vision: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
    }
    config = transformers.Gemma3Config(
        text_config=text.to_dict(),
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_id=IMAGE,
        attn_implementation="eager",
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    tiny.with_weights(model)
    bound = hf.register(daemon.connect(), model, "sees")
    ids = [i % IMAGE for i in tiny.prompt_of(10)]
    one = Session(model, ids)
    one.step()
    bound.suspend(one.cache, one.ids, "text")
    tiny.same_caches(bound.resume("text").cache, one.cache)
    exact = bound.resume("text", mode="exact", executor="engine")
    assert tiny.window_error(exact.cache, one.cache) < 1e-5
    with pytest.raises(torpor.InvalidArgument, match="250 at 151 is the config's im"):
        bound.suspend(one.cache, one.ids + [IMAGE], "s")

    seen = [7, *[IMAGE] * 4, 9, 11]
    cache = transformers.DynamicCache(config=config)
    with torch.no_grad():
        model(
            input_ids=torch.tensor([seen]),
            token_type_ids=torch.tensor([[int(i == IMAGE) for i in seen]]),
            pixel_values=torch.randn(1, 3, 8, 8, generator=torch.manual_seed(1)),
            cache=cache,
        )
    with pytest.raises(torpor.InvalidArgument, match="filled it from pixel_values"):
        bound.suspend(cache, seen, "s")


def test_tokens_that_are_more_than_their_ids(bound: Any) -> None:
    one = tiny.slept(bound.model, 12, steps=1)
    layout = bound.registered.layout
    n = len(one.ids) - 1
    rows = _cache.sources(one.cache, layout, n, torch.float32)
    image = torpor.ExtraKeySpan(100, 130, b"image")
    spec = torpor.SuspendSpec(
        "s", "tiny", one.ids, kv_len=n, with_snapshot=True, extra_keys=[image]
    )
    bound.client.suspend(spec, rows)
    tiny.same_caches(bound.resume("s").cache, one.cache)
    with pytest.raises(torpor.FailedPrecondition, match=r"\[100, 130\) are more"):
        bound.resume("s", mode="exact", executor="engine")
    # A window that is made of later tokens does not see them.
    bound.resume("s", mode="bounded", executor="engine")
    assert bound.client.stats().open_leases == 0


def test_the_digest_is_of_weights_and_rope(daemon: Daemon, tmp_path: Path) -> None:
    client = daemon.connect()
    hf.register(client, tiny.tiny_model("llama"), "m")
    hf.register(client, tiny.tiny_model("llama"), "m")
    model = tiny.tiny_model("llama")
    with torch.no_grad():
        model.model.norm.weight[3] += 1
    with pytest.raises(torpor.AlreadyExists, match="weights"):
        hf.register(client, model, "m")
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    with pytest.raises(torpor.AlreadyExists, match="rope"):
        hf.register(client, tiny.tiny_model("llama", rope_parameters=rope), "m")


def test_a_tenant_takes_what_an_operator_registered() -> None:
    daemon = Daemon()
    daemon.only_tenants(operator="secret", a="token of a")
    model = tiny.tiny_model("gemma3")
    try:
        daemon.start()
        tenant = daemon.connect(token="token of a")
        with pytest.raises(torpor.PermissionDenied, match="operator"):
            hf.register(tenant, model, "tiny")
        hf.register(daemon.connect(token="secret"), model, "tiny")
        one = tiny.slept(model, 5, steps=1)
        hf.register(tenant, model, "tiny").suspend(one.cache, one.ids, "s")
        awake = hf.register(tenant, copy.deepcopy(model), "tiny").resume("s")
        tiny.same_caches(awake.cache, one.cache)
        # Neither other weights, nor other rows, under that name.
        torch.manual_seed(9)
        other = transformers.AutoModelForCausalLM.from_config(model.config)
        with pytest.raises(torpor.FailedPrecondition, match="fingerprint.weights"):
            hf.register(tenant, other.eval(), "tiny")
        half = tiny.tiny_model("gemma3", torch.bfloat16)
        with pytest.raises(torpor.FailedPrecondition, match="fingerprint.kv_dtype"):
            hf.register(tenant, half, "tiny", directory="anything")
    finally:
        daemon.close()
