"""How long a loop spends in each of its parts."""

import contextlib
import threading
import time


class TimeAccount:
    """Seconds that a loop spent in each of its parts: `with account.part("inference"): …`.

    Other threads may ask while a part goes on; its time up to then is counted then.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._under_way: dict[object, tuple[str, float]] = {}  # part → its name and from when on it is not yet counted
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def part(self, name: str):
        part = object()
        with self._lock:
            self._under_way[part] = name, time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._add(*self._under_way.pop(part), time.perf_counter())

    def fractions(self) -> dict[str, float]:
        """Returns each part's share of the time since the last call, and starts anew."""
        with self._lock:
            now = time.perf_counter()
            for part, (name, since) in self._under_way.items():
                self._add(name, since, now)
                self._under_way[part] = name, now
            seconds, self._seconds = self._seconds, {}
            elapsed, self._started = max(now - self._started, 1e-9), now
        return {name: part / elapsed for name, part in seconds.items()}

    def fraction(self, name: str) -> float:
        """Returns the share of one part, and starts anew for all."""
        return self.fractions().get(name, 0.0)

    def _add(self, name: str, since: float, until: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + until - since
