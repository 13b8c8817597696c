"""What crosses the wire comes out equal, type included; what cannot cross is named and refused."""

import collections
import enum
import struct
import typing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from impala.launching.rpc import codec
from impala.launching.rpc.codec import CodecError

NUMBERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
DTYPES = ["?", *("<" + t for t in NUMBERS), *(">" + t for t in NUMBERS), "S5", "<U3", ">U3"]


@codec.register
class Pair(typing.NamedTuple):
    first: object
    second: object


class Unregistered(typing.NamedTuple):
    field: object


class Colour(enum.IntEnum):
    RED = 1


def round_trip(value, **kwargs):
    return codec.decode(codec.encode(value, **kwargs))


def assert_same(left, right):
    """Equal, with equal types all the way down; NaN equals NaN, -0.0 does not equal 0.0."""
    assert type(left) is type(right)
    if isinstance(left, np.ndarray):
        assert left.dtype.str == right.dtype.str and left.shape == right.shape
        assert left.tobytes() == right.tobytes()
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, dict):
        assert_same(list(left.items()), list(right.items()))
    elif isinstance(left, np.generic):
        assert left.dtype == right.dtype and left.tobytes() == right.tobytes()
    elif isinstance(left, float):
        assert struct.pack("d", left) == struct.pack("d", right)
    else:
        assert left == right


PLAIN = [
    *(None, True, False, 0, -1, 2**63 - 1, -(2**63), 0.0, -0.0, 1e308, float("nan"), float("-inf")),
    *("", "abc", "é\0\U0001f600", "\udc80", b"", b"\0\xff", [], (), {}, [[]], ((),), [()], ([],)),
    *(
        [1, "a", b"a", None],
        (1, [2, (3,)]),
        {"a": {"b": [1]}},
        {1: 2, "1": 3, None: 4, (1, b"x"): 5, 2.5: ()},
    ),
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values(value):
    assert_same(round_trip(value), value)


def test_bool_is_not_int_and_bytes_are_not_str():
    assert_same(round_trip([True, 1, 1.0, "a", b"a", (1,), [1]]), [True, 1, 1.0, "a", b"a", (1,), [1]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7,), (2, 3, 4), (1,), (0,), (3, 0, 2)], ids=str)
def test_arrays(dtype, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    result = round_trip(array)
    assert_same(result, array)
    assert result.flags.writeable and result.flags.aligned and result.flags.owndata or result.base.flags.owndata


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_dimensional_arrays_and_scalars_arrive_as_scalars(dtype):
    array = np.array(1, dtype)
    result = round_trip(array)
    assert isinstance(result, np.generic) and result == array[()]
    assert_same(round_trip(array[()]), array[()])


@pytest.mark.parametrize("value", [np.str_(""), np.bytes_(b""), np.bool_(True), np.float16("nan")], ids=repr)
def test_odd_scalars(value):
    assert_same(round_trip(value), value)


NON_CONTIGUOUS = {
    "strided": np.arange(20)[::3],
    "reversed": np.arange(20)[::-1],
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "fortran": np.asfortranarray(np.arange(24, dtype=">u2").reshape(2, 3, 4)),
    "column": np.arange(12).reshape(3, 4)[:, 1],
    "broadcast": np.broadcast_to(np.float32(2), (3, 2)),
    "unaligned": np.frombuffer(bytes(range(17)), np.uint8)[1:].view("<f8"),
}


@pytest.mark.parametrize("name", NON_CONTIGUOUS)
def test_non_contiguous_arrays(name):
    array = NON_CONTIGUOUS[name]
    assert_same(round_trip(array), array)


def test_read_only_and_mapped_arrays(tmp_path):
    array = np.memmap(tmp_path / "a", np.int32, "w+", shape=(4,))
    array[:] = 7
    array.flags.writeable = False
    assert_same(round_trip(array), np.full(4, 7, np.int32))


def test_a_decoded_array_is_not_a_view_of_the_message():
    message = codec.encode(np.zeros(1000))
    one, other = codec.decode(message), codec.decode(message)
    one += 1
    assert other.sum() == 0


def test_namedtuples_keep_their_class():
    value = [Pair(1, Pair(np.arange(3), None)), {"a": Pair((), [])}]
    assert_same(round_trip(value), value)


def test_registering():
    assert codec.register(Pair) is Pair
    for wrong in (tuple, dict, Pair(1, 2), 3):
        with pytest.raises(TypeError, match="namedtuple"):
            codec.register(wrong)
    other = collections.namedtuple("Pair", "first second third", module=Pair.__module__)
    with pytest.raises(ValueError, match="already registered"):
        codec.register(other)


def test_a_name_is_looked_up_and_never_imported():
    message = codec.encode(Pair(1, 2)).replace(b"Pair", b"Pear")
    with pytest.raises(CodecError, match="not registered"):
        codec.decode(message)


class FakeTensor:
    """Like TensorFlow's: numpy would take it, the codec must not guess."""

    def __array__(self):
        return np.zeros(2)


REFUSED = [
    ({1}, "set", "the top"),
    ([0, {"x": {1}}], "set", "[1]['x']"),
    (Pair([object()], 0), "object", "first[0]"),
    ({("a", 1): [1j]}, "complex", "[('a', 1)][0]"),
    (FakeTensor(), "FakeTensor", "the top"),
    (bytearray(b"x"), "bytearray", "the top"),
    (memoryview(b"x"), "memoryview", "the top"),
    (Colour.RED, "Colour", "the top"),
    (collections.OrderedDict(a=1), "OrderedDict", "the top"),
    (Unregistered(1), "codec.register", "the top"),
    (len, "builtin_function", "the top"),
    (np.array([None]), "dtype object", "the top"),
    ((np.zeros(2, "datetime64[s]"),), "dtype datetime64", "[0]"),
    (np.zeros(2, "i4,f8"), "dtype", "the top"),
    (np.zeros(2, np.longdouble), "dtype", "the top"),
    (np.longdouble(1), "dtype", "the top"),
    (np.ma.masked_array([1, 2], [True, False]), "MaskedArray", "the top"),
]


@pytest.mark.parametrize("value, name, where", REFUSED, ids=[f"{name}-{where}" for _, name, where in REFUSED])
def test_unsupported_types_are_named_with_their_path(value, name, where):
    with pytest.raises(TypeError) as caught:
        codec.encode(value)
    assert name in str(caught.value) and str(caught.value).endswith(f"at {where}")


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**5000], ids=["2**63", "-2**63-1", "huge"])
def test_ints_beyond_int64_are_refused(value):
    with pytest.raises(CodecError, match=r"int64.*at \[1\]"):
        codec.encode([0, value])
    with pytest.raises(CodecError, match="int64"):
        codec.encode({value: 0})


def nest(depth):
    value = 0
    for _ in range(depth):
        value = [value]
    return value


def test_depth():
    assert round_trip(nest(32)) == nest(32)
    with pytest.raises(CodecError, match="deeper than 32"):
        codec.encode(nest(33))
    loop = []
    loop.append({"loop": loop})
    with pytest.raises(CodecError, match="deeper than 32"):
        codec.encode(loop)


def test_the_limit_holds_on_both_sides():
    message = codec.encode(np.zeros(1000, np.uint8))
    with pytest.raises(CodecError, match="limit"):
        codec.decode(message, limit=900)
    with pytest.raises(CodecError, match="more than 900 bytes"):
        codec.encode(np.zeros(1000, np.uint8), limit=900)
    with pytest.raises(CodecError, match="send arrays"):
        codec.encode([None] * 100, limit=1000)  # 100 bytes on the wire, many more in memory
    with pytest.raises(CodecError, match="more memory"):
        codec.decode(codec.encode([None] * 100), limit=1000)


def test_the_limit_comes_from_the_environment(monkeypatch):
    assert codec.max_bytes() == 256 * 2**20
    monkeypatch.setenv("IMPALA_RPC_MAX_BYTES", "900")
    with pytest.raises(CodecError):
        codec.encode(bytes(1000))
    for wrong in ("0", "-1", str(2**31)):
        monkeypatch.setenv("IMPALA_RPC_MAX_BYTES", wrong)
        with pytest.raises(ValueError, match="IMPALA_RPC_MAX_BYTES"):
            codec.encode(None)


def test_compression():
    array = np.zeros(100_000)
    message = codec.encode(array, compress=True)
    assert codec.is_compressed(message) and not codec.is_compressed(codec.encode(array))
    assert len(message) < array.nbytes / 100
    assert_same(codec.decode(message), array)


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), st.binary())
ARRAYS = hnp.arrays(
    st.one_of(
        hnp.boolean_dtypes(),
        hnp.integer_dtypes(),
        hnp.unsigned_integer_dtypes(),
        hnp.floating_dtypes(sizes=(16, 32, 64)),
        hnp.complex_number_dtypes(sizes=(64, 128)),
        hnp.byte_string_dtypes(),
        hnp.unicode_string_dtypes(),
    ),
    hnp.array_shapes(min_dims=1, min_side=0, max_side=3),
)
KEYS = st.recursive(SCALARS, lambda keys: st.lists(keys, max_size=2).map(tuple), max_leaves=3)
VALUES = st.recursive(
    SCALARS | ARRAYS,
    lambda values: st.one_of(
        st.lists(values, max_size=4),
        st.lists(values, max_size=4).map(tuple),
        st.dictionaries(KEYS, values, max_size=4),
        st.builds(Pair, values, values),
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_any_value_comes_back(value):
    assert_same(round_trip(value), value)
    assert_same(round_trip(value, compress=True), value)
