"""Whole episodes, played to be scored."""

from collections.abc import Callable

import numpy as np

from impala.acting.policies import Policy
from impala.types import Environment


def play(
    environment: Environment, policy: Policy, *, num_episodes: int, seed: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[float]:  # fmt: skip
    """Plays `num_episodes` episodes and returns their raw scores, or [] if `should_stop` ended them early.

    Each environment plays the same number of episodes, so that short ones are not favoured.
    """
    n = environment.num_environments
    if num_episodes % n:
        raise ValueError(f"num_episodes={num_episodes} is not divisible by {n} environments")
    score, scores = np.zeros(n), [[] for _ in range(n)]
    step = environment.reset(seed)
    while min(map(len, scores)) < num_episodes // n:
        if should_stop():
            return []
        policy.observe(step)
        environment.send(policy.decide().action)
        step = environment.receive()
        score = np.where(step.is_first, 0.0, score + step.reward)
        for i in np.flatnonzero(step.is_last):
            scores[i].append(float(score[i]))
    return [s for played in scores for s in played[: num_episodes // n]]
