"""Cliff walking (Sutton & Barto 2018, example 6.6) in wind: the short way to the goal leads along a cliff.

    . . . . . . . . . . . .
    . . . . . . . . . . . .      every step costs 0.01
    . . . . . . . . . . . .      into C: −1, the episode ends
    S C C C C C C C C C C G      to G:   +1, the episode ends

Actions: up, right, down, left; the board's edge stops. The book's −100 and −1 become −1 and −0.01, so that no clipping
changes them, and a fall ends the episode. With probability 0.1 the wind turns a step into one down. After 100 steps an
episode is truncated, and bootstraps. Tabular: observations are one-hot. An episode is worth −0.385 along the very edge
of the cliff, 0.63 a row further off, 0.78 along the upper edge: a policy has to leave the way that it finds first.
"""

import numpy as np

from impala.environments import pictures
from impala.environments.boundaries import Boundaries
from impala.types import ArraySpec, Discrete, EnvironmentSpec, Step

ROWS, COLUMNS = 4, 12
START, GOAL = (ROWS - 1) * COLUMNS, ROWS * COLUMNS - 1
_DOWN, _RIGHT = np.array([-1, 0, 1, 0]), np.array([0, 1, 0, -1])  # cells, by action
_WIND, _COST, _MAX_STEPS = 0.1, 0.01, 100


class CliffWalking:
    """`num_environments` boards, stepped by numpy at once; states are counted row by row."""

    def __init__(self, *, num_environments: int):
        self.num_environments = num_environments
        self.spec = EnvironmentSpec("cliff_walking", ArraySpec((ROWS * COLUMNS,), np.float32), actions=Discrete(4))
        self._boundaries = Boundaries(num_environments)

    def reset(self, seed: int) -> Step:
        n = self.num_environments
        self._random = np.random.default_rng(seed)
        self._state, self._length, self._over = np.full(n, START), np.zeros(n, int), np.zeros(n, bool)
        return self._boundaries.reset(self._observe())

    def send(self, action: np.ndarray) -> None:
        starts = self._over
        move = np.where(self._random.random(self.num_environments) < _WIND, 2, action)
        row, column = np.divmod(self._state, COLUMNS)
        row, column = np.clip(row + _DOWN[move], 0, ROWS - 1), np.clip(column + _RIGHT[move], 0, COLUMNS - 1)
        state = np.where(starts, START, row * COLUMNS + column)
        fell, arrived = (state > START) & (state < GOAL), state == GOAL
        self._reward = np.where(arrived, 1.0, np.where(fell, -1.0, -_COST))
        self._state, self._length = state, np.where(starts, 0, self._length + 1)
        self._terminated = fell | arrived
        self._truncated = (self._length == _MAX_STEPS) & ~self._terminated
        self._over = self._terminated | self._truncated

    def receive(self) -> Step:
        return self._boundaries.step(self._observe(), self._reward, self._terminated, self._truncated)

    def picture(self) -> np.ndarray:
        """Returns the first environment as RGB [H, W, 3]."""
        return pictures.of_observation(self._observe()[0].reshape(ROWS, COLUMNS))

    def close(self) -> None:
        pass

    def _observe(self) -> np.ndarray:
        return np.eye(ROWS * COLUMNS, dtype=np.float32)[self._state]
