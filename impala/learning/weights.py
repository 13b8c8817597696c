"""Weights on their way back: published with a version by the learner, fetched in the background by actors."""

import contextlib
import math
import threading
import time
from collections.abc import Callable
from concurrent import futures

import numpy as np

from impala.types import Weights


class Publisher:
    """Gives the learner's current weights to all who ask; safe to call from many threads.

    Copies are made on demand, once for each version, and never while an update is under way.

    Args:
      read: returns copies of the current `Weights`.
    """

    _PATIENCE_SECONDS = 0.05  # a flood of requests must not hold back the learner for ever

    def __init__(self, read: Callable[[], Weights]):
        self._read = read
        self._weights: Weights | None = None
        self._is_stale = True
        self._idle = threading.Condition()  # held during an update and during a copy
        self._num_waiting, self._counting = 0, threading.Lock()

    @contextlib.contextmanager
    def updating(self):
        """The block is an update; requests that already wait for weights go first."""
        with self._idle:
            self._idle.wait_for(lambda: self._num_waiting == 0, self._PATIENCE_SECONDS)
            self._is_stale = True
            yield

    def get(self, newer_than: int) -> tuple[int, list[np.ndarray]]:
        """Returns (version, arrays), or (version, []) when there is no version above `newer_than`."""
        self._count_waiting(1)
        with self._idle:
            try:
                if self._is_stale:
                    self._weights, self._is_stale = self._read(), False
                version, arrays = self._weights
            finally:
                self._count_waiting(-1)
                self._idle.notify_all()
        return version, arrays if version > newer_than else []

    def _count_waiting(self, change: int) -> None:
        with self._counting:
            self._num_waiting += change


class Fetcher:
    """Asks for new weights during the last step of an unroll, so that the actor does not wait for the RPC.

    An answer that came long before they are needed may be old: newer ones are asked for, and the actor waits for those.

    Args:
      request: newer_than → future of (version, arrays); the RPC, which has a deadline of its own.
      assign: puts `Weights` into the actor's network.
      should_stop: asked while it waits for an answer.
      period: unrolls that are acted with the weights of one fetch.
    """

    _SLICE_SECONDS, _OLD_SECONDS = 0.2, 0.1

    def __init__(
        self, request: Callable, assign: Callable[[Weights], None], *,
        should_stop: Callable[[], bool] = lambda: False, period: int = 1,
    ):  # fmt: skip
        self._request, self._assign, self._should_stop = request, assign, should_stop
        self._pending, self._came, self._period, self._num_left = None, math.inf, period, 0
        self.version = -1

    def prefetch(self) -> None:
        """Asks for weights newer than those in use, if they are due for the next unroll."""
        if self._pending is None and not self._num_left:
            self._pending, self._came = self._request(self.version), math.inf
            self._pending.add_done_callback(self._note_time)

    def sync(self) -> int:
        """Begins an unroll: brings the network up to date if that is due, and returns its version.

        Waits for an answer, unless it is time to stop.
        """
        if self._num_left:
            self._num_left -= 1
            return self.version
        if self._pending is not None and time.monotonic() - self._came > self._OLD_SECONDS:
            if self._pending.exception() is None:
                self._take(*self._pending.result())
            self._pending = None  # answered before a wait for room in the queue: there may be newer ones
        self.prefetch()
        pending, self._pending = self._pending, None
        while not futures.wait([pending], self._SLICE_SECONDS).done:
            if self._should_stop():  # the learner may be gone already
                return self.version
        self._take(*pending.result())
        self._num_left = self._period - 1
        return self.version

    def _take(self, version: int, arrays) -> None:
        if arrays:  # there are newer ones
            self._assign(Weights(version, arrays))
            self.version = version

    def _note_time(self, pending) -> None:
        self._came = time.monotonic()
