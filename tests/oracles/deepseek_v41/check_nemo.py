# SPDX-License-Identifier: Apache-2.0
"""Cross-check of the float64 NumPy reference of the DeepSeek-V4.1 text model with NVIDIA's
nemo-automodel 0.7.0 (deepseek_v41), both on the CPU.

  check_nemo.py --nemo DIR --reference DIR --cases DIR [--case NAME ...] [--dtype f32|f64|both]

--nemo: the unpacked wheel; --reference: holds reference.py and formats.py; --cases: the model
directories and ops.safetensors. Only nemo's own modules compute; this script feeds them the
reference's tensors, records what their inner functions get and give, and compares.

Two widths. f32: nemo as it is. f64: the same code, with `.float()` and `torch.float32` of nemo's
modules widened to float64; its quantisers stay in float32, as their bit tricks need it.
Error: max over rows of (max |nemo - reference| / max |reference|) in the row.
"""
import argparse
import importlib
import json
import os
import sys
import types

import numpy as np
os.environ["TORCHDYNAMO_DISABLE"] = "1"          # nemo's compiled pieces run eagerly
import torch  # noqa: E402

PKG = "nemo_automodel.components."
V41 = PKG + "models.deepseek_v41."
WIDENED = ["models.deepseek_v41.attention", "models.deepseek_v41.layers",
           "models.deepseek_v41.model", "models.deepseek_v41.engram", "models.deepseek_v4.layers",
           "models.deepseek_v4.model", "models.deepseek_v4.optimized_kernels", "moe.layers",
           "moe.experts", "models.common.utils", "models.qwen3_8_flash_next.engram"]


# ---- imports of nemo on a machine without its optional parts ---------------------------------
def fake(name, **members):
    m = types.ModuleType(name)
    m.__path__ = []
    m.__dict__.update(members)
    sys.modules[name] = m
    return m


def import_nemo(folder):
    """Put the wheel on the path; stand-ins for what this torch and this machine do not have."""
    sys.path.insert(0, folder)
    import torch.distributed.pipelining.microbatch as microbatch
    from torch.nn.attention.flex_attention import BlockMask
    if not hasattr(microbatch, "BlockMask"):
        microbatch.BlockMask = BlockMask
    if importlib.util.find_spec("PIL") is None:
        image = fake("PIL.Image", Image=type("Image", (), {}),
                     Resampling=types.SimpleNamespace(BICUBIC=3))
        fake("PIL", Image=image, ImageOps=fake("PIL.ImageOps"))
    return types.SimpleNamespace(
        model=importlib.import_module(V41 + "model"),
        attention=importlib.import_module(V41 + "attention"),
        config=importlib.import_module(V41 + "config"),
        quantization=importlib.import_module(V41 + "quantization"),
        adapter=importlib.import_module(V41 + "state_dict_adapter"))


class TorchView:
    """`torch` as one nemo module sees it: float32 is the chosen width."""

    def __init__(self, width):
        self.float32 = width

    def __getattr__(self, name):
        return getattr(torch, name)


class Width:
    """Sets the width in which nemo's `.float()` and `torch.float32` work."""
    plain_float = torch.Tensor.float

    @classmethod
    def set(cls, width):
        view = torch if width == torch.float32 else TorchView(width)
        for name in WIDENED:
            importlib.import_module(PKG + name).torch = view
        if width == torch.float32:
            torch.Tensor.float = cls.plain_float
        else:
            torch.Tensor.float = lambda self, *a, **k: self.to(width)


# ---- recording -------------------------------------------------------------------------------
class Tap:
    """Wraps quantize_cache, _apply_rope and Tensor.topk of nemo's attention; can force codes."""

    def __init__(self, nemo):
        self.nemo, self.layer, self.force = nemo, None, None
        self.quantize, self.rope = nemo.attention.quantize_cache, nemo.attention._apply_rope
        self.topk = torch.Tensor.topk
        self.log, self.watch_topk = {}, False
        nemo.attention.quantize_cache = self._quantize
        nemo.attention._apply_rope = self._rope
        torch.Tensor.topk = lambda t, *a, **k: self._topk(t, *a, **k)

    def put(self, kind, value):
        self.log.setdefault((self.layer, kind), []).append(value.detach()[0].clone())

    def get(self, layer, kind, which=0):
        return self.log[(layer, kind)][which]

    def _quantize(self, values, *, format, block_size):
        kind = {"fp8": "window", "nvfp4": "main"}.get(format)
        kind = kind or ("query" if values.ndim == 4 else "key")
        self.put(kind + "_in", values)
        keep, torch.Tensor.float = torch.Tensor.float, Width.plain_float
        out = self.quantize(values, format=format, block_size=block_size)
        torch.Tensor.float = keep
        self.put(kind, out)
        if self.force is not None:
            out = self.force[(self.layer, kind)].to(out.dtype)[None]
        return out

    def _rope(self, values, angles, *, inverse=False):
        if inverse:
            self.put("attn_o", values)
        out = self.rope(values, angles, inverse=inverse)
        if not inverse and values.ndim == 4:
            self.put("rope4", out)                 # first call of a layer: the attention query
        return out

    def _topk(self, t, *args, **kwargs):
        if self.watch_topk and t.ndim == 3:
            self.put("topk", t)
        return self.topk(t, *args, **kwargs)


# ---- building nemo's model -------------------------------------------------------------------
def tokenizer_for(token_map):
    """A fast tokenizer whose normalised vocabulary has exactly the classes of token_map."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    shapes = [lambda w: w, str.upper, lambda w: " " + w, lambda w: w + "\n", lambda w: w + "\u0301",
              lambda w: "\t" + w.upper(), lambda w: w.replace("k", "\uff4b")]
    seen, vocab = {}, {}
    for token, small in enumerate(token_map):
        j = seen[small] = seen.get(small, -1) + 1
        vocab[shapes[j % len(shapes)](f"k{small}z") + " " * (j // len(shapes))] = token
    assert len(vocab) == len(token_map)
    first = next(iter(vocab))
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocab, unk_token=first)))


def load_weights(folder):
    from safetensors.torch import load_file
    raw = load_file(os.path.join(folder, "model.safetensors"))
    return {k: v.view(torch.int8) if v.dtype == torch.uint8 else v for k, v in raw.items()}


def build(nemo, folder, width, engram):
    with open(os.path.join(folder, "config.json")) as f:
        text = dict(json.load(f)["text_config"])
    text.pop("model_type")
    text.setdefault("candidate_source_layer_id", -1)     # nemo's default is the release's 20
    text["dtype"] = "float32"
    cfg = nemo.config.DeepseekV41Config(text_config=text, dtype="float32")
    cfg.vision_config.num_hidden_layers = 0
    backend = nemo.model.BackendConfig(attn="eager", linear="torch", rms_norm="torch_fp32",
                                       experts="torch", dispatcher="torch", rope_fusion=False)
    tok = tokenizer_for(engram["token_map"]) if engram else None
    net = nemo.model.DeepseekV41ForCausalLM(cfg, backend=backend, tokenizer=tok)
    weights = net.state_dict_adapter.from_hf(load_weights(folder))
    missing, unexpected = net.load_state_dict(weights, strict=False)
    assert not unexpected and not missing, (missing, unexpected)
    return net.to(width).eval()


# ---- comparing -------------------------------------------------------------------------------
def arr(t):
    return t.detach().double().numpy() if isinstance(t, torch.Tensor) else np.asarray(t, float)


def row_error(got, want):
    a, b = arr(got), arr(want)
    assert a.shape == b.shape, (a.shape, b.shape)
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    inf = np.isinf(b)
    assert np.array_equal(np.isinf(a), inf) and np.array_equal(a[inf], b[inf])
    a, b = np.where(inf, 0, a), np.where(inf, 0, b)
    top = np.abs(b).max(1)
    out = np.abs(a - b).max(1) / np.where(top > 0, top, 1)
    return np.where(np.isnan(out), np.inf, out)


def code_flips(got, want):
    """Elements whose value, or sign of zero, differs."""
    a, b = arr(got), arr(want)
    return int((~((a == b) & (np.signbit(a) == np.signbit(b)))).sum())


class Table:
    def __init__(self):
        self.rows = {}

    def add(self, width, case, op, error=None, flips=None, total=0):
        r = self.rows.setdefault((op, case, width), [None, None, 0])
        if error is not None:
            r[0] = max(r[0] or 0.0, float(np.max(error)) if np.size(error) else 0.0)
        if flips is not None:
            r[1], r[2] = (r[1] or 0) + flips, r[2] + total

    def show(self):
        print(f"{'op':44} {'case':10} {'width':5} {'max rel error':>13}  flips / of")
        for (op, case, width), (error, flips, total) in self.rows.items():
            e = "-" if error is None else f"{error:.1e}"
            f = "-" if flips is None else f"{flips} / {total}"
            print(f"{op:44} {case:10} {width:5} {e:>13}  {f}")


def set_flips(got, want):
    """Rows whose set of ids (ascending, -1 anywhere) differs."""
    a, b = np.asarray(got), np.asarray(want)
    return sum(set(x[x >= 0]) != set(y[y >= 0]) for x, y in zip(a, b))


def block_mask(blocks, size, positions, ratio, width):
    g = np.arange(width)
    visible = g[None] < ((positions + 1) // ratio)[:, None]
    return np.stack([np.isin(g // size, row[row >= 0]) for row in blocks]) & visible


class Case:
    """One model directory: the reference's forward and nemo's model at one width."""

    def __init__(self, nemo, tap, ref, fm, folder, name, wname, table):
        self.nemo, self.tap, self.ref, self.fm = nemo, tap, ref, fm
        self.name, self.wname, self.table = name, wname, table
        self.width = torch.float32 if wname == "f32" else torch.float64
        with open(os.path.join(folder, "ids.json")) as f:
            self.ids = json.load(f)
        self.m = m = ref.Model(folder)
        if name == "release":
            m.packed = set()            # nemo has no quantiser on the inputs of linears
        self.n = len(self.ids)
        self.state, self.d = ref.State(m, self.n), {}
        ref.forward(m, self.state, self.ids, 0, self.n, dump=self.d)
        if name != "release":
            self.check_expected(os.path.join(folder, "expected.safetensors"))
        Width.set(self.width)
        self.net = build(nemo, folder, self.width, m.engram)
        self.pos = torch.arange(self.n)[None]

    def check_expected(self, path):
        for key, (dtype, a) in self.fm.load(path).items():
            if key in self.d:
                b = self.d[key]
                same = np.array_equal(a, b.astype(a.dtype))
                assert same, key            # the run here is the stored file, bit for bit

    def t(self, a):
        a = torch.from_numpy(np.ascontiguousarray(a))
        return (a.to(self.width) if a.is_floating_point() else a)[None]

    def add(self, op, *args, **kw):
        self.table.add(self.wname, self.name, op, *args, **kw)

    def compare(self, op, got, want):
        self.add(op, row_error(got, want))

    def codes(self, op, got, want):
        self.add(op, flips=code_flips(got, want), total=int(np.size(want)))

    # -- reference values of what a layer quantises
    def forced(self, layer):
        m, s, d = self.m, self.state, self.d
        one = lambda a: torch.from_numpy(np.ascontiguousarray(a))
        out = {(layer, "window"): one(s.window[layer, :self.n])}
        if layer in m.kv_sources:
            out[(layer, "main")], out[(layer, "key")] = one(s.main[layer]), one(s.keys[layer])
        if layer in m.index_sources:
            out[(layer, "query")] = one(d[f"layer.{layer}.index_q"])
        return out

    def state_before(self, layer):
        """nemo's shared state in front of a layer, from the reference's tensors."""
        m, d, cls = self.m, self.d, self.nemo.attention.DeepseekV41AttentionState
        r = m.ratios[layer]
        if not r or layer in m.kv_sources:
            return cls()
        source = m.source_of(layer, m.kv_sources)
        width = self.n // r
        before = [i for i in m.index_sources if i < layer]
        picks = d[f"layer.{before[-1]}.picks"][:, :min(m.cfg["index_topk"], width)]
        candidates = None
        if m.candidate_source is not None and layer > m.candidate_source:
            candidates = self.t(block_mask(
                d[f"layer.{m.candidate_source}.candidate_blocks"], m.cfg["candidate_block_size"],
                np.arange(self.n), r, width))
        return cls(compressed_kv=self.t(self.state.main[source]),
                   index_keys=self.t(self.state.keys[source]),
                   topk_indices=self.t(picks).long(), candidates=candidates,
                   compressed_valid=torch.ones(1, width, dtype=torch.bool), compression_ratio=r)

    # -- per op
    def attention(self, layer):
        m, d, tap = self.m, self.d, self.tap
        attn = self.net.model.layers[str(layer)].attn
        p = f"layer.{layer}."
        x = self.t(d[p + "attn_in"])
        seen = {}
        hooks = []

        def hook(key):
            return lambda mod, args, out: seen.__setitem__(key, out.detach()[0])

        if attn.compressor is not None:
            hooks.append(attn.compressor.register_forward_hook(hook("latent")))
        if attn.indexer is not None:
            hooks.append(attn.indexer.weights_proj.register_forward_hook(hook("weights")))
        for force in (False, True):
            tap.log, tap.layer, tap.watch_topk = {}, layer, True
            tap.force = self.forced(layer) if force else None
            out = attn(x, position_ids=self.pos, state=self.state_before(layer))
            if not force:
                self.free_codes(layer, out.state)
        tap.watch_topk = False
        for h in hooks:
            h.remove()
        get = lambda kind, which=0: tap.get(layer, kind, which)
        ratio = f"ratio {m.ratios[layer]}"
        self.compare("window row before quantiser", get("window_in"), d[p + "window_raw"])
        self.compare("query after rope", get("rope4"), d[p + "q"])
        if layer in m.kv_sources:
            self.compare(f"compressor latent, {ratio}", seen["latent"], self.state.latent[layer])
            self.compare(f"main entry roped, {ratio}", get("main_in"), self.state.main_raw[layer])
            self.compare("index key roped", get("key_in"), self.state.key_raw[layer])
        if layer in m.index_sources:
            heads = m.cfg["index_n_heads"]
            self.compare("index query roped", get("query_in"), d[p + "index_q_raw"])
            self.compare("index head weights", seen["weights"] * heads ** -0.5,
                         d[p + "index_weights"])
            g = self.n // m.ratios[layer]
            got = tap.log[(layer, "topk")][-1]
            self.compare("index scores" + (", inside candidates" if layer not in m.kv_sources
                                           else ""), got, d[p + "scores"][:, :g])
            self.add("picks, forced codes",
                     flips=set_flips(out.state.topk_indices[0], d[p + "picks"]), total=self.n)
            if layer == m.candidate_source:
                want = block_mask(d[p + "candidate_blocks"], m.cfg["candidate_block_size"],
                                  np.arange(self.n), m.ratios[layer], g)
                diff = (out.state.candidates[0].numpy() != want).any(1).sum()
                self.add("candidate blocks, forced codes", flips=int(diff), total=self.n)
        kind = "ratio 0" if not m.ratios[layer] else (
            "Full" if layer in m.kv_sources else
            "Reindex" if layer in m.index_sources else "Reuse")
        self.compare(f"attention output, {kind}", get("attn_o"), d[p + "attn_o"])
        self.compare("attention site output (wo_b)", out.hidden_states[0], d[p + "attn_y"])
        self.net.backend.attn = "sdpa"
        tap.log = {}
        out = attn(x, position_ids=self.pos, state=self.state_before(layer))
        self.net.backend.attn = "eager"
        self.compare("the same, nemo's sdpa path", out.hidden_states[0], d[p + "attn_y"])
        tap.force = None

    def free_codes(self, layer, state):
        m, d, tap = self.m, self.d, self.tap
        self.codes("window FP8 codes", tap.get(layer, "window"), self.state.window[layer, :self.n])
        if layer in m.kv_sources:
            self.codes("main FP4 codes", tap.get(layer, "main"), self.state.main[layer])
            self.codes("index key FP4 codes", tap.get(layer, "key"), self.state.keys[layer])
        if layer in m.index_sources:
            self.codes("index query FP4 codes", tap.get(layer, "query"),
                       d[f"layer.{layer}.index_q"])
            self.add("picks, own codes",
                     flips=set_flips(state.topk_indices[0], d[f"layer.{layer}.picks"]),
                     total=self.n)

    def mixing(self, layer):
        m, d, block = self.m, self.d, self.net.model.layers[str(layer)]
        p = f"layer.{layer}."
        x = d.get(p + "engram_x", d[p + "x"])
        sites = [("attn", x, d[p + "p"], d[p + "attn_y"])]
        mid = self.ref.hc_update(x, d[p + "attn_y"], d[p + "attn_hc.post"], d[p + "attn_hc.comb"])
        sites.append(("ffn", mid, d[p + "attn_hc.pre"], d[p + "ffn_y"]))
        last = layer + 1 == m.layers
        after = [mid, d["final.x"] if last else d[f"layer.{layer + 1}.x"]]
        for (site, x, carried, y), want in zip(sites, after):
            hc = getattr(block, site + "_hc")
            mix = hc(self.t(x))
            for part in ("pre", "post", "comb"):
                self.compare(f"mHC {part}", getattr(mix, part)[0], d[f"{p}{site}_hc.{part}"])
            u = hc.collapse(self.t(x), self.t(carried))
            self.compare("mHC collapse + norm", getattr(block, site + "_norm")(u)[0],
                         d[f"{p}{site}_in"])
            self.compare("mHC expand", hc.expand(self.t(y), self.t(x), mix)[0], want)

    def moe(self, layer):
        d, ffn = self.d, self.net.model.layers[str(layer)].ffn
        p = f"layer.{layer}."
        h = self.t(d[p + "ffn_in"])
        mask = torch.ones(self.n, dtype=torch.bool)
        weights, chosen, _ = ffn.gate(h[0], mask, None)
        order = chosen.argsort(-1)
        self.add("router picks", flips=set_flips(chosen.numpy(), d[p + "experts"]), total=self.n)
        self.compare("router weights", weights.gather(1, order), d[p + "expert_weights"])
        shared = self.ref.expert(self.m, f"layers.{layer}.ffn.shared_experts.", d[p + "ffn_in"], 1.)
        self.compare("shared expert", ffn.shared_experts(h[0]), shared)
        routed = ffn.experts(h[0], mask, self.t(d[p + "expert_weights"])[0],
                             self.t(d[p + "experts"])[0].long())
        self.compare("routed experts", routed, d[p + "ffn_y"] - shared)
        self.compare("MoE output", ffn(h)[0], d[p + "ffn_y"])

    def engram(self):
        m, d, net = self.m, self.d, self.net.model
        if not m.engram:
            return
        e, h = m.engram, net.engram_hash
        tables = [(h.token_map, e["token_map"]), (h.multipliers, e["multipliers"]),
                  (h.primes, np.reshape(e["primes"], (len(e["layer_ids"]), -1))),
                  (h.offsets, e["offsets"]), (torch.tensor(h.pad_id), e["pad_compressed_id"])]
        diff = sum(int((np.asarray(a) != np.asarray(b)).sum()) for a, b in tables)
        self.add("Engram map, multipliers, primes, offsets", flips=diff,
                 total=sum(a.numel() for a, _ in tables))
        rows = h(torch.tensor([self.ids]))
        for which, layer in enumerate(e["layer_ids"]):
            want = self.ref.engram_rows(m, which, self.ids, range(self.n))
            got = rows[:, :, which]
            self.add("Engram hash rows", flips=int((got[0].numpy() != want).sum()),
                     total=want.size)
            padded = list(self.ids)
            padded[5::7] = [m.cfg["engram_pad_token_id"]] * len(padded[5::7])
            want = self.ref.engram_rows(m, which, padded, range(self.n))
            pad = h(torch.tensor([padded]))[0, :, which].numpy()
            self.add("Engram hash rows, pad tokens in the prompt", flips=int((pad != want).sum()),
                     total=want.size)
            out = net.layers[str(layer)].engram(self.t(d[f"layer.{layer}.x"]), got)
            self.compare("Engram update", out[0], d[f"layer.{layer}.engram_x"])
            self.compare("Engram update alone (gate * value)",
                         out[0] - self.t(d[f"layer.{layer}.x"])[0],
                         d[f"layer.{layer}.engram_x"] - d[f"layer.{layer}.x"])

    def rope_tables(self):
        m = self.m
        for layer in range(m.layers):
            angle = self.net.model.layers[str(layer)].attn.rotary_emb(self.pos)[0]
            kind = "YaRN" if m.ratios[layer] else "main"
            self.compare(f"rope angles, {kind}", angle,
                         np.arange(self.n)[:, None] * m.freq(layer)[None])

    def head(self):
        d, net = self.d, self.net
        u = self.nemo.model.DeepseekV41HyperConnection.collapse(
            self.t(d["final.x"]), self.t(d["final.p"]))
        self.compare("head (mix, norm, logits)", net.lm_head(net.model.norm(u))[0], d["logits"])

    # -- end to end
    def whole(self, forced):
        m, d, tap = self.m, self.d, self.tap
        tap.log, hooks, experts, picks = {}, [], {}, {}
        tap.force = {}
        for layer in range(m.layers):
            tap.force.update(self.forced(layer))
        if not forced:
            tap.force = None
        for name, block in self.net.model.layers.items():
            l = int(name)
            hooks.append(block.attn.register_forward_pre_hook(
                lambda mod, args, l=l: setattr(tap, "layer", l)))
            hooks.append(block.attn.register_forward_hook(
                lambda mod, args, out, l=l: picks.__setitem__(l, out.state)))
            hooks.append(block.ffn.gate.register_forward_hook(
                lambda mod, args, out, l=l: experts.__setitem__(l, out[1].numpy())))
        logits = self.net(torch.tensor([self.ids])).logits[0]
        for h in hooks:
            h.remove()
        kind = "forced codes" if forced else "free"
        error = row_error(logits, d["logits"])
        self.add(f"end to end logits, {kind}", error)
        self.add(f"end to end logits, {kind}: rows > 1e-4", flips=int((error > 1e-4).sum()),
                 total=self.n)
        ex = [set_flips(experts[l], d[f"layer.{l}.experts"]) for l in range(m.layers)]
        pk = [set_flips(picks[i].topk_indices[0].numpy(), d[f"layer.{i}.picks"])
              for i in m.index_sources]
        self.add(f"end to end experts, {kind}", flips=sum(ex), total=self.n * m.layers)
        self.add(f"end to end picks, {kind}", flips=sum(pk), total=self.n * len(m.index_sources))
        c = m.candidate_source
        if c is not None:
            want = block_mask(d[f"layer.{c}.candidate_blocks"], m.cfg["candidate_block_size"],
                              np.arange(self.n), m.ratios[c], self.n // m.ratios[c])
            bad = (picks[c].candidates[0].numpy() != want).any(1).sum()
            self.add(f"end to end candidate blocks, {kind}", flips=int(bad), total=self.n)
        bad = total = 0
        where = []
        for layer in range(m.layers):
            for (l, k), want in self.forced(layer).items():
                f = code_flips(tap.get(l, k), want)
                bad, total = bad + f, total + want.numel()
                if f:
                    rows = np.unique(np.nonzero(arr(tap.get(l, k)) != arr(want))[0])
                    where.append(f"layer {l} {k}: {f} codes, rows {rows[:6].tolist()}"
                                 + ("..." if len(rows) > 6 else ""))
        self.add(f"end to end codes, {kind}", flips=bad, total=total)
        if where:
            print(f"  flipped codes, {self.name} {self.wname} {kind}: " + "; ".join(where[:8]))
        tap.force = None

    def run(self):
        with torch.no_grad():
            self.rope_tables()
            self.engram()
            for layer in range(self.m.layers):
                self.mixing(layer)
                self.attention(layer)
                self.moe(layer)
            self.head()
            self.whole(False)
            self.whole(True)


def check_codecs(nemo, fm, cases, table):
    raw = {k: a for k, (_, a) in fm.load(os.path.join(cases, "ops.safetensors")).items()}
    for name, fmt, block in (("main", "nvfp4", 16), ("mxfp4", "mxfp4", 32), ("fp8", "fp8", 32)):
        x, want = raw[name + ".input"], raw[name + ".values"]
        got = nemo.quantization.quantize_cache(torch.from_numpy(x.copy()), format=fmt,
                                               block_size=block).numpy()
        x, want, got = (a.reshape(-1, block) for a in (x, want, got))
        big = np.abs(x).max(1).astype(float) / 6 > (464 if name == "main" else np.inf)
        for label, keep in ((name, ~big), (name + ", amax/6 > 464", big)):
            if keep.any():
                table.add("f32", "ops", "quantiser " + label, row_error(got[keep], want[keep]),
                          code_flips(got[keep], want[keep]), want[keep].size)
        print(f"  quantiser {name}: {np.isnan(got).any(1).sum()} of {len(got)} blocks are NaN in"
              f" nemo, {np.isnan(want).any(1).sum()} in the reference")


def check_boundaries(nemo, fm, table):
    """Blocks whose maximum lies one float32 step beside a scale boundary, or whose elements lie
    one step beside a tie of two codes."""
    rng = np.random.default_rng(1)
    step = lambda v, way: np.nextafter(np.float32(v), np.float32(way * np.inf), dtype=np.float32)
    beside = lambda v: [step(v, -1), np.float32(v), step(v, 1)]
    main, mx, fp8 = [], [], []
    for mid in fm.E4M3_MID:                                     # E4M3 scale ties of amax / 6
        main += [np.append(rng.standard_normal(15) * mid, top) for top in beside(6 * mid)]
    for scale in fm.E4M3_POS[1:]:                               # code ties under every scale
        near = [v for mid in fm.E2M1_MID for v in beside(mid * scale)]
        main += [np.append(near[i:i + 15], 6 * scale) for i in (0, 6)]
    for k in range(-20, 8):
        near = [v for mid in fm.E2M1_MID for v in beside(mid * 2. ** k)]
        mx.append(np.append(np.resize(near, 31), 6 * 2. ** k))
        for top in beside(6 * 2. ** k):
            mx.append(np.append(rng.standard_normal(31) * 2. ** k, top))
        for top in beside(448 * 2. ** k):                       # small ones: the scale shows
            fp8.append(np.append(rng.standard_normal(31) * 2. ** (k - 7), top))
        for part in np.array_split(fm.E4M3_MID, 14):
            near = [v for mid in part for v in beside(mid * 2. ** k)]
            fp8.append(np.append(np.resize(near, 31), 448 * 2. ** k))
    for name, fmt, block, rows, enc, dec in (
            ("main", "nvfp4", 16, main, fm.fp4_main_encode, fm.fp4_main_decode),
            ("mxfp4", "mxfp4", 32, mx, fm.mxfp4_encode, fm.mxfp4_decode),
            ("fp8", "fp8", 32, fp8, fm.fp8_encode, fm.fp8_decode)):
        x = np.stack(rows).astype(np.float32)
        want = dec(enc(x))
        got = nemo.quantization.quantize_cache(torch.from_numpy(x), format=fmt, block_size=block)
        table.add("f32", "boundary", f"quantiser {name}", row_error(got, want),
                  code_flips(got, want), want.size)


def check_release_weights(nemo, ref, cases, table):
    folder = os.path.join(cases, "release")
    raw, m = load_weights(folder), ref.Model(folder)
    for key, scale in raw.items():
        if not key.endswith(".scale"):
            continue
        name = key[: -len("scale")] + "weight"
        kind = ("MXFP4 expert" if raw[name].dtype == torch.int8 else
                "FP8 Engram" if ".engram.embed." in name else "FP8 dense")
        got = nemo.adapter.dequantize_checkpoint_weight(
            raw[name], scale, dtype=torch.float32, rowwise=".engram.embed." in name)
        table.add("f32", "release", f"weight decode, {kind}", row_error(got, m.t[name]),
                  code_flips(got, m.t[name]), got.numel())


def check_released_yarn(nemo, table):
    """YaRN range of the release's own numbers (facts 2.6: pairs <= 15 keep, >= 25 divided)."""
    cfg = nemo.config.DeepseekV41TextConfig()
    freq = nemo.attention._RotaryEmbedding(cfg, compressed=True)(torch.tensor([[1]]))[0, 0].double()
    plain = 160000.0 ** (-2 * torch.arange(32, dtype=torch.float64) / 64)
    share = (plain / freq).numpy()
    keep = int((np.abs(share - 1) < 1e-5).sum())
    by16 = int((np.abs(share - 16) < 1e-4).sum())
    table.add("f32", "release", "YaRN of the release: 16 kept, 7 by 16",
              flips=abs(keep - 16) + abs(by16 - 7), total=32)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ap.add_argument("--nemo", required=True)
    ap.add_argument("--reference", required=True)
    ap.add_argument("--cases", required=True)
    ap.add_argument("--case", nargs="*", default=["plain", "no_engram", "ratio1", "release"])
    ap.add_argument("--dtype", choices=["f32", "f64", "both"], default="both")
    args = ap.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, args.reference)
    import formats as fm
    import reference as ref
    nemo = import_nemo(args.nemo)
    table = Table()
    with torch.no_grad():
        check_codecs(nemo, fm, args.cases, table)
        check_boundaries(nemo, fm, table)
        if "release" in args.case:
            check_release_weights(nemo, ref, args.cases, table)
            check_released_yarn(nemo, table)
    tap = Tap(nemo)
    for name in args.case:
        for width in (["f32", "f64"] if args.dtype == "both" else [args.dtype]):
            Case(nemo, tap, ref, fm, os.path.join(args.cases, name), name, width, table).run()
            Width.set(torch.float32)
    table.show()


if __name__ == "__main__":
    main()
