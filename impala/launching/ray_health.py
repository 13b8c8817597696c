"""Tells when what this process needs of Ray is gone: its head, or the raylet of this process's own host."""

import errno
import socket
import time
from collections.abc import Callable

# For the environment of Ray's head, which gives a host up after so many calls in a row without an answer: four of 4 s
# each, with pauses of 2, so after about 25 s; with Ray's own numbers, five of 10 s with pauses of 3, after 65.
SOONER = {
    "RAY_health_check_period_ms": 2_000, "RAY_health_check_timeout_ms": 4_000, "RAY_health_check_failure_threshold": 4,
}  # fmt: skip

# The head is gone when five calls in a row have failed. Ray itself would end this process after a minute, and then
# neither the nodes nor the user could be told.
_HEAD_SECONDS, _PATIENCE_SECONDS, _MISSES = 4.0, 1.0, 5


class Health:
    """Whether Ray's head, and the raylet of this host, can be reached by the process that is connected to them.

    The raylet is called each time: without it Ray ends this process, with no word, as soon as it is given an object.

    Args:
      should_stop: asked while the head does not answer: Ray's own calls to it would wait.
    """

    def __init__(self, ray, should_stop: Callable[[], bool]):
        context = ray.get_runtime_context()
        self._head, self._called, self._misses, self._raylets = context.gcs_address, 0.0, 0, []
        self.fault = ""  # what is gone, in words, once it is
        while not self.ask() and self._misses and not should_stop():
            time.sleep(0.1)
        if not self._misses:
            here = [node for node in ray.nodes() if node["NodeID"] == context.get_node_id()]
            self._raylets = [f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}" for node in here]

    def ask(self) -> str:
        """Returns what is gone, in words; empty while both can be reached."""
        if self.fault:
            return self.fault
        if any(isinstance(_refusal(raylet), ConnectionRefusedError) for raylet in self._raylets):
            self.fault = "Ray's raylet of this host has ended"
        elif time.monotonic() - self._called >= _HEAD_SECONDS:
            self._called = time.monotonic()
            self._misses = self._misses + 1 if _refusal(self._head) else 0
            if self._misses >= _MISSES:
                self.fault = f"Ray's head does not listen at {self._head} any more"
        return self.fault


def _refusal(address: str) -> OSError | None:
    """Returns why nobody can be reached at an address; None if somebody can, or this process has no means to call."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_SECONDS).close()
    except OSError as error:
        is_theirs = isinstance(error, ConnectionError | TimeoutError)
        return error if is_theirs or error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH) else None
    return None
