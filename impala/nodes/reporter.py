"""What an actor reports to the learner."""

import time

from impala.types import Episode

_MOST_REPORTS = 2**32  # of one incarnation


class Reporter:
    """Sends episodes and shares of time to the learner; what was not acknowledged is sent again.

    Args:
      learner: RPC client of a node with an RPC `report`.
      index: of the actor.
      incarnation: of its process: reports of a later one have higher numbers.
    """

    def __init__(self, learner, index: int, incarnation: int = 0, *, period_seconds: float = 1.0):
        self._learner, self._index, self._period = learner, index, period_seconds
        self._waiting: list[Episode] = []
        self._sent: list[Episode] | None = None  # not acknowledged
        self._future, self._number, self._due = None, incarnation * _MOST_REPORTS, time.monotonic() + period_seconds

    def add(self, episodes: list[Episode]) -> None:
        self._waiting += episodes

    def is_due(self) -> bool:
        return time.monotonic() > self._due and (self._future is None or self._future.done())

    def send(self, shares: dict[str, float]) -> None:
        self._due = time.monotonic() + self._period
        if self._future is not None and self._future.exception() is None:
            self._sent = None
        if self._sent is None:  # else sends the same again, under the same number: it may have arrived
            self._sent, self._waiting, self._number = self._waiting, [], self._number + 1
        episodes = [tuple(episode) for episode in self._sent]
        self._future = self._learner.futures.report(self._index, self._number, shares, episodes)
