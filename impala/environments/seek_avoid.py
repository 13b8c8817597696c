"""Seek and avoid: DeepMind Lab's `seekavoid_arena_01`, a task of the IMPALA paper's Table 2, on a small board.

Two apples (+1 each) and two lemons (−1 each) lie on 5×5 cells. The agent takes the fruit it steps on, and another of
the same kind appears in a free cell. Actions: up, right, down, left; a wall stops. An episode is truncated after 50
steps and never terminates, so it bootstraps. Rewards are dense and of both signs, and the value of a step depends on
what the policy does next: the values of an old policy are far from those of a new one.
"""

import numpy as np

from impala.environments import pictures
from impala.environments.boundaries import Boundaries
from impala.types import ArraySpec, Discrete, EnvironmentSpec, Step

SIZE, NUM_APPLES, NUM_LEMONS, MAX_STEPS = 5, 2, 2, 50
_CELLS = SIZE * SIZE
_DOWN, _RIGHT = np.array([-1, 0, 1, 0]), np.array([0, 1, 0, -1])  # cells, by action
_WORTH = np.array(NUM_APPLES * [1.0] + NUM_LEMONS * [-1.0])


class SeekAvoid:
    """`num_environments` boards; observations are float32 [5, 5, 3] with ones at agent, apples and lemons."""

    def __init__(self, *, num_environments: int):
        self.num_environments = num_environments
        self.spec = EnvironmentSpec("seek_avoid", ArraySpec((SIZE, SIZE, 3), np.float32), actions=Discrete(4))
        self._boundaries = Boundaries(num_environments)

    def reset(self, seed: int) -> Step:
        n = self.num_environments
        self._random = np.random.default_rng(seed)
        self._agent, self._fruit = np.zeros(n, int), np.zeros((n, len(_WORTH)), int)  # cells, counted row by row
        self._length, self._over = np.zeros(n, int), np.zeros(n, bool)
        self._lay_out(np.arange(n))
        return self._boundaries.reset(self._observe())

    def send(self, action: np.ndarray) -> None:
        starts = self._over
        row, column = np.divmod(self._agent, SIZE)
        row, column = (np.clip(at + by[action], 0, SIZE - 1) for at, by in ((row, _DOWN), (column, _RIGHT)))
        self._agent = row * SIZE + column
        taken = self._fruit == self._agent[:, None]  # one at most, since no two lie in one cell
        self._reward = taken @ _WORTH
        self._replace(taken)
        self._length = np.where(starts, 0, self._length + 1)
        if starts.any():
            self._lay_out(np.flatnonzero(starts))
        self._over = self._length == MAX_STEPS

    def receive(self) -> Step:
        return self._boundaries.step(self._observe(), self._reward, np.zeros_like(self._over), self._over.copy())

    def picture(self) -> np.ndarray:
        """Returns the first environment as RGB [H, W, 3]."""
        return pictures.of_observation(self._observe()[0])

    def close(self) -> None:
        pass

    def _lay_out(self, which: np.ndarray) -> None:
        """Puts agent and fruit of these boards into different cells."""
        cells = np.argsort(self._random.random((len(which), _CELLS)), axis=1)
        self._agent[which], self._fruit[which] = cells[:, 0], cells[:, 1 : 1 + len(_WORTH)]

    def _replace(self, taken: np.ndarray) -> None:
        board, fruit = np.nonzero(taken)
        draw = self._random.random((len(board), _CELLS))
        np.put_along_axis(draw, self._fruit[board], -1.0, axis=1)  # the agent stands where one of them was
        self._fruit[board, fruit] = draw.argmax(axis=1)

    def _observe(self) -> np.ndarray:
        board = np.zeros((self.num_environments, _CELLS, 3), np.float32)
        every = np.arange(self.num_environments)
        board[every, self._agent, 0] = 1.0
        board[every[:, None], self._fruit, np.where(_WORTH > 0, 1, 2)] = 1.0
        return board.reshape(-1, SIZE, SIZE, 3)
