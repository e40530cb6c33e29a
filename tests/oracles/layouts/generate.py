"""python generate.py [only_regex] -> fixtures.json, hf_errors.json (see README.md)"""
import copy, json, re, sys, time, traceback
from measure import measure, torch, transformers

S, F, K = "sliding_attention", "full_attention", "chunked_attention"
C = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
         head_dim=16, vocab_size=128, max_position_embeddings=131072, pad_token_id=0, eos_token_id=1, bos_token_id=2,
         torch_dtype="bfloat16")
DROP = object()
CASES = []


def mk(base, over):
    d = copy.deepcopy(base)
    for k, v in over.items():
        if v is DROP:
            d.pop(k, None)
        elif "." in k:
            a, b = k.split(".", 1)
            d[a] = mk(d.get(a, {}), {b: v})
        else:
            d[k] = v
    return d


def family(mt, base, variants, prefix=None):
    for name, over, *note in variants:
        CASES.append((f"{prefix or mt}/{name}", mk(dict(base, model_type=mt), over), list(note)))


def text(base, mt):
    """the inner dict: everything but the dtype"""
    d = {k: v for k, v in base.items() if k != "torch_dtype"}
    d["model_type"] = mt
    return d


SMALLHEADS = dict(num_attention_heads=2, num_key_value_heads=1, head_dim=16, hidden_size=32)

# ---------------------------------------------------------------- gemma2
G2 = dict(C, sliding_window=8, query_pre_attn_scalar=16, hidden_activation="gelu_pytorch_tanh")
family("gemma2", G2, [
    ("base", {}),
    ("class-defaults-heads-dim", dict(num_attention_heads=DROP, num_key_value_heads=DROP, head_dim=DROP)),
    ("sliding_window-absent", dict(SMALLHEADS, sliding_window=DROP, num_hidden_layers=3)),
    ("layer_types-odd", dict(layer_types=[F, F, S, F, S, S], sliding_window=5)),
    ("head_dim-not-hidden-over-heads", dict(head_dim=24, num_hidden_layers=7)),
    ("kv-heads-absent", dict(num_attention_heads=8, num_key_value_heads=DROP)),
    ("sliding_window_size-also-present", dict(sliding_window_size=16)),
    ("dtype-float32", dict(torch_dtype="float32")),
    ("dtype-absent", dict(torch_dtype=DROP)),
    ("dtype-new-key", dict(torch_dtype=DROP, dtype="bfloat16", num_hidden_layers=5)),
    ("layer_types-all-full-window-null", dict(layer_types=[F] * 6, sliding_window=None)),
    ("sliding_window-null", dict(sliding_window=None)),
])
# ---------------------------------------------------------------- gemma3
G3 = dict(C, sliding_window=8, query_pre_attn_scalar=16, num_hidden_layers=8)
family("gemma3_text", G3, [
    ("pattern-derived", {}),
    ("sliding_window_pattern-3", dict(sliding_window_pattern=3)),
    ("_sliding_window_pattern-3", dict(_sliding_window_pattern=3)),
    ("layer_types-and-other-pattern", dict(layer_types=[S, F, S, S, F, S, S, S], _sliding_window_pattern=6, sliding_window_pattern=6)),
    ("layer_types-odd", dict(layer_types=[F, S, S, F, S, F, F, S], sliding_window=6)),
    ("layer_types-all-sliding", dict(layer_types=[S] * 8)),
    ("class-defaults-heads-dim", dict(num_attention_heads=DROP, num_key_value_heads=DROP, head_dim=DROP)),
    ("sliding_window-absent", dict(SMALLHEADS, sliding_window=DROP, num_hidden_layers=6)),
    ("sliding_window-null", dict(sliding_window=None)),
])
SIG = dict(model_type="siglip_vision_model", hidden_size=32, intermediate_size=32, num_hidden_layers=1,
           num_attention_heads=2, image_size=56, patch_size=14, vision_use_head=False)
N3 = dict(architectures=["Gemma3ForConditionalGeneration"], text_config=text(G3, "gemma3_text"), vision_config=SIG,
          mm_tokens_per_image=4, image_token_index=127, boi_token_index=126, eoi_token_index=125, torch_dtype="bfloat16")
family("gemma3", N3, [
    ("nested-outer-torch_dtype", {}),
    ("nested-outer-dtype-inner-float32", {"torch_dtype": DROP, "dtype": "bfloat16", "text_config.dtype": "float32"}),
    ("nested-inner-dtype-only", {"torch_dtype": DROP, "text_config.torch_dtype": "bfloat16"},
     "HF's from_config takes the outer dtype only"),
    ("nested-sparse-text_config", {"text_config.num_attention_heads": DROP, "text_config.num_key_value_heads": DROP,
                                   "text_config.head_dim": DROP, "text_config.max_position_embeddings": DROP}),
    ("nested-layer_types-odd", {"text_config.layer_types": [S, S, F, S, S, F, S, F]}),
])
# ---------------------------------------------------------------- gemma3n
G3N = dict(C, sliding_window=8, num_hidden_layers=10, num_kv_shared_layers=5, hidden_size_per_layer_input=8,
           vocab_size_per_layer_input=128, laurel_rank=8, altup_num_inputs=2)
V3N = [
    ("shared-5", {}),
    ("shared-4", dict(num_kv_shared_layers=4)),
    ("shared-0", dict(num_kv_shared_layers=0)),
    ("shared-absent-20-layers", dict(num_kv_shared_layers=DROP, num_hidden_layers=20)),
    ("shared-2-layer_types-odd", dict(num_hidden_layers=7, num_kv_shared_layers=2, layer_types=[F, S, S, F, S, S, F])),
    ("class-defaults-heads-dim", dict(num_attention_heads=DROP, num_key_value_heads=DROP, head_dim=DROP)),
    ("sliding_window-absent", dict(SMALLHEADS, sliding_window=DROP)),
    ("shared-absent-8-layers", dict(num_kv_shared_layers=DROP, num_hidden_layers=8)),
    ("shared-6-no-full-owner", dict(num_kv_shared_layers=6)),
]
family("gemma3n_text", G3N, V3N)
family("gemma3n", dict(architectures=["Gemma3nForConditionalGeneration"], text_config=text(G3N, "gemma3n_text"),
                       torch_dtype="bfloat16"), [
    ("nested-outer-dtype", {}),
    ("nested-10-shared-of-15", {"text_config.num_hidden_layers": 15, "text_config.num_kv_shared_layers": 10}),
])
# ---------------------------------------------------------------- gemma4
G4 = dict(C, sliding_window=8, global_head_dim=32, hidden_size_per_layer_input=0, num_global_key_value_heads=1,
          attention_k_eq_v=True, vocab_size_per_layer_input=128, dtype="bfloat16")
del G4["torch_dtype"]
family("gemma4_text", G4, [
    ("k_eq_v-global-heads-1", {}),
    ("k_eq_v-false-global-heads-ignored", dict(attention_k_eq_v=False)),
    ("k_eq_v-absent", dict(attention_k_eq_v=DROP)),
    ("global-heads-absent", dict(num_global_key_value_heads=DROP)),
    ("global-heads-null", dict(num_global_key_value_heads=None)),
    ("global_head_dim-absent", dict(global_head_dim=DROP)),
    ("pattern-derived-8-layers-last-forced-full", dict(num_hidden_layers=8)),
    ("layer_types-ends-sliding", dict(layer_types=[S, F, S, S, F, S])),
    ("layer_types-odd", dict(layer_types=[F, S, S, F, S, F])),
    ("shared-4-of-10", dict(num_hidden_layers=10, num_kv_shared_layers=4, layer_types=[S, S, F, S, F, S, S, F, S, F],
                            attention_k_eq_v=False, hidden_size_per_layer_input=8)),
    ("shared-4-k_eq_v", dict(num_hidden_layers=8, hidden_size_per_layer_input=8, num_kv_shared_layers=4, layer_types=[S, S, F, S, S, F, S, F])),
    ("shared-4-without-per-layer-input", dict(num_hidden_layers=8, num_kv_shared_layers=4, layer_types=[S, S, F, S, S, F, S, F])),
    ("class-defaults-heads-dim", dict(num_attention_heads=DROP, num_key_value_heads=DROP, head_dim=DROP,
                                      global_head_dim=DROP, num_global_key_value_heads=DROP, attention_k_eq_v=DROP)),
    ("sliding_window-absent", dict(SMALLHEADS, sliding_window=DROP)),
    ("vision-bidirectional", dict(use_bidirectional_attention="vision")),
])
G4V = dict(model_type="gemma4_vision", hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
           num_key_value_heads=2, head_dim=16, position_embedding_size=64)
family("gemma4", dict(architectures=["Gemma4ForConditionalGeneration"], text_config={**text(G4, "gemma4_text")},
                      vision_config=G4V, audio_config=None, dtype="bfloat16", image_token_id=127, video_token_id=126,
                      audio_token_id=125, boi_token_id=124, eoi_token_id=123, boa_token_id=122), [
    ("nested-both-dtypes", {}),
    ("nested-outer-dtype-shared", {"text_config.dtype": DROP, "text_config.hidden_size_per_layer_input": 8, "text_config.num_hidden_layers": 9,
                                   "text_config.num_kv_shared_layers": 3, "text_config.attention_k_eq_v": False,
                                   "text_config.layer_types": [S, S, F, S, S, F, S, S, F]}),
])
# ---------------------------------------------------------------- gpt_oss
GO = dict(C, sliding_window=8, num_local_experts=4, num_experts_per_tok=2)
family("gpt_oss", GO, [
    ("pattern-derived", {}),
    ("layer_types-odd", dict(layer_types=[F, S, S, S, F, S])),
    ("head_dim-absent", dict(head_dim=DROP)),
    ("head_dim-null", dict(head_dim=None)),
    ("kv-heads-absent", dict(num_attention_heads=8, num_key_value_heads=DROP)),
    ("sliding_window-absent", dict(SMALLHEADS, sliding_window=DROP, num_hidden_layers=3)),
    ("sliding_window-null", dict(sliding_window=None)),
])
# ---------------------------------------------------------------- mistral & ministral
MI = dict(C, sliding_window=8)
family("mistral", MI, [
    ("window", {}),
    ("window-null", dict(sliding_window=None)),
    ("window-absent", dict(SMALLHEADS, sliding_window=DROP, num_hidden_layers=3)),
    ("window_size-key-only", dict(SMALLHEADS, sliding_window=DROP, sliding_window_size=8, num_hidden_layers=3)),
    ("head_dim-absent", dict(head_dim=DROP, num_attention_heads=8)),
    ("head_dim-not-hidden-over-heads", dict(head_dim=24)),
    ("kv-heads-absent", dict(num_attention_heads=16, num_key_value_heads=DROP, head_dim=8)),
    ("layer_types-present-becomes-ministral", dict(layer_types=[F, S, S, S, F, S])),
    ("window-equals-max-positions", dict(sliding_window=16, max_position_embeddings=16),
     "window >= max_position_embeddings: HF still slides once the sequence is longer"),
    ("dtype-float16", dict(torch_dtype="float16", sliding_window=3)),
    ("window-1", dict(sliding_window=1)),
    ("window-0", dict(sliding_window=0)),
])
family("ministral", MI, [
    ("window-derived", {}),
    ("layer_types-interleaved", dict(layer_types=[F, S, S, S, F, S])),
    ("window-null", dict(sliding_window=None)),
    ("head_dim-absent", dict(head_dim=DROP)),
    ("head_dim-null", dict(head_dim=None)),
])
M3R = dict(rope_type="yarn", rope_theta=1000000.0, factor=16.0, original_max_position_embeddings=16384, beta_fast=32.0,
           beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1)
M3 = dict(C, sliding_window=None, rope_parameters=M3R, dtype="bfloat16")
del M3["torch_dtype"]
family("ministral3", M3, [
    ("window-null", {}),
    ("window-absent", dict(sliding_window=DROP)),
    ("window", dict(sliding_window=8)),
    ("window-layer_types-odd", dict(sliding_window=8, layer_types=[F, S, S, S, F, S])),
    ("class-defaults-heads-dim", dict(num_attention_heads=DROP, num_key_value_heads=DROP, head_dim=DROP)),
    ("head_dim-null", dict(head_dim=None)),
    ("nested-under-ministral3", dict(text_config=dict(text(M3, "ministral3"), num_hidden_layers=5, num_key_value_heads=4),
                                     num_hidden_layers=DROP, num_key_value_heads=DROP)),
])
PIX = dict(model_type="pixtral", hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
           head_dim=16, image_size=64, patch_size=16)
family("mistral3", dict(architectures=["Mistral3ForConditionalGeneration"], text_config=text(M3, "ministral3"),
                        vision_config=PIX, dtype="bfloat16", image_token_index=10), [
    ("nested-ministral3", {}),
    ("nested-ministral3-window", {"text_config.sliding_window": 8}),
])
# ---------------------------------------------------------------- phi3
P3 = {k: v for k, v in C.items() if k != "head_dim"}
P3.update(sliding_window=7, original_max_position_embeddings=4096, rope_scaling=None)
family("phi3", P3, [
    ("window-7", {}),
    ("window-2047", dict(sliding_window=2047, max_position_embeddings=4096, hidden_size=32, num_attention_heads=2,
                         num_key_value_heads=1, num_hidden_layers=2)),
    ("window-null", dict(sliding_window=None)),
    ("window-absent", dict(sliding_window=DROP)),
    ("kv-heads-absent", dict(num_key_value_heads=DROP)),
    ("head_dim-in-dict", dict(head_dim=24)),
    ("window-above-max-positions-longrope", dict(
        sliding_window=64, max_position_embeddings=32, original_max_position_embeddings=16,
        rope_scaling=dict(type="longrope", long_factor=[2.0] * 8, short_factor=[1.1] * 8)),
     "window >= max_position_embeddings: HF still slides once the sequence is longer"),
])
# ---------------------------------------------------------------- cohere2, olmo3
C2 = {k: v for k, v in C.items() if k != "head_dim"}
C2.update(sliding_window=8, num_hidden_layers=8)
family("cohere2", C2, [
    ("pattern-derived", {}),
    ("sliding_window_pattern-3", dict(sliding_window_pattern=3)),
    ("_sliding_window_pattern-3", dict(_sliding_window_pattern=3)),
    ("layer_types-odd", dict(layer_types=[F, S, S, S, F, S, F, F])),
    ("layer_types-and-pattern", dict(layer_types=[S, F] * 4, sliding_window_pattern=4)),
    ("head_dim-in-dict", dict(head_dim=32)),
    ("kv-heads-absent", dict(num_key_value_heads=DROP)),
    ("sliding_window-absent", dict(SMALLHEADS, head_dim=DROP, sliding_window=DROP, num_hidden_layers=4)),
    ("sliding_window-null", dict(sliding_window=None)),
])
O3 = dict(C2)
family("olmo3", O3, [
    ("pattern-derived", {}),
    ("layer_types-odd", dict(layer_types=[F, S, S, S, F, S, F, F])),
    ("sliding_window_pattern-3-ignored", dict(sliding_window_pattern=3)),
    ("kv-heads-absent", dict(num_key_value_heads=DROP)),
    ("head_dim-in-dict", dict(head_dim=32)),
    ("sliding_window-absent", dict(SMALLHEADS, head_dim=DROP, sliding_window=DROP, num_hidden_layers=4)),
    ("sliding_window-null", dict(sliding_window=None)),
])
# ---------------------------------------------------------------- llama, llama4
family("llama", C, [
    ("base", {}),
    ("head_dim-absent", dict(head_dim=DROP)),
    ("head_dim-not-hidden-over-heads", dict(head_dim=24)),
    ("kv-heads-absent", dict(num_key_value_heads=DROP)),
    ("kv-heads-null-head_dim-null", dict(num_key_value_heads=None, head_dim=None)),
    ("dtype-absent", dict(torch_dtype=DROP)),
    ("dtype-float16", dict(torch_dtype="float16")),
    ("stray-sliding_window", dict(sliding_window=8)),
])
L4 = dict(C, attention_chunk_size=8, num_hidden_layers=8, intermediate_size_mlp=64, num_local_experts=2,
          num_experts_per_tok=1, interleave_moe_layer_step=1)
family("llama4_text", L4, [
    ("interval-derived", {}),
    ("no_rope_layers-empty", dict(no_rope_layers=[])),
    ("no_rope_layers-explicit", dict(no_rope_layers=[1, 0, 1, 0, 0, 1, 1, 0])),
    ("no_rope_layer_interval-3", dict(no_rope_layer_interval=3)),
    ("chunk-null", dict(attention_chunk_size=None)),
    ("chunk-absent", dict(SMALLHEADS, attention_chunk_size=DROP, num_hidden_layers=4, num_attention_heads=1)),
    ("layer_types-odd", dict(layer_types=[F, K, K, F, K, F, F, K], attention_chunk_size=6)),
    ("class-defaults-heads-dim", dict(num_attention_heads=8, num_key_value_heads=DROP, head_dim=DROP)),
    ("head_dim-null", dict(head_dim=None)),
])
L4V = dict(model_type="llama4_vision_model", hidden_size=32, intermediate_size=128, num_hidden_layers=1,
           num_attention_heads=2, image_size=56, patch_size=14, vision_output_dim=32, projector_input_dim=32,
           projector_output_dim=32)
family("llama4", dict(architectures=["Llama4ForConditionalGeneration"], text_config=text(L4, "llama4_text"),
                      vision_config=L4V, torch_dtype="bfloat16", image_token_index=127, boi_token_index=126,
                      eoi_token_index=125), [
    ("nested-outer-dtype", {}),
    ("nested-inner-torch_dtype-no_rope-empty", {"text_config.torch_dtype": "bfloat16", "text_config.no_rope_layers": [],
                                                "text_config.num_hidden_layers": 5}),
])
# ---------------------------------------------------------------- qwen
Q = {k: v for k, v in C.items() if k != "head_dim"}
Q.update(sliding_window=8, max_window_layers=3, use_sliding_window=True)
QV = [
    ("use-false", dict(use_sliding_window=False)),
    ("use-absent", dict(use_sliding_window=DROP)),
    ("use-true-mwl-0", dict(max_window_layers=0)),
    ("use-true-mwl-3", {}),
    ("use-true-mwl-5", dict(max_window_layers=5)),
    ("use-true-mwl-equals-layers", dict(max_window_layers=6)),
    ("use-true-mwl-absent", dict(max_window_layers=DROP)),
    ("use-true-window-null", dict(sliding_window=None, max_window_layers=0)),
    ("use-true-window-absent", dict(SMALLHEADS, sliding_window=DROP, max_window_layers=1, num_hidden_layers=3)),
    ("use-true-layer_types-odd", dict(layer_types=[S, F, F, S, F, S])),
    ("use-false-layer_types-full", dict(use_sliding_window=False, layer_types=[F] * 6)),
    ("use-false-layer_types-sliding", dict(use_sliding_window=False, layer_types=[S, F, F, S, F, S])),
    ("kv-heads-null", dict(num_key_value_heads=None)),
    ("kv-heads-absent", dict(num_attention_heads=32, hidden_size=128, num_key_value_heads=DROP)),
]
family("qwen2", Q, QV + [("head_dim-in-dict", dict(head_dim=24))])
family("qwen3", dict(Q, head_dim=16), [v for v in QV if v[0] not in ("use-false-layer_types-full", "use-true-mwl-5")] + [
    ("head_dim-absent", dict(head_dim=DROP))])
QVL = dict(Q, rope_scaling=dict(type="mrope", mrope_section=[2, 3, 3]), image_token_id=127, video_token_id=126,
           vision_start_token_id=125, vision_end_token_id=124,
           vision_config=dict(model_type="qwen2_5_vl", depth=1, hidden_size=32, intermediate_size=32, num_heads=2,
                              out_hidden_size=64, fullatt_block_indexes=[0]))
family("qwen2_5_vl", QVL, [
    ("flat-use-false", dict(use_sliding_window=False)),
    ("flat-use-false-window-null", dict(use_sliding_window=False, sliding_window=None)),
    ("flat-use-true-mwl-3", {}),
    ("flat-mwl-absent", dict(max_window_layers=DROP)),
    ("flat-kv-heads-absent", dict(num_attention_heads=8, num_key_value_heads=DROP, rope_scaling=dict(type="mrope", mrope_section=[1, 1, 2]))),
])
family("qwen2_5_vl", dict(text_config=dict({k: v for k, v in Q.items() if k != "torch_dtype"}, model_type="qwen2_5_vl_text",
                                           rope_scaling=dict(type="mrope", mrope_section=[2, 3, 3])),
                          vision_config=dict(QVL["vision_config"], model_type="qwen2_5_vl_vision"), dtype="bfloat16",
                          image_token_id=127, video_token_id=126, vision_start_token_id=125, vision_end_token_id=124), [
    ("nested-use-true-mwl-2", {"text_config.max_window_layers": 2}),
    ("nested-use-false", {"text_config.use_sliding_window": False}),
])
# ---------------------------------------------------------------- exaone4, smollm3, starcoder2
E4 = dict(C, sliding_window=8, num_hidden_layers=8)
family("exaone4", E4, [
    ("pattern-derived", {}),
    ("sliding_window_pattern-3", dict(sliding_window_pattern=3)),
    ("LLLG-with-layer_types", dict(sliding_window_pattern="LLLG", layer_types=[S, S, S, F] * 2)),
    ("LLG-with-other-layer_types", dict(sliding_window_pattern="LLG", layer_types=[F, S, S, S, F, S, S, S])),
    ("window-null-layer_types-full", dict(sliding_window=None, layer_types=[F] * 8)),
    ("head_dim-absent", dict(head_dim=DROP)),
    ("kv-heads-absent", dict(num_attention_heads=32, num_key_value_heads=DROP, head_dim=4)),
    ("sliding_window-absent", dict(SMALLHEADS, sliding_window=DROP, num_hidden_layers=4)),
    ("LLLG-without-layer_types", dict(sliding_window_pattern="LLLG")),
    ("window-null-without-layer_types", dict(sliding_window=None)),
])
SM = {k: v for k, v in C.items() if k != "head_dim"}
SM.update(num_hidden_layers=8, sliding_window=None, use_sliding_window=False)
family("smollm3", SM, [
    ("base", {}),
    ("window-set-use-false", dict(sliding_window=8)),
    ("use-true-window-8", dict(use_sliding_window=True, sliding_window=8)),
    ("use-true-no_rope_layers-explicit", dict(use_sliding_window=True, sliding_window=8, no_rope_layers=[1, 0, 0, 1, 1, 0, 1, 1])),
    ("use-true-interval-3", dict(use_sliding_window=True, sliding_window=8, no_rope_layer_interval=3)),
    ("use-true-window-null", dict(use_sliding_window=True)),
    ("layer_types-odd", dict(use_sliding_window=True, sliding_window=8, layer_types=[S, F, S, F, F, F, S, S])),
    ("kv-heads-absent", dict(num_attention_heads=8, num_key_value_heads=DROP)),
    ("max_window_layers-present", dict(use_sliding_window=True, sliding_window=8, max_window_layers=2)),
])
SC = {k: v for k, v in C.items() if k != "head_dim"}
family("starcoder2", SC, [
    ("window-absent", {}),
    ("window-8", dict(sliding_window=8)),
    ("window-null", dict(sliding_window=None)),
    ("kv-heads-absent", dict(sliding_window=8, num_attention_heads=8, num_key_value_heads=DROP)),
    ("layer_types-odd", dict(sliding_window=8, layer_types=[F, S, S, F, S, F])),
])
# ---------------------------------------------------------------- mimo_v2_flash, step3p5
MM = dict(C, v_head_dim=8, num_hidden_layers=8, num_attention_heads=8, sliding_window=8, moe_intermediate_size=16,
          n_routed_experts=4, num_experts_per_tok=2, rope_theta=5000000, swa_rope_theta=10000,
          routed_scaling_factor=None)
MH = dict(sliding_window_size=8, swa_num_attention_heads=8, swa_num_key_value_heads=4, swa_head_dim=16, swa_v_head_dim=8,
          hybrid_layer_pattern=[0, 1, 1, 1, 1, 0, 1, 1], moe_layer_freq=[0, 1, 1, 1, 1, 1, 1, 1], attention_chunk_size=8)
family("mimo_v2_flash", MM, [
    ("window-8", {}),
    ("hub-form-window_size-8", MH),
    ("hub-form-no-window_size", dict(MH, sliding_window_size=DROP)),
    ("hub-form-other-pattern", dict(MH, hybrid_layer_pattern=[0, 1, 0, 1, 0, 1, 0, 1])),
    ("hub-form-equal-swa-heads", dict(MH, swa_num_key_value_heads=2)),
    ("hub-form-other-swa-dims", dict(MH, swa_head_dim=24, swa_v_head_dim=12)),
    ("layer_types-odd", dict(layer_types=[F, F, S, F, S, S, S, F])),
    ("window_size-5-only", dict(sliding_window=DROP, sliding_window_size=5)),
    ("class-defaults-heads-dim", dict(num_key_value_heads=DROP, head_dim=DROP, v_head_dim=DROP)),
    ("sliding_window-absent", dict(SMALLHEADS, sliding_window=DROP, num_hidden_layers=3)),
])
ST = {k: v for k, v in C.items() if k != "num_key_value_heads"}
ST.update(num_attention_groups=2, sliding_window=8, moe_num_experts=4, moe_top_k=2, moe_intermediate_size=16,
          share_expert_dim=16, moe_layers_enum="3,4,5", num_nextn_predict_layers=2,
          layer_types=[F, S, S, S, F, S, S, S], rope_theta=[5e6, 1e4, 1e4, 1e4, 5e6, 1e4, 1e4, 1e4],
          partial_rotary_factors=[0.5, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0],
          attention_other_setting=dict(attention_type="sliding_attention", num_attention_heads=8, num_attention_groups=2,
                                       head_dim=16), use_head_wise_attn_gate=True)
family("step3p5", ST, [
    ("hub-form-mtp-padded", {}),
    ("hub-form-no-mtp", dict(num_nextn_predict_layers=0, layer_types=[F, S, S, S, F, S], rope_theta=10000.0,
                             partial_rotary_factors=DROP)),
    ("other-setting-more-groups", {"attention_other_setting.num_attention_groups": 4}),
    ("layer_types-absent", dict(layer_types=DROP, rope_theta=10000.0, partial_rotary_factors=DROP,
                                num_nextn_predict_layers=0)),
    ("layer_types-odd", dict(num_nextn_predict_layers=0, layer_types=[S, F, F, S, S, F], rope_theta=10000.0,
                             partial_rotary_factors=DROP)),
    ("groups-absent", dict(num_attention_groups=DROP, num_attention_heads=8)),
    ("num_key_value_heads-instead", dict(num_attention_groups=DROP, num_key_value_heads=2)),
])
# ---------------------------------------------------------------- deepseek
DS = dict(C, num_key_value_heads=4, kv_lora_rank=24, q_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=12,
          n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, n_shared_experts=1, moe_intermediate_size=16,
          first_k_dense_replace=1, num_hidden_layers=3)
del DS["head_dim"]
MLA = "MLA: HF caches the latent: keys = kv_lora_rank (1 head), values = qk_rope_head_dim (1 head, already rotated)"
family("deepseek_v3", DS, [
    ("base", {}, MLA),
    ("q_lora-null", dict(q_lora_rank=None), MLA),
    ("class-defaults-mla-dims", dict(kv_lora_rank=DROP, qk_rope_head_dim=DROP, qk_nope_head_dim=DROP, v_head_dim=DROP,
                                     q_lora_rank=DROP), MLA),
    ("kv-heads-2", dict(num_key_value_heads=2), MLA),
    ("stray-head_dim", dict(head_dim=16), MLA),
])
family("deepseek_v2", dict(DS, topk_method="greedy"), [("base", {}, MLA)])
family("deepseek_v32", dict(DS, index_topk=8, index_head_dim=16, index_n_heads=2), [
    ("base", {}, MLA + "; the lightning indexer keeps its own keys (index_head_dim per token) in the same cache layer; a query attends index_topk of the past only, so the perturbation pattern is data dependent")])
V4 = dict(C, num_key_value_heads=1, q_lora_rank=16, qk_rope_head_dim=8, o_groups=2, o_lora_rank=8, n_routed_experts=4,
          num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=16, sliding_window=8, index_topk=512,
          index_n_heads=2, index_head_dim=8, hc_mult=2, num_hash_layers=1, num_nextn_predict_layers=1, hidden_act="silu",
          rope_theta=10000, compress_rope_theta=160000, scoring_func="sqrtsoftplus")
V4N = ("deepseek_v4: keys and values are equal (shared-KV MQA): compressed layers hold ONE tensor (kv_same_tensor), pure sliding layers hold two equal copies; count it once. 1 head x head_dim, the last window-1 "
       "raw tokens. On top of it compressed layers keep other_tensors: compressed_kv[compressor] [B, entries, head_dim] grows by one "
       "row per `ratio` tokens; buffer_kv/buffer_gate hold the tokens not yet closed (N mod ratio); CSA layers also "
       "compressed_kv[indexer] [B, entries, index_head_dim], buffers at 2x dims and overlap_kv/gate of the previous window. "
       "'kind'/'window' describe the raw branch; 'compressed' the long-range branch")
family("deepseek_v4", V4, [
    ("compress_ratios-hub-form", dict(compress_ratios=[0, 0, 4, 128, 4, 128, 0]), V4N,
     "ratio 128 > prefill: no HCA entry yet, everything sits in buffer_kv"),
    ("small-rates", dict(compress_ratios=[0, 4, 128, 4, 128, 0, 0],
                         compress_rates=dict(compressed_sparse_attention=4, heavily_compressed_attention=8)), V4N),
    ("layer_types-absent", dict(compress_rates=dict(compressed_sparse_attention=2, heavily_compressed_attention=8)), V4N),
    ("layer_types-all-sliding", dict(layer_types=[S] * 6), V4N),
    ("head_dim-window-absent", dict(SMALLHEADS, head_dim=DROP, sliding_window=DROP, num_hidden_layers=3, num_attention_heads=2), V4N),
    ("ratio-8-unknown", dict(compress_ratios=[0, 0, 4, 8, 4, 8, 0]), V4N),
])
family("deepseek_v41", V4, [("base", {})])


def save(out, bad):
    json.dump(out, open("fixtures.json", "w"), indent=1, sort_keys=False)
    json.dump(bad, open("hf_errors.json", "w"), indent=1)


def join(n):
    """merge shard files back into the order of CASES"""
    order = {c[0]: i for i, c in enumerate(CASES)}
    parts = [json.load(open(f"shard{i}.json")) for i in range(n)]
    out = sorted((x for p in parts for x in p[0]), key=lambda x: order[x["name"]])
    bad = sorted((x for p in parts for x in p[1]), key=lambda x: order[x["name"]])
    assert len(out) + len(bad) == len(CASES)
    save(out, bad)
    print(len(out), "cases", len(bad), "errors")


def main():
    only = sys.argv[1] if len(sys.argv) > 1 and not sys.argv[1].startswith("shard") else None
    shard = tuple(map(int, sys.argv[1][5:].split("of"))) if len(sys.argv) > 1 and sys.argv[1].startswith("shard") else None
    out, bad = [], []
    names = [c[0] for c in CASES]
    assert len(set(names)) == len(names)
    for n, (name, d, notes) in enumerate(CASES):
        if shard and n % shard[1] != shard[0]:
            continue
        if only and not re.search(only, name):
            continue
        t = time.time()
        try:
            exp, meta, notes = measure(d, seed=1234, notes=notes)
        except Exception as e:
            tb = traceback.extract_tb(e.__traceback__)[-1]
            bad.append({"name": name, "config": d, "error": f"{type(e).__name__}: {e}",
                        "at": f"{tb.filename.split('site-packages/')[-1]}:{tb.lineno}"})
            print(f"ERR {name}: {type(e).__name__}: {str(e)[:200]} at {bad[-1]['at']}", flush=True)
            continue
        if "MLA" in "".join(notes):
            meta["mla_latent"] = d.get("kv_lora_rank", 512) + d.get("qk_rope_head_dim", 64)
            notes.append(f"latent per token and layer = kv_lora_rank + qk_rope_head_dim = {meta['mla_latent']}")
        for l in exp["layers"]:
            if l["kind"] != "shared" and l["cache_class"] in ("DynamicLayer", "DynamicSlidingWindowLayer"):
                want = "DynamicLayer" if l["kind"] == "full" else "DynamicSlidingWindowLayer"
                if l["cache_class"] != want or l["cache_window"] != l["window"]:
                    notes.append(f"layer {l['layer']}: mask says {l['kind']} {l['window']}, cache is {l['cache_class']} {l['cache_window']}")
        bad_hf = any("mask says" in n for n in notes)
        if meta["eager_weights_agree"] is False:
            notes.append("eager attention weights disagree with the perturbation")
        if meta["decode_vs_full_rel_err"] is not None and meta["decode_vs_full_rel_err"] > 1e-3:
            bad_hf = True
            notes.append(f"decode from the cache differs from the full forward (rel {meta['decode_vs_full_rel_err']:.2g}): "
                         "HF's own cache is wrong for this config")
        out.append({"name": name, "config": d, "expect": exp, "hf_inconsistent": bad_hf, "notes": notes, "meta": meta})
        print(f"ok  {name} {time.time()-t:.1f}s "
              + " ".join({"full": "F", "sliding": "S", "chunked": "K", "shared": "=", "other": "?"}[l["kind"]]
                         + ("" if l["kind"] == "full" else str(l["window"]))
                         + (f">{l['owner']}" if l["kind"] == "shared" else "")
                         + f":{l['k_heads']}x{l['k_dim']}/{l['v_dim']}" for l in exp["layers"])
              + f" {exp['dtype_bytes']}B" + ("".join("\n      note " + x[:220] for x in notes)), flush=True)
    if shard:
        json.dump([out, bad], open(f"shard{shard[0]}.json", "w"))
    elif not only:
        save(out, bad)
    print(len(out), "cases", len(bad), "errors", "transformers", transformers.__version__, "torch", torch.__version__)


if len(sys.argv) > 2 and sys.argv[1] == "join":
    join(int(sys.argv[2]))
else:
    main()
