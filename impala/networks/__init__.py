"""Choose one: torso and heads of an actor-critic network over time-major observations."""

import tensorflow as tf

from impala.networks import torsos
from impala.networks.actor_critic import ActorCritic, Outputs
from impala.networks.target import WithTarget
from impala.types import EnvironmentSpec

__all__ = ["ActorCritic", "Outputs", "WithTarget", "make", "with_heads"]


def make(
    environment: EnvironmentSpec,
    *,
    torso: str = "shallow",
    hidden_sizes=(64, 64),
    bfloat16: bool = False,
    seed: int = 0,
) -> ActorCritic:
    """Makes a network for `environment` by the name of its torso, the same for the same seed."""
    made = torsos.make(
        torso, num_stacked=environment.num_stacked, hidden_sizes=hidden_sizes, seed=seed, bfloat16=bfloat16
    )
    return with_heads(made, environment, seed=seed)


def with_heads(torso: torsos.Torso, environment: EnvironmentSpec, *, seed: int = 0) -> ActorCritic:
    """Puts heads for `environment` on any torso and creates all variables."""
    shape, dtype = environment.observation
    network = ActorCritic(torso, environment.num_actions, seed=seed)
    network(tf.zeros([environment.num_stacked, 1, *shape], dtype), tf.ones([1, 1], tf.bool))
    return network
