"""What torsos share: how frames enter, what they put out, and how their layers start.

Frames enter as `NORMALISATIONS` says. The background should be subtracted: where it is not zero, each step of Adam
moves every filter's output in one direction over the whole frame, until its ReLU is silent for good. And with pixels
times 1/255 the first layers' outputs hardly change under an optimizer whose steps do not depend on the gradient's
scale. With a frame's median subtracted, times 1/16, both Pong (grey) and Breakout (black) are learned
(docs/results/frames).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import tensorflow as tf

from impala.networks import frames

layers = tf.keras.layers


class Normalisation(NamedTuple):
    """The `level` that is subtracted from every frame, [n+k−1, B], if any, and the `scale` that multiplies the rest."""

    level: Callable[[tf.Tensor], tf.Tensor] | None
    scale: float


NORMALISATIONS = {
    "median": Normalisation(frames.medians, 1 / 16),
    "mean": Normalisation(frames.means, 1 / 255),
    "plain": Normalisation(None, 1 / 255),  # the paper's
    "raw": Normalisation(None, 1.0),  # RLlib's
}


class Features(NamedTuple):
    """A torso's features of n·B observations, and the activations of its hidden layers with ReLU."""

    values: tf.Tensor  # [n·B, F]
    hidden: dict[str, tf.Tensor]  # [n·B, …, units] by the layer's name


Torso = Callable[[tf.Tensor, tf.Tensor], tf.Tensor | Features]  # (observation, is_first) → features


class Builder:
    """Makes layers that share a dtype policy and draw their initial weights from consecutive seeds."""

    def __init__(self, seeds: Iterator[int], dtype: str):
        self._seeds, self.dtype = seeds, dtype

    def initializer(self):
        return tf.keras.initializers.Orthogonal(gain=2**0.5, seed=next(self._seeds))

    def conv(self, channels, size, stride=1, padding="valid", activation=None):
        return layers.Conv2D(
            channels, size, stride, padding, activation=activation,
            kernel_initializer=self.initializer(), dtype=self.dtype,
        )  # fmt: skip

    def dense(self, units, activation):
        return layers.Dense(units, activation, kernel_initializer=self.initializer(), dtype=self.dtype)


def levels_of(level: Callable | None, observation: tf.Tensor, is_first: tf.Tensor, num_stacked: int):
    """Returns the level of each of the k planes, [n·B, 1, 1, k], by a `Normalisation`'s function; None without one."""
    if level is None:
        return None
    levels = frames.stack_levels(level(observation), is_first, num_stacked)
    return tf.reshape(levels, [-1, *levels.shape[2:]])


def flat(x: tf.Tensor) -> tf.Tensor:
    """Returns x [N, …] as [N, F]."""
    return tf.reshape(x, [-1, int(tf.TensorShape(x.shape[1:]).num_elements())])
