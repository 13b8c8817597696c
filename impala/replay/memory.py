"""A queue of chunks within one process, for writers and a learner that share it (SEED RL)."""

import collections
import threading
from collections.abc import Callable, Iterator

from impala.types import Chunk, TimeAccount


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
        self._account = TimeAccount()

    def __call__(self, chunks: list[Chunk]) -> None:
        """Takes the chunks of an unroll, as a writer's sink; returns when there was room for them."""
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
        with self._changed:
            return self._account.fraction("blocked")
