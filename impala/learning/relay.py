"""Weights passed on: whoever serves many actors asks the learner once for all of them."""

import threading
from collections.abc import Callable

import numpy as np

from impala.types import Weights


class Relay:
    """Serves the newest weights of somebody else; safe to call from many threads.

    Every answer is as new as the learner's own would have been when it was asked for. One request at a time is under
    way; those who ask meanwhile share the next one. So the learner sends each version at most once, however many ask.

    Args:
      request: newer_than → (version, arrays), without arrays if there is no newer version; `weights.Publisher.get`.
    """

    def __init__(self, request: Callable[[int], tuple[int, list[np.ndarray]]]):
        self._request, self._weights = request, Weights(-1, [])
        self._changed = threading.Condition()
        self._num_begun = self._answered = 0  # requests, and the number of the last one that was answered
        self._is_asking = False

    def get(self, newer_than: int) -> tuple[int, list[np.ndarray]]:
        """Returns (version, arrays), or (version, []) when there is no version above `newer_than`.

        Raises:
          Exception: what the request raised; those who waited meanwhile ask for themselves.
        """
        with self._changed:
            needed = self._num_begun + 1  # one under way may have been answered already
            while self._answered < needed:
                if self._is_asking:
                    self._changed.wait()
                else:
                    self._ask()
            version, arrays = self._weights
        return version, arrays if version > newer_than else []

    def _ask(self) -> None:
        """Asks once, without the lock; called and left with it."""
        self._num_begun, self._is_asking = self._num_begun + 1, True
        number = self._num_begun
        self._changed.release()
        try:
            version, arrays = self._request(self._weights.version)
        finally:
            self._changed.acquire()
            self._is_asking = False
            self._changed.notify_all()
        self._answered = number
        if arrays:
            self._weights = Weights(version, arrays)
