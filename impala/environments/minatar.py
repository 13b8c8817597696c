"""MinAtar (Young & Tian 2019, arXiv:1903.03176): five Atari games on a 10×10 board, a channel for each object.

Sticky actions with probability 0.1 and a rising difficulty, as published; the minimal action set of each game. The
published games have no time limit; here an episode is truncated after 10,000 steps, so that none goes on for ever.
"""

import contextlib

import numpy as np

from impala.environments import pictures
from impala.environments.boundaries import Boundaries
from impala.types import ArraySpec, Discrete, EnvironmentSpec, Step

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
_MAX_STEPS = 10_000


def _import_minatar():
    """It imports what it draws with, and takes whatever is raised meanwhile, a Ctrl-C too, for its absence."""
    with contextlib.suppress(ImportError):
        import seaborn  # noqa: F401, and matplotlib with it, where a Ctrl-C is heard
    import minatar

    return minatar


class MinAtar:
    """`num_environments` boards in this process; observations are uint8 [10, 10, channels], 0 or 1."""

    def __init__(self, game: str, *, num_environments: int):
        minatar = _import_minatar()
        self._games = [minatar.Environment(game) for _ in range(num_environments)]
        self._actions = np.array(self._games[0].minimal_action_set())
        self.num_environments = num_environments
        shape = tuple(self._games[0].state_shape())
        self.spec = EnvironmentSpec(f"minatar:{game}", ArraySpec(shape, np.uint8), actions=Discrete(len(self._actions)))
        self._boundaries = Boundaries(num_environments)

    def reset(self, seed: int) -> Step:
        for game, child in zip(self._games, np.random.SeedSequence(seed).generate_state(self.num_environments)):
            game.seed(int(child))
            game.last_action = 0
            game.reset()
        n = self.num_environments
        self._over, self._length = np.zeros(n, bool), np.zeros(n, int)
        return self._boundaries.reset(self._observe())

    def send(self, action: np.ndarray) -> None:
        self._reward, self._terminated = np.zeros(self.num_environments), np.zeros(self.num_environments, bool)
        chosen = self._actions[action].tolist()
        for i, game in enumerate(self._games):
            if self._over[i]:
                game.reset()
            else:
                self._reward[i], self._terminated[i] = game.act(chosen[i])
        self._length = np.where(self._over, 0, self._length + 1)

    def receive(self) -> Step:
        truncated = (self._length >= _MAX_STEPS) & ~self._terminated
        self._over = self._terminated | truncated
        return self._boundaries.step(self._observe(), self._reward, self._terminated, truncated)

    def picture(self) -> np.ndarray:
        """Returns the first environment as RGB [H, W, 3]."""
        return pictures.of_observation(self._observe()[0])

    def close(self) -> None:
        pass

    def _observe(self) -> np.ndarray:
        return np.stack([game.state() for game in self._games]).view(np.uint8)
