"""Where episodes end: this file alone turns (terminated, truncated, autoreset) into `Step`.

gymnasium's NEXT_STEP autoreset, drawn for one environment whose episode ends after action a1:

    observation   o0    o1    o2 (last)   p0 (first)   p1
    action           a0    a1         ·            b0          "·" is ignored by the environment
    is_last        0     0     1           0            0
    is_first       1     0     0           1            0

A terminated step has discount 0, a truncated one 1, so that it bootstraps from V(o2). There is no transition o2 → p0.

An environment may need several steps to begin an episode, and choose their actions itself. Each of these steps is a
first one, so that no transition leads to it either:

    observation   o2 (last)   p0 (first)   p1 (first)   p2
    action             ·          FIRE           b1
"""

import numpy as np

from impala.types import Step


class Boundaries:
    """Follows N environments with NEXT_STEP autoreset and builds their `Step`s."""

    def __init__(self, num_environments: int):
        self._was_last = np.zeros(num_environments, bool)

    def reset(self, observation: np.ndarray) -> Step:
        """Returns the step of a full reset."""
        n = len(self._was_last)
        self._was_last = np.zeros(n, bool)
        return Step(observation, np.zeros(n, np.float32), np.ones(n, np.float32), np.ones(n, bool), np.zeros(n, bool))

    def step(self, observation, reward, terminated, truncated, *, lost_life=None, is_beginning=False) -> Step:
        """Returns the step for arrays [N] of one vector step.

        Args:
          lost_life: [N] bool, ends the learning episode (discount 0) but neither the game nor its episode.
          is_beginning: [N] bool, the environment was still beginning and chose the action itself, or gave its episode
            up and has begun a new one: again a first step.
        """
        is_over = (terminated | truncated) & ~self._was_last
        is_first = self._was_last | is_beginning
        is_last = is_over & ~is_first  # of an episode that has begun
        ends = terminated if lost_life is None else terminated | lost_life
        discount = np.where(ends & ~is_first, 0.0, 1.0).astype(np.float32)
        reward = np.where(is_first, 0.0, reward).astype(np.float32)
        self._was_last = is_over
        return Step(observation, reward, discount, is_first, is_last)
