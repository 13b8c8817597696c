"""Choose one torso: observations and is_first, time-major, to features [n·B, F].

| name      | layers | source |
|---|---|---|
| `mlp`     | hidden sizes of your choice, tanh | – |
| `minatar` | conv 16@3×3, dense 128 | MinAtar, Young & Tian 2019 |
| `shallow` | conv 16@8×8/4, 32@4×4/2, dense 256 | A3C, Mnih et al. 2016 |
| `nature`  | conv 32@8×8/4, 64@4×4/2, 64@3×3/1, dense 512 | DQN, Mnih et al. 2015 |
| `resnet`  | 3 × (conv 3×3, max-pool 3×3/2, 2 residual blocks) with 16, 32, 32 channels, dense 256 | IMPALA, figure 3 |

Layers start orthogonal with gain √2 (Engstrom et al. 2020 measure what that is worth to policy gradients).

Frames enter as `NORMALISATIONS` says. The background should be subtracted: where it is not zero, each step of Adam
moves every filter's output in one direction over the whole frame, until its ReLU is silent for good. And with pixels
times 1/255 the first layers' outputs hardly change under an optimizer whose steps do not depend on the gradient's
scale. With a frame's median subtracted, times 1/16, both Pong (grey) and Breakout (black) are learned
(docs/results/frames).
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from impala.networks import frames

layers = tf.keras.layers
Torso = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
_BLOCK = 4  # pixels; the stride of the first convolution


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


def make(
    name: str, *, num_stacked: int, hidden_sizes: Sequence[int] = (), normalisation: str = "median", seed: int = 0,
    bfloat16: bool = False,
) -> Torso:  # fmt: skip
    """Makes the torso called `name`; `num_stacked` frames are stacked, `hidden_sizes` serve the MLP."""
    of_frames = NORMALISATIONS[normalisation]
    build = _Builder(itertools.count(seed * 1000), "mixed_bfloat16" if bfloat16 else "float32")
    if name == "mlp":
        return Mlp(hidden_sizes, build)
    if name == "minatar":
        return MinAtarTorso(build)
    if name == "shallow":
        return AtariTorso([(16, 8, 4), (32, 4, 2)], 256, num_stacked, of_frames, build)
    if name == "nature":
        return AtariTorso([(32, 8, 4), (64, 4, 2), (64, 3, 1)], 512, num_stacked, of_frames, build)
    if name == "resnet":
        return ResNet((16, 32, 32), 256, num_stacked, of_frames, build)
    raise ValueError(f"network.torso: {name!r} is unknown; expected mlp, minatar, shallow, nature or resnet")


class _Builder:
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


class Mlp(tf.Module):
    """Flattens an observation and applies dense layers with tanh."""

    def __init__(self, hidden_sizes: Sequence[int], build: _Builder):
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

    def __init__(self, build: _Builder):
        super().__init__("minatar_torso")
        self._convolution, self._dense = build.conv(16, 3, activation="relu"), build.dense(128, "relu")

    def __call__(self, observation: tf.Tensor, is_first: tf.Tensor) -> tf.Tensor:
        x = tf.cast(tf.reshape(observation, [-1, *observation.shape[2:]]), tf.float32)  # [n·B, 10, 10, channels]
        hidden = {"conv_1": (x := self._convolution(x))}
        hidden["dense"] = x = self._dense(_flat(x))
        return Features(tf.cast(x, tf.float32), hidden)


class BlockConv(tf.Module):
    """An s×s/(b) convolution without padding, s a multiple of b, on frames whose b×b blocks were turned into channels.

    The kernel is kept as the ordinary [s, s, k, channels]; only its use is rearranged. Same result as `Conv2D` on
    `scale` · (frames − levels), with a level for each plane. No gradient flows to the frames.
    """

    def __init__(self, channels: int, size: int, block: int, num_stacked: int, scale: float, build: _Builder):
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
        x = _convolve(tf.cast(x, self._dtype), tf.cast(kernel, self._dtype))
        return tf.nn.relu(x + tf.cast(bias, self._dtype))


@tf.custom_gradient
def _convolve(x: tf.Tensor, kernel: tf.Tensor):
    """A convolution [N, H, W, C] * [s, s, C, channels] of stride 1 without padding; x needs no gradient.

    The kernel's gradient is one product of matrices: the inputs at each position, times the gradients of the outputs
    that they contributed to, shifted there. TensorFlow's own took half of the learner's step on a CPU without AVX-512.
    """

    def gradient(dy: tf.Tensor):
        size, _, num_inputs, channels = kernel.shape
        ends = [[shift, size - 1 - shift] for shift in range(size)]
        shifted = [tf.pad(dy, [[0, 0], rows, columns, [0, 0]]) for rows in ends for columns in ends]
        shifted = tf.reshape(tf.concat(shifted, axis=-1), [-1, size * size * channels])
        product = tf.matmul(tf.reshape(x, [-1, num_inputs]), shifted, transpose_a=True)
        return None, tf.transpose(tf.reshape(product, [num_inputs, size, size, channels]), [1, 2, 0, 3])

    return tf.nn.conv2d(x, kernel, strides=1, padding="VALID"), gradient


class AtariTorso(tf.Module):
    """Convolutions (channels, size, stride) with ReLU, the first of stride 4, then one dense layer."""

    def __init__(
        self, convolutions: Sequence[tuple[int, int, int]], units: int, num_stacked: int,
        normalisation: Normalisation, build: _Builder,
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
        levels = _levels(self._level, observation, is_first, self._num_stacked)  # [n·B, 1, 1, k]
        hidden = {"conv_1": (x := self._first(tf.reshape(x, [-1, *x.shape[2:]]), levels))}
        for number, layer in enumerate(self._rest, start=2):
            hidden[f"conv_{number}"] = x = layer(x)
        hidden["dense"] = x = self._dense(_flat(x))
        return Features(tf.cast(x, tf.float32), hidden)  # [n·B, units]


class ResNet(tf.Module):
    """The paper's deep network: sections of a convolution, a max-pool and two residual blocks."""

    def __init__(
        self, channels: Sequence[int], units: int, num_stacked: int, normalisation: Normalisation, build: _Builder
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
            x -= _levels(self._level, observation, is_first, self._num_stacked)
        x, hidden = x * self._scale, {}
        for number, (conv, blocks) in enumerate(self._sections, start=1):
            x = tf.nn.max_pool2d(conv(x), ksize=3, strides=2, padding="SAME")
            for block in blocks:
                y = x
                for layer in block:
                    y = layer(tf.nn.relu(y))
                x += y
            hidden[f"section_{number}"] = tf.nn.relu(x)
        hidden["dense"] = x = self._dense(_flat(tf.nn.relu(x)))
        return Features(tf.cast(x, tf.float32), hidden)


def _levels(level: Callable | None, observation: tf.Tensor, is_first: tf.Tensor, num_stacked: int) -> tf.Tensor | None:
    if level is None:
        return None
    levels = frames.stack_levels(level(observation), is_first, num_stacked)
    return tf.reshape(levels, [-1, *levels.shape[2:]])


def _flat(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [-1, int(tf.TensorShape(x.shape[1:]).num_elements())])
