"""Ports that stay a program's own from before its processes start until they have ended for good."""

import socket
from collections.abc import Iterable

import launchpad as lp

ANY = (0,)


class Holder:
    """Takes ports of this machine, and keeps everybody from them but the nodes that are told of them.

    Between the choice of a port and the node's start lie seconds, and between its death and the next start too: the
    system would give a free port to whoever connects to something meanwhile.
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
            # It never listens. gRPC sets this option too, and may then bind the port beside it.
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
