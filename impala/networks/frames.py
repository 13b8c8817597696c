"""Stacking of single frames, time-major; the same functions serve the actor (n = 1) and the learner (n = T+1).

Input: frames [n+k−1, B, H, W], where frame i+k−1 is the observation at time i and the first k−1 are the older planes of
the stack at time 0, already zero where they are older than the episode. is_first [n, B]. A plane of a stack is zero if
it is older than the stack's episode.
"""

import tensorflow as tf


def stack_planes(frames: tf.Tensor, is_first: tf.Tensor, num_stacked: int) -> tf.Tensor:
    """Returns stacks [n, B, H, W, k], oldest plane first."""
    return tf.stack(_planes(frames, is_first, num_stacked), axis=-1)


def stack_blocks(frames: tf.Tensor, is_first: tf.Tensor, num_stacked: int, block: int) -> tf.Tensor:
    """Returns the same stacks as [n, B, H/block, W/block, k·block²]: each block of pixels becomes channels.

    A convolution with stride `block` reads the same numbers in contiguous runs of block² instead of k, which makes the
    first layer and the stacking itself cheap on a CPU (`BlockConv`).
    """
    n_k, b, h, w = (frames.shape[i] if frames.shape[i] is not None else tf.shape(frames)[i] for i in range(4))
    rows = tf.reshape(frames, [n_k * b * (h // block), block, w // block, block])
    if block == 4 and rows.dtype == tf.uint8:  # a row of a block moves as one number, in a third of the time
        blocks = tf.bitcast(tf.transpose(tf.bitcast(rows, tf.int32), [0, 2, 1]), tf.uint8)
    else:
        blocks = tf.transpose(rows, [0, 2, 1, 3])
    blocks = tf.reshape(blocks, [n_k, b, h // block, w // block, block * block])
    return tf.concat(_planes(blocks, is_first, num_stacked), axis=-1)


def medians(frames: tf.Tensor) -> tf.Tensor:
    """Returns the median of each frame [n+k−1, B], float32: the background, if that fills half of the screen.

    Taken from every fourth pixel of every fourth row, by bisection: as cheap as the mean. Whole numbers only.
    """
    size, step = frames.shape[2] * frames.shape[3], 4
    rows = tf.reshape(frames, [-1, step * frames.shape[3]])[:, 2 * frames.shape[3] : 3 * frames.shape[3]]
    # Selected as a column of blocks: with strides TensorFlow takes several times as long.
    pixels = tf.reshape(tf.cast(tf.reshape(rows, [-1, step])[:, 2], tf.float32), [-1, size // step**2])
    ones, half = tf.ones([size // step**2, 1]), size // step**2 / 2
    low = tf.zeros_like(pixels[:, :1])
    for bit in (128.0, 64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0):  # the largest number with at most half of them below it
        num_below = tf.matmul(tf.cast(pixels < low + bit, tf.float32), ones)
        low += bit * tf.cast(num_below <= half, tf.float32)
    return tf.reshape(low, tf.shape(frames)[:2])


def means(frames: tf.Tensor) -> tf.Tensor:
    """Returns the mean of each frame [n+k−1, B], float32."""
    return tf.reduce_mean(tf.cast(frames, tf.float32), axis=[2, 3])


def stack_levels(levels: tf.Tensor, is_first: tf.Tensor, num_stacked: int) -> tf.Tensor:
    """Returns the level (`medians` or `means`) of each plane of `stack_planes`, [n, B, 1, 1, k]."""
    return tf.stack(_planes(levels[:, :, None, None], is_first, num_stacked), axis=-1)


def _planes(frames, is_first, num_stacked):
    """Returns k arrays [n, B, …]: at time i the frames of age k−1, …, 0, zeroed where an episode began since."""
    n = is_first.shape[0] if is_first.shape[0] is not None else tf.shape(is_first)[0]
    same_episode, planes = tf.ones_like(is_first), []
    for age in range(num_stacked):
        if age:  # a frame of this age is of the same episode iff none of is_first[i−age+1 … i] is set
            before = tf.zeros_like(is_first[: age - 1])
            same_episode &= ~tf.concat([before, is_first], axis=0)[:n]
        keep = tf.cast(same_episode, frames.dtype)
        keep = tf.reshape(keep, tf.concat([tf.shape(keep), tf.ones([len(frames.shape) - 2], tf.int32)], axis=0))
        start = num_stacked - 1 - age
        planes.append(frames[start : start + n] * keep)
    return planes[::-1]
