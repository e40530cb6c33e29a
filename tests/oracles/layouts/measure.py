"""Measure the KV-cache layout of a (tiny) config.json with HF transformers itself."""
import copy, json, os, re, tempfile, warnings
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, DummyLayer, DynamicIndexedLayer

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True, warn_only=True)


def load_config(d):
    """The dict goes to disk as config.json and comes back through AutoConfig.from_pretrained."""
    with tempfile.TemporaryDirectory() as t:
        with open(os.path.join(t, "config.json"), "w") as f:
            json.dump(d, f)
        return AutoConfig.from_pretrained(t)


def build(cfg, seed=0, **kw):
    """Model from config; for nested configs the whole multimodal model where it can be built, else the text model."""
    cfg = copy.deepcopy(cfg)
    tries, errs = [], []
    nested = getattr(cfg, "text_config", None) is not None
    if cfg.model_type == "step3p5":
        from transformers.models.step3p7.modeling_step3p7 import Step3p7TextModel
        tries.append(lambda: Step3p7TextModel._from_config(cfg, **kw))
    elif nested:
        tries.append(lambda: AutoModelForImageTextToText.from_config(cfg, **kw))
        tcfg = cfg.get_text_config(decoder=True)

        def text_only():
            if tcfg.dtype is None:
                tcfg.dtype = cfg.dtype
            return AutoModel.from_config(tcfg, **kw)
        tries.append(text_only)
    else:
        tries += [lambda: AutoModelForCausalLM.from_config(cfg, **kw), lambda: AutoModel.from_config(cfg, **kw)]
    for t in tries:
        torch.manual_seed(seed)
        try:
            m = t().eval()
            if nested:  # can the whole multimodal model run on text alone?
                with torch.no_grad():
                    m(input_ids=torch.full((1, 4), 9), use_cache=False)
            return m, errs
        except Exception as e:  # noqa
            errs.append(f"{type(e).__name__}: {e}"[:300])
    raise RuntimeError(" | ".join(errs))


def attention_modules(model, n):
    found = {}
    for name, m in model.named_modules():
        if name.endswith(".self_attn") and not re.search(r"vision|visual|audio", name) and hasattr(m, "layer_idx"):
            found[m.layer_idx] = m
    assert sorted(found) == list(range(n)), (sorted(found), n)
    return [found[i] for i in range(n)]


def strengthen(mods, seed):
    """HF's std 0.02 init makes attention nearly linear in nothing; larger projections give a clear signal."""
    g = torch.Generator().manual_seed(seed)
    for m in mods:
        for n, p in m.named_parameters():
            if p.dim() >= 2:
                p.data = (torch.randn(p.shape, generator=g) * (0.7 / p.shape[-1] ** 0.5)).to(p.dtype)
            elif "sink" in n:
                p.data = torch.zeros_like(p)
            elif "q_norm.weight" in n:  # small logits, so that no weight underflows to 0; gemma stores w - 1
                p.data = torch.full_like(p, -0.9 if float(p.abs().max()) == 0 else 0.1)
            elif "bias" in n:
                p.data = torch.randn(p.shape, generator=g).to(p.dtype) * 0.1


class Freeze:
    """Record every attention module's input once; then feed each the recorded input (+ noise at one position in
    chosen layers), so that layers cannot influence each other except through shared KV. Keep the outputs."""

    def __init__(self, mods):
        self.mods, self.rec, self.out, self.w = mods, {}, {}, {}
        self.noise = None  # [(set of layers, position, vector)], one per batch row
        self.h = []
        for i, m in enumerate(mods):
            self.h.append(m.register_forward_pre_hook(self.pre(i), with_kwargs=True))
            self.h.append(m.register_forward_hook(self.post(i)))

    def pre(self, i):
        def f(mod, args, kwargs):
            in_args = len(args) > 0
            x = args[0] if in_args else kwargs["hidden_states"]
            if i not in self.rec:
                self.rec[i] = torch.randn((1,) + x.shape[1:], generator=torch.Generator().manual_seed(1000 + i)).to(x.dtype)
            x = self.rec[i].expand(x.shape).clone()
            for row, (lays, pos, vec) in enumerate(self.noise or []):
                if i in lays:
                    x[row, pos] = vec.to(x.dtype)
            if in_args:
                return (x,) + tuple(args[1:]), kwargs
            kwargs = dict(kwargs)
            kwargs["hidden_states"] = x
            return args, kwargs
        return f

    def post(self, i):
        def f(mod, args, out):
            self.out[i] = out[0].detach().clone()
            self.w[i] = out[1].detach() if len(out) > 1 and isinstance(out[1], torch.Tensor) else None
        return f

    def close(self):
        for h in self.h:
            h.remove()


def run(model, ids, cache=None):
    with torch.no_grad():
        return model(input_ids=ids, cache=cache, use_cache=cache is not None)


def classify(ends, N, probes):
    """ends[p] = first query position after p that no longer sees p. -> kind, window (tokens a query sees, itself
    included; chunk size for chunked)"""
    if all(ends[p] == N for p in probes):
        return "full", None
    ws = {ends[p] - p for p in probes if ends[p] < N}
    lo_ok = all(ends[p] == min(p + w, N) for p in probes for w in list(ws)[:1])
    if len(ws) == 1 and lo_ok and sum(ends[p] < N for p in probes) > 1:
        return "sliding", ws.pop()
    for c in sorted({ends[p] for p in probes if ends[p] < N}):
        if all(ends[p] == min((p // c + 1) * c, N) for p in probes):
            return "chunked", c
    return "other", None


def tensors_of(layer):
    out = {}
    for k, v in sorted(vars(layer).items()):
        if isinstance(v, torch.Tensor) and v.dim() > 0:
            out[k] = list(v.shape)
        elif isinstance(v, dict):
            for kk, vv in v.items():
                if isinstance(vv, torch.Tensor):
                    out[f"{k}[{kk}]"] = list(vv.shape)
    return out


def measure(d, seed=0, notes=()):
    notes = list(notes)
    cfg = load_config(d)
    tcfg = cfg.get_text_config(decoder=True)
    L = tcfg.num_hidden_layers
    model, errs = build(cfg, seed)  # before the cache: deepseek_v4 registers its cache classes on import of the model
    cache = DynamicCache(config=cfg)
    lws = [l.sliding_window for l in cache.layers if isinstance(l, DynamicSlidingWindowLayer)]
    cfgw = [w for w in (getattr(tcfg, "sliding_window", None), getattr(tcfg, "attention_chunk_size", None)) if w]
    wmax = max(lws + cfgw + [0])
    big = wmax > (200 if tcfg.model_type == "deepseek_v4" else 64)
    N = 3 * wmax + 5 if not big else wmax + 14
    N = max(N, 30)
    if wmax and big:
        probes = sorted({0, 1, 5, 9, N // 2, N - 6})
        # every p is allowed; those with p + w < N show the end of the window
    else:
        probes = list(range(N)) if N <= 200 else list(range(0, N, 16))
    vocab = tcfg.vocab_size
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(8, vocab - 8, (1, N), generator=g)

    # 1) the cache itself, in the dtype the config asks for
    cache = DynamicCache(config=cfg)
    run(model, ids, cache)
    assert len(cache.layers) == L, (len(cache.layers), L)
    dtypes = {str(l.keys.dtype) for l in cache.layers if getattr(l, "keys", None) is not None}
    sizes = {l.keys.element_size() for l in cache.layers if getattr(l, "keys", None) is not None}
    assert len(sizes) == 1, dtypes
    info = []
    for l in cache.layers:
        k, v = getattr(l, "keys", None), getattr(l, "values", None)
        info.append(dict(cls=type(l).__name__, own=k is not None and k.numel() > 0,
                         same=k is not None and k.data_ptr() == v.data_ptr(),
                         k=None if k is None else list(k.shape), v=None if v is None else list(v.shape),
                         sliding=getattr(l, "sliding_window", None), tensors=tensors_of(l)))

    # 2) what the forward attends to, by perturbation (float32, default attention implementation)
    model = model.float()
    mods = attention_modules(model, L)
    strengthen(mods, seed + 1)
    fz = Freeze(mods)
    owners = [i for i in range(L) if info[i]["own"]]
    run(model, ids)
    noise = torch.randn(fz.rec[0].shape[-1], generator=torch.Generator().manual_seed(seed + 2)) * 2
    # jobs: (layers, position). First one per owning layer: perturb that layer alone; every layer whose output changes
    # at a LATER query reads its KV. Then all layers at each probe position: which queries see it.
    po = N - 4
    jobs = [] if big and len(owners) == L else [({j}, po, noise) for j in owners]
    n_own = len(jobs)
    jobs += [(set(range(L)), p, noise) for p in probes]
    step = max(1, min(len(jobs), 4_000_000 // (N * N)))
    diffs = []  # per job: [L, N] max change of the attention output
    base = None
    for a in range(0, len(jobs), step):
        chunk = jobs[a:a + step]
        real = len(chunk)
        chunk = chunk + [chunk[-1]] * (step - real)  # same batch size everywhere, so that base is comparable bit for bit
        rows = ids.expand(len(chunk), -1)
        if base is None:
            fz.noise = None
            run(model, rows)
            base = {i: fz.out[i] for i in range(L)}
            assert all(torch.isfinite(b).all() for b in base.values())
        fz.noise = chunk
        run(model, rows)
        dd = torch.stack([(fz.out[i] - base[i]).abs().amax(-1) for i in range(L)])
        diffs += [dd[:, r] for r in range(real)]
    owner_of = {i: i for i in range(L)} if n_own == 0 else {}
    for (lays, p, _), dd in zip(jobs[:n_own], diffs):
        j = next(iter(lays))
        for i in range(L):
            if (dd[i, p + 1:] > 0).any():
                assert i not in owner_of, f"layer {i} reads both {owner_of[i]} and {j}"
                owner_of[i] = j
    ends = {i: {} for i in range(L)}
    seen = torch.zeros(L, N, N, dtype=torch.bool) if not big else None
    gap = [float("inf"), 0.0]
    first_after = {}
    for (_, p, _), dds in zip(jobs[n_own:], diffs[n_own:]):
        for i in range(L):
            dd = dds[i]
            hit = dd > 0
            if seen is not None:
                seen[i, :, p] = hit
            assert not hit[:p].any(), "future token seen"
            pos = hit.nonzero()[:, 0].tolist()
            if pos:
                gap[0] = min(gap[0], float(dd[hit].min()))
            ends[i][p] = pos[-1] + 1 if pos else p
            if len(pos) != ends[i][p] - p:
                first_after.setdefault(i, []).append(p)
    fz.noise = None
    patt = [classify(ends[i], N, probes) for i in range(L)]
    for i in first_after:
        patt[i] = ("other", None)

    # 3) cross-check with the attention weights of the eager implementation
    eager_ok, raw = None, {}
    if not big:
        fz.close()
        m2, _ = build(cfg, seed, attn_implementation="eager")
        m2 = m2.float()
        mods2 = attention_modules(m2, L)
        strengthen(mods2, seed + 1)
        f2 = Freeze(mods2)
        run(m2, ids)
        eager_ok = True
        for i in range(L):
            w = f2.w[i]
            if w is None or w.shape[-1] < N:
                eager_ok = None
                continue
            vis = (w[0, :, :, :N] > 0).any(0)
            if w.shape[-1] > N:  # compressed entries are concatenated after the N raw rows (deepseek_v4)
                last = {p: int(vis[:, p].nonzero()[-1]) + 1 for p in range(N)}
                assert all(int(vis[:, p].sum()) == last[p] - p for p in range(N))
                raw[i] = classify(last, N, range(N))
            if info[i]["cls"] == "DynamicIndexedLayer":  # top-k of the indexer: data dependent
                eager_ok = None
                continue
            assert vis.diagonal().all(), "a query must see itself"
            if len(probes) == N and not torch.equal(vis, seen[i]) and w.shape[-1] == N:
                eager_ok = False
                notes.append(f"layer {i}: eager weights and perturbation of {type(model).__name__} differ")
        f2.close()
    else:
        fz.close()

    # 4) decode: N tokens into the cache, one more step; must equal the uncached forward over N+1
    dec = None
    if not big:
        m3, _ = build(cfg, seed)
        m3 = m3.float()
        ids1 = torch.cat([ids, ids[:, 3:4]], 1)
        c = DynamicCache(config=cfg)
        run(m3, ids, c)
        a = run(m3, ids1[:, -1:], c)
        b = run(m3, ids1)
        pick = (lambda o: o.logits if hasattr(o, "logits") else o.last_hidden_state)
        a, b = pick(a)[0, -1], pick(b)[0, -1]
        dec = float((a - b).abs().max() / (b.abs().max() + 1e-9))

    if cfg.dtype is None:
        notes.append("no dtype in the (outer) config: from_config builds in torch's default float32 (4 bytes); "
                     "from_pretrained would take the checkpoint's own dtype, so dtype_bytes says nothing here")
    layers = []
    for i in range(L):
        inf = info[i]
        o = i if inf["own"] else owner_of.get(i)
        kind, w = patt[i]
        e = {"layer": i, "kind": kind if inf["own"] else "shared", "owner": o, "window": w}
        src = info[o]
        e["k_heads"], e["k_dim"] = src["k"][1], src["k"][3]
        e["v_heads"], e["v_dim"] = src["v"][1], src["v"][3]
        e["attn_kind"] = kind
        e["cache_class"] = inf["cls"]
        e["cache_window"] = inf["sliding"]
        e["rows_after_prefill"] = inf["k"][2] if inf["own"] else 0
        if i in raw:
            e["kind"], e["window"] = raw[i]
            e["reach_with_compressed"] = kind
            ctype = tcfg.layer_types[i]
            e["compressed"] = {"layer_type": ctype, "ratio": tcfg.compress_rates[ctype]}
        if inf["own"] and owner_of.get(i) != i and w != 1 and inf["cls"] != "DynamicIndexedLayer":
            notes.append(f"layer {i}: perturbing its own input reaches {owner_of.get(i)}")
        if inf["own"] and inf["same"]:
            e["kv_same_tensor"] = True
        if inf["cls"] == "DynamicIndexedLayer":
            e["kind"], e["window"], e["attn_kind"] = "full", None, "indexed top-k (data dependent)"
        extra = {k: v for k, v in inf["tensors"].items() if k not in ("keys", "values")}
        if extra:
            e["other_tensors"] = extra
        layers.append(e)
    exp = {"layers": layers, "dtype_bytes": sizes.pop()}
    meta = {"model_class": type(model).__name__, "config_class": type(cfg).__name__, "text_config_class": type(tcfg).__name__,
            "dtype": dtypes.pop(), "prefill_tokens": N, "min_changed": gap[0], "eager_weights_agree": eager_ok,
            "decode_vs_full_rel_err": dec, "hf_layer_types": getattr(tcfg, "layer_types", None)}
    if errs:
        meta["build_fallback_because"] = errs
    return exp, meta, notes
