"""Calls between processes of one machine whose arrays lie in memory that they share.

    caller: writes arguments ── "they are there" ──▶ server: reads them, calls, writes results
            reads results ◀── "they are there" ──────┘

Each connection belongs to one caller and carries one call at a time. The messages go through a local socket, a few
bytes a call; the side that waits sleeps. Neither memory nor socket has a name in the file system: both are gone when
both sides are, however these end. Only arrays of numbers are accepted, and only from processes of the same user:
connections of other users are closed before a thread is started for them or a message awaited.
"""

import contextlib
import errno
import hashlib
import json
import logging
import math
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from impala.arrays import empty
from impala.launching import descriptors

Fields = Sequence[tuple[Sequence[int], str]]  # (shape, dtype) of each array

_ALIGNMENT, _HELLO_BYTES, _ERROR_BYTES = 64, 60_000, 2_000
_SHAKE_HANDS_SECONDS = 1.0  # how long a caller waits for the server's answer
_HELLO_SECONDS = 5.0  # how long the server waits for a caller's first message
_MOST_SHAKING_HANDS = 64  # callers whose first message the server waits for at once; others wait to be let in
_NUMBER, _ANSWER = struct.Struct("<q"), struct.Struct("<?i")  # of the call; whether it failed, and bytes of its message
_CREDENTIALS = struct.Struct("3i")
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED}  # temporary errors of `accept`


class CallFailed(RuntimeError):
    """The server's function raised; with its message."""


class ServerAway(RuntimeError):
    """There has been no server for longer than the caller's patience."""


def new_address() -> str:
    """Returns an address that no other server has."""
    return f"impala-{machine()}-{os.getpid()}-{os.urandom(8).hex()}"


def is_reachable(address: str) -> bool:
    """Returns whether a server at `address` runs where this process may share memory with it."""
    return address.split("-")[1] == machine()


def machine() -> str:
    """Returns an id of this kernel's boot and network namespace, within which names of sockets are valid."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    return hashlib.sha256((boot + os.readlink("/proc/self/ns/net")).encode()).hexdigest()[:8]


class Server:
    """Answers calls in a thread for each connection.

    Args:
      address: see `new_address`; connections come from this machine alone.
      function: (name of the connection, number of the call, arguments) → results. The arguments are valid during the
        call. What it raises reaches the caller.

    Raises:
      OSError: the address is in use.
    """

    def __init__(self, address: str, function: Callable[[tuple, int, list[np.ndarray]], Sequence[np.ndarray]]):
        self._function, self._connections, self._has_refused = function, set(), False
        self._shaking_hands = threading.BoundedSemaphore(_MOST_SHAKING_HANDS)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind("\0" + address)
        self._socket.listen(512)
        threading.Thread(target=self._accept, name="shared memory", daemon=True).start()

    def close(self) -> None:
        """Ends the server and its connections."""
        for end in (self._socket, *self._connections):
            with contextlib.suppress(OSError):  # the other side is gone already
                end.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if error.errno not in _PASSING:
                    return  # closed
                logging.warning("shared memory: a caller could not be taken: %s", error)
                time.sleep(0.5)
                continue
            if not self._is_ours(connection):
                connection.close()
                continue
            self._shaking_hands.acquire()  # held for `_HELLO_SECONDS` at most
            try:
                threading.Thread(target=self._serve, args=(connection,), name="shared memory", daemon=True).start()
            except RuntimeError as error:
                self._shaking_hands.release()
                connection.close()
                logging.warning("shared memory: a caller could not be taken: %s", error)
                time.sleep(0.5)

    def _is_ours(self, connection: socket.socket) -> bool:
        """Returns whether the kernel says that a process of this user connects; warns of the first that is not."""
        try:
            process, user = peer_of(connection)
        except OSError:
            return False
        if user != os.getuid() and not self._has_refused:
            self._has_refused = True
            logging.warning("shared memory: refused process %d of user %d, as all of other users", process, user)
        return user == os.getuid()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            self._connections.add(connection)
            try:
                try:
                    shaken = self._shake_hands(connection)
                finally:
                    self._shaking_hands.release()
                if shaken:
                    self._converse(connection, *shaken)
            except OSError:  # the caller is gone or silent: its lane's state is dropped when its next life begins
                pass
            finally:
                self._connections.discard(connection)

    def _shake_hands(self, connection: socket.socket) -> tuple | None:
        """Returns (name, arguments, results) of a caller, None if it is refused. Raises OSError if it is silent."""
        connection.settimeout(_HELLO_SECONDS)
        hello, handles, *_ = socket.recv_fds(connection, _HELLO_BYTES, 1)
        try:
            if len(handles) != 1:
                return None
            said = json.loads(hello)
            shaken = tuple(said["name"]), *_map(handles[0], said["arguments"], said["results"])
        except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
            _answer(connection, f"{type(error).__name__}: {error}")
            return None
        finally:
            for handle in handles:
                os.close(handle)
        _answer(connection, None)
        connection.settimeout(None)
        return shaken

    def _converse(self, connection: socket.socket, name: tuple, arguments: list, results: list) -> None:
        while (said := _receive(connection, _NUMBER.size)) is not None:
            (number,) = _NUMBER.unpack(said)
            try:
                _copy(self._function(name, number, arguments), results)
                message = None
            except Exception as error:  # reported to the caller
                message = f"{type(error).__name__}: {error}"
            _answer(connection, message)


class Caller:
    """Calls a `Server`'s function; waits for a server that goes away, and repeats the call that it did not answer.

    Args:
      address: of the server.
      name: of this connection, numbers.
      arguments, results: shapes and dtypes of every call's arrays.
      patience_seconds: how long to wait for a server that is away.
    """

    def __init__(
        self, address: str, name: Sequence[int], *, arguments: Fields, results: Fields, patience_seconds: float = 60.0
    ):
        self._address, self._patience = address, patience_seconds
        arguments, results = _plain(arguments), _plain(results)
        self._hello = json.dumps(dict(name=[int(n) for n in name], arguments=arguments, results=results))
        self._handle = os.memfd_create("impala", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._handle, _size(arguments) + _size(results))
            self._arguments, self._results = _map(self._handle, arguments, results)
        except BaseException:
            os.close(self._handle)
            raise
        self._socket: socket.socket | None = None
        self._away_since: float | None = None
        self._number = 0

    def __call__(self, number: int, *arguments: np.ndarray) -> "Caller":
        """Begins a call; returns this object, to wait for the results. Only one call may be under way at a time."""
        _copy(arguments, self._arguments)
        self._number = number
        self._say()
        return self

    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds` for the answer; returns whether it is there.

        Raises:
          ServerAway: there has been no server for longer than the patience.
        """
        if self._socket is None:
            time.sleep(min(seconds, 0.1))
            self._say()
        if self._socket is None:
            return False
        return descriptors.can_read(self._socket, seconds) and self._is_alive()

    def result(self) -> list[np.ndarray]:
        """Returns the results, after `wait` returned True. Raises `CallFailed` if the function raised."""
        failed, length = _ANSWER.unpack(_receive(self._socket, _ANSWER.size))
        if failed:
            raise CallFailed((_receive(self._socket, length) or b"").decode(errors="replace"))
        results = [empty(array.shape, array.dtype) for array in self._results]
        _copy(self._results, results)
        return results

    def close(self) -> None:
        """Ends the connection."""
        self._disconnect()
        self._arguments = self._results = []  # the memory goes with them
        os.close(self._handle)

    def _say(self) -> None:
        try:
            if self._socket is None:
                self._connect()
            self._socket.sendall(_NUMBER.pack(self._number))
        except OSError:
            self._disconnect()

    def _connect(self) -> None:
        self._away_since = self._away_since or time.monotonic()
        if time.monotonic() - self._away_since > self._patience:
            raise ServerAway(f"no server at {self._address} for {self._patience:g} s")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_SHAKE_HANDS_SECONDS)  # a frozen server lets us in but never answers
        try:
            connection.connect("\0" + self._address)
            check_peer(connection)
            socket.send_fds(connection, [self._hello.encode()], [self._handle])
            answer = _receive(connection, _ANSWER.size)
            if answer is None:
                raise ConnectionResetError("the server refused the connection")
            failed, length = _ANSWER.unpack(answer)
            if failed:
                raise CallFailed((_receive(connection, length) or b"").decode(errors="replace"))
        except BaseException:
            connection.close()
            raise
        connection.settimeout(None)
        self._socket, self._away_since = connection, None

    def _is_alive(self) -> bool:
        try:
            if self._socket.recv(1, socket.MSG_PEEK):
                return True
        except OSError:
            pass
        self._disconnect()
        return False

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Returns process and user at the other end, as the kernel knows them."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(data)
    return process, user


def check_peer(connection: socket.socket) -> None:
    """Raises ConnectionRefusedError if another user's process listens at the other end, whose name anybody may take."""
    _, user = peer_of(connection)
    if user != os.getuid():
        raise ConnectionRefusedError(f"the server belongs to user {user}")


def _plain(fields: Fields) -> list:
    return [([int(n) for n in shape], np.dtype(dtype).str) for shape, dtype in fields]


def _bytes(shape, dtype) -> int:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _size(fields) -> int:
    return sum(_bytes(shape, dtype) for shape, dtype in fields) + _ALIGNMENT  # mmap refuses empty memory


def _map(handle: int, arguments: list, results: list) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns arrays that lie in the memory: those of the arguments, then those of the results."""
    size = _size(arguments) + _size(results)
    if os.fstat(handle).st_size < size:
        raise ValueError(f"{os.fstat(handle).st_size} bytes of shared memory; expected {size}")
    memory, start, arrays = mmap.mmap(handle, size), 0, []
    for shape, dtype in (*arguments, *results):
        if np.dtype(dtype).kind not in "biuf":
            raise ValueError(f"an array of {dtype}; expected numbers")
        arrays.append(np.frombuffer(memory, dtype, math.prod(shape), start).reshape(shape))
        start += _bytes(shape, dtype)
    return arrays[: len(arguments)], arrays[len(arguments) :]


def _copy(sources: Sequence, targets: list[np.ndarray]) -> None:
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} arrays; expected {len(targets)}")
    for index, (source, target) in enumerate(zip(sources, targets)):
        source = np.asarray(source)
        if (source.shape, source.dtype) != (target.shape, target.dtype):
            raise ValueError(
                f"array {index} is {source.dtype}{list(source.shape)}; expected {target.dtype}{list(target.shape)}"
            )
        target[...] = source


def _receive(connection: socket.socket, size: int) -> bytes | None:
    """Returns `size` bytes, or None when the other side is gone."""
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return parts


def _answer(connection: socket.socket, error: str | None) -> None:
    message = (error or "").encode()[:_ERROR_BYTES]
    connection.sendall(_ANSWER.pack(error is not None, len(message)) + message)
