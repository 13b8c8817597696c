"""A deterministic policy and the value of its actions, and what a loss over n-step windows needs of two copies."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala.networks.q_values import stack_at
from impala.networks.target import Pair
from impala.types import EnvironmentSpec

_LAST_WEIGHTS = 3e-3  # bound of the output layers' uniform initial weights: action and value begin near 0


class Outputs(NamedTuple):
    """What the networks return for n observations of B environments."""

    action: tf.Tensor  # [n, B, D], in [−1, 1]
    value: tf.Tensor  # [n, B], Q(x, π(x))
    observation: tf.Tensor  # [n, B, F]


class Windows(NamedTuple):
    """What the loss must know of B windows of T transitions; see `q_values.Windows`."""

    first: tf.Tensor  # [B, F], the first state
    last: tf.Tensor  # [B, F], the state that bootstraps
    num_valid: tf.Tensor  # [B] int32, transitions from the one to the other
    online: Any  # `Deterministic`
    target: Any  # its older copy


class Deterministic(tf.Module):
    """π(x) in [−1, 1]^D, and Q(x, a), which takes the action after its first layer (Ape-X DPG, appendix D; ReLUs here).

    Args:
      policy_sizes, value_sizes: units of hidden layers.
    """

    core_state_shape = None

    def __init__(self, num_dimensions: int, *, policy_sizes: Sequence[int], value_sizes: Sequence[int], seed: int):
        super().__init__("deterministic")
        seeds = itertools.count(seed * 1000 + 907)
        self._policy = [*_hidden(policy_sizes, seeds, "relu"), _last(num_dimensions, seeds, "tanh")]
        self._value = [*_hidden(value_sizes, seeds, "relu"), _last(1, seeds, None)]

    def policy(self, observation: tf.Tensor) -> tf.Tensor:
        """Returns π(x) [B, D] for x [B, F]."""
        for layer in self._policy:
            observation = layer(observation)
        return observation

    def value(self, observation: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """Returns Q(x, a) [B] for x [B, F] and a [B, D]."""
        first, *others = self._value
        features = tf.concat([first(observation), action], axis=-1)
        for layer in others:
            features = layer(features)
        return features[:, 0]

    def __call__(self, observation: tf.Tensor, is_first: tf.Tensor) -> Outputs:
        """Applies both at n times to B environments: observation [n, B, …], is_first [n, B]."""
        n = tf.shape(is_first)[0]
        flat = _flat(observation, observation.shape[2:])
        action = self.policy(flat)
        value = self.value(flat, action)
        return Outputs(*(tf.reshape(x, tf.concat([[n, -1], tf.shape(x)[1:]], axis=0)) for x in (action, value, flat)))

    def numbers(self, outputs: Outputs) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what acting needs: π(x) [B, D] and x [B, F] of the first observation."""
        return outputs.action[0], outputs.observation[0]


class WithTarget(Pair):
    """Two `Deterministic`; acting uses the online one alone."""

    _online: Deterministic
    _target: Deterministic

    def __call__(self, observation: tf.Tensor, is_first: tf.Tensor) -> Outputs:
        """Applies `online`; see `Deterministic`."""
        return self._online(observation, is_first)

    def values(self, observation: np.ndarray, action: np.ndarray) -> list[np.ndarray]:
        """Returns Q(x, a) and Q(x, π(x)), [B] each, of `online` for x [B, F] and a [B, D]."""
        inputs = [tf.convert_to_tensor(x) for x in (observation, action)]  # one trace for all
        return [value.numpy() for value in self._values(*inputs)]

    @tf.function(autograph=False)
    def _values(self, observation: tf.Tensor, action: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        best = self._online.policy(observation)
        return self._online.value(observation, action), self._online.value(observation, best)

    def on_windows(self, observation: tf.Tensor, is_first: tf.Tensor) -> Windows:
        """Returns the first and the last state of windows: observation [T+1, B, …], is_first [T+1, B]."""
        num_valid = tf.reduce_sum(tf.math.cumprod(1 - tf.cast(is_first[1:], tf.int32), axis=0), axis=0)
        last, shape = stack_at(observation, num_valid, 1)[0], observation.shape[2:]
        return Windows(_flat(observation[0], shape), _flat(last, shape), num_valid, self._online, self._target)


def make(
    environment: EnvironmentSpec, *, policy_sizes: Sequence[int], value_sizes: Sequence[int], seed: int = 0
) -> Deterministic:  # fmt: skip
    """Makes networks for continuous actions, the same for the same seed."""
    num_dimensions = environment.actions.num_dimensions
    network = Deterministic(num_dimensions, policy_sizes=policy_sizes, value_sizes=value_sizes, seed=seed)
    shape, dtype = environment.observation
    network(tf.zeros([1, 1, *shape], dtype), tf.ones([1, 1], tf.bool))  # creates all variables
    return network


def _flat(observation: tf.Tensor, shape) -> tf.Tensor:
    """Returns [B, …] or [n, B, …] as float32 [n·B, F]."""
    return tf.reshape(tf.cast(observation, tf.float32), [-1, shape.num_elements()])


def _hidden(sizes: Sequence[int], seeds, activation: str) -> list:
    glorot = tf.keras.initializers.GlorotUniform
    return [tf.keras.layers.Dense(units, activation, kernel_initializer=glorot(next(seeds))) for units in sizes]


def _last(units: int, seeds, activation: str | None):
    small = tf.keras.initializers.RandomUniform(-_LAST_WEIGHTS, _LAST_WEIGHTS, seed=next(seeds))
    return tf.keras.layers.Dense(units, activation, kernel_initializer=small)
