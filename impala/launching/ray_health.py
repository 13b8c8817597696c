"""Tells when what this process needs of Ray is gone: its head, or the raylet of this process's own host."""

import contextlib
import socket
import time

# The head is gone when five calls in a row have failed. Ray itself would end this process after a minute, and then
# neither the nodes nor the user could be told.
_HEAD_SECONDS, _PATIENCE_SECONDS, _MISSES = 4.0, 1.0, 5


class Health:
    """Of the cluster that this process is connected to.

    The raylet is asked each time: without it Ray ends this process, with no word, as soon as it is given an object.
    """

    def __init__(self, ray):
        context = ray.get_runtime_context()
        self._head, self._called, self._misses = context.gcs_address, 0.0, 0
        here = [node for node in ray.nodes() if node["NodeID"] == context.get_node_id()]
        self._raylets = [f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}" for node in here]
        self.fault = ""  # what is gone, in words, once it is

    def ask(self) -> str:
        """Returns what is gone, in words; empty while both answer."""
        if self.fault:
            return self.fault
        if any(_refuses(raylet) for raylet in self._raylets):
            self.fault = "Ray's raylet of this host has ended"
        elif time.monotonic() - self._called >= _HEAD_SECONDS:
            self._called = time.monotonic()
            self._misses = 0 if _listens(self._head) else self._misses + 1
            if self._misses >= _MISSES:
                self.fault = f"Ray's head does not listen at {self._head} any more"
        return self.fault


def _listens(address: str) -> bool:
    with contextlib.suppress(OSError), _connected(address):
        return True
    return False


def _refuses(address: str) -> bool:
    """Returns whether the host says that nobody listens there; other errors may be this process's own."""
    try:
        with contextlib.suppress(TimeoutError), _connected(address):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_SECONDS)
