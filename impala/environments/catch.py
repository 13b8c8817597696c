"""Catch (bsuite, Osband et al. 2019): a ball falls down a 10×5 board, a paddle in the lowest row must be under it.

Actions: left, stay, right. Reward +1 for a catch, −1 for a miss, at the end of an episode of nine steps. All N boards
are stepped by numpy at once.
"""

import numpy as np

from impala.environments import pictures
from impala.environments.boundaries import Boundaries
from impala.types import ArraySpec, Discrete, EnvironmentSpec, Step

_ROWS, _COLUMNS = 10, 5


class Catch:
    """`num_environments` boards; observations are float32 [10, 5] with ones at ball and paddle."""

    def __init__(self, *, num_environments: int):
        self.num_environments = num_environments
        self.spec = EnvironmentSpec("catch", ArraySpec((_ROWS, _COLUMNS), np.float32), actions=Discrete(3))
        self._boundaries = Boundaries(num_environments)

    def reset(self, seed: int) -> Step:
        n = self.num_environments
        self._random = np.random.default_rng(seed)
        self._row, self._ball = np.zeros(n, int), self._random.integers(_COLUMNS, size=n)
        self._paddle = np.full(n, _COLUMNS // 2)
        self._over = np.zeros(n, bool)
        return self._boundaries.reset(self._observe())

    def send(self, action: np.ndarray) -> None:
        starts = self._over
        self._paddle = np.minimum(np.maximum(self._paddle + action - 1, 0), _COLUMNS - 1)
        self._row = self._row + 1
        if starts.any():
            self._paddle[starts] = _COLUMNS // 2
            self._ball[starts] = self._random.integers(_COLUMNS, size=np.count_nonzero(starts))
            self._row[starts] = 0
        self._over = self._row == _ROWS - 1
        self._reward = self._over * np.where(self._paddle == self._ball, 1.0, -1.0)

    def receive(self) -> Step:
        return self._boundaries.step(self._observe(), self._reward, self._over.copy(), np.zeros_like(self._over))

    def picture(self) -> np.ndarray:
        """Returns the first environment as RGB [H, W, 3]."""
        return pictures.of_observation(self._observe()[0])

    def close(self) -> None:
        pass

    def _observe(self) -> np.ndarray:
        board = np.zeros((self.num_environments, _ROWS, _COLUMNS), np.float32)
        every = np.arange(self.num_environments)
        board[every, self._row, self._ball] = 1.0
        board[every, _ROWS - 1, self._paddle] = 1.0
        return board
