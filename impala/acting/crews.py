"""Threads that all do the same work, and a gate for callers; both can be resized while they are in use."""

import threading
from collections.abc import Callable


class Crew:
    """Runs `turn` over and over in `size` threads; `size` may be set while they run.

    Args:
      turn: one turn of the work; it returns within a second or so even if there is nothing to do.
      size: number of threads; 1 or more.
      name: of the threads.
    """

    def __init__(self, turn: Callable[[], None], size: int, *, name: str):
        self._turn, self._name = turn, name
        self._changed = threading.Condition()
        self._num_threads, self._is_over = 0, False
        self.error: BaseException | None = None  # raised by a turn; it stopped the crew
        self.size = size

    @property
    def size(self) -> int:
        """Threads at work."""
        return self._size

    @size.setter
    def size(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size={size} of the crew {self._name!r}; expected 1 or more")
        with self._changed:
            self._size = size
            self._changed.notify_all()
            while self._num_threads < size:  # surplus threads never end: they sleep until needed
                arguments = (self._num_threads,)
                thread = threading.Thread(target=self._work, args=arguments, name=self._name, daemon=True)
                thread.start()
                self._num_threads += 1

    def close(self) -> None:
        """Ends each thread once its turn is over; does not wait for that."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def check(self) -> None:
        """Raises the error that a turn raised, if any."""
        if self.error is not None:
            raise self.error

    def _work(self, index: int) -> None:
        while self.error is None:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or index < self._size)
                if self._is_over:
                    return
            try:
                self._turn()
            except BaseException as error:  # kept for the crew's owner, who calls `check`
                self.error = error


class Gate:
    """Lets the first `size` agents pass."""

    def __init__(self, size: int):
        self._size, self._changed = size, threading.Condition()

    @property
    def size(self) -> int:
        return self._size

    @size.setter
    def size(self, size: int) -> None:
        with self._changed:
            self._size = size
            self._changed.notify_all()

    def may_pass(self, agent: int, timeout_seconds: float) -> bool:
        """Waits at most `timeout_seconds` until `agent` may pass; returns whether it may."""
        with self._changed:
            return self._changed.wait_for(lambda: agent < self._size, timeout_seconds)
