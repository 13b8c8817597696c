"""The paper's deep network."""

from collections.abc import Sequence

import tensorflow as tf

from impala.networks import frames
from impala.networks.features import Builder, Features, Normalisation, flat, levels_of


class ResNet(tf.Module):
    """The paper's deep network: sections of a convolution, a max-pool and two residual blocks."""

    def __init__(
        self, channels: Sequence[int], units: int, num_stacked: int, normalisation: Normalisation, build: Builder
    ):
        super().__init__("resnet")
        self._num_stacked, (self._level, self._scale) = num_stacked, normalisation
        self._sections = [
            (build.conv(c, 3, padding="same"), [[build.conv(c, 3, padding="same") for _ in range(2)] for _ in range(2)])
            for c in channels
        ]
        self._dense = build.dense(units, "relu")

    def __call__(self, observation: tf.Tensor, is_first: tf.Tensor) -> Features:
        x = frames.stack_planes(observation, is_first, self._num_stacked)  # [n, B, H, W, k]
        x = tf.cast(tf.reshape(x, [-1, *x.shape[2:]]), tf.float32)
        if self._level:
            x -= levels_of(self._level, observation, is_first, self._num_stacked)
        x, hidden = x * self._scale, {}
        for number, (conv, blocks) in enumerate(self._sections, start=1):
            x = tf.nn.max_pool2d(conv(x), ksize=3, strides=2, padding="SAME")
            for block in blocks:
                y = x
                for layer in block:
                    y = layer(tf.nn.relu(y))
                x += y
            hidden[f"section_{number}"] = tf.nn.relu(x)
        hidden["dense"] = x = self._dense(flat(tf.nn.relu(x)))
        return Features(tf.cast(x, tf.float32), hidden)
