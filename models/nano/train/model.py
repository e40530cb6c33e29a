# SPDX-License-Identifier: Apache-2.0
"""A small Gemma 3 text model for training on CPUs.

Computes what transformers' Gemma3ForCausalLM computes.  Matrix products run in
bf16 (fp32 with `exact`), everything else in fp32.  Where the CPU has AMX,
attention and MLP are the C++ kernels of kernels/, else plain PyTorch.
"""
import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Config:
    vocab: int = 256
    hidden: int = 160
    mlp: int = 384
    layers: int = 16
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    window: int = 128
    full_every: int = 8             # layers 7, 15, ... see the whole context
    rope_local: float = 10_000.0
    rope_global: float = 1_000_000.0
    eps: float = 1e-6
    max_positions: int = 32_768

    def is_full(self, layer):
        return layer % self.full_every == self.full_every - 1


def has_amx():
    try:
        return "amx_bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def load_kernels():
    from torch.utils.cpp_extension import load
    folder = Path(__file__).parent / "kernels"
    return load("nano_kernels", [str(p) for p in sorted(folder.glob("*.cpp"))],
                extra_cflags=["-O3", "-march=native", "-std=c++17", "-fopenmp",
                              "-Wno-ignored-attributes"])


_kernels = load_kernels() if has_amx() else None


@torch.library.custom_op("nano::attention", mutates_args=())
def fast_attention(q: Tensor, k: Tensor, v: Tensor, window: int,
                   scale: float) -> tuple[Tensor, Tensor]:
    return tuple(_kernels.attention(q, k, v, window, scale))


@fast_attention.register_fake
def _(q, k, v, window, scale):
    return torch.empty_like(q), q.new_empty(q.shape[0], q.shape[2], q.shape[1],
                                            dtype=torch.float32)


@torch.library.custom_op("nano::attention_backward", mutates_args=())
def fast_attention_backward(
        go: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
        window: int, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(_kernels.attention_backward(go.contiguous(), q, k, v, o, lse,
                                             window, scale))


@fast_attention_backward.register_fake
def _(go, q, k, v, o, lse, window, scale):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _attention_setup(ctx, inputs, output):
    q, k, v, ctx.window, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output)


def _attention_backward(ctx, go, _):
    grads = fast_attention_backward(go, *ctx.saved_tensors, ctx.window, ctx.scale)
    return *grads, None, None


fast_attention.register_autograd(_attention_backward, setup_context=_attention_setup)


@torch.library.custom_op("nano::mlp", mutates_args=())
def fast_mlp(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    return _kernels.mlp(x, gate_up, down)


@fast_mlp.register_fake
def _(x, gate_up, down):
    return torch.empty_like(x)


@torch.library.custom_op("nano::mlp_backward", mutates_args=())
def fast_mlp_backward(gy: Tensor, x: Tensor, gate_up: Tensor,
                      down: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(_kernels.mlp_backward(gy.contiguous(), x, gate_up, down))


@fast_mlp_backward.register_fake
def _(gy, x, gate_up, down):
    def fp32(*shape):
        return x.new_empty(*shape, dtype=torch.float32)
    return torch.empty_like(x), fp32(*gate_up.shape[::-1]), fp32(*down.shape)


def _mlp_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _mlp_backward(ctx, gy):
    dx, dgate_up, ddown = fast_mlp_backward(gy, *ctx.saved_tensors)
    return dx, dgate_up.t(), ddown


fast_mlp.register_autograd(_mlp_backward, setup_context=_mlp_setup)


def plain_attention(q, k, v, window, scale):
    """The same in PyTorch: slow and large, for checks and other CPUs."""
    length = q.shape[1]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    mask = distance >= 0 if not window else (distance >= 0) & (distance < window)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale,
                                          enable_gqa=True).transpose(1, 2)


def rms(x, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Norm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x):
        return rms(x, self.eps) * (1 + self.weight)


class Attention(nn.Module):
    def __init__(self, c, layer):
        super().__init__()
        self.c = c
        self.window = 0 if c.is_full(layer) else c.window
        width = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.q_proj = nn.Linear(c.hidden, width[0], bias=False)
        self.k_proj = nn.Linear(c.hidden, width[1], bias=False)
        self.v_proj = nn.Linear(c.hidden, width[1], bias=False)
        self.o_proj = nn.Linear(width[0], c.hidden, bias=False)
        self.q_norm = Norm(c.head_dim, c.eps)
        self.k_norm = Norm(c.head_dim, c.eps)

    def project(self, x, rope, dtype):
        """Queries, keys and values, [batch, length, heads, head_dim]."""
        c = self.c
        weight = torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight))
        qkv = F.linear(x.to(dtype), weight.to(dtype))
        qkv = qkv.unflatten(-1, (c.heads + 2 * c.kv_heads, c.head_dim))
        q, k, v = qkv.split((c.heads, c.kv_heads, c.kv_heads), 2)
        q = rotate(self.q_norm(q.float()), *rope).to(dtype)
        k = rotate(self.k_norm(k.float()), *rope).to(dtype)
        return q.contiguous(), k.contiguous(), v.contiguous()

    def output(self, x):
        return F.linear(x.flatten(2), self.o_proj.weight.to(x.dtype)).float()

    def forward(self, x, rope, dtype, cache=None):
        q, k, v = self.project(x, rope, dtype)
        if cache is not None:
            cache.append((k, v))
        scale = self.c.head_dim ** -0.5
        if dtype == torch.bfloat16 and _kernels:
            return self.output(fast_attention(q, k, v, self.window, scale)[0])
        return self.output(plain_attention(q, k, v, self.window, scale))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden, c.mlp, bias=False)
        self.up_proj = nn.Linear(c.hidden, c.mlp, bias=False)
        self.down_proj = nn.Linear(c.mlp, c.hidden, bias=False)

    def forward(self, x, dtype):
        x = x.to(dtype)
        weight = torch.cat((self.gate_proj.weight, self.up_proj.weight)).to(dtype)
        if dtype == torch.bfloat16 and _kernels:
            return fast_mlp(x, weight, self.down_proj.weight.to(dtype)).float()
        gate, up = F.linear(x, weight).float().chunk(2, -1)
        h = F.gelu(gate, approximate="tanh") * up
        return F.linear(h.to(dtype), self.down_proj.weight.to(dtype)).float()


class Layer(nn.Module):
    def __init__(self, c, layer):
        super().__init__()
        self.self_attn = Attention(c, layer)
        self.mlp = MLP(c)
        self.input_layernorm = Norm(c.hidden, c.eps)
        self.post_attention_layernorm = Norm(c.hidden, c.eps)
        self.pre_feedforward_layernorm = Norm(c.hidden, c.eps)
        self.post_feedforward_layernorm = Norm(c.hidden, c.eps)

    def forward(self, x, rope, dtype, cache=None):
        x = x + self.post_attention_layernorm(
            self.self_attn(self.input_layernorm(x), rope, dtype, cache))
        return x + self.post_feedforward_layernorm(
            self.mlp(self.pre_feedforward_layernorm(x), dtype))


class Nano(nn.Module):
    """Parameter names are those of transformers, less the "model." prefix."""

    def __init__(self, c=Config()):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c.layers))
        self.norm = Norm(c.hidden, c.eps)
        # transformers rounds this factor to the weights' dtype, bf16.
        self.factor = torch.tensor(math.sqrt(c.hidden)).bfloat16().item()
        for name, p in self.named_parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=p.shape[1] ** -0.5)
            elif ".post_" in name:      # small steps into the residual at first
                nn.init.constant_(p, -0.75)
        for name, base in (("local", c.rope_local), ("global", c.rope_global)):
            inverse = base ** -(torch.arange(0, c.head_dim, 2) / c.head_dim)
            angle = torch.outer(torch.arange(c.max_positions).float(), inverse)
            angle = torch.cat((angle, angle), -1)[:, None]
            self.register_buffer("cos_" + name, angle.cos(), persistent=False)
            self.register_buffer("sin_" + name, angle.sin(), persistent=False)

    def embed(self, tokens):
        return self.embed_tokens(tokens) * self.factor

    def rope(self, layer, positions):
        if self.c.is_full(layer):
            return self.cos_global[positions], self.sin_global[positions]
        return self.cos_local[positions], self.sin_local[positions]

    def head(self, x, dtype):
        return F.linear(self.norm(x).to(dtype), self.embed_tokens.weight.to(dtype)).float()

    def forward(self, tokens, exact=False, cache=None):
        """Logits of a [batch, length] tensor of bytes; every layer's keys and
        values are appended to `cache`."""
        dtype = torch.float32 if exact else torch.bfloat16
        positions = slice(0, tokens.shape[1])
        x = self.embed(tokens)
        for i, layer in enumerate(self.layers):
            x = layer(x, self.rope(i, positions), dtype, cache)
        return self.head(x, dtype)

    def loss(self, tokens, targets):
        return F.cross_entropy(self(tokens).flatten(0, 1), targets.flatten(),
                               reduction="none").view_as(targets)


def load_model(folder):
    """The model of an exported model.safetensors, in fp32 storage."""
    from safetensors.torch import load_file
    tensors = load_file(Path(folder) / "model.safetensors")
    model = Nano()
    model.load_state_dict({n.removeprefix("model."): t.float() for n, t in tensors.items()})
    return model.eval().requires_grad_(False)
