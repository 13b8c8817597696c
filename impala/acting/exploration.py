"""Exploration where the policy is greedy in action values: how it is done, and how much of it each actor does."""

from collections.abc import Callable

import numpy as np

from impala.acting.behaviours import Behaviour
from impala.types import SMALLEST_PROBABILITY, ArraySpec, Continuous, Discrete


def epsilon_ladder(num_actors: int, *, base: float = 0.4, exponent: float = 7.0) -> np.ndarray:
    """Returns ε_i = base^(1 + exponent · i / (N − 1)), the probabilities of a random action: [N], falling.

    (Ape-X, Horgan et al. 2018, arXiv:1803.00933, section 4.1.) A single actor has ε = base.
    """
    if num_actors < 1:
        raise ValueError(f"num_actors={num_actors}; expected 1 or more")
    if not 0.0 < base <= 1.0 or not exponent >= 0.0:
        raise ValueError(f"base={base}, exponent={exponent}; expected 0 < base ≤ 1 and an exponent of 0 or more")
    return base ** (1.0 + exponent * np.arange(num_actors) / max(1, num_actors - 1))


def epsilon_greedy(
    actions: Discrete, epsilon: Callable[[], float | np.ndarray], *, keeps_values: bool = False,
    keeps_policy: bool = False,
) -> Behaviour:  # fmt: skip
    """Takes the action with the highest value, or with probability ε a uniformly random one.

    Args:
      epsilon: returns ε, in [0, 1], or one for each environment, [N]; called at every decision.
      keeps_values: keep every action's value, and the action taken.
      keeps_policy: keep the logarithm of every action's probability.
    """
    num_actions, of_actions = actions.num_actions, ArraySpec((actions.num_actions,), np.float32)

    def choose(numbers, random):
        (q,) = numbers
        best, now = np.argmax(q, axis=-1).astype(np.int32), epsilon()
        is_random = random.random(len(best)) < now
        action = np.where(is_random, random.integers(num_actions, size=len(best), dtype=np.int32), best)
        kept = [q, action] if keeps_values else []
        if keeps_policy:
            share = np.reshape(now, (-1, 1)) / num_actions
            probability = share + (1.0 - num_actions * share) * np.eye(num_actions)[best]
            kept.append(np.log(np.maximum(probability, SMALLEST_PROBABILITY)).astype(np.float32))
        return action, tuple(kept)

    kept = {"q_tm1": of_actions, "action_tm1": actions.array} if keeps_values else {}
    return Behaviour(choose, (of_actions,), kept | ({"logits_tm1": of_actions} if keeps_policy else {}))


def gaussian(actions: Continuous, num_features: int, sigma: Callable[[], float | np.ndarray]) -> Behaviour:
    """Takes the policy's action with independent Gaussian noise on each dimension, clipped to [−1, 1].

    Keeps the observation [F] and the action, so that the action's value can be computed later.

    Args:
      sigma: returns σ, or one for each environment, [N]; called at every decision.
    """

    def choose(numbers, random):
        mean, observation = numbers
        noise = np.reshape(sigma(), (-1, 1)) * random.standard_normal(mean.shape)
        action = np.clip(mean + noise, -1.0, 1.0).astype(np.float32)
        return action, (observation, action)

    features = ArraySpec((num_features,), np.float32)
    return Behaviour(choose, (actions.array, features), {"observation_tm1": features, "action_tm1": actions.array})
