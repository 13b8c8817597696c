"""Windows that are drawn by priority, and the priorities on their way back to the table."""

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from impala.replay import tables
from impala.replay.windows import Share, Windows, to_tensors
from impala.timing import TimeAccount
from impala.types import Chunk

_MOST_KEPT = 1_000  # updates of which `columns` tells; a follower's is never called


class PrioritisedWindows(Windows):
    """A source whose batches are drawn by priority; after each update the batch's new priorities are written back.

    Args:
      importance_exponent: β of `priorities.importance_weights`, the weights of a batch.
      windows: arguments of `Windows`.
    """

    def __init__(self, client, share: Share, *, importance_exponent: float, **windows):
        super().__init__(client, share, **windows)
        self._importance_exponent = importance_exponent
        self._writer = PriorityWriter(client)
        self._keys: np.ndarray | None = None  # of the batch that `get` returned last
        self._priorities: deque[np.ndarray] = deque(maxlen=_MOST_KEPT)
        self._account = TimeAccount()  # of the thread that trains

    def _batches(self) -> Iterator[tuple[Chunk, np.ndarray]]:
        for arrays in self._drawn():
            yield to_tensors(arrays, self._device, importance_exponent=self._importance_exponent), arrays["key"]

    def get(self, timeout_seconds: float) -> Chunk | None:
        if (item := super().get(timeout_seconds)) is None:
            return None
        batch, self._keys = item
        return batch

    def update_priorities(self, priority: np.ndarray) -> None:
        """Takes the new priorities [B] of the batch that `get` returned last."""
        with self._account.part("priorities"):
            self._priorities.append(priority[np.isfinite(priority)])  # a copy: it may be a column of a larger array
            self._writer.put(self._keys, priority)

    def counts(self) -> dict[str, int]:
        return super().counts() | dict(unsound_priorities=self._writer.num_unsound)

    def columns(self) -> dict[str, Any]:
        """Adds quantiles of the new priorities, how long one takes to the table, and what that costs the learner."""
        columns, new = super().columns() | self._writer.columns(), np.concatenate([[], *self._priorities])
        columns |= dict(learner_priority_fraction=self._account.fraction("priorities"))
        self._priorities.clear()
        if len(new):  # nothing, if none was finite
            half, most, largest = np.quantile(new, (0.5, 0.95, 1.0)).tolist()
            columns |= dict(priority_p50=half, priority_p95=most, priority_max=largest)
        return columns


class PriorityWriter:
    """Writes priorities back to a table in a thread of its own, up to 5,000 in one request.

    A priority for a window that the table no longer holds is ignored by Reverb, which does not tell how many were (why
    that cannot be counted here either: docs/architectures/apex.md). One that is not a finite number above 0 is counted
    and not sent: a table does not survive a negative one.

    Args:
      client: a `reverb.Client`.
    """

    _MOST = 5_000  # of a request
    _RETRY_SECONDS = 1.0

    def __init__(self, client, table: str = tables.REPLAY):
        self._client, self._table = client, table
        self.num_unsound = 0  # priorities that could not be used
        self._waiting: dict[int, tuple[float, float]] = {}  # by key: the newest priority, and when it came
        self._seconds: deque[float] = deque(maxlen=_MOST_KEPT)
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="priorities", daemon=True).start()

    def put(self, keys: np.ndarray, priority: np.ndarray) -> None:
        """Takes priorities [B] of windows by their keys [B]; does not wait."""
        is_sound, now = np.isfinite(priority) & (priority > 0), time.monotonic()
        with self._changed:
            self.num_unsound += int(np.sum(~is_sound))
            sound = zip(keys[is_sound].tolist(), priority[is_sound].tolist())
            self._waiting.update((key, (new, now)) for key, new in sound)
            self._changed.notify()

    def columns(self) -> dict[str, float | None]:
        """Returns the mean seconds that the oldest priority of a request waited."""
        with self._changed:
            seconds = list(self._seconds)
            self._seconds.clear()
        return dict(priority_seconds=sum(seconds) / len(seconds) if seconds else None)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                some = dict(itertools.islice(self._waiting.items(), self._MOST))
                for key in some:
                    del self._waiting[key]
            self._send({key: priority for key, (priority, _) in some.items()})
            with self._changed:
                self._seconds.append(time.monotonic() - min(since for _, since in some.values()))

    def _send(self, priorities: Mapping[int, float]) -> None:
        while True:
            try:
                return self._client.mutate_priorities(self._table, updates=priorities)
            except Exception as error:  # the table may be starting again, with other keys
                logging.warning("%d priorities did not reach the table yet: %s", len(priorities), error)
                time.sleep(self._RETRY_SECONDS)
