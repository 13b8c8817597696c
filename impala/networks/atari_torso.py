"""The paper's shallow network and DQN's: convolutions on stacked frames, the first of them on blocks of pixels."""

from collections.abc import Sequence

import tensorflow as tf

from impala.networks import frames
from impala.networks.features import Builder, Features, Normalisation, flat, levels_of

_BLOCK = 4  # pixels; the stride of the first convolution


class BlockConv(tf.Module):
    """An s×s convolution of stride b without padding, s a multiple of b, on frames whose b×b blocks became channels.

    The kernel is kept in the ordinary shape [s, s, k, channels], and rearranged in each call. Same result as `Conv2D`
    on `scale` · (frames − levels), with a level for each plane.
    """

    def __init__(self, channels: int, size: int, block: int, num_stacked: int, scale: float, build: Builder):
        super().__init__("block_conv")
        self._shape, self._scale = (size // block, block, size // block, block, num_stacked, channels), scale
        self._dtype = tf.bfloat16 if "bfloat16" in build.dtype else tf.float32
        self.kernel = tf.Variable(build.initializer()([size, size, num_stacked, channels]), name="kernel")
        self.bias = tf.Variable(tf.zeros([channels]), name="bias")

    def __call__(self, x: tf.Tensor, levels: tf.Tensor | None = None) -> tf.Tensor:
        """Takes blocks [N, H, W, k·b²] and levels [N, 1, 1, k]; returns [N, H', W', channels]."""
        outer, block, _, _, num_stacked, channels = self._shape
        wide = self.kernel * self._scale
        kernel = tf.transpose(tf.reshape(wide, self._shape), [0, 2, 4, 1, 3, 5])
        kernel = tf.reshape(kernel, [outer, outer, num_stacked * block * block, channels])
        bias = self.bias
        if levels is not None and self._dtype == tf.bfloat16:  # before rounding, which a large level would spoil
            x = tf.cast(x, tf.float32) - tf.repeat(levels, block * block, axis=-1)
        elif levels is not None:  # from the small result, not the large input: convolution is linear
            bias = bias - tf.matmul(levels, tf.reduce_sum(wide, axis=[0, 1])[None, None])
        x = tf.nn.conv2d(tf.cast(x, self._dtype), tf.cast(kernel, self._dtype), strides=1, padding="VALID")
        return tf.nn.relu(x + tf.cast(bias, self._dtype))


class AtariTorso(tf.Module):
    """Convolutions (channels, size, stride) with ReLU, the first of stride 4, then one dense layer."""

    def __init__(
        self, convolutions: Sequence[tuple[int, int, int]], units: int, num_stacked: int,
        normalisation: Normalisation, build: Builder,
    ):  # fmt: skip
        super().__init__("atari_torso")
        (channels, size, stride), *rest = convolutions
        assert stride == _BLOCK and size % _BLOCK == 0, "the first layer is a block convolution"
        self._num_stacked, self._level = num_stacked, normalisation.level
        self._first = BlockConv(channels, size, _BLOCK, num_stacked, normalisation.scale, build)
        self._rest = [build.conv(c, s, stride, activation="relu") for c, s, stride in rest]
        self._dense = build.dense(units, "relu")

    def __call__(self, observation: tf.Tensor, is_first: tf.Tensor) -> Features:
        x = frames.stack_blocks(observation, is_first, self._num_stacked, _BLOCK)  # [n, B, H/4, W/4, 16k]
        levels = levels_of(self._level, observation, is_first, self._num_stacked)  # [n·B, 1, 1, k]
        hidden = {"conv_1": (x := self._first(tf.reshape(x, [-1, *x.shape[2:]]), levels))}
        for number, layer in enumerate(self._rest, start=2):
            hidden[f"conv_{number}"] = x = layer(x)
        hidden["dense"] = x = self._dense(flat(x))
        return Features(tf.cast(x, tf.float32), hidden)  # [n·B, units]
