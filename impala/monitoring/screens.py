"""Writes what a person sees from a thread of its own: a pipe or terminal that takes nothing holds nobody up."""

import collections
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

_MOST = 1_000  # of what was not written yet; beyond it the oldest is lost
_END_SECONDS = 2.0


class Shown(Protocol):
    """See `dashboard.Dashboard`."""

    def __enter__(self): ...
    def __exit__(self, *_): ...
    def say(self, text: str) -> None: ...
    def update(self, row: dict[str, Any], notices: Mapping[str, str]) -> None: ...


class Screen:
    """Hands on to `shown` what is to be said and shown, in order; of states that wait, the newest alone.

    All methods but `__init__` raise what `shown` raised, if it is not able to go on, as when a pipe was closed.
    """

    def __init__(self, shown: Shown):
        self._shown, self._error = shown, None
        self._jobs: collections.deque[tuple[Callable, tuple]] = collections.deque(maxlen=_MOST)
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, daemon=True, name="screen")

    def __enter__(self):
        self._thread.start()
        self._hand_on(self._shown.__enter__)
        return self

    def __exit__(self, kind, *_):
        self._jobs.append((self._shown.__exit__, (None, None, None)))
        self._jobs.append((self._end, ()))
        with self._changed:
            self._changed.notify()
        self._thread.join(_END_SECONDS)
        if kind is None and self._error is not None:
            raise self._error

    @property
    def is_stuck(self) -> bool:
        """Whether something waits still to be written; an exit that waits for standard output would wait, too."""
        return self._thread.is_alive()

    def say(self, text: str) -> None:
        """Says a line."""
        self._hand_on(self._shown.say, text)

    def update(self, row: dict[str, Any], notices: Mapping[str, str]) -> None:
        """Shows a row of metrics and the notices that stand."""
        self._hand_on(self._shown.update, row, dict(notices))

    def _hand_on(self, function: Callable, *arguments) -> None:
        if self._error is not None:
            raise self._error
        with self._changed:
            if self._jobs and self._jobs[-1][0] == function == self._shown.update:
                self._jobs.pop()
            self._jobs.append((function, arguments))
            self._changed.notify()

    def _work(self) -> None:
        while self._error is None:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs)
                function, arguments = self._jobs.popleft()
            try:
                if function == self._end:
                    return
                function(*arguments)
            except BaseException as error:
                self._error = error

    def _end(self) -> None:
        """Stands for the end among the jobs."""
