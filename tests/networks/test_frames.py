"""Stacking against a transcription that walks back frame by frame."""

import numpy as np
import pytest
import tensorflow as tf

from impala.networks import frames


def slow_stack(images, is_first, num_stacked):
    """[n, B, H, W, k]: the plane of age a at time i is frame i−a, if no episode began in the a steps up to i."""
    n, b = is_first.shape
    stacks = np.zeros((n, b, *images.shape[2:], num_stacked), images.dtype)
    for i in range(n):
        for j in range(b):
            for age in range(num_stacked):
                began = any(is_first[s, j] for s in range(max(0, i - age + 1), i + 1))
                if not began:
                    stacks[i, j, ..., num_stacked - 1 - age] = images[i - age + num_stacked - 1, j]
    return stacks


def slow_blocks(stacks, block):
    """[n, B, H/b, W/b, k·b²]: channel (plane, row, column) of each block."""
    n, b, height, width, k = stacks.shape
    blocks = np.zeros((n, b, height // block, width // block, k * block * block), stacks.dtype)
    for y in range(height):
        for x in range(width):
            for plane in range(k):
                channel = (plane * block + y % block) * block + x % block
                blocks[:, :, y // block, x // block, channel] = stacks[:, :, y, x, plane]
    return blocks


def random_frames(n, b, k, shape=(8, 12), seed=0):
    return np.random.default_rng(seed).integers(1, 256, size=(n + k - 1, b, *shape), dtype=np.uint8)


def first_everywhere_once(n):
    """[n, n + 1]: column j starts an episode at time j, the last one nowhere."""
    return np.eye(n, n + 1, dtype=bool)


@pytest.mark.parametrize("num_stacked", [1, 2, 4, 5])
def test_planes_with_an_episode_start_at_every_position(num_stacked):
    is_first = first_everywhere_once(7)
    images = random_frames(7, 8, num_stacked)
    result = frames.stack_planes(tf.constant(images), tf.constant(is_first), num_stacked)
    assert result.dtype == tf.uint8
    np.testing.assert_array_equal(result, slow_stack(images, is_first, num_stacked))


@pytest.mark.parametrize("num_stacked, block, dtype", [(1, 4, np.uint8), (4, 4, np.uint8), (4, 2, np.uint8), (4, 4, np.float32)])
def test_blocks_with_an_episode_start_at_every_position(num_stacked, block, dtype):
    is_first = first_everywhere_once(6)
    images = random_frames(6, 7, num_stacked).astype(dtype)
    result = frames.stack_blocks(tf.constant(images), tf.constant(is_first), num_stacked, block)
    expected = slow_blocks(slow_stack(images, is_first, num_stacked), block)
    assert result.shape == expected.shape == (6, 7, 8 // block, 12 // block, block**2 * num_stacked)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("seed", range(4))
def test_several_starts_in_one_unroll(seed):
    is_first = np.random.default_rng(seed).random((12, 6)) < 0.3
    images = random_frames(12, 6, 4, seed=seed)
    expected = slow_stack(images, is_first, 4)
    np.testing.assert_array_equal(frames.stack_planes(tf.constant(images), tf.constant(is_first), 4), expected)
    np.testing.assert_array_equal(
        frames.stack_blocks(tf.constant(images), tf.constant(is_first), 4, 2), slow_blocks(expected, 2)
    )


def test_the_newest_plane_is_the_observation_itself():
    images = random_frames(3, 2, 4)
    is_first = np.ones((3, 2), bool)
    stacks = frames.stack_planes(tf.constant(images), tf.constant(is_first), 4).numpy()
    np.testing.assert_array_equal(stacks[..., -1], images[3:])
    assert not stacks[..., :-1].any()


def test_one_time_and_an_unknown_length_give_the_same():
    images, is_first = random_frames(5, 3, 4), np.random.default_rng(1).random((5, 3)) < 0.3
    expected = slow_stack(images, is_first, 4)
    signature = [tf.TensorSpec([None, None, 8, 12], tf.uint8), tf.TensorSpec([None, None], tf.bool)]
    for function, wanted in (
        (lambda o, f: frames.stack_planes(o, f, 4), expected),
        (lambda o, f: frames.stack_blocks(o, f, 4, 4), slow_blocks(expected, 4)),
    ):
        np.testing.assert_array_equal(tf.function(function, input_signature=signature)(images, is_first), wanted)
        np.testing.assert_array_equal(function(tf.constant(images[:4]), tf.constant(is_first[:1])), wanted[:1])
