"""Hostile messages: each is a value or a CodecError, within a second, without the memory that it claims."""

import random
import resource
import struct
import sys
import time
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from impala.launching.rpc import codec
from impala.launching.rpc.codec import CodecError
from tests.faults.figures import keep

U32 = struct.Struct("<I").pack


def array_message(dtype, shape, data=b""):
    head = b"a" + bytes([len(dtype)]) + dtype + bytes([len(shape)])
    return b"\x01" + head + struct.pack(f"<{len(shape)}Q", *shape) + data


GIGABYTE = 2**30
MALFORMED = {
    "empty": b"",
    "no value": b"\x01",
    "another format": b"\x03N",
    "a pickle": b"\x80\x04\x95\x00\x00",
    "unknown tag": b"\x01?",
    "trailing bytes": b"\x01NN",
    "short int": b"\x01i\x00",
    "short float": b"\x01f\x00\x00",
    "short length": b"\x01s\x01\x00",
    "1 GB of bytes": b"\x01b" + U32(GIGABYTE) + b"x",
    "1 GB of str": b"\x01s" + U32(GIGABYTE) + b"x",
    "1 G of list items": b"\x01l" + U32(GIGABYTE) + b"N",
    "1 G of tuple items": b"\x01t" + U32(GIGABYTE) + b"N",
    "1 G of dict items": b"\x01d" + U32(GIGABYTE) + b"NN",
    "1 GB array": array_message(b"|u1", [GIGABYTE], b"x"),
    "1 GB array by its item": array_message(b"|S99999999", [11], b"x"),
    "array of 2**64 rows": array_message(b"<f8", [2**64 - 1], b"x" * 8),
    "array whose size overflows to 0": array_message(b"|u1", [2**32, 2**32], b""),
    "empty array of 2**63 columns": array_message(b"<f8", [0, 2**63]),
    "empty array of 2**62 columns": array_message(b"<f8", [0, 2**62]),
    "rank 33": array_message(b"|u1", [1] * 33, b"x"),
    "rank 255": array_message(b"|u1", [1] * 255, b"x"),
    "object array": array_message(b"|O", [1], b"x" * 8),
    "void array": array_message(b"|V8", [1], b"x" * 8),
    "dates": array_message(b"<M8[s]", [1], b"x" * 8),
    "item size 0": array_message(b"|S0", [2**40]),
    "item size 2**40": array_message(b"|S1099511627776", [0]),
    "dtype expression": array_message(b"<f8,<f8", [1], b"x" * 16),
    "dtype not ASCII": array_message(b"\xff\xfe", [1], b"x"),
    "dtype name": array_message(b"float64", [1], b"x" * 8),
    "bool of 2": array_message(b"|b1", [2], b"\x01\x02"),
    "character beyond Unicode": array_message(b"<U1", [1], b"\xff\xff\xff\xff"),
    "character beyond Unicode, big-endian": array_message(b">U1", [1], b"\x00\x11\x00\x00"),
    "str of bad UTF-8": b"\x01s" + U32(2) + b"\xff\xfe",
    "list as key": b"\x01d" + U32(1) + b"l" + U32(0) + b"N",
    "array as key": b"\x01d" + U32(1) + array_message(b"|u1", [1], b"x")[1:] + b"N",
    "one key twice": b"\x01d" + U32(2) + b"NTNF",
    "equal keys": b"\x01d" + U32(2) + b"T" + b"N" + b"i" + struct.pack("<q", 1) + b"N",
    "unknown namedtuple": b"\x01n" + U32(9) + b"os.system" + U32(0),
    "namedtuple of too few fields": b"\x01n" + U32(37) + b"impala.launching.rpc.connection.Request" + U32(0),
    "depth bomb of lists": b"\x01" + (b"l" + U32(1)) * 100_000 + b"N",
    "depth bomb of dicts": b"\x01" + (b"d" + U32(1) + b"N") * 100_000 + b"N",
    "depth bomb of keys": b"\x01" + (b"d" + U32(1) + b"t" + U32(1)) * 100_000 + b"N",
    "no compression": b"\x02abc",
    "compressed nonsense": b"\x02" + zlib.compress(b"nonsense"),
    "compressed twice": b"\x02" + zlib.compress(b"\x02" + zlib.compress(b"\x01N")),
    "cut compression": b"\x02" + zlib.compress(b"\x01N")[:-2],
    "bytes after compression": b"\x02" + zlib.compress(b"\x01N") + b"x",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_messages(name):
    start = time.perf_counter()
    with pytest.raises(CodecError):
        codec.decode(MALFORMED[name])
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize("name", MALFORMED)
def test_claims_cost_no_memory(name):
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            codec.decode(MALFORMED[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(MALFORMED[name]) + 200_000  # the rest are the tracebacks


def test_a_compression_bomb_stops_at_the_limit():
    bomb = b"\x02" + zlib.compress(b"\x01b" + U32(64 * 2**20) + bytes(64 * 2**20), 9)
    tracemalloc.start()
    try:
        with pytest.raises(CodecError, match="more than 1048576 bytes"):
            codec.decode(bomb, limit=2**20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20


@pytest.mark.parametrize(
    "item", [b"N", b"l" + U32(0), b"d" + U32(0), array_message(b"|u1", [0])[1:], b"s" + U32(0)], ids=repr
)
def test_many_small_values_stay_within_the_limit(item):
    count, limit = 20_000, 2**20
    message = b"\x01l" + U32(count) + item * count
    tracemalloc.start()
    try:
        with pytest.raises(CodecError, match="more memory"):
            codec.decode(message, limit=limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit + 100_000


SEEDS = [
    None,
    [1, 2.5, "text", b"bytes", (True, None)],
    {"observation": np.zeros((4, 4), np.uint8), "reward": np.float32(1), 3: {"deep": [[()]]}},
    [np.arange(5, dtype=">i4"), np.array(["ab", "c"]), np.array([True, False]), np.zeros((0, 3))],
    ("call", (np.ones(3), {"k": "v"}), {"a": 1, "b": -(2**63)}),
]


def mutants(num_mutants, seed):
    generator = random.Random(seed)
    messages = [codec.encode(value) for value in SEEDS] + [codec.encode(SEEDS[2], compress=True)]
    for _ in range(num_mutants):
        if generator.random() < 0.2:
            yield b"\x01" + generator.randbytes(generator.randrange(60))
            continue
        message = bytearray(generator.choice(messages))
        for _ in range(generator.randrange(1, 4)):
            place = generator.randrange(1, len(message) + 1)
            match generator.randrange(4):
                case 0:
                    message[place - 1] = generator.randrange(256)
                case 1:
                    del message[place : place + generator.randrange(5)]
                case 2:
                    message[place:place] = generator.choice([b"\xff" * 4, b"l\1\0\0\0", generator.randbytes(3)])
                case 3:
                    message[place:] = generator.choice(messages)[generator.randrange(5) :]
        yield bytes(message)


def decode_all(messages):
    """Return how many were refused, and the slowest decoding in seconds."""
    num_refused, slowest = 0, 0.0
    for message in messages:
        start = time.perf_counter()
        try:
            value = codec.decode(message)
        except CodecError:
            num_refused += 1
        else:
            codec.encode(value)  # what is let in is of the types that may go out
        slowest = max(slowest, time.perf_counter() - start)
    return num_refused, slowest


def test_mutated_messages():
    modules = set(sys.modules)
    num_refused, slowest = decode_all(mutants(4000, seed=1))
    assert 1000 < num_refused < 4000  # some are still sound: the mutants reach deep
    assert slowest < 1
    assert set(sys.modules) == modules


@pytest.mark.soak
def test_a_hundred_thousand_mutated_messages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    num_refused, slowest = decode_all(mutants(100_000, seed=2))
    assert num_refused > 25_000
    keep("the slowest of 100,000 mutated messages", slowest, "s", at_most=1)
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    keep("100,000 mutated messages: memory", more, "MB more", at_most=50)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
@example(b"")
def test_random_bytes(data):
    for message in (data, b"\x01" + data, b"\x02" + data):
        try:
            codec.decode(message)
        except CodecError:
            pass
