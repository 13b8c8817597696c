"""Replay within one process: a queue of chunks (SEED RL, GA3C), and a table of windows (Gorila, `lockstep`)."""

import collections
import threading
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from impala.replay import priorities
from impala.timing import TimeAccount
from impala.types import Chunk


class MemoryQueue:
    """Hands every chunk on once, in order; when full, it blocks its writers.

    Args:
      size: chunks.
      should_stop: asked twice a second by a writer that waits; True abandons the wait.
    """

    _SLICE_SECONDS = 0.5

    def __init__(self, size: int, *, should_stop: Callable[[], bool] = lambda: False):
        if size < 1:
            raise ValueError(f"size={size}; expected 1 or more chunks")
        self._size, self._should_stop = size, should_stop
        self._chunks: collections.deque[Chunk] = collections.deque()
        self._changed = threading.Condition()
        self._account = TimeAccount()

    def __call__(self, chunks: list[Chunk]) -> None:
        """Takes the chunks of an unroll, as a writer's sink; returns once there was room for them."""
        for chunk in chunks:
            with self._changed:
                while len(self._chunks) >= self._size:
                    if self._should_stop():
                        return
                    with self._account.part("blocked"):
                        self._changed.wait(self._SLICE_SECONDS)
                self._chunks.append(chunk)
                self._changed.notify_all()

    def chunks(self) -> Iterator[Chunk]:
        """Yields chunks for ever, as `datasets.chunks` does; for a thread that ends with its process."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._chunks)
                chunk = self._chunks.popleft()
                self._changed.notify_all()
            yield chunk

    def take(self, num_chunks: int, timeout_seconds: float) -> list[Chunk]:
        """Returns the next `num_chunks`, [] if there are fewer in time; safe for several readers at once."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._chunks) >= num_chunks, timeout_seconds):
                return []
            taken = [self._chunks.popleft() for _ in range(num_chunks)]
            self._changed.notify_all()
        return taken

    def fill(self) -> float:
        """Returns how full it is, in [0, 1]."""
        return len(self._chunks) / self._size

    def blocked_fraction(self) -> float:
        """Returns the share of time that writers waited since the last call, summed over them."""
        with self._changed:
            return self._account.fraction("blocked")


class MemoryWindows:
    """An `acting.windows.Sink` that keeps the newest `size` windows, for one thread that writes and draws.

    Args:
      lengths: see `windows.lengths`.
      priority_exponent: α of `priorities.probabilities`; 0 draws uniformly. A draw takes time in proportion to `size`.
    """

    def __init__(
        self, size: int, num_environments: int, *, lengths: Mapping[str, int], priority_exponent: float = 0.0
    ):  # fmt: skip
        self._lengths, self._exponent = lengths, priority_exponent
        self._recent = [collections.deque(maxlen=max(lengths.values())) for _ in range(num_environments)]
        self._windows: list[tuple[dict, ...]] = []
        self._priorities = np.ones(size)
        self._size, self.num_inserted = size, 0

    def __len__(self) -> int:
        return len(self._windows)

    def lane(self, first: int) -> "Lane":
        """Returns a sink for the environments from `first` on."""
        return Lane(self, first)

    def write(self, rows: list[dict[str, np.ndarray]], first: int = 0) -> None:
        for recent, row in zip(self._recent[first:], rows):
            recent.append({name: np.array(value) for name, value in row.items()})

    def end_windows(self, is_window: np.ndarray, priority: np.ndarray, first: int = 0) -> None:
        for i in np.flatnonzero(is_window):
            window, at = tuple(self._recent[first + i]), self.num_inserted % self._size
            if len(self._windows) < self._size:
                self._windows.append(window)
            else:  # in place of the oldest
                self._windows[at] = window
            self._priorities[at] = priority[i]
            self.num_inserted += 1

    def sample(self, num_windows: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns windows that are drawn with replacement: arrays [B, …] by column.

        Three columns are about the draw: `key` of each window, for `update`, its `probability` and the `table_size`.
        """
        count = len(self._windows)
        if self._exponent:
            probability = priorities.probabilities(self._priorities[:count], self._exponent)
            keys = random.choice(count, size=num_windows, p=probability)
        else:
            probability, keys = np.full(count, 1 / count), random.integers(count, size=num_windows)
        drawn = [self._windows[i] for i in keys]
        columns = {
            name: _stacked([row[name] for window in drawn for row in window[-length:]], num_windows, length)
            for name, length in self._lengths.items()
        }
        timeless = drawn[0][-1].keys() - columns.keys()
        columns |= {name: np.stack([window[-1][name] for window in drawn]) for name in timeless}
        return columns | dict(key=np.asarray(keys), probability=probability[keys], table_size=np.full(len(keys), count))

    def update(self, keys: np.ndarray, priority: np.ndarray) -> None:
        """Sets the priorities [B] of windows that were drawn, by their keys [B]."""
        self._priorities[keys] = priority


def _stacked(values: list[np.ndarray], *shape: int) -> np.ndarray:
    values = np.stack(values)
    return values.reshape(*shape, *values.shape[1:])


class Lane:
    """A sink for those environments of a `MemoryWindows` that step together."""

    def __init__(self, windows: MemoryWindows, first: int):
        self._windows, self._first = windows, first

    def write(self, rows: list[dict[str, np.ndarray]]) -> None:
        self._windows.write(rows, self._first)

    def end_windows(self, is_window: np.ndarray, priority: np.ndarray) -> None:
        self._windows.end_windows(is_window, priority, self._first)
