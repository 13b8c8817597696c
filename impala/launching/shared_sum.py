"""Sums of the arrays of several processes of one machine, through memory that both sides of a connection share.

    process 1: its arrays ─┐                                          ┌─▶ process 1
    process 2: its arrays ─┼─▶ process 0: Σ, in the order of indices ─┼─▶ process 2: the same, bit for bit
    …                      ┘                                          └─▶ …

A byte through a local socket says that arrays are there; a process that waits sleeps. Another byte each second says
that a process runs. Neither memory nor socket has a name in the file system: both are gone with the processes.
"""

import contextlib
import itertools
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence

import numpy as np

from impala.launching import descriptors, shared_memory

_THEY_ARE_THERE, _STILL_HERE, _BEAT_SECONDS, _ALIGNMENT = b"!", b".", 1.0, 64
_INDEX = struct.Struct("<i")


class SharedSum:
    """A function: arrays → the sums of the arrays of all processes, which call it with the same shapes and dtypes.

    Making one waits for all processes.

    Args:
      index: of this process.
      size: the number of processes.
      address: the same for all of these, and no others; see `shared_memory.new_address`.
      patience_seconds: how long to wait for a process that has not come.
      frozen_seconds: how long to wait for one that came, and gives no sign of life any more: the run is to hear of it
        within 15.

    Raises:
      OSError: the address is in use.
      ConnectionError: a process did not come; from a call: one ended or froze, in this call or an earlier one.
    """

    def __init__(
        self, index: int, size: int, address: str, *, patience_seconds: float = 15.0, frozen_seconds: float = 12.0
    ):
        self._is_first = index == 0
        if self._is_first:
            self._links = _accept(size, address, patience_seconds, frozen_seconds)
        else:
            self._links = [_connect(index, address, patience_seconds, frozen_seconds)]
        self._failure: ConnectionError | None = None
        threading.Thread(target=self._beat, name="heartbeats", daemon=True).start()

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self._failure:  # others may still read what that call left in memory
            raise self._failure
        try:
            return self._sum(arrays)
        except ConnectionError as error:
            self._failure = error
            for link in self._links:  # so that nobody waits for this process
                link.end()
            raise

    def _sum(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self._is_first:
            sums = [np.array(array) for array in arrays]
            for link in self._links:
                link.wait()
                for total, theirs in zip(sums, link.arrays_like(sums)):
                    total += theirs
            for link in self._links:
                link.send(sums)
            return sums
        (link,) = self._links
        link.send(arrays)
        link.wait()
        return [array.copy() for array in link.arrays_like(arrays)]

    def _beat(self) -> None:
        while True:
            for link in self._links:
                link.beat()
            time.sleep(_BEAT_SECONDS)


class _Link:
    """One end of a connection between two processes, whose memory holds the arrays of either side in turn."""

    def __init__(self, peer: int, connection: socket.socket, handle: int, frozen_seconds: float):
        self._peer, self._socket, self._handle, self._memory = peer, connection, handle, b""
        self._frozen_seconds = frozen_seconds

    def arrays_like(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the memory as arrays of the shapes and dtypes of `arrays`."""
        starts = [0, *itertools.accumulate(-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays)]
        size = max(starts[-1], _ALIGNMENT)  # mmap refuses empty memory
        if len(self._memory) < size:
            if os.fstat(self._handle).st_size < size:
                os.ftruncate(self._handle, size)
            self._memory = mmap.mmap(self._handle, size)
        return [
            np.frombuffer(self._memory, array.dtype, array.size, start).reshape(array.shape)
            for array, start in zip(arrays, starts)
        ]

    def send(self, arrays: Sequence[np.ndarray]) -> None:
        """Leaves `arrays` for the other side, which gets them even if this process ends now."""
        for target, array in zip(self.arrays_like(arrays), arrays):
            target[...] = array
        try:
            self._socket.send(_THEY_ARE_THERE, socket.MSG_DONTWAIT)  # `beat` leaves room for it
        except OSError:
            raise self._lost("ended") from None

    def wait(self) -> None:
        """Waits for arrays of the other side, for as long as it runs."""
        heard = looked = time.monotonic()
        while (now := time.monotonic()) - heard < self._frozen_seconds:
            heard += max(0.0, now - looked - 2 * _BEAT_SECONDS)  # this process itself was stopped, perhaps both were
            looked = now
            if not descriptors.can_read(self._socket, _BEAT_SECONDS):
                continue
            try:
                said = self._socket.recv(4096)
            except OSError:
                said = b""
            if not said:
                raise self._lost("ended")
            if _THEY_ARE_THERE in said:
                return
            heard = time.monotonic()
        raise self._lost("froze")

    def beat(self) -> None:
        """Tells the other side that this process runs."""
        # When nobody has read for a minute or so, `select` no longer calls the socket writable, and beats stop. The
        # socket still takes many bytes then, so there is room for `send`.
        with contextlib.suppress(OSError):  # the other side is gone: `wait` will notice
            if descriptors.can_write(self._socket):
                self._socket.send(_STILL_HERE, socket.MSG_DONTWAIT)

    def end(self) -> None:
        """Tells the other side that this process sums no more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _lost(self, how: str) -> ConnectionError:
        return ConnectionError(f"process {self._peer} {how}")


def _accept(size: int, address: str, patience_seconds: float, frozen_seconds: float) -> list[_Link]:
    """Returns links to all other processes, in the order of their indices."""
    links, deadline = {}, time.monotonic() + patience_seconds
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + address)
        server.listen(size)
        while missing := [index for index in range(1, size) if index not in links]:
            left = max(0.01, deadline - time.monotonic())
            server.settimeout(left)
            try:
                connection, _ = server.accept()
                if shared_memory.peer_of(connection)[1] != os.getuid():
                    connection.close()
                    continue
                connection.settimeout(left)
                said, handles, *_ = socket.recv_fds(connection, _INDEX.size, 1)
            except TimeoutError:
                raise ConnectionError(f"process {missing[0]} did not come within {patience_seconds:g} s") from None
            if not handles:
                raise ConnectionError(f"a process ended while it connected; of {size} these are missing: {missing}")
            connection.settimeout(None)
            (index,) = _INDEX.unpack(said)
            links[index] = _Link(index, connection, handles[0], frozen_seconds)
    return [links[index] for index in sorted(links)]


def _connect(index: int, address: str, patience_seconds: float, frozen_seconds: float) -> _Link:
    """Returns a link to the first process, which may not be there yet."""
    deadline = time.monotonic() + patience_seconds
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect("\0" + address)
            shared_memory.check_peer(connection)
            break
        except OSError as error:
            connection.close()
            if time.monotonic() > deadline:
                raise ConnectionError(f"process 0 did not come within {patience_seconds:g} s: {error}") from None
            time.sleep(0.05)
    handle = os.memfd_create("impala", os.MFD_CLOEXEC)
    socket.send_fds(connection, [_INDEX.pack(index)], [handle])
    return _Link(0, connection, handle, frozen_seconds)
