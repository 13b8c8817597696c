"""GA3C's dynamic adjustment (Babaeizadeh et al. 2016, section 4.4): finds good numbers of threads and agents."""

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
    """

    def __init__(
        self, sizes: Mapping[str, int], *, most: Mapping[str, int], apply: Callable[[dict[str, int]], None], seed: int
    ):
        self.sizes, self._most, self._apply = dict(sizes), most, apply
        self._random = np.random.default_rng([seed, 4])
        self._kept: dict[str, int] | None = None  # the numbers to go back to, while others are tried
        self._count: int | None = None
        self._gain = 0

    def adjust(self, count: int) -> None:
        """Ends a period.

        Args:
          count: what was trained on so far, in all periods, e.g. in frames.
        """
        before, self._count = self._count, count
        if before is None:  # the first period, in which things settled
            return
        gain = count - before
        if self._kept is not None and gain < self._gain:
            self._set(self._kept)
            self._kept = None
            return
        self._gain, self._kept = gain, self.sizes
        self._set({name: self._step(name, size) for name, size in self.sizes.items()})

    def _step(self, name: str, size: int) -> int:
        return int(np.clip(size + self._random.integers(-1, 2), 1, self._most.get(name, size + 1)))

    def _set(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self._apply(sizes)
