"""Ports reserved for a program from before its processes start until all of them have ended."""

import socket
from collections.abc import Iterable

import launchpad as lp

ANY = (0,)


class Holder:
    """Reserves ports of this machine for the nodes that are told of them.

    Seconds pass between the choice of a port and the node's start, and between its death and its restart. Meanwhile the
    system would give a free port to any outgoing connection.
    """

    def __init__(self):
        self._sockets = []

    def take(self, candidates: Iterable[int] = ANY) -> int:
        """Returns the first of the ports that is free; 0 stands for any.

        Raises:
          OSError: none is.
        """
        for port in candidates:
            holder = socket.socket()
            try:
                holder.bind(("", port))
            except OSError:
                holder.close()
                continue
            # This socket never listens. gRPC sets this option too, so it may bind the same port.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sockets.append(holder)
            return holder.getsockname()[1]
        raise OSError("no port is free")

    def close(self) -> None:
        """Gives the ports back."""
        for holder in self._sockets:
            holder.close()
        self._sockets.clear()


class Local(lp.AbstractAddressBuilder):
    """The address of a port of this machine."""

    def __init__(self, port: int):
        self._port = port

    def build(self) -> str:
        return f"localhost:{self._port}"
