"""River swim (Strehl & Littman 2008, with the numbers of Osband et al. 2013): six states in a row, against a current.

    left:   one state to the left, always; in state 0 a reward of 0.005
    right:  in state 0: stays with probability 0.4, else moves on
            in between: moves on with 0.35, stays with 0.6, is swept back with 0.05
            in state 5: a reward of 1, and stays with 0.6, is swept back with 0.4

An episode is truncated after 100 steps and never terminates, so it bootstraps. Tabular: observations are one-hot. The
task shows what a correction does to the values: V^μ of a policy that mostly swims left is nearly flat.
"""

import numpy as np

from impala.environments import pictures
from impala.environments.boundaries import Boundaries
from impala.types import ArraySpec, Discrete, EnvironmentSpec, Step

NUM_STATES, _MAX_STEPS = 6, 100
_BACK, _STAY = np.array([0.0, 0.05, 0.05, 0.05, 0.05, 0.4]), np.array([0.4, 0.6, 0.6, 0.6, 0.6, 0.6])
_SMALL, _LARGE = 0.005, 1.0


def model() -> tuple[np.ndarray, np.ndarray]:
    """Returns transition probabilities [state, action, next state] and rewards [state, action], for exact values."""
    every, right = np.arange(NUM_STATES), np.zeros((NUM_STATES, NUM_STATES))
    for shift, probability in ((-1, _BACK), (0, _STAY), (1, 1.0 - _BACK - _STAY)):
        np.add.at(right, (every, np.clip(every + shift, 0, NUM_STATES - 1)), probability)
    left = np.eye(NUM_STATES)[np.maximum(every - 1, 0)]
    reward = np.zeros((NUM_STATES, 2))
    reward[0, 0], reward[-1, 1] = _SMALL, _LARGE
    return np.stack([left, right], axis=1), reward


class RiverSwim:
    """`num_environments` rivers, stepped by numpy at once; actions are left and right."""

    def __init__(self, *, num_environments: int):
        self.num_environments = num_environments
        self.spec = EnvironmentSpec("river_swim", ArraySpec((NUM_STATES,), np.float32), actions=Discrete(2))
        self._boundaries = Boundaries(num_environments)

    def reset(self, seed: int) -> Step:
        n = self.num_environments
        self._random = np.random.default_rng(seed)
        self._state, self._length, self._over = np.zeros(n, int), np.zeros(n, int), np.zeros(n, bool)
        return self._boundaries.reset(self._observe())

    def send(self, action: np.ndarray) -> None:
        state, right = self._state, action == 1
        draw = self._random.random(self.num_environments)
        move = np.where(draw < _BACK[state], -1, np.where(draw < _BACK[state] + _STAY[state], 0, 1))
        self._reward = np.where(right, _LARGE * (state == NUM_STATES - 1), _SMALL * (state == 0))
        swum = np.clip(state + np.where(right, move, -1), 0, NUM_STATES - 1)
        self._state = np.where(self._over, 0, swum)
        self._length = np.where(self._over, 0, self._length + 1)
        self._over = self._length == _MAX_STEPS

    def receive(self) -> Step:
        return self._boundaries.step(self._observe(), self._reward, np.zeros_like(self._over), self._over.copy())

    def picture(self) -> np.ndarray:
        """Returns the first environment as RGB [H, W, 3]."""
        return pictures.of_observation(self._observe()[0])

    def close(self) -> None:
        pass

    def _observe(self) -> np.ndarray:
        return np.eye(NUM_STATES, dtype=np.float32)[self._state]
