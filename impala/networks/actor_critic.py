"""Heads: a policy and a value on top of a torso, with or without a core between them."""

from typing import Any, NamedTuple

import tensorflow as tf

from impala import distributions
from impala.networks.cores import features_of
from impala.networks.features import Torso
from impala.networks.popart import PopArt
from impala.types import Actions


class Outputs(NamedTuple):
    """What an actor-critic network returns for n observations of B environments."""

    logits: tf.Tensor  # [n, B, A], of discrete actions; else the parameters described in `distributions`
    value: tf.Tensor  # [n, B]; with PopArt [n, B, K], normalised, for each of K tasks
    core_state: Any = ()  # [B, …] after the last observation; () without a core
    moments: Any = ()  # with PopArt: mean and scale of the values of each task, both [K]
    hidden: Any = ()  # activations of hidden layers with ReLU, [n·B, …, units] by name; () if the torso gives none


class ActorCritic(tf.Module):
    """A torso with a policy head and a value head; `core`, one of `networks.cores`, remembers between them.

    With `popart` there is a value for each of its tasks, normalised by the moments that it keeps.

    A torso is any callable (observation [n+k−1, B, …], is_first [n, B]) → features [n·B, F], or `features.Features`,
    which also hold the activations of hidden layers. It is a `tf.Module`, so that its variables are found.
    """

    def __init__(self, torso: Torso, actions: Actions, *, core=None, popart: PopArt | None = None, seed: int = 0):
        super().__init__("actor_critic")
        orthogonal = tf.keras.initializers.Orthogonal
        self._torso, self._core, self._num_parameters = torso, core, actions.num_parameters
        self.distribution = distributions.of(actions)
        # A policy head that starts small starts near the uniform policy; heads stay in float32.
        small = orthogonal(0.01, seed=seed * 1000 + 901)
        self._policy = tf.keras.layers.Dense(actions.num_parameters, kernel_initializer=small)
        num_values = popart.num_tasks if popart else 1
        self._value = tf.keras.layers.Dense(num_values, kernel_initializer=orthogonal(1.0, seed=seed * 1000 + 902))
        self._popart = popart

    @property
    def core_state_shape(self) -> tuple[int, ...] | None:
        """The shape of one environment's core state; None without a core."""
        return self._core.state_shape if self._core else None

    def __call__(
        self, observation: tf.Tensor, is_first: tf.Tensor, last_action=None, last_reward=None, core_state=()
    ) -> Outputs:
        """Applies the network at n times to B environments; observations as in `networks.frames`.

        Args:
          last_action, last_reward: [n, B, …] and [n, B], what led to each observation; taken by a core only.
          core_state: [B, …] before the first observation.
        """
        n = is_first.shape[0] if is_first.shape[0] is not None else tf.shape(is_first)[0]
        features, core_state, hidden = features_of(
            self._torso, self._core, observation, is_first, last_action, last_reward, core_state
        )
        logits = tf.reshape(self._policy(features), [n, -1, self._num_parameters])
        value = self._value(features)
        if self._popart:
            value = tf.reshape(value, [n, -1, self._popart.num_tasks])
            return Outputs(logits, value, core_state, self._popart.moments(), hidden)
        return Outputs(logits, tf.reshape(value, [n, -1]), core_state, hidden=hidden)

    def numbers(self, outputs: Outputs) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what acting needs: logits [B, A] and value [B] of the first observation.

        With PopArt, whose values are on a scale of their own for every task, the value is 0.
        """
        value = outputs.value[0]
        return outputs.logits[0], value if value.shape.rank == 1 else tf.zeros_like(value[:, 0])

    def observe_targets(self, task, count, total, total_of_squares) -> None:
        """Brings PopArt's moments up to date with value targets; see `PopArt.update`."""
        self._popart.update(self._value, task, count, total, total_of_squares)
