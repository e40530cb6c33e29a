#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden bytes of docs/FORMAT.md, computed without any code of this project.

Prints `name hex` lines; golden.txt holds them, and
tests/store/format_golden_test.cc compares. Hashes come from hashlib (BLAKE2b)
and from the PyPI package xxhash:

    python3 -m venv venv && venv/bin/pip install xxhash
    venv/bin/python generate.py > golden.txt
"""

import hashlib
import struct

import xxhash


def u8(x):
    return struct.pack("<B", x)


def u16(x):
    return struct.pack("<H", x)


def u32(x):
    return struct.pack("<I", x)


def u64(x):
    return struct.pack("<Q", x)


def i64(x):
    return struct.pack("<q", x)


def data(b):
    return u32(len(b)) + b


def xxh3(b):
    return xxhash.xxh3_64_intdigest(b)


def keyed(secret, b):
    return hashlib.blake2b(b, key=secret, digest_size=32).digest()


def pattern(first):
    return bytes((first + i) & 0xFF for i in range(32))


SECRET = pattern(0x00)
FINGERPRINT = pattern(0x40)
GOLDEN = []


def golden(name, value):
    GOLDEN.append((name, value))
    return value


# Sections ------------------------------------------------------------------

TOKENS = golden("tokens", b"".join(map(u32, (0, 1, 0x01020304, 0xFFFFFFFF))))

SPAN_LIST = ((4100, 4103, 0, b"adapter"), (4104, 4120, 1, b"im\x00age"))


def spans(items):
    return u32(len(items)) + b"".join(
        u64(begin) + u64(end) + u8(both) + data(key)
        for begin, end, both, key in items
    )


SPANS = golden("spans", spans(SPAN_LIST))
golden("spans_none", spans(()))

PROVENANCE = ((4096, 4098, 1), (4098, 4100, 2))
FLOORS = ((4099, 4001, 7),)


def provenance(items):
    return u32(len(items)) + b"".join(
        u64(begin) + u64(end) + u8(kind) for begin, end, kind in items
    )


def floors(items):
    return u32(len(items)) + b"".join(
        u64(at) + u64(start) + u32(layer) for at, start, layer in items
    )


ORIGIN = golden("origin", provenance(PROVENANCE) + floors(FLOORS))

# Record prefix -------------------------------------------------------------

ROWS = bytes((7 * i + 3) & 0xFF for i in range(80))


def align(n):
    return -(-n // 64) * 64


def record(kind, number, tenant, first_pos, n_tokens, n_pending, sections):
    """Prefix of a record, its payload digest, and the whole record."""
    digest = keyed(SECRET, b"".join(s[4] for s in sections))
    at = 160 + 48 * len(sections)
    directory = b""
    body = b""
    for kind_of, section_id, first_row, row_bytes, content in sections:
        offset = align(at)
        body += bytes(offset - at) + content
        at = offset + len(content)
        rows = len(content) // row_bytes if row_bytes else 0
        directory += u16(kind_of) + u16(0) + u32(section_id) + u64(first_row)
        directory += u32(rows) + u32(row_bytes) + u64(offset)
        directory += u64(len(content)) + u64(xxh3(content))
    head = u32(0x52525054) + u16(1) + u8(kind) + u8(0)
    head += u64(number) + u32(tenant) + u32(len(sections)) + u64(at)
    head += u64(first_pos) + u32(n_tokens) + u32(n_pending)
    head += u8(0) + u8(0) + u16(0) + u32(0) + bytes(24) + bytes(16)
    head += digest + bytes(24)
    assert len(head) == 152
    prefix = head + u64(xxh3(head + directory)) + directory
    assert len(prefix + body) == at
    return prefix, digest, prefix + body


block, digest, whole = record(
    1, 0x1122334455667788, 0x0A0B0C0D, 4096, 3, 1,
    ((1, 0, 0, 0, TOKENS), (2, 0, 0, 0, SPANS), (3, 0, 0, 0, ORIGIN),
     (4, 2, 2048, 40, ROWS)),
)
golden("block_prefix", block)
golden("block_digest", digest)
golden("block_record", whole)
attachment, _, _ = record(
    2, 9, 1, 0, 0, 0, ((6, 7, 0, 0, b"witness"), (6, 8, 0, 0, b"")))
golden("attachment_prefix", attachment)

# Sealed values -------------------------------------------------------------


def sealed(magic, body):
    value = magic + u16(1) + body
    return value + u64(xxh3(value))


def receipt(first):
    return b"".join(u64(first + i) for i in range(14))


def operation(name, verb, first):
    return data(name) + u8(verb) + receipt(first)


manifest = u8(2) + u8(0) + u64(0x0102030405060708)
manifest += i64(1111) + i64(2222) + i64(-1) + i64(4444)
manifest += FINGERPRINT + u32(1024) + u64(77) + u64(5000) + u64(4999)
manifest += u64(40960) + u64(5)
manifest += data(b"model") + data(b"fields") + data(b"cpu/x") + data(b"me")
manifest += u32(2)
manifest += u8(1) + u64(78) + u64(100) + u64(4096)
manifest += u8(4) + u64(79) + u64(200) + u64(8192)
manifest += provenance(((0, 4000, 1), (4000, 5000, 4)))
manifest += u32(2) + data(b"a") + data(b"1") + data(b"b") + data(b"")
manifest += u32(2) + operation(b"op1", 1, 100) + operation(b"op2", 3, 200)
golden("manifest", sealed(b"TPRM", manifest))

empty = u8(1) + u8(0) + u64(0) + 4 * i64(0) + bytes(32) + u32(0) + 5 * u64(0)
empty += 4 * data(b"") + 4 * u32(0)
golden("manifest_empty", sealed(b"TPRM", empty))

entry = u8(1) + u8(3) + u32(0x0A0B0C0D) + u32(3) + u32(2) + u64(76)
entry += u64(4096) + u32(1024) + u32(5) + u64(911360)
entry += pattern(0x60) + pattern(0x80) + pattern(0xA0)
golden("record_entry", sealed(b"TPRE", entry))

golden("tombstone",
       sealed(b"TPRD", i64(1700000000000000) + operation(b"rm", 4, 300)))

layout = u32(1024) + u32(3) + u32(288) + u32(2) + u32(68) + u32(2)
layout += u32(288) + u32(1)
golden("layout", sealed(b"TPRL", layout))

# Identity ------------------------------------------------------------------


def chain_spans(items):
    return u32(len(items)) + b"".join(
        u64(begin) + u64(end) + u8(both) + data(key)
        for begin, end, both, key in items
    )


def chain(parent, first_pos, ids, items):
    return keyed(SECRET, u8(2) + parent + u64(first_pos) + u32(len(ids))
                 + b"".join(map(u32, ids)) + chain_spans(items))


def block_id(parent, chain_hash, payload, origin, floor_list):
    return keyed(SECRET, u8(3) + FINGERPRINT + parent + chain_hash + payload
                 + provenance(origin) + floors(floor_list))


root = golden("chain_root", keyed(SECRET, u8(1) + FINGERPRINT))
golden("chain_empty", chain(root, 0, (), ()))
first = golden("chain_first", chain(root, 0, (5, 6, 7), ()))
second = golden(
    "chain_second",
    chain(first, 3, (0, 1, 0x01020304, 0xFFFFFFFF), SPAN_LIST))
id_one = golden("block_id_first", block_id(bytes(32), first, digest, (), ()))
golden("block_id_second", block_id(id_one, second, digest, PROVENANCE, FLOORS))
golden("blake2b_unkeyed", hashlib.blake2b(b"abc", digest_size=32).digest())

# Keys: big-endian ----------------------------------------------------------


def b16(x):
    return struct.pack(">H", x)


def b32(x):
    return struct.pack(">I", x)


def b64(x):
    return struct.pack(">Q", x)


TENANT = b32(0x0A0B0C0D)
NUMBER = 0x1122334455667788
golden("key_secret", b"secret/" + TENANT)
golden("key_layout", b"layout/" + FINGERPRINT)
golden("key_session", TENANT + b"s\x00id")
golden("key_record", b64(NUMBER))
golden("key_part", b64(NUMBER) + b32(0x99AABBCC))
golden("key_block", TENANT + pattern(0x60))
golden("key_chain_ends",
       TENANT + pattern(0xA0) + u8(1) + b64(~NUMBER & (1 << 64) - 1))
golden("key_chain_continues",
       TENANT + pattern(0xA0) + u8(2) + b64(~NUMBER & (1 << 64) - 1))
golden("key_tombstone", TENANT + b16(4) + b"s\x00id" + b"op")

# A container --------------------------------------------------------------


def piece(kind, payload, block=0, ident=0, first=0, rows=0, row_bytes=0):
    head = b"TPRX" + u16(1) + u8(kind) + u8(0) + u32(block) + u32(ident)
    head += u64(first) + u32(rows) + u32(row_bytes)
    head += u64(len(payload)) + u64(xxh3(payload))
    return head + u64(xxh3(head)) + payload


def row_run(step, begin, end, row_bytes):
    return bytes((step * i + 3) & 0xFF
                 for i in range(begin * row_bytes, end * row_bytes))


def row_piece(block, slot, begin, end, row_bytes, step):
    return piece(5, row_run(step, begin, end, row_bytes), block, slot, begin,
                 end - begin, row_bytes)


box_header = data(b"s\x00id") + u64(7) + data(b"model") + FINGERPRINT
box_header += data(b"fields") + data(b"layout") + u32(16) + u32(2)
box_header += u32(4) + u32(1) + u32(6) + u32(2) + u64(20) + u64(18) + u64(2)

box_manifest = u8(2) + i64(1111) + i64(2222) + i64(3333)
box_manifest += data(b"cpu/x") + data(b"me")
box_manifest += u32(2) + data(b"a") + data(b"1") + data(b"b") + data(b"")
box_manifest += data(provenance(((0, 10, 1), (10, 18, 2)))
                     + floors(((12, 4, 7),)))
box_manifest += u32(1) + operation(b"op1", 5, 100)
box_manifest += u32(3) + u8(1) + u32(0) + u64(3) + u8(1) + u32(5) + u64(0)
box_manifest += u8(2) + u32(0) + u64(5)
box_manifest += u32(1) + u32(9) + u32(5) + u64(16) + u64(18)

box_tokens = b"".join(map(u32, range(100, 120)))
box_tokens += spans(((2, 5, 0, b"adapter"), (6, 9, 1, b"im\x00age")))

box_blocks = [
    row_piece(0, 0, 0, 16, 4, 7) + row_piece(0, 1, 0, 8, 6, 11),
    row_piece(1, 0, 16, 18, 4, 7) + row_piece(1, 1, 8, 9, 6, 11),
]
box_outline = piece(1, box_header) + piece(2, box_manifest)
box_outline += piece(3, box_tokens, rows=20)
box_outline += piece(4, u64(0) + u64(len(box_blocks[0]))
                     + u64(sum(map(len, box_blocks))))
box_tail = piece(6, b"wit", 1, 0) + piece(6, b"", 1, 5) + piece(6, b"state", 2)
box_tail += piece(7, row_run(5, 16, 18, 5), 0, 9, 16, 2, 5)

link = b""
for part in (box_outline, *box_blocks, box_tail):
    link = hashlib.blake2b(link + part, digest_size=32).digest()
golden("container",
       box_outline + b"".join(box_blocks) + box_tail + piece(8, link))

print("# SPDX-License-Identifier: Apache-2.0")
print("# Written by generate.py; never by hand.")
for name, value in GOLDEN:
    print(name, value.hex())
