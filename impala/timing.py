"""How long a loop spends in each of its parts."""

import contextlib
import time


class TimeAccount:
    """Seconds that a loop spent in each of its parts: `with account.part("inference"): …`."""

    def __init__(self):
        self._seconds: dict[str, float] = {}
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def part(self, name: str):
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started

    def fractions(self) -> dict[str, float]:
        """Returns each part's share of the time since the last call, and starts anew."""
        now = time.perf_counter()
        elapsed, self._started = max(now - self._started, 1e-9), now
        seconds, self._seconds = self._seconds, {}  # another thread may be adding
        return {name: part / elapsed for name, part in dict(seconds).items()}

    def fraction(self, name: str) -> float:
        """Returns the share of one part, and starts anew for all."""
        return self.fractions().get(name, 0.0)
