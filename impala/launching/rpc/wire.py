"""The wire format, shared by encoder and decoder: its grammar, its limits, and the registry of namedtuples.

Integers are little-endian.

    message   = 0x01 value | 0x02 zlib(0x01 value)
    value     = tag, payload
    N T F       None, True, False         -
    i f         int, float                8 bytes (int64, float64)
    s b         str, bytes                u32 length, bytes (str: UTF-8)
    l t         list, tuple               u32 count, values
    d           dict                      u32 count, key and value in turn
    n           registered namedtuple     its name and its fields, as the payloads of s and t
    a           numpy array or scalar     u8 length, dtype string; u8 rank, u64 dimensions; raw C-order buffer
"""

import os
import re
import struct

PLAIN, COMPRESSED = b"\x01", b"\x02"
U32, I64, F64 = struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<d")
DTYPE = re.compile(r"[<>|](b1|[iu][1248]|f[248]|c(8|16)|[SU][1-9]\d{0,7})")

DEFAULT_MAX_BYTES, GRPC_BYTES = 256 * 2**20, 2**31  # GRPC_BYTES: gRPC's own limit
MAX_BYTES_VARIABLE = "IMPALA_RPC_MAX_BYTES"
MAX_DEPTH = 32  # containers inside containers
MAX_RANK = 32  # of an array: numpy's own
VALUE_BYTES = 128  # what any decoded value costs in memory besides its payload, rounded up
STR_BYTES = 4  # what a byte of UTF-8 may cost: one wide character makes Python store all of them wide

_namedtuples: dict[str, type] = {}


class CodecError(ValueError):
    """A message that is malformed or over a limit."""


def max_bytes() -> int:
    """Return the limit on one message in bytes: IMPALA_RPC_MAX_BYTES, or 256 MiB.

    Raises:
      ValueError: the variable holds no number that gRPC could take.
    """
    text = os.environ.get(MAX_BYTES_VARIABLE, str(DEFAULT_MAX_BYTES))
    if not text.isdecimal() or not 0 < int(text) < GRPC_BYTES:
        raise ValueError(f"{MAX_BYTES_VARIABLE}={text}; expected bytes, above 0 and below 2**31, gRPC's own limit")
    return int(text)


def register(cls: type) -> type:
    """Let a namedtuple class cross the wire; usable as a decorator. Both sides must register it.

    Raises:
      TypeError: `cls` is not a namedtuple class.
      ValueError: a class of the same module and name, but with other fields, is registered.
    """
    if not (isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")):
        raise TypeError(f"register() takes a namedtuple class, not {cls!r}")
    known = _namedtuples.get(wire_name(cls), cls)
    if known._fields != cls._fields:
        raise ValueError(f"{wire_name(cls)} is already registered with fields {known._fields}, not {cls._fields}")
    _namedtuples[wire_name(cls)] = cls
    return cls


def registered(name: str) -> type | None:
    """Return the namedtuple class of that wire name, or None. Nothing is ever imported for a name."""
    return _namedtuples.get(name)


def wire_name(cls: type) -> str:
    """Return the name under which a class crosses the wire."""
    return f"{cls.__module__}.{cls.__qualname__}"
