"""A queue of chunks within one process, for writers and a learner that share it (SEED RL)."""

import collections
import threading
import time
from collections.abc import Callable, Iterator

from impala.types import Chunk


class MemoryQueue:
    """Hands every chunk on once, in order; full, it holds its writers back.

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
        self._blocked_seconds, self._asked = 0.0, time.perf_counter()

    def __call__(self, chunks: list[Chunk]) -> None:
        """Takes the chunks of an unroll, as a writer's sink; returns when there was room for them."""
        for chunk in chunks:
            with self._changed:
                started = time.perf_counter()
                while not self._changed.wait_for(lambda: len(self._chunks) < self._size, self._SLICE_SECONDS):
                    if self._should_stop():
                        return
                self._blocked_seconds += time.perf_counter() - started
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
        """Returns the next `num_chunks`, none when there are fewer in time; for several readers at once."""
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
        """Returns the share of time that a writer waited since the last call; of several writers their sum."""
        elapsed, self._asked = time.perf_counter() - self._asked, time.perf_counter()
        blocked, self._blocked_seconds = self._blocked_seconds, 0.0
        return blocked / max(elapsed, 1e-9)
