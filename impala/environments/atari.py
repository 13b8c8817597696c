"""Atari 2600 games on ale-py's C++ vector environment, which ships the ROMs.

Single 84×84 grey frames leave the environment; the network stacks four of them. Action repeat 4 with a maximum over
the last two frames. Rewards are raw: the learner clips them. After every reset ale-py presses FIRE once where the
action set has it, as most wrappers do; Breakout waits for it.

| protocol      | sticky actions | no-ops at the start | lost life ends the learning episode | action set | after |
|---|---|---|---|---|---|
| `paper2018`   | 0    | fewer than 30 | yes | the game's own | IMPALA, appendix G |
| `machado2018` | 0.25 | fewer than 30 | no  | all 18 | Machado et al. 2018, arXiv:1709.06009, and no-ops besides |
| `cleanba`     | 0.25 | none          | no  | all 18 | Huang et al. 2023, Cleanba |
"""

import functools

import numpy as np
from ale_py.vector_env import AtariVectorEnv

from impala.environments.boundaries import Boundaries
from impala.types import ArraySpec, Discrete, EnvironmentSpec, Step

_ACTION_REPEAT = 4
_NUM_STACKED = 4

PROTOCOLS = {
    "paper2018": dict(repeat_action_probability=0.0, life_loss_info=True, full_action_space=False, noop_max=30),
    "machado2018": dict(repeat_action_probability=0.25, life_loss_info=False, full_action_space=True, noop_max=30),
    "cleanba": dict(repeat_action_probability=0.25, life_loss_info=False, full_action_space=True, noop_max=1),
}


class Atari:
    """`num_environments` copies of one game, stepped by `num_threads` C++ threads.

    action_set: "full" is all 18 actions, whatever the protocol says. with_picture: plays a second time, in colour.
    """

    def __init__(
        self, game: str, *, num_environments: int, protocol: str = "paper2018", action_set: str = "protocol",
        num_threads: int = 1, with_picture: bool = False,
    ):  # fmt: skip
        how = PROTOCOLS[protocol] | ({"full_action_space": True} if action_set == "full" else {})
        make = functools.partial(
            AtariVectorEnv,
            game=game,
            num_envs=num_environments,
            num_threads=num_threads,
            frameskip=_ACTION_REPEAT,
            maxpool=True,
            stack_num=1,
            episodic_life=False,
            use_fire_reset=True,
            reward_clipping=False,
            max_num_frames_per_episode=108_000,
            autoreset_mode="NextStep",
            **how,
        )
        self._environment = make(grayscale=True, img_height=84, img_width=84)
        # The same seed and the same actions make the same game.
        self._screen = make(grayscale=False, img_height=210, img_width=160) if with_picture else None
        self.num_environments = num_environments
        self.spec = EnvironmentSpec(
            name=f"atari:{game}",
            observation=ArraySpec((84, 84), np.uint8),
            actions=Discrete(int(self._environment.single_action_space.n)),
            num_stacked=_NUM_STACKED,
            frames_per_step=_ACTION_REPEAT,
        )
        self._boundaries = Boundaries(num_environments)

    def reset(self, seed: int) -> Step:
        observation, info = self._environment.reset(seed=seed)
        self._lives = info["lives"]
        if self._screen:
            self._picture = self._screen.reset(seed=seed)[0]
        return self._boundaries.reset(observation[:, 0])

    def send(self, action: np.ndarray) -> None:
        self._environment.send(np.asarray(action, np.int32))
        if self._screen:
            self._picture = self._screen.step(np.asarray(action, np.int32))[0]

    def receive(self) -> Step:
        observation, reward, terminated, truncated, info = self._environment.recv()
        # With life_loss_info a lost life too is reported as `terminated`, without a reset, except when none is left.
        lost_life = terminated & (0 < info["lives"]) & (info["lives"] < self._lives)
        self._lives = info["lives"]
        game_over = terminated & ~lost_life
        return self._boundaries.step(observation[:, 0], reward, game_over, truncated, lost_life=lost_life)

    def picture(self) -> np.ndarray:
        """Returns the first game's screen, RGB [210, 160, 3]; for those made `with_picture`."""
        return self._picture[0, -1]

    def close(self) -> None:
        for environment in (self._environment, self._screen):
            if environment:
                environment.close()
