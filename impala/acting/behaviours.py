"""How an agent acts: from its network's outputs for a state to an action, and what is kept of it for training."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from impala import sampling
from impala.types import Actions, ArraySpec, policy_columns

# (numbers, random) → (action [N, …], what is kept of it [N, …] each)
Choose = Callable[[tuple[np.ndarray, ...], np.random.Generator], tuple[np.ndarray, tuple[np.ndarray, ...]]]


class Behaviour(NamedTuple):
    """What acting must know of an agent."""

    choose: Choose
    numbers: tuple[ArraySpec, ...]  # the network's outputs for one state; `choose` takes [N, …] of each
    kept: dict[str, ArraySpec]  # what is kept of a decision, in order: the chunk's columns, each for one step
    core_state_shape: tuple[int, ...] | None = None  # of one environment; None without a core


def sampled(actions: Actions, *, greedy: bool = False, core_state_shape=None) -> Behaviour:
    """Draws from the distribution whose parameters the network gives, along with a value; keeps both.

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
