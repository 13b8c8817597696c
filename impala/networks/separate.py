"""A policy and a value that share nothing, as in PPO's experiments on MuJoCo (Schulman et al. 2017, 1707.06347)."""

import tensorflow as tf

from impala import distributions
from impala.networks import torsos
from impala.networks.actor_critic import Outputs
from impala.networks.cores import features_of
from impala.networks.features import Torso
from impala.types import Actions, Continuous, EnvironmentSpec

_VALUE_SEED = 500_000  # added to the seed of the value's torso


class Separate(tf.Module):
    """A policy and a value, each with a torso of its own; called like an `actor_critic.ActorCritic` without a core.

    The deviations of continuous actions do not depend on the observation: they are parameters of their own.
    """

    core_state_shape = None

    def __init__(self, policy_torso: Torso, value_torso: Torso, actions: Actions, seed: int):
        super().__init__("separate")
        self.distribution, self._num_parameters = distributions.of(actions), actions.num_parameters
        is_continuous = isinstance(actions, Continuous)
        num_outputs = actions.num_parameters // 2 if is_continuous else actions.num_parameters
        orthogonal = tf.keras.initializers.Orthogonal
        small = orthogonal(0.01, seed=seed * 1000 + 901)
        self._policy_torso, self._value_torso = policy_torso, value_torso
        self._policy = tf.keras.layers.Dense(num_outputs, kernel_initializer=small)
        self._value = tf.keras.layers.Dense(1, kernel_initializer=orthogonal(1.0, seed=seed * 1000 + 902))
        self._deviation = tf.Variable(tf.zeros([num_outputs]), name="deviation") if is_continuous else None

    def __call__(self, observation: tf.Tensor, is_first: tf.Tensor) -> Outputs:
        """Applies both at n times to B environments; see `ActorCritic`."""
        n = is_first.shape[0] if is_first.shape[0] is not None else tf.shape(is_first)[0]
        features, _, hidden = features_of(self._policy_torso, None, observation, is_first, None, None, ())
        parameters = self._policy(features)
        if self._deviation is not None:
            parameters = tf.concat([parameters, tf.zeros_like(parameters) + self._deviation], axis=-1)
        features, _, of_value = features_of(self._value_torso, None, observation, is_first, None, None, ())
        value = self._value(features)
        hidden = dict(hidden) | {f"value_{name}": activation for name, activation in dict(of_value).items()}
        return Outputs(
            tf.reshape(parameters, [n, -1, self._num_parameters]), tf.reshape(value, [n, -1]), hidden=hidden
        )  # fmt: skip

    def numbers(self, outputs: Outputs) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what acting needs: logits [B, A] and value [B] of the first observation."""
        return outputs.logits[0], outputs.value[0]


def make(environment: EnvironmentSpec, *, torso: str, hidden_sizes, normalisation: str, bfloat16: bool, seed: int):
    """Makes one for `environment`, the same for the same seed; arguments as of `networks.make`."""
    how = dict(hidden_sizes=hidden_sizes, normalisation=normalisation, bfloat16=bfloat16)
    seeds = seed, seed + _VALUE_SEED
    policy_torso, value_torso = (torsos.make(torso, environment, seed=each, **how) for each in seeds)
    network = Separate(policy_torso, value_torso, environment.actions, seed)
    shape, dtype = environment.observation
    network(tf.zeros([environment.num_stacked, 1, *shape], dtype), tf.ones([1, 1], tf.bool))
    return network
