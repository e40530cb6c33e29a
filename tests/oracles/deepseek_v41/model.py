# SPDX-License-Identifier: Apache-2.0
"""Writes tiny model directories of the DeepSeek-V4.1 text model with random seeded weights:
config.json, engram.json, model.safetensors (release tensor names) and ids.json."""
import json
import os

import numpy as np

import formats as fm

CASES = ["plain", "no_engram", "ratio1", "release"]


def text_config(case):
    cfg = {
        "model_type": "deepseek_v41_text", "vocab_size": 160, "hidden_size": 64,
        "num_hidden_layers": 11, "max_position_embeddings": 8192,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64,
        "qk_rope_head_dim": 16, "q_lora_rank": 32, "o_groups": 2, "o_lora_rank": 16,
        "sliding_window": 8, "compress_ratios": [0, 0, 2, 2, 2, 2, 2, 1, 1, 1, 1],
        "kv_source_layer_ids": [2, 5, 7], "index_source_layer_ids": [2, 5, 7, 9],
        "candidate_source_layer_id": 7, "candidate_topk_blocks": 3, "candidate_block_size": 4,
        "index_n_heads": 4, "index_head_dim": 32, "index_topk": 6,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "moe_intermediate_size": 32, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
        "norm_topk_prob": True, "routed_scaling_factor": 1.5, "swiglu_limit": 1.5,
        "hidden_act": "silu", "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
        "engram_layer_ids": [1, 5], "engram_num_embeddings": [0, 0], "engram_max_ngram_size": 4,
        "engram_n_heads": 2, "engram_head_dim": 32, "engram_vocab_size": 100,
        "engram_compressed_vocab_size": 120, "engram_pad_token_id": 2,
        "rms_norm_eps": 1e-20, "rope_theta": 10000.0, "compress_rope_theta": 160000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                         "original_max_position_embeddings": 512},
        "num_nextn_predict_layers": 0, "attention_bias": False, "tie_word_embeddings": False,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
    }
    if case == "plain":
        cfg["gate_temp"] = 1.0
    if case == "no_engram":
        cfg["engram_layer_ids"] = []
    if case == "ratio1":
        cfg.update(num_hidden_layers=4, compress_ratios=[0, 1, 1, 1], kv_source_layer_ids=[1],
                   index_source_layer_ids=[1], engram_layer_ids=[1])
        for key in ("candidate_source_layer_id", "candidate_topk_blocks", "candidate_block_size"):
            del cfg[key]
    if case == "release":
        cfg.update(moe_intermediate_size=64, o_lora_rank=32)
    return cfg


TOKENS = {"plain": 96, "no_engram": 41, "ratio1": 30, "release": 40}
SEED = {"plain": 5083, "no_engram": 6027, "ratio1": 7083, "release": 8041}   # see margins.py


def is_prime(n):
    return n > 1 and all(n % k for k in range(2, int(n ** 0.5) + 1))


def engram_spec(cfg, rng):
    """Side file of facts 13; multipliers, primes and offsets by the rule of facts 2.11."""
    vocab, small = cfg["vocab_size"], cfg["engram_compressed_vocab_size"]
    merged = set(rng.choice(np.arange(3, vocab), vocab - small - 1, replace=False).tolist())
    merged.add(1)                          # token 1 shares the class of token 0, so pad is 1
    token_map, count = [], 0
    for t in range(vocab):
        if t in merged:
            token_map.append(int(rng.integers(0, count)))
        else:
            token_map.append(count)
            count += 1
    assert count == small
    orders, heads = cfg["engram_max_ngram_size"] - 1, cfg["engram_n_heads"]
    bound = (2 ** 63 - 1) // small // 2
    candidate = cfg["engram_vocab_size"] - 1
    multipliers, primes, offsets = [], [], []
    for layer in cfg["engram_layer_ids"]:
        draw = np.random.default_rng(10007 * layer).integers(
            0, bound, size=cfg["engram_max_ngram_size"], dtype=np.int64)
        multipliers.append([int(v) * 2 + 1 for v in draw])
        rows = []
        for _ in range(orders * heads):
            candidate += 1
            while not is_prime(candidate):
                candidate += 1
            rows.append(candidate)
        primes.append([rows[heads * n: heads * (n + 1)] for n in range(orders)])
        offsets.append([sum(rows[:k]) for k in range(len(rows))])
    cfg["engram_num_embeddings"] = [sum(map(sum, p)) for p in primes]
    return {"token_map": token_map, "compressed_vocab_size": small,
            "pad_compressed_id": token_map[cfg["engram_pad_token_id"]],
            "layer_ids": cfg["engram_layer_ids"], "multipliers": multipliers, "primes": primes,
            "offsets": offsets}


def random_weights(cfg, rng):
    """float64 weights by release name. A direction `c` common to all embeddings keeps index
    weights mostly positive, so that scores are rarely tied at zero."""
    d, nh, dim = cfg["hidden_size"], cfg["num_attention_heads"], cfg["head_dim"]
    qr, hc = cfg["q_lora_rank"], cfg["hc_mult"]
    ni, di = cfg["index_n_heads"], cfg["index_head_dim"]
    groups, orank = cfg["o_groups"], cfg["o_lora_rank"]
    inter, experts = cfg["moe_intermediate_size"], cfg["n_routed_experts"]
    c = rng.choice([-1.0, 1.0], d)
    w = {}

    def lin(out, inp, gain=1.0, keep=1.0):
        a = rng.standard_normal((out, inp)) * gain / np.sqrt(inp)
        if keep < 1.0:
            a -= (1 - keep) * np.outer(a @ c, c) / d
        return a

    def norm(n, spread=0.15):
        return 1.0 + spread * rng.standard_normal(n)

    w["embed.weight"] = rng.standard_normal((cfg["vocab_size"], d)) + c
    w["head.weight"] = lin(cfg["vocab_size"], d, 1.5)
    w["norm.weight"] = norm(d)
    for i in range(cfg["num_hidden_layers"]):
        p = f"layers.{i}."
        w[p + "attn_norm.weight"] = norm(d)
        w[p + "ffn_norm.weight"] = norm(d)
        for site in ("attn", "ffn"):
            w[p + f"hc_{site}_fn"] = lin(24, hc * d)
            base = rng.standard_normal(24) * 0.5
            base[8:] *= 2
            w[p + f"hc_{site}_base"] = base
            w[p + f"hc_{site}_scale"] = rng.uniform(0.5, 1.2, 3)
        a = p + "attn."
        w[a + "wq_a.weight"] = lin(qr, d, 1.0, 0.6)
        w[a + "q_norm.weight"] = norm(qr)
        w[a + "wq_b.weight"] = lin(nh * dim, qr, 1.6)
        w[a + "wkv.weight"] = lin(dim, d, 1.0, 0.4)
        w[a + "kv_norm.weight"] = norm(dim) * np.exp(0.3 * rng.standard_normal(dim))
        w[a + "wo_a.weight"] = lin(groups * orank, nh * dim // groups, 1.2)
        w[a + "wo_b.weight"] = lin(d, groups * orank, 0.9)
        w[a + "attn_sink"] = 0.5 + rng.standard_normal(nh)
        if i in cfg["kv_source_layer_ids"]:
            w[a + "compressor.wkv.weight"] = lin(dim, d, 1.0, 0.5)
            if cfg["compress_ratios"][i] == 2:
                w[a + "compressor.wgate.weight"] = lin(dim, d, 1.8)
            n = norm(dim) * np.exp(0.2 * rng.standard_normal(dim))
            # block 1: E4M3 scales in the subnormal range; half of block 0 and the rope block:
            # ordinary; block 2: near the 2^-9 floor at the first source only
            n[16:32] *= 0.02
            if i == cfg["kv_source_layer_ids"][0]:
                n[32:48] *= 0.0035
            w[a + "compressor.norm.weight"] = n
            w[a + "indexer.wk.weight"] = lin(di, dim, 1.2)
            w[a + "indexer.k_norm.weight"] = norm(di)
        if i in cfg["index_source_layer_ids"]:
            q = lin(ni * di, qr, 1.3)
            for h in range(1, ni, 2):          # odd heads roughly oppose the head before them,
                mine, other = np.s_[h * di: (h + 1) * di], np.s_[(h - 1) * di: h * di]
                q[mine] = 0.4 * q[mine] - 0.9 * q[other]     # so some head is always positive
            w[a + "indexer.wq_b.weight"] = q
            w[a + "indexer.weights_proj.weight"] = lin(ni, d, 0.6, 0.0) + 0.9 * c / d
        f = p + "ffn."
        w[f + "gate.weight"] = lin(experts, d, 1.6, 0.0)
        w[f + "gate.bias"] = 0.15 * rng.standard_normal(experts)
        w[f + "gate.bias_vl"] = rng.standard_normal(experts)
        for name in [f"experts.{e}" for e in range(experts)] + ["shared_experts"]:
            w[f + name + ".w1.weight"] = lin(inter, d, 1.4, 0.7)
            w[f + name + ".w2.weight"] = lin(d, inter, 0.8)
            w[f + name + ".w3.weight"] = lin(inter, d, 1.4, 0.7)
    for k, i in enumerate(cfg["engram_layer_ids"]):
        e = f"layers.{i}.engram."
        width = (cfg["engram_max_ngram_size"] - 1) * cfg["engram_n_heads"] * cfg["engram_head_dim"]
        w[e + "wkv.weight"] = lin((hc + 1) * d, width, 1.3)
        w[e + "q_weight"] = norm((hc, d), 0.3)
        w[e + "k_weight"] = norm((hc, d), 0.3)
        w[e + "embed.weight"] = rng.standard_normal(
            (cfg["engram_num_embeddings"][k], cfg["engram_head_dim"]))
    return w


FP8_LINEARS = ("attn.wq_a", "attn.wq_b", "attn.wkv", "attn.wo_a", "attn.wo_b",
               "attn.indexer.wq_b", "shared_experts.w1", "shared_experts.w2", "shared_experts.w3",
               "engram.wkv")


def store_release(weights, rng):
    """The release's formats: FP8 32x32, MXFP4 experts, FP8 Engram rows, bf16 and fp32 rest."""
    out = {}
    for name, w in weights.items():
        base = name[: -len(".weight")] if name.endswith(".weight") else name
        if ".ffn.experts." in name:
            rec = fm.mxfp4_encode(w)
            half = w.shape[1] // 2
            out[name] = ("U8", rec[:, :half])
            out[base + ".scale"] = ("F8_E8M0", rec[:, half:])
        elif name.endswith("engram.embed.weight"):
            w = w * np.exp2(rng.integers(-2, 3, (w.shape[0], 1)))     # vary the scales
            rec = fm.fp8_encode(w)
            out[name] = ("F8_E4M3", rec[:, : w.shape[1]])
            out[base + ".scale"] = ("F8_E8M0", rec[:, w.shape[1]:])
        elif base.endswith(FP8_LINEARS) and ".compressor." not in name:
            q, s = fm.fp8_weight_encode(w)
            out[name] = ("F8_E4M3", q)
            out[base + ".scale"] = ("F8_E8M0", s)
        elif ".hc_" in name or "attn_sink" in name or "gate.bias" in name or (
                name.endswith("compressor.wkv.weight")
                and name.replace("wkv", "wgate") in weights):
            out[name] = ("F32", w.astype(np.float32))
        else:
            out[name] = ("BF16", fm.bf16_bits(w))
    return out


def prompt(case, spec, rng):
    """Random ids with repeated phrases; no token of the pad's compressed class appears."""
    n = TOKENS[case]
    allowed = [t for t, c in enumerate(spec["token_map"]) if c != spec["pad_compressed_id"]]
    ids = rng.choice(allowed, n)
    if n >= 40:
        ids[20:26] = ids[4:10]                     # repeated n-grams
        ids[n - 9: n - 5] = ids[11:15]
    return [int(t) for t in ids]


def write_model(case, folder, seed=None):
    rng = np.random.default_rng(SEED[case] if seed is None else seed)
    cfg = text_config(case)
    spec = engram_spec(cfg, rng)
    weights = random_weights(cfg, rng)
    if case == "release":
        tensors = store_release(weights, rng)
    else:
        tensors = {k: ("F32", v.astype(np.float32)) for k, v in weights.items()}
    top = {"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41",
           "text_config": cfg}
    if case == "release":
        top["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0",
                                      "activation_scheme": "dynamic",
                                      "weight_block_size": [32, 32]}
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(top, f, indent=1)
    if cfg["engram_layer_ids"]:
        with open(os.path.join(folder, "engram.json"), "w") as f:
            json.dump(spec, f)
    fm.save(os.path.join(folder, "model.safetensors"), tensors)
    with open(os.path.join(folder, "ids.json"), "w") as f:
        json.dump(prompt(case, spec, rng), f)


if __name__ == "__main__":
    import sys
    for name in sys.argv[2:] or CASES:
        write_model(name, os.path.join(sys.argv[1], name))
