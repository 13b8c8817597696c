"""Nodes of one kind that talk to each other directly, not through their RPC servers."""

import selectors
import socket
import time
from collections.abc import Callable, Sequence

import launchpad as lp
from launchpad.nodes import base

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
    greeted, heard, deadline = set(), set(), time.monotonic() + seconds
    with socket.create_server(("", port)) as server, selectors.DefaultSelector() as ready:
        ready.register(server, selectors.EVENT_READ)
        while greeted != others.keys() or heard != others.keys():
            if should_stop():
                return False
            if time.monotonic() > deadline:
                missing = ", ".join(f"{i} at {addresses[i]}" for i in sorted(others.keys() - (greeted & heard)))
                raise TimeoutError(f"no answer from {missing} within {seconds:.0f} s")
            greeted |= {i for i in others.keys() - greeted if _greet(others[i], index)}
            for _ in ready.select(timeout=0.1):
                heard |= _hear(server) & others.keys()
    return True


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _greet(address: tuple[str, int], index: int) -> bool:
    try:
        with socket.create_connection(address, timeout=0.5) as connection:
            connection.sendall(_GREETING + index.to_bytes(4, "big"))
        return True
    except OSError:  # not there yet
        return False


def _hear(server: socket.socket) -> set[int]:
    """Returns the index of the node that greeted; empty if the connection was somebody else's."""
    try:
        connection, _ = server.accept()
        with connection:
            connection.settimeout(5.0)  # a greeting that is cut short is never repeated
            said = connection.recv(len(_GREETING) + 4, socket.MSG_WAITALL)
            is_whole = said.startswith(_GREETING) and len(said) == len(_GREETING) + 4
            return {int.from_bytes(said[len(_GREETING) :], "big")} if is_whole else set()
    except OSError:
        return set()
