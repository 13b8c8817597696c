"""Whole episodes, played to be scored."""

from collections.abc import Callable

import numpy as np

from impala.acting.policies import Policy
from impala.types import Environment, EnvironmentSpec

MAX_EPISODE_FRAMES = 108_000  # of an episode, as of an Atari game; some environments have no limit of their own


def max_steps(spec: EnvironmentSpec) -> int:
    """Returns after how many steps an episode is cut short."""
    return max(1, MAX_EPISODE_FRAMES // spec.frames_per_step)


def play(
    environment: Environment, policy: Policy, *, num_episodes: int, seed: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[float]:  # fmt: skip
    """Plays `num_episodes` episodes and returns their raw scores, or [] if `should_stop` ended them early.

    Each environment plays the same number of episodes, so that short ones are not favoured. The score of an episode
    that is cut short, after `max_steps`, is what it was until then.
    """
    n = environment.num_environments
    if num_episodes % n:
        raise ValueError(f"num_episodes={num_episodes} is not divisible by {n} environments")
    share, most = num_episodes // n, max_steps(environment.spec)
    scores, length = [[] for _ in range(n)], np.full(n, most)
    while not (is_done := np.array([len(played) >= share for played in scores])).all():
        if np.all(is_done | (length >= most)):  # all that have episodes left are in one that was cut short, or in none
            step, score, length = environment.reset(seed), np.zeros(n), np.zeros(n, int)
            seed += n  # environments also use the numbers that follow
        if should_stop():
            return []
        policy.observe(step)
        environment.send(policy.decide().action)
        step = environment.receive()
        score = np.where(step.is_first, 0.0, score + step.reward)
        length = np.where(step.is_first, 0, length + 1)
        for i in np.flatnonzero((step.is_last & (length < most)) | (length == most)):
            scores[i].append(float(score[i]))
    return [s for played in scores for s in played[:share]]
