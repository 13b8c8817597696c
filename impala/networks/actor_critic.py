"""Heads: a policy and a value on top of a torso."""

from typing import NamedTuple

import tensorflow as tf

from impala.networks.torsos import Torso


class Outputs(NamedTuple):
    """What an actor-critic network says of n observations of B environments."""

    logits: tf.Tensor  # [n, B, A]
    value: tf.Tensor  # [n, B]


class ActorCritic(tf.Module):
    """A torso with a policy head and a value head.

    A torso is any callable (observation [n+k−1, B, …], is_first [n, B]) → features [n·B, F]; a `tf.Module`, so that its
    variables are found.
    """

    def __init__(self, torso: Torso, num_actions: int, *, seed: int = 0):
        super().__init__("actor_critic")
        orthogonal = tf.keras.initializers.Orthogonal
        self._torso, self._num_actions = torso, num_actions
        # A small first policy head starts near the uniform policy; heads stay in float32.
        self._policy = tf.keras.layers.Dense(num_actions, kernel_initializer=orthogonal(0.01, seed=seed * 1000 + 901))
        self._value = tf.keras.layers.Dense(1, kernel_initializer=orthogonal(1.0, seed=seed * 1000 + 902))

    def __call__(self, observation: tf.Tensor, is_first: tf.Tensor) -> Outputs:
        """Applies the network at n times to B environments; observations as in `networks.frames`."""
        n = is_first.shape[0] if is_first.shape[0] is not None else tf.shape(is_first)[0]
        features = self._torso(observation, is_first)  # [n·B, F]
        logits = tf.reshape(self._policy(features), [n, -1, self._num_actions])
        return Outputs(logits, tf.reshape(self._value(features), [n, -1]))
