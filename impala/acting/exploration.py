"""Exploration where the policy is greedy in action values: how it is done, and how much of it each actor does."""

from collections.abc import Callable

import numpy as np

from impala.acting.behaviours import Behaviour
from impala.types import ArraySpec, Discrete


def epsilon_ladder(num_actors: int, *, base: float = 0.4, exponent: float = 7.0) -> np.ndarray:
    """Returns ε_i = base^(1 + exponent · i / (N − 1)), the probabilities of a random action: [N], falling.

    (Ape-X, Horgan et al. 2018, arXiv:1803.00933, section 4.1.) A single actor has ε = base.
    """
    if num_actors < 1:
        raise ValueError(f"num_actors={num_actors}; expected 1 or more")
    if not 0.0 < base <= 1.0 or not exponent >= 0.0:
        raise ValueError(f"base={base}, exponent={exponent}; expected 0 < base ≤ 1 and an exponent of 0 or more")
    return base ** (1.0 + exponent * np.arange(num_actors) / max(1, num_actors - 1))


def epsilon_greedy(actions: Discrete, epsilon: Callable[[], float]) -> Behaviour:
    """Takes the action with the highest value, or with probability ε a uniformly random one; keeps nothing.

    Args:
      epsilon: returns ε, in [0, 1]; called at every decision.
    """

    def choose(numbers, random):
        (q,) = numbers
        action = np.argmax(q, axis=-1).astype(np.int32)
        is_random = random.random(len(action)) < epsilon()
        return np.where(is_random, random.integers(actions.num_actions, size=len(action), dtype=np.int32), action), ()

    return Behaviour(choose, (ArraySpec((actions.num_actions,), np.float32),), {})
