"""Torsos for observations without frames: vectors and boards."""

from collections.abc import Sequence

import tensorflow as tf

from impala.networks.features import Builder, Features, flat


class Mlp(tf.Module):
    """Flattens an observation and applies dense layers with tanh."""

    def __init__(self, hidden_sizes: Sequence[int], build: Builder):
        super().__init__("mlp")
        self._layers = [build.dense(units, "tanh") for units in hidden_sizes]

    def __call__(self, observation: tf.Tensor, is_first: tf.Tensor) -> tf.Tensor:
        size = int(tf.TensorShape(observation.shape[2:]).num_elements())
        x = tf.cast(tf.reshape(observation, [-1, size]), tf.float32)  # [n·B, size]
        for layer in self._layers:
            x = layer(x)
        return tf.cast(x, tf.float32)


class MinAtarTorso(tf.Module):
    """A 3×3 convolution with 16 channels and a dense layer of 128, both with ReLU, on boards [10, 10, channels]."""

    def __init__(self, build: Builder):
        super().__init__("minatar_torso")
        self._convolution, self._dense = build.conv(16, 3, activation="relu"), build.dense(128, "relu")

    def __call__(self, observation: tf.Tensor, is_first: tf.Tensor) -> Features:
        x = tf.cast(tf.reshape(observation, [-1, *observation.shape[2:]]), tf.float32)  # [n·B, 10, 10, channels]
        hidden = {"conv_1": (x := self._convolution(x))}
        hidden["dense"] = x = self._dense(flat(x))
        return Features(tf.cast(x, tf.float32), hidden)
