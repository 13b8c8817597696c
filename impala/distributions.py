"""From a network's outputs to a distribution over actions, which losses differentiate and `sampling` draws from.

    Discrete(A)         Categorical     logits [..., A]
    MultiDiscrete(A_k)  Categoricals    logits of independent dimensions side by side, [..., Σ A_k]
    Continuous(D)       Gaussian        mean and raw scale of independent dimensions side by side, [..., 2 D]

A network gives *parameters*; losses work on *normalised* ones, which `normalise` makes.
"""

from typing import Protocol

import numpy as np
import tensorflow as tf

from impala.sampling import RAW_OF_ONE, SMALLEST_SCALE
from impala.types import Actions, Continuous, Discrete, MultiDiscrete


class Distribution(Protocol):
    """A family of distributions over actions [..., *actions.array.shape], with parameters [..., num_parameters]."""

    def normalise(self, parameters: tf.Tensor) -> tf.Tensor:
        """Returns the normalised parameters that the methods below take, [..., P]."""

    def log_probability(self, p: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """Returns log p(action), [...]; a density where actions are continuous."""

    def entropy(self, p: tf.Tensor) -> tf.Tensor:
        """Returns H(p), [...]."""

    def kl(self, p: tf.Tensor, q: tf.Tensor) -> tf.Tensor:
        """Returns KL(p ‖ q), [...]."""


class Categorical:
    """p(a) ∝ exp(logits[a]); normalised parameters are the log-probabilities of all actions."""

    def normalise(self, parameters):
        return tf.nn.log_softmax(parameters)

    def log_probability(self, p, action):
        return tf.gather(p, action, batch_dims=len(action.shape))

    def entropy(self, p):
        return -tf.reduce_sum(tf.exp(p) * p, axis=-1)

    def kl(self, p, q):
        return tf.reduce_sum(tf.exp(p) * (p - q), axis=-1)


class Categoricals(Categorical):
    """Independent categoricals: log-probabilities, entropies and divergences add up."""

    def __init__(self, sizes: tuple[int, ...]):
        self._sizes = list(sizes)

    def normalise(self, parameters):
        parts = tf.split(parameters, self._sizes, axis=-1)
        return tf.concat([super(Categoricals, self).normalise(logits) for logits in parts], axis=-1)

    def log_probability(self, p, action):
        pairs = zip(tf.split(p, self._sizes, axis=-1), tf.unstack(action, axis=-1))
        return tf.add_n([super(Categoricals, self).log_probability(p_k, action_k) for p_k, action_k in pairs])


class Gaussian:
    """N(mean, σ²) in each dimension, σ = softplus(raw + softplus⁻¹(1)) + 10⁻³: near 1 where the network outputs 0.

    Normalised parameters are mean and log σ. Environments clip actions (`types.Continuous`); densities are
    of unclipped ones.
    """

    def normalise(self, parameters):
        mean, raw = tf.split(parameters, 2, axis=-1)
        scale = tf.nn.softplus(raw + RAW_OF_ONE) + SMALLEST_SCALE
        return tf.concat([mean, tf.math.log(scale)], axis=-1)

    def log_probability(self, p, action):
        mean, log_scale = tf.split(p, 2, axis=-1)
        standard = (action - mean) * tf.exp(-log_scale)
        return tf.reduce_sum(-0.5 * tf.square(standard) - log_scale - 0.5 * float(np.log(2 * np.pi)), axis=-1)

    def entropy(self, p):
        _, log_scale = tf.split(p, 2, axis=-1)
        return tf.reduce_sum(log_scale + 0.5 * float(np.log(2 * np.pi * np.e)), axis=-1)

    def kl(self, p, q):
        (mean_p, log_p), (mean_q, log_q) = tf.split(p, 2, axis=-1), tf.split(q, 2, axis=-1)
        squares = tf.exp(2 * (log_p - log_q)) + tf.square((mean_p - mean_q) * tf.exp(-log_q))
        return tf.reduce_sum(log_q - log_p + 0.5 * (squares - 1.0), axis=-1)


CATEGORICAL = Categorical()


def of(actions: Actions) -> Distribution:
    """Returns the family of distributions over `actions`."""
    match actions:
        case Discrete():
            return CATEGORICAL
        case MultiDiscrete():
            return Categoricals(actions.num_actions)
        case Continuous():
            return Gaussian()


def features(actions: Actions, action: tf.Tensor) -> tf.Tensor:
    """Returns actions [...] as inputs of a network, float32 [..., F]: one-hot, or clipped to [−1, 1]."""
    match actions:
        case Discrete():
            return tf.one_hot(action, actions.num_actions)
        case MultiDiscrete():
            pairs = zip(tf.unstack(action, axis=-1), actions.num_actions)
            return tf.concat([tf.one_hot(action_k, size) for action_k, size in pairs], axis=-1)
        case Continuous():
            return tf.clip_by_value(action, -1.0, 1.0)
