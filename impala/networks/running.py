"""Observations by their running moments."""

import numpy as np
import tensorflow as tf

_MOST_DEVIATIONS = 10.0


class Normalised(tf.Module):
    """A network that sees observations minus their mean, over their standard deviation, clipped to ±10.

    The moments are given to it; they travel and are saved with the parameters.

    Args:
      network: e.g. an `actor_critic.ActorCritic`.
      shape: of one observation.
    """

    def __init__(self, network, shape: tuple[int, ...]):
        super().__init__("normalised")
        self._network = network
        self._mean = tf.Variable(np.zeros(shape, np.float32), trainable=False, name="mean")
        self._deviation = tf.Variable(np.ones(shape, np.float32), trainable=False, name="deviation")
        self.distribution, self.core_state_shape, self.numbers = (
            network.distribution, network.core_state_shape, network.numbers
        )  # fmt: skip

    @property
    def statistics(self) -> list[tf.Variable]:
        """The moments."""
        return [self._mean, self._deviation]

    def assign(self, mean: np.ndarray, deviation: np.ndarray) -> None:
        """Takes over moments [features]."""
        for variable, moment in zip(self.statistics, (mean, deviation)):
            variable.assign(np.reshape(moment, variable.shape).astype(np.float32))

    def __call__(self, observation: tf.Tensor, *others):
        """Returns the network's outputs."""
        scaled = (tf.cast(observation, tf.float32) - self._mean) / self._deviation
        return self._network(tf.clip_by_value(scaled, -_MOST_DEVIATIONS, _MOST_DEVIATIONS), *others)


def variables_of(network) -> list:
    """Returns what is sent of a network: its parameters, then the statistics that it keeps, if any."""
    return [*network.trainable_variables, *getattr(network, "statistics", ())]
