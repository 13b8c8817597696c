"""Values to buffers. See wire.py for the format and codec.py for the entry points."""

import reprlib
import struct
from typing import Any

import numpy as np

from impala.launching.rpc import wire
from impala.launching.rpc.wire import CodecError


class Unsendable(Exception):
    """Raised for a value that cannot be sent; collects the path to it on its way up."""

    def __init__(self, kind: type[Exception], reason: str):
        super().__init__(reason)
        self.kind, self.reason, self.path = kind, reason, []

    def resolve(self) -> Exception:
        """Return the exception for the caller, which names the path."""
        where = "".join(reversed(self.path)).lstrip(".") or "the top"
        return self.kind(f"cannot send {self.reason}, at {where}")


class Encoder:
    """Collects the buffers of one message; arrays are referred to, not copied, until the one join."""

    def __init__(self, limit: int):
        self.parts: list[Any] = []
        self._limit = self._budget = limit

    def value(self, value: Any, depth: int = 0) -> None:
        """Append one value.

        Raises:
          Unsendable: a type, an int, a depth or a size that the wire does not carry.
        """
        self._spend(wire.VALUE_BYTES)
        write = _WRITERS.get(type(value)) or _writer_of_rare_type(value)
        write(self, value, depth)

    def _spend(self, num_bytes: int) -> None:
        self._budget -= num_bytes
        if self._budget < 0:
            note = f"each value counts {wire.VALUE_BYTES} more: send arrays, not long lists"
            raise Unsendable(CodecError, f"more than {self._limit} bytes ({note})")

    def _none(self, value, depth):
        self.parts.append(b"N")

    def _bool(self, value, depth):
        self.parts.append(b"T" if value else b"F")

    def _int(self, value, depth):
        if not -(2**63) <= value < 2**63:
            raise Unsendable(CodecError, f"an int of {value.bit_length()} bits, beyond int64")
        self.parts.append(b"i" + wire.I64.pack(value))

    def _float(self, value, depth):
        self.parts.append(b"f" + wire.F64.pack(value))

    def _str(self, value, depth, tag=b"s"):
        data = value.encode("utf-8", "surrogatepass")
        self._spend(wire.STR_BYTES * len(data))
        self.parts += (tag + wire.U32.pack(len(data)), data)

    def _bytes(self, value, depth):
        self._spend(len(value))
        self.parts += (b"b" + wire.U32.pack(len(value)), value)

    def _list(self, value, depth):
        self._open(b"l", value, depth)
        self._items(value, depth, "[{}]".format)

    def _tuple(self, value, depth):
        self._open(b"t", value, depth)
        self._items(value, depth, "[{}]".format)

    def _namedtuple(self, value, depth):
        self._str(wire.wire_name(type(value)), depth, tag=b"n")
        self._open(b"", value, depth)
        self._items(value, depth, lambda index: f".{value._fields[index]}")

    def _dict(self, value, depth):
        self._open(b"d", value, depth)
        for key, item in value.items():
            try:
                self.value(key, depth + 1)
                self.value(item, depth + 1)
            except Unsendable as error:
                error.path.append(f"[{_repr(key)}]")
                raise

    def _open(self, tag, container, depth):
        if depth >= wire.MAX_DEPTH:
            raise Unsendable(CodecError, f"containers nested deeper than {wire.MAX_DEPTH}")
        self.parts.append(tag + wire.U32.pack(len(container)))

    def _items(self, items, depth, segment):
        for index, item in enumerate(items):
            try:
                self.value(item, depth + 1)
            except Unsendable as error:
                error.path.append(segment(index))
                raise

    def _array(self, value, depth):
        array = np.asarray(value)
        if not wire.DTYPE.fullmatch(array.dtype.str):
            raise Unsendable(TypeError, f"a numpy array of dtype {array.dtype}")
        self._spend(array.nbytes)
        dtype = array.dtype.str.encode()
        header = struct.pack(f"<cB{len(dtype)}sB{array.ndim}Q", b"a", len(dtype), dtype, array.ndim, *array.shape)
        # As uint8: big-endian and U have no buffer format that bytes.join would take.
        self.parts += (header, np.ascontiguousarray(array).reshape(-1).view(np.uint8))


# By exact type: a subclass means more than its base could carry (masked arrays, enums, ordered dicts).
_WRITERS = {
    type(None): Encoder._none,
    bool: Encoder._bool,
    int: Encoder._int,
    float: Encoder._float,
    str: Encoder._str,
    bytes: Encoder._bytes,
    list: Encoder._list,
    tuple: Encoder._tuple,
    dict: Encoder._dict,
    np.ndarray: Encoder._array,
    np.memmap: Encoder._array,
}


def _repr(key: Any) -> str:
    try:
        return reprlib.repr(key)
    except Exception:  # ints of 4300 digits, and whatever a class may do
        return f"<{type(key).__name__}>"


def _writer_of_rare_type(value: Any):
    cls = type(value)
    if isinstance(value, np.generic):
        return Encoder._array
    if wire.registered(wire.wire_name(cls)) is cls:
        return Encoder._namedtuple
    hint = "convert it to a plain type or a numpy array first"
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        hint = "pass its class to impala.launching.rpc.codec.register first, on both sides"
    raise Unsendable(TypeError, f"an object of type {wire.wire_name(cls).removeprefix('builtins.')} ({hint})")
