# SPDX-License-Identifier: Apache-2.0
"""Number formats of the model (E4M3, UE8M0, E2M1, bf16) and a small safetensors reader and writer.

Every codec works on float64 and is exact: codes are chosen by comparing the value with the
product (midpoint of two codes) * scale, which has few bits and is exact in float64.
"""
import json
import struct

import numpy as np

# ---- element tables ----------------------------------------------------------------------
E4M3_POS = np.array([(k * 2.0 ** -9) if k < 8 else (1 + (k & 7) / 8) * 2.0 ** ((k >> 3) - 7)
                     for k in range(127)])                      # codes 0x00..0x7E (448)
E2M1_POS = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])   # codes 0..7
E4M3_MID = (E4M3_POS[1:] + E4M3_POS[:-1]) / 2
E2M1_MID = (E2M1_POS[1:] + E2M1_POS[:-1]) / 2
E4M3_ALL = np.concatenate([E4M3_POS, [np.nan], -E4M3_POS, [np.nan]])
E2M1_ALL = np.concatenate([E2M1_POS, -E2M1_POS])


def _round_code(mag, mid):
    """Nearest code of mag >= 0; exact ties go to the even code; values above the top saturate."""
    low = np.searchsorted(mid, mag, side="left")          # number of midpoints < mag
    at = np.minimum(low, len(mid) - 1)
    tie = (low < len(mid)) & (mid[at] == mag) & (low % 2 == 1)
    return low + tie


def e4m3_encode(x):
    """float64 -> E4M3 byte, round to nearest even, saturating at 448, sign of zero kept."""
    x = np.asarray(x, np.float64)
    return (_round_code(np.abs(x), E4M3_MID) | (np.signbit(x) * 0x80)).astype(np.uint8)


def e4m3_decode(b):
    return E4M3_ALL[np.asarray(b, np.uint8)]


def ue8m0_decode(b):
    return np.ldexp(1.0, np.asarray(b, np.int64) - 127)


def pow2_ceil(amax, unit_mantissa, unit_exponent):
    """Smallest k with unit * 2^k >= amax, for unit = unit_mantissa * 2^unit_exponent (frexp)."""
    m, e = np.frexp(amax)
    return e - unit_exponent + (m > unit_mantissa)


def pack_nibbles(codes):
    """Even element in the low nibble (facts 6.7)."""
    codes = np.asarray(codes, np.uint8)
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)


def unpack_nibbles(b):
    b = np.asarray(b, np.uint8)
    out = np.empty(b.shape[:-1] + (2 * b.shape[-1],), np.uint8)
    out[..., 0::2] = b & 15
    out[..., 1::2] = b >> 4
    return out


def _e2m1_with_scale(blocks, scale):
    """Codes of blocks/scale without forming the quotient: compare with midpoint * scale."""
    mag = np.abs(blocks)
    codes = np.zeros(blocks.shape, np.int64)
    for k, mid in enumerate(E2M1_MID):
        edge = mid * scale                               # exact: at most 8 significant bits
        # the midpoint between code k and k+1: a tie goes to the even one
        codes += (mag > edge) | ((mag == edge) & (k % 2 == 1))
    return (codes | (np.signbit(blocks) * 8)).astype(np.uint8)


# ---- record codecs: encode(x [n, width]) -> bytes; decode(bytes) -> float64 ----------------
def fp8_encode(x, block=32):
    """E4M3 with one UE8M0 scale per block: [n, D] -> [n, D + D/block] (values, then scales)."""
    x = np.asarray(x, np.float64)
    n, width = x.shape
    b = x.reshape(n, width // block, block)
    amax = np.maximum(np.abs(b).max(-1), 1e-4)
    k = pow2_ceil(amax, 0.875, 9)                        # 448 = 0.875 * 2^9
    q = e4m3_encode(np.clip(np.ldexp(b, -k[..., None]), -448.0, 448.0))
    return np.concatenate([q.reshape(n, width), (k + 127).astype(np.uint8)], 1)


def fp8_decode(rec, block=32):
    n, total = rec.shape
    width = total * block // (block + 1)
    v = e4m3_decode(rec[:, :width]).reshape(n, width // block, block)
    return (v * ue8m0_decode(rec[:, width:])[..., None]).reshape(n, width)


def fp4_main_encode(x):
    """E2M1 with one E4M3 scale per 16: [n, D] -> [n, D/2 + D/16]."""
    x = np.asarray(x, np.float64)
    n, width = x.shape
    b = x.reshape(n, width // 16, 16)
    amax = np.maximum(np.abs(b).max(-1), 6 * 2.0 ** -9)
    s = _round_code(amax, 6 * E4M3_MID).astype(np.uint8)  # E4M3_rne(amax / 6) without dividing
    q = _e2m1_with_scale(b, e4m3_decode(s)[..., None])
    return np.concatenate([pack_nibbles(q.reshape(n, width)), s], 1)


def fp4_main_decode(rec):
    n, total = rec.shape
    width = total * 16 // 9
    v = E2M1_ALL[unpack_nibbles(rec[:, : width // 2])].reshape(n, width // 16, 16)
    return (v * e4m3_decode(rec[:, width // 2:])[..., None]).reshape(n, width)


def mxfp4_encode(x):
    """E2M1 with one UE8M0 scale per 32: [n, D] -> [n, D/2 + D/32]."""
    x = np.asarray(x, np.float64)
    n, width = x.shape
    b = x.reshape(n, width // 32, 32)
    amax = np.maximum(np.abs(b).max(-1), 6 * 2.0 ** -126)
    k = pow2_ceil(amax, 0.75, 3)                         # 6 = 0.75 * 2^3
    q = _e2m1_with_scale(b, np.ldexp(1.0, k)[..., None])
    return np.concatenate([pack_nibbles(q.reshape(n, width)), (k + 127).astype(np.uint8)], 1)


def mxfp4_decode(rec):
    n, total = rec.shape
    width = total * 32 // 17
    v = E2M1_ALL[unpack_nibbles(rec[:, : width // 2])].reshape(n, width // 32, 32)
    return (v * ue8m0_decode(rec[:, width // 2:])[..., None]).reshape(n, width)


def bf16_bits(x):
    """float32 -> bf16 bit patterns (uint16), round to nearest even; finite input."""
    u = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_value(bits):
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def v4_encode(x):
    """V4 record, 512 -> 584 bytes: 448 E4M3 | 64 bf16 | 7 UE8M0 (per 64) | 0."""
    x = np.asarray(x, np.float32)
    fp8 = fp8_encode(x[:, :448], 64)
    rope = bf16_bits(x[:, 448:]).astype("<u2").view(np.uint8).reshape(len(x), 128)
    zero = np.zeros((len(x), 1), np.uint8)
    return np.concatenate([fp8[:, :448], rope, fp8[:, 448:], zero], 1)


def v4_decode(rec):
    rope = bf16_value(np.ascontiguousarray(rec[:, 448:576]).view("<u2"))
    nope = fp8_decode(np.concatenate([rec[:, :448], rec[:, 576:583]], 1), 64)
    return np.concatenate([nope, rope.astype(np.float64)], 1)


# ---- weight formats -------------------------------------------------------------------------
def fp8_weight_encode(w):
    """[out, in] -> E4M3 bytes and UE8M0 bytes per 32x32 block (ragged edges allowed)."""
    w = np.asarray(w, np.float64)
    rows, cols = -(-w.shape[0] // 32), -(-w.shape[1] // 32)
    q = np.zeros(w.shape, np.uint8)
    s = np.zeros((rows, cols), np.uint8)
    for i in range(rows):
        for j in range(cols):
            part = np.s_[32 * i: 32 * i + 32, 32 * j: 32 * j + 32]
            k = pow2_ceil(max(np.abs(w[part]).max(), 1e-30), 0.875, 9)
            q[part] = e4m3_encode(np.ldexp(w[part], -k))
            s[i, j] = k + 127
    return q, s


def fp8_weight_decode(q, s):
    big = np.repeat(np.repeat(ue8m0_decode(s), 32, 0), 32, 1)
    return e4m3_decode(q) * big[: q.shape[0], : q.shape[1]]


# ---- safetensors ----------------------------------------------------------------------------
NP_DTYPE = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U8": "u1", "I8": "i1",
            "BF16": "<u2", "F8_E4M3": "u1", "F8_E8M0": "u1"}


def save(path, tensors):
    """tensors: name -> array (F32/I32/I64/U8 by its dtype) or (safetensors dtype, bit array)."""
    by_kind = {"f4": "F32", "f8": "F64", "i4": "I32", "i8": "I64", "u1": "U8", "i1": "I8"}
    header, blobs, at = {}, [], 0
    for name in sorted(tensors):
        t = tensors[name]
        dtype, a = t if isinstance(t, tuple) else (by_kind[t.dtype.str[1:]], t)
        raw = np.ascontiguousarray(a, NP_DTYPE[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(a.shape), "data_offsets": [at, at + len(raw)]}
        blobs.append(raw)
        at += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def load(path):
    """name -> (safetensors dtype, array; BF16, F8_E4M3, F8_E8M0 as bit patterns)."""
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8: 8 + size])
    header.pop("__metadata__", None)
    out = {}
    for name, h in header.items():
        a, b = h["data_offsets"]
        raw = np.frombuffer(data[8 + size + a: 8 + size + b], NP_DTYPE[h["dtype"]])
        out[name] = (h["dtype"], raw.reshape(h["shape"]))
    return out
