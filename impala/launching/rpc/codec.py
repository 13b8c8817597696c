"""The typed wire codec: plain values and numpy arrays to bytes and back, without pickle.

A decoder that can only build the types of wire.py runs no code of the sender's choosing, which is what makes
it safe to read from an open port. What arrives equals what was sent, type included: a list stays a list,
bytes stay bytes, an array keeps its byte order (a 0-d array arrives as a numpy scalar). Other types are
refused, never converted.
"""

import zlib
from typing import Any

from impala.launching.rpc import wire
from impala.launching.rpc.decoder import Decoder
from impala.launching.rpc.encoder import Encoder, Unsendable
from impala.launching.rpc.wire import CodecError, max_bytes, register

__all__ = ["CodecError", "decode", "encode", "is_compressed", "max_bytes", "register"]


def encode(value: Any, *, limit: int | None = None, compress: bool = False) -> bytes:
    """Encode a value.

    Args:
      value: None, bool, int within int64, float, str, bytes, list, tuple, dict, registered namedtuples, numpy
        arrays and scalars of numbers, bool, S and U.
      limit: maximum bytes of payload plus wire.VALUE_BYTES for each value; `max_bytes()` by default.
      compress: deflate the message (zlib, level 1).

    Raises:
      TypeError: another type; the message names it and its path inside `value`.
      CodecError: over the limit, nested deeper than wire.MAX_DEPTH, or an int outside int64.
    """
    encoder = Encoder(max_bytes() if limit is None else limit)
    try:
        encoder.value(value)
    except Unsendable as error:
        raise error.resolve() from None
    message = b"".join([wire.PLAIN, *encoder.parts])
    return wire.COMPRESSED + zlib.compress(message, 1) if compress else message


def decode(message: bytes, *, limit: int | None = None) -> Any:
    """Decode a message; its arrays own their memory and are writable.

    Args:
      message: made by `encode`, or by an attacker.
      limit: as for `encode`; it also bounds a compressed message once decompressed.

    Raises:
      CodecError: whatever is wrong with the message.
    """
    limit = max_bytes() if limit is None else limit
    if len(message) > limit:
        raise CodecError(f"a message of {len(message)} bytes; the limit is {limit}")
    if is_compressed(message):
        message = _decompress(message, limit)
    if message[:1] != wire.PLAIN:
        raise CodecError(f"the message starts with {bytes(message[:1])!r}, not with {wire.PLAIN!r}")
    decoder = Decoder(bytes(message), limit)
    try:
        value = decoder.value()
    except CodecError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        # An unhashable key, bad UTF-8, a shape that numpy refuses.
        raise CodecError(f"malformed message: {error}") from error
    if decoder.left():
        raise CodecError(f"{decoder.left()} bytes are left over after the value")
    return value


def is_compressed(message: bytes) -> bool:
    """Return whether a message was encoded with `compress`."""
    return message[:1] == wire.COMPRESSED


def _decompress(message: bytes, limit: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(memoryview(message)[1:], limit + 1)  # bounds a decompression bomb
    except zlib.error as error:
        raise CodecError(f"malformed compression: {error}") from error
    if len(plain) > limit:
        raise CodecError(f"a message of more than {limit} bytes once decompressed, which is the limit")
    if not inflater.eof or inflater.unused_data:
        raise CodecError("a compressed message that is cut short or has bytes left over")
    return plain
