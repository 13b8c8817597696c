"""Choose one: torso, core and heads of an actor-critic network over time-major observations."""

from collections.abc import Callable

import tensorflow as tf

from impala.networks import cores, torsos
from impala.networks.actor_critic import ActorCritic, Outputs
from impala.networks.features import Torso
from impala.networks.popart import PopArt
from impala.networks.target import WithTarget
from impala.types import EnvironmentSpec

__all__ = ["ActorCritic", "Outputs", "PopArt", "WithTarget", "make", "with_heads"]


def make(
    environment: EnvironmentSpec,
    *,
    torso: str = "shallow",
    hidden_sizes=(64, 64),
    normalisation: str = "median",
    core: str = "none",
    core_size: int = 256,
    clip_reward: Callable = tf.identity,
    popart_step: float | None = None,
    num_tasks: int = 1,
    bfloat16: bool = False,
    seed: int = 0,
) -> ActorCritic:
    """Makes a network for `environment` by the names of its torso and core, the same for the same seed.

    Args:
      normalisation: of frames, a name of `features.NORMALISATIONS`.
      core: "none" or "lstm" with `core_size` units, which is fed the last reward through `clip_reward`.
      popart_step: of PopArt's moments for each of `num_tasks`; None for plain values.
    """
    made = torsos.make(
        torso, environment, hidden_sizes=hidden_sizes, normalisation=normalisation, seed=seed, bfloat16=bfloat16
    )  # fmt: skip
    memory = cores.make(core, environment.actions, size=core_size, clip_reward=clip_reward, seed=seed)
    popart = None if popart_step is None else PopArt(num_tasks, popart_step)
    return with_heads(made, environment, core=memory, popart=popart, seed=seed)


def with_heads(
    torso: Torso, environment: EnvironmentSpec, *, core=None, popart: PopArt | None = None, seed: int = 0
) -> ActorCritic:
    """Puts heads for `environment` on any torso, or on a core behind it, and creates all variables."""
    shape, dtype = environment.observation
    network = ActorCritic(torso, environment.actions, core=core, popart=popart, seed=seed)
    action = environment.actions.array
    action = tf.zeros([1, 1, *action.shape], action.dtype)
    led_here = (action, tf.zeros([1, 1]), tf.zeros([1, *core.state_shape])) if core else ()
    network(tf.zeros([environment.num_stacked, 1, *shape], dtype), tf.ones([1, 1], tf.bool), *led_here)
    return network
