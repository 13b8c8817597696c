"""Memory chain (bsuite's memory length, Osband et al. 2019): one bit is shown at first, and asked for at the end.

Observations: the share of the episode that is left, whether this is the last decision, and the bit, as −1 or 1 at the
first step and 0 at all others. Actions: −1 or 1, of which only the last counts: +1 if it is the bit, else −1. A policy
that sees the last few observations alone scores 0 on average.
"""

import numpy as np

from impala.environments import pictures
from impala.environments.boundaries import Boundaries
from impala.types import ArraySpec, Discrete, EnvironmentSpec, Step

_LENGTH = 10  # decisions of an episode


class MemoryChain:
    """`num_environments` chains, stepped by numpy at once."""

    def __init__(self, *, num_environments: int):
        self.num_environments = num_environments
        self.spec = EnvironmentSpec("memory_chain", ArraySpec((3,), np.float32), actions=Discrete(2))
        self._boundaries = Boundaries(num_environments)

    def reset(self, seed: int) -> Step:
        n = self.num_environments
        self._random = np.random.default_rng(seed)
        self._time, self._bit, self._over = np.zeros(n, int), self._random.integers(2, size=n), np.zeros(n, bool)
        return self._boundaries.reset(self._observe())

    def send(self, action: np.ndarray) -> None:
        starts = self._over
        self._time = np.where(starts, 0, self._time + 1)
        self._bit = np.where(starts, self._random.integers(2, size=self.num_environments), self._bit)
        self._over = self._time == _LENGTH
        self._reward = self._over * np.where(action == self._bit, 1.0, -1.0)

    def receive(self) -> Step:
        return self._boundaries.step(self._observe(), self._reward, self._over.copy(), np.zeros_like(self._over))

    def picture(self) -> np.ndarray:
        """Returns the first environment as RGB [H, W, 3]."""
        return pictures.of_observation(self._observe()[0])

    def close(self) -> None:
        pass

    def _observe(self) -> np.ndarray:
        left = 1.0 - self._time / _LENGTH
        shown = np.where(self._time == 0, 2 * self._bit - 1, 0)
        return np.stack([left, self._time == _LENGTH - 1, shown], axis=1).astype(np.float32)
