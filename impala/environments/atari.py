"""Atari 2600 games on ale-py's C++ vector environment, which ships the ROMs.

Single 84×84 grey frames leave the environment; the network stacks four of them. Action repeat 4 with a maximum over
the last two frames. Rewards are raw: the learner clips them. At the start of every game FIRE is pressed once if the
action set has it, as most wrappers do; Breakout waits for it.

| protocol      | sticky actions | start of a game | lost life ends the learning episode | action set | source |
|---|---|---|---|---|---|
| `paper2018`   | 0    | FIRE, then fewer than 30 no-ops | yes | the game's own | IMPALA, appendix G |
| `baselines`   | 0    | fewer than 30 no-ops, then FIRE | yes | the game's own | OpenAI Baselines |
| `rllib`       | 0    | fewer than 30 no-ops, then FIRE | yes; FIRE | the game's own | ray-project/rl-experiments |
| `machado2018` | 0.25 | FIRE, then fewer than 30 no-ops | no  | all 18 | Machado et al. 2018, 1709.06009, and no-ops |
| `cleanba`     | 0.25 | FIRE                            | no  | all 18 | Huang et al. 2023, Cleanba |
| `r2d2`        | 0    | FIRE, then fewer than 30 no-ops | no  | all 18 | Kapturowski et al. 2019, R2D2 |

ale-py presses FIRE for one frame before the no-ops: when an agent first sees Breakout, the ball has been in flight for
up to 28 frames. Baselines' wrappers (and gymnasium's no-ops under a FIRE wrapper) press it after them, for a step of
four frames. With `baselines`, therefore, `Atari` replaces the first action of a game with FIRE; the observations before
and after it are both `is_first`, and neither those four frames nor the no-ops are counted. Unlike Baselines' wrappers
it presses FIRE once a game, not once a life, and no second action after it. With `rllib` it replaces the first action
after a lost life, too: to the agent, a step on which its action has no effect.

Actions are repeated four times, and games end after `max_episode_frames`, with every protocol: Machado et al. repeat
them five times, and end games after 18,000 frames.
"""

import functools
from concurrent import futures

import numpy as np
from ale_py import Action
from ale_py.vector_env import AtariVectorEnv

from impala.environments.boundaries import Boundaries
from impala.types import ArraySpec, Discrete, EnvironmentSpec, Step

_ACTION_REPEAT, _NUM_STACKED = 4, 4
_RESETS = futures.ThreadPoolExecutor(8)

_PAPER = dict(repeat_action_probability=0.0, life_loss_info=True, full_action_space=False, noop_max=30)
PROTOCOLS = {
    "paper2018": _PAPER,
    **dict.fromkeys(("baselines", "rllib"), _PAPER | dict(use_fire_reset=False)),
    "machado2018": dict(repeat_action_probability=0.25, life_loss_info=False, full_action_space=True, noop_max=30),
    "cleanba": dict(repeat_action_probability=0.25, life_loss_info=False, full_action_space=True, noop_max=1),
    "r2d2": dict(repeat_action_probability=0.0, life_loss_info=False, full_action_space=True, noop_max=30),
}


class Atari:
    """`num_environments` copies of one game, stepped by `num_threads` C++ threads.

    action_set: "full" is all 18 actions, whatever the protocol says. with_picture: plays a second time, in colour.
    """

    def __init__(
        self, game: str, *, num_environments: int, protocol: str = "paper2018", action_set: str = "protocol",
        num_threads: int = 1, max_episode_frames: int = 108_000, with_picture: bool = False,
    ):  # fmt: skip
        how = PROTOCOLS[protocol] | ({"full_action_space": True} if action_set == "full" else {})
        make = functools.partial(
            AtariVectorEnv, game=game, num_envs=num_environments, num_threads=num_threads, frameskip=_ACTION_REPEAT,
            maxpool=True, stack_num=1, episodic_life=False, reward_clipping=False, autoreset_mode="NextStep",
            max_num_frames_per_episode=max_episode_frames, **{"use_fire_reset": True} | how,
        )  # fmt: skip
        self._environment = make(grayscale=True, img_height=84, img_width=84)
        self._begun_seed = self._begun_reset = None
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
        self._most_steps = -(-max_episode_frames // _ACTION_REPEAT)
        actions = self._environment.ale.get_action_set()
        self._fires_itself = not how.get("use_fire_reset", True) and Action.FIRE in actions
        self._fire = actions.index(Action.FIRE) if self._fires_itself else None
        self._fires_after_life = self._fires_itself and protocol == "rllib"

    def begin_reset(self, seed: int) -> None:
        """Begins what `reset(seed)` will return: ale-py takes 0.2 s for a game, and lets other threads run."""
        self._begun_seed, self._begun_reset = seed, _RESETS.submit(self._environment.reset, seed=seed)

    def reset(self, seed: int) -> Step:
        begun, self._begun_reset = self._begun_reset and self._begun_reset.result(), None
        observation, info = begun if begun and seed == self._begun_seed else self._environment.reset(seed=seed)
        self._lives, self._length = info["lives"], np.zeros(self.num_environments, int)
        if self._screen:
            self._picture = self._screen.reset(seed=seed)[0]
        # Whether the last observation was the first of a game; whether FIRE is due, for that or for a new life.
        self._is_beginning = self._is_to_fire = np.full(self.num_environments, self._fires_itself)
        return self._boundaries.reset(observation[:, 0])

    def send(self, action: np.ndarray) -> None:
        action = np.asarray(action, np.int32)
        if self._is_to_fire.any():
            action = np.where(self._is_to_fire, np.int32(self._fire), action)
        self._environment.send(action)
        if self._screen:
            self._picture = self._screen.step(action)[0]

    def receive(self) -> Step:
        observation, reward, terminated, truncated, info = self._environment.recv()
        # With life_loss_info, losing a life is also reported as `terminated`, but without a reset unless none is left.
        lost_life = terminated & (0 < info["lives"]) & (info["lives"] < self._lives)
        self._lives = info["lives"]
        game_over = terminated & ~lost_life
        fired = self._is_beginning
        # A life lost in the last step hides the truncation: ale-py reports one of the two, and resets all the same.
        self._length += 1
        truncated = truncated | (self._length >= self._most_steps)
        step = self._boundaries.step(
            observation[:, 0], reward, game_over, truncated, lost_life=lost_life, is_beginning=fired
        )
        self._length[step.is_first & ~fired] = 0
        self._is_beginning = step.is_first & ~fired & self._fires_itself
        self._is_to_fire = self._is_beginning | (lost_life & self._fires_after_life)
        return step

    def picture(self) -> np.ndarray:
        """Returns the first game's screen, RGB [210, 160, 3]; for those made `with_picture`."""
        return self._picture[0, -1]

    def close(self) -> None:
        futures.wait([self._begun_reset] if self._begun_reset else [])
        for environment in (self._environment, self._screen):
            if environment:
                environment.close()
