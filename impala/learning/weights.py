"""Weights on their way back: published with a version by the learner, fetched in the background by actors."""

import threading
from collections.abc import Callable

import numpy as np

from impala.types import Weights


class Publisher:
    """Keeps the latest weights for whoever asks; safe to call from many threads."""

    def __init__(self):
        self._weights: Weights | None = None
        self._published = threading.Condition()

    def publish(self, weights: Weights) -> None:
        """Replaces what `get` returns."""
        with self._published:
            self._weights = weights
            self._published.notify_all()

    def get(self, newer_than: int, timeout_seconds: float = 10.0) -> tuple[int, list[np.ndarray]]:
        """Returns (version, arrays), or (version, []) when no version above `newer_than` exists.

        Waits up to `timeout_seconds` for the very first one.
        """
        with self._published:
            if not self._published.wait_for(lambda: self._weights is not None, timeout_seconds):
                raise LookupError("no weights were published yet")
            version, arrays = self._weights
        return version, arrays if version > newer_than else []


class Fetcher:
    """Asks for new weights one unroll ahead, so that the actor does not wait for the network.

    Args:
      request: newer_than → future of (version, arrays); the RPC.
      assign: puts `Weights` into the actor's network.
      timeout_seconds: for one answer.
    """

    def __init__(self, request: Callable, assign: Callable[[Weights], None], *, timeout_seconds: float = 30.0):
        self._request, self._assign, self._timeout = request, assign, timeout_seconds
        self._pending = None
        self.version = -1

    def prefetch(self) -> None:
        """Asks for weights newer than those in use."""
        if self._pending is None:
            self._pending = self._request(self.version)

    def sync(self) -> int:
        """Brings the network up to date and returns its version; an unanswered request is waited for."""
        self.prefetch()
        version, arrays = self._pending.result(self._timeout)
        self._pending = None
        if arrays:
            self._assign(Weights(version, arrays))
            self.version = version
        return self.version
