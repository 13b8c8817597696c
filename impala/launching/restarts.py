"""Decides whether and when a node that died is started again; restarts are recorded in restarts.csv.

Nodes whose role `returns_alone` come back one by one; learners and their tables together, from the last checkpoint. A
node that dies young again and again has a fault that no restart repairs, and the run ends with its last words.
"""

import collections
import contextlib
import random
import time
from collections.abc import Callable
from typing import NamedTuple

COLUMNS = ("time", "node", "cause", "lived_seconds", "updates", "frames", "lost_frames")
_YOUNG_SECONDS = 60.0  # a death sooner after the start counts as one more in a row
_FIRST_SECONDS, _MOST_SECONDS, _JITTER = 1.0, 10.0, 0.2  # before a restart: doubled with each death in a row
_HOUR, _TOGETHER_SECONDS = 3600.0, 5.0  # deaths closer than that have one cause, the loss of a host, and count once


class Verdict(NamedTuple):
    """What becomes of a node that died."""

    seconds: float | None  # until it is started again; None: the run ends
    reason: str = ""  # why it ends
    is_spent: bool = False  # whether `max_per_hour` is used up; trying again later may help

    @property
    def is_final(self) -> bool:
        """Returns whether the node has a fault of its own that trying again does not help."""
        return bool(self.reason) and not self.is_spent


class Restarts:
    """Decides on each death in one run, over all its launches by one command, and counts the restarts.

    Args:
      max_in_a_row: restarts of a node, each after less than a minute or, for a learner, without a new checkpoint, those
        with its host not counted; 0: none ever.
      max_per_hour: of all nodes; those that die within seconds of each other count as one.
      write: takes rows of `COLUMNS`; a full disk costs them.
    """

    def __init__(
        self, *, max_in_a_row: int, max_per_hour: int, write: Callable[[list[dict]], None] = lambda rows: None
    ):  # fmt: skip
        self._max_in_a_row, self._max_per_hour, self._write = max_in_a_row, max_per_hour, write
        self.count = self.lost_frames = 0  # of all restarts
        self.has_saved = False  # whether there was a checkpoint when a launch ended
        self._in_a_row: collections.Counter[str] = collections.Counter()
        self._progress: dict[str, int] = {}
        self._times: collections.deque[float] = collections.deque()  # of the last hour
        self._random = random.Random()  # so that many that died together do not come back together

    def decide(
        self, name: str, *, lived_seconds: float, progress: int | None = None, now: float, lost_host: bool = False
    ) -> Verdict:
        """Returns what becomes of a node that died at `now`.

        Args:
          lived_seconds: since its start.
          progress: a number; if it has not risen since the node's last death, the node counts as having died young.
          lost_host: it died with its host, which says nothing of the node: it counts in the hour alone.
        """
        if not self._max_in_a_row:
            return Verdict(None)
        stands_still = progress is not None and progress <= self._progress.get(name, -1)
        if lived_seconds >= _YOUNG_SECONDS and not stands_still:
            self._in_a_row[name] = 0
        if not lost_host:
            self._in_a_row[name] += 1
        if progress is not None:
            self._progress[name] = max(progress, self._progress.get(name, -1))
        if self._in_a_row[name] > self._max_in_a_row:
            what = "without a checkpoint in between" if stands_still else f"within {_YOUNG_SECONDS:.0f} s of its start"
            return Verdict(None, f"{name} died {self._in_a_row[name]} times in a row, the last time {what}")
        while self._times and now - self._times[0] > _HOUR:
            self._times.popleft()
        if not self._times or now - self._times[-1] > _TOGETHER_SECONDS:
            if len(self._times) >= self._max_per_hour:
                words = f"{len(self._times)} restarts within an hour, restarts.max_per_hour"
                return Verdict(None, words, is_spent=True)
            self._times.append(now)
        self.count += 1
        seconds = min(_MOST_SECONDS, _FIRST_SECONDS * 2 ** min(30, max(0, self._in_a_row[name] - 1)))
        return Verdict(seconds * self._random.uniform(1 - _JITTER, 1 + _JITTER))

    def keep(self, **row) -> None:
        """Counts a restart, and writes its row."""
        self.lost_frames += row["lost_frames"]
        with contextlib.suppress(OSError):
            self._write([dict(time=time.strftime("%Y-%m-%dT%H:%M:%S%z")) | row])
