"""How an agent acts: from what its network says of a state to an action, and what of both is kept to train on."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from impala import sampling
from impala.types import Actions, ArraySpec, policy_columns

# (numbers, random) → (action [N, …], what is kept of it [N, …] each)
Choose = Callable[[tuple[np.ndarray, ...], np.random.Generator], tuple[np.ndarray, tuple[np.ndarray, ...]]]


class Behaviour(NamedTuple):
    """What those who act must know of an agent."""

    choose: Choose
    numbers: tuple[ArraySpec, ...]  # what the network says of a state: `choose` takes [N, …] of each
    kept: dict[str, ArraySpec]  # what a decision keeps, in order: columns of the chunk, of one step
    core_state_shape: tuple[int, ...] | None = None  # of one environment; None without a core


def sampled(actions: Actions, *, greedy: bool = False, core_state_shape=None) -> Behaviour:
    """Draws from the distribution whose parameters the network gives beside a value; keeps both.

    Args:
      greedy: take the most probable action instead.
    """
    sampler = sampling.of(actions)

    def choose(numbers, random):
        parameters, value = numbers
        action = sampler.mode(parameters) if greedy else sampler.sample(parameters, random)
        return action, (parameters, value)

    kept = policy_columns(actions)
    return Behaviour(choose, tuple(kept.values()), kept, core_state_shape)
