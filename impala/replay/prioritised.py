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
        self._drawn_at = 0.0  # when that batch was
        self._dropped: tuple[int | None, float] = (None, 0.0)  # windows until the last `columns`, and when that was
        self._priorities: deque[np.ndarray] = deque(maxlen=_MOST_KEPT)
        self._account = TimeAccount()  # of the thread that trains

    def _batches(self) -> Iterator[tuple[Chunk, np.ndarray, float]]:
        for arrays in self._drawn():
            now = time.monotonic()
            yield to_tensors(arrays, self._device, importance_exponent=self._importance_exponent), arrays["key"], now

    def get(self, timeout_seconds: float) -> Chunk | None:
        if (item := super().get(timeout_seconds)) is None:
            return None
        batch, self._keys, self._drawn_at = item
        return batch

    def update_priorities(self, priority: np.ndarray) -> None:
        """Takes the new priorities [B] of the batch that `get` returned last."""
        with self._account.part("priorities"):
            self._priorities.append(priority[np.isfinite(priority)])  # a copy: it may be a column of a larger array
            self._writer.put(self._keys, priority, self._drawn_at)

    def counts(self) -> dict[str, int]:
        return super().counts() | dict(unsound_priorities=self._writer.num_unsound)

    def columns(self) -> dict[str, Any]:
        """Adds quantiles of the new priorities, how long one takes to the table, and what that costs the learner."""
        columns, new = super().columns() | self._writer.columns(), np.concatenate([[], *self._priorities])
        columns |= dict(learner_priority_fraction=self._account.fraction("priorities"))
        columns |= dict(gone_priority_fraction=self._gone_fraction(columns))
        self._priorities.clear()
        if len(new):  # nothing, if none was finite
            half, most, largest = np.quantile(new, (0.5, 0.95, 1.0)).tolist()
            columns |= dict(priority_p50=half, priority_p95=most, priority_max=largest)
        return columns

    def _gone_fraction(self, columns: Mapping[str, Any]) -> float | None:
        """Returns the share of the priorities written back whose window had left the table, as far as can be expected.

        That is the share of a full table that was replaced between a draw and its priority's return, as if old windows
        were drawn as often as others; which are gone Reverb does not tell.
        """
        inserted, size = self.num_inserted(), columns.get("replay_size")
        if inserted is None or size is None:
            return None
        (before, since), (now, at) = self._dropped, (inserted - size // self._share.num_fresh, time.monotonic())
        self._dropped = (now, at)
        if before is None or (seconds := columns["priority_round_trip_seconds"]) is None:
            return None
        num_dropped = max(0, now - before)  # less than before if the table has begun anew
        return min(1.0, seconds * num_dropped / (at - since) / self._share.size)


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
        self._waiting: dict[int, tuple[float, float, float]] = {}  # by key: newest priority, when it came, and its draw
        self._seconds: deque[tuple[float, float]] = deque(maxlen=_MOST_KEPT)  # of each request: of both columns
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="priorities", daemon=True).start()

    def put(self, keys: np.ndarray, priority: np.ndarray, drawn_at: float) -> None:
        """Takes priorities [B] of windows, drawn at that moment of `time.monotonic`, by their keys [B]; no wait."""
        is_sound, now = np.isfinite(priority) & (priority > 0), time.monotonic()
        with self._changed:
            self.num_unsound += int(np.sum(~is_sound))
            sound = zip(keys[is_sound].tolist(), priority[is_sound].tolist())
            self._waiting.update((key, (new, now, drawn_at)) for key, new in sound)
            self._changed.notify()

    def columns(self) -> dict[str, float | None]:
        """Returns how long the oldest priority of a request waited, and how old its draw was; means over requests."""
        with self._changed:
            seconds = list(self._seconds)
            self._seconds.clear()
        wait, round_trip = np.mean(seconds, axis=0).tolist() if seconds else (None, None)
        return dict(priority_seconds=wait, priority_round_trip_seconds=round_trip)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                some = dict(itertools.islice(self._waiting.items(), self._MOST))
                for key in some:
                    del self._waiting[key]
            self._send({key: priority for key, (priority, _, _) in some.items()})
            _, came, drawn = zip(*some.values())
            with self._changed:
                now = time.monotonic()
                self._seconds.append((now - min(came), now - min(drawn)))

    def _send(self, priorities: Mapping[int, float]) -> None:
        while True:
            try:
                return self._client.mutate_priorities(self._table, updates=priorities)
            except Exception as error:  # the table may be starting again, with other keys
                logging.warning("%d priorities did not reach the table yet: %s", len(priorities), error)
                time.sleep(self._RETRY_SECONDS)
