"""Nodes of one kind that talk to each other directly, not through their RPC servers."""

import contextlib
import hmac
import selectors
import socket
import time
from collections.abc import Callable, Sequence

import launchpad as lp
from launchpad.nodes import base

from impala.launching.rpc.tokens import read_token

_GREETING = b"impala"


class AddressHandle(base.Handle):
    """Becomes "host:port" in the node that it is handed to."""

    def __init__(self, address: lp.Address):
        self._address = address

    def dereference(self) -> str:
        return self._address.resolve()


def meet(index: int, addresses: Sequence[str], *, seconds: float, should_stop: Callable[[], bool]) -> bool:
    """Waits until every node of `addresses` has called `meet` with them; returns False if it is time to stop first.

    All learners must be there before TensorFlow looks for them: it waits for an hour, during which no Python runs,
    neither signal handlers nor threads. Each node listens on its own address and greets the others. One that has
    greeted all and was greeted by all closes its socket; the port is then free for TensorFlow's server.

    Raises:
      TimeoutError: after `seconds`; names the nodes that were not heard.
    """
    others = {i: _host_and_port(address) for i, address in enumerate(addresses) if i != index}
    _, port = _host_and_port(addresses[index])
    is_one_machine = all(host == "127.0.0.1" for host, _ in others.values())
    greeted, heard, deadline, greeting = set(), set(), time.monotonic() + seconds, _greeting(index)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1" if is_one_machine else "", port)))
        server.setblocking(False)
        ready = stack.enter_context(selectors.DefaultSelector())
        ready.register(server, selectors.EVENT_READ)
        while greeted != others.keys() or heard != others.keys():
            if should_stop():
                return False
            if time.monotonic() > deadline:
                missing = ", ".join(f"{i} at {addresses[i]}" for i in sorted(others.keys() - (greeted & heard)))
                raise TimeoutError(f"no answer from {missing} within {seconds:.0f} s")
            greeted |= {i for i in others.keys() - greeted if _greet(others[i], greeting)}
            for key, _ in ready.select(timeout=0.1):
                if key.fileobj is server:
                    _let_in(server, ready, stack)
                else:
                    heard |= _heard_from(key.fileobj, key.data, ready) & others.keys()
    return True


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return "127.0.0.1" if host == "localhost" else host, int(port)  # where it is ::1, somebody else may listen


def _greeting(index: int) -> bytes:
    """Returns what node `index` says: who knows the run's token can say it, and nobody learns the token from it."""
    said = _GREETING + index.to_bytes(4, "big")
    return hmac.digest((read_token() or "").encode(), said, "sha256") + said


def _greet(address: tuple[str, int], greeting: bytes) -> bool:
    try:
        with socket.create_connection(address, timeout=0.5) as connection:
            connection.sendall(greeting)
        return True
    except OSError:  # not there yet
        return False


def _let_in(server: socket.socket, ready: selectors.BaseSelector, stack: contextlib.ExitStack) -> None:
    """Begins to listen to who has connected; one that says nothing holds up nobody."""
    with contextlib.suppress(OSError):
        connection = stack.enter_context(server.accept()[0])
        connection.setblocking(False)
        ready.register(connection, selectors.EVENT_READ, bytearray())


def _heard_from(connection: socket.socket, said: bytearray, ready: selectors.BaseSelector) -> set[int]:
    """Reads on; returns the index of a node that has greeted, else nothing: part of a greeting, or somebody else."""
    size = len(_greeting(0))
    try:
        new = connection.recv(size - len(said))
    except BlockingIOError:
        return set()
    except OSError:
        new = b""
    said += new
    if new and len(said) < size:
        return set()
    ready.unregister(connection)
    connection.close()
    index = int.from_bytes(said[-4:], "big")
    return {index} if hmac.compare_digest(bytes(said), _greeting(index)) else set()
