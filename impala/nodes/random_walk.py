"""GA3C's dynamic adjustment (Babaeizadeh et al. 2016, section 4.4): finds good numbers of threads and agents."""

import time
from collections.abc import Callable, Mapping

import numpy as np


class RandomWalk:
    """Changes each number by −1, 0 or 1 at random, and goes back if training became slower.

    A period with the present numbers is followed by one with changed ones. If training was no slower in it, these stay
    and the next change is tried; if it was slower, the old numbers come back and are measured again, since training may
    have slowed for another reason.

    Args:
      sizes: the numbers at the start, 1 or more.
      most: upper bounds of some of them.
      apply: called with the new numbers.
      seed: of the walk.
      clock: returns seconds; a period may last longer than another.
    """

    def __init__(
        self, sizes: Mapping[str, int], *, most: Mapping[str, int], apply: Callable[[dict[str, int]], None], seed: int,
        clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        self.sizes, self._most, self._apply = dict(sizes), most, apply
        self._random = np.random.default_rng([seed, 4])
        self._kept: dict[str, int] | None = None  # the numbers to go back to, while others are tried
        self._clock, self._before = clock, None  # the time and the count when the last period ended
        self._rate = 0.0

    def adjust(self, count: int) -> None:
        """Ends a period.

        Args:
          count: what was trained on so far, in all periods, e.g. in frames.
        """
        before, self._before = self._before, (self._clock(), count)
        if before is None:  # the first period, in which things settled
            return
        seconds, gain = self._before[0] - before[0], count - before[1]
        rate = gain / max(seconds, 1e-9)
        if self._kept is not None and rate < self._rate:
            self._set(self._kept)
            self._kept = None
            return
        self._rate, self._kept = rate, self.sizes
        self._set({name: self._step(name, size) for name, size in self.sizes.items()})

    def _step(self, name: str, size: int) -> int:
        return int(np.clip(size + self._random.integers(-1, 2), 1, self._most.get(name, size + 1)))

    def _set(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self._apply(sizes)
