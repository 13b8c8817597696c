"""Buffers to values; the sender is not trusted. See wire.py for the format and codec.py for the entry points."""

import math
import reprlib
import struct
from typing import Any

import numpy as np

from impala.launching.rpc import wire
from impala.launching.rpc.wire import CodecError


class Decoder:
    """Reads the values of one message; no length is trusted until that many bytes are there."""

    def __init__(self, message: bytes, limit: int):
        self._message = message
        self._budget = limit
        self.position = len(wire.PLAIN)

    def value(self, depth: int = 0) -> Any:
        """Read one value.

        Raises:
          CodecError, ValueError, TypeError, OverflowError: the message is malformed.
        """
        self._spend(wire.VALUE_BYTES)
        tag = self._take(1)
        read = _READERS.get(tag)
        if read is None:
            raise CodecError(f"unknown tag {tag!r} at byte {self.position - 1}")
        return read(self, depth)

    def left(self) -> int:
        """Return the number of bytes not read yet."""
        return len(self._message) - self.position

    def _spend(self, num_bytes: int) -> None:
        # Without this budget, 256 MiB of empty lists would take 16 times as much memory.
        self._budget -= num_bytes
        if self._budget < 0:
            raise CodecError("the message needs more memory than its limit")

    def _skip(self, num_bytes: int) -> int:
        """Move past bytes that must be there; return where they start."""
        if num_bytes > self.left():
            raise CodecError(f"{num_bytes} bytes are claimed at byte {self.position}, {self.left()} are left")
        start = self.position
        self.position += num_bytes
        return start

    def _take(self, num_bytes: int) -> bytes:
        return self._message[self._skip(num_bytes) : self.position]

    def _length(self) -> int:
        return wire.U32.unpack(self._take(4))[0]

    def _count(self, depth: int) -> int:
        if depth >= wire.MAX_DEPTH:
            raise CodecError(f"containers nested deeper than {wire.MAX_DEPTH}")
        return self._length()  # a false count fails at the first value that is missing

    def _int(self, depth):
        return wire.I64.unpack(self._take(8))[0]

    def _float(self, depth):
        return wire.F64.unpack(self._take(8))[0]

    def _str(self, depth):
        length = self._length()
        self._spend(wire.STR_BYTES * length)
        return str(self._take(length), "utf-8", "surrogatepass")

    def _bytes(self, depth):
        length = self._length()
        self._spend(length)
        return self._take(length)

    def _list(self, depth):
        return [self.value(depth + 1) for _ in range(self._count(depth))]

    def _tuple(self, depth):
        return tuple(self._list(depth))

    def _dict(self, depth):
        count, result = self._count(depth), {}
        for _ in range(count):
            key = self.value(depth + 1)
            result[key] = self.value(depth + 1)
        if len(result) != count:
            raise CodecError("a dict holds a key twice")
        return result

    def _namedtuple(self, depth):
        name = self._str(depth)
        cls = wire.registered(name)
        if cls is None:
            raise CodecError(f"the namedtuple {reprlib.repr(name)} is not registered on this side")
        fields = self._list(depth)
        if len(fields) != len(cls._fields):
            raise CodecError(f"{name} has {len(cls._fields)} fields here, {len(fields)} in the message")
        return cls._make(fields)

    def _array(self, depth):
        name = str(self._take(self._take(1)[0]), "ascii")
        if not wire.DTYPE.fullmatch(name):
            raise CodecError(f"the dtype {name!r} is not carried")
        dtype, rank = np.dtype(name), self._take(1)[0]
        if rank > wire.MAX_RANK:
            raise CodecError(f"an array of rank {rank}")
        shape = struct.unpack(f"<{rank}Q", self._take(8 * rank))
        size = math.prod(shape)
        self._spend(size * dtype.itemsize)
        start = self._skip(size * dtype.itemsize)
        if size == 0:
            return np.empty(shape, dtype)
        view = np.frombuffer(self._message, dtype, size, start)
        _check_items(view)
        # The copy is aligned, writable, and does not keep the message in memory.
        array = view.reshape(shape).copy()
        return array if rank else array[()]


def _check_items(view: np.ndarray) -> None:
    """Refuse bytes that are not valid for their dtype: numpy would fail on them later, elsewhere."""
    if view.dtype.kind == "b" and view.view(np.uint8).max() > 1:
        raise CodecError("a bool array holds something else")
    if view.dtype.kind == "U" and view.view(view.dtype.byteorder + "u4").max() > 0x10FFFF:
        raise CodecError("a str array holds invalid Unicode")


_READERS = {
    b"N": lambda decoder, depth: None,
    b"T": lambda decoder, depth: True,
    b"F": lambda decoder, depth: False,
    b"i": Decoder._int,
    b"f": Decoder._float,
    b"s": Decoder._str,
    b"b": Decoder._bytes,
    b"l": Decoder._list,
    b"t": Decoder._tuple,
    b"d": Decoder._dict,
    b"n": Decoder._namedtuple,
    b"a": Decoder._array,
}
