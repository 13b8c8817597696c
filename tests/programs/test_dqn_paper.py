"""`configs/dqn_paper.yaml` against a transcription of Mnih et al. 2015: network, loss, gradient and optimizer."""

import numpy as np
import pytest
import tensorflow as tf

from impala import config as config_lib
from impala import lockstep
from impala.agents import q_learning
from impala.environments.boundaries import Boundaries
from impala.types import ArraySpec, Discrete, EnvironmentSpec

PAPER = config_lib.load("configs/dqn_paper.yaml")
SHAPES = [(8, 8, 4, 32), (32,), (4, 4, 32, 64), (64,), (3, 3, 64, 64), (64,), (3136, 512), (512,), (512, 6), (6,)]


class Noise:
    """Frames of noise, rewards that are clipped and some that are not, and an end every now and then."""

    def __init__(self, *, num_environments):
        self.num_environments, self._boundaries = num_environments, Boundaries(num_environments)
        self.spec = EnvironmentSpec("noise", ArraySpec((84, 84), np.uint8), Discrete(6), num_stacked=4, frames_per_step=4)

    def reset(self, seed):
        self._random = np.random.default_rng(seed)
        return self._boundaries.reset(self._observe())

    def send(self, action):
        pass

    def receive(self):
        n, random = self.num_environments, self._random
        is_over = random.random(n) < 0.1
        return self._boundaries.step(self._observe(), random.choice([-10.0, 0.0, 0.5, 10.0], n), is_over, np.zeros(n, bool))

    def close(self):
        pass

    def _observe(self):
        return self._random.integers(256, size=(self.num_environments, 84, 84), dtype=np.uint8)


def in_order(variables):
    """Returns them from the first layer to the last, which the shapes tell."""
    left = [np.array(variable) for variable in variables]
    found = [left.pop(next(i for i, each in enumerate(left) if each.shape == shape)) for shape in SHAPES]
    assert not left
    return found


def q_of(weights, frames):
    """Q(s, ·) of stacks [4, B, 84, 84]: the table of the paper's extended data."""
    x = tf.transpose(tf.cast(frames, tf.float32) / 255.0, [1, 2, 3, 0])
    for kernel, bias, stride in zip(weights[0:6:2], weights[1:6:2], (4, 2, 1)):
        x = tf.nn.relu(tf.nn.conv2d(x, kernel, stride, "VALID") + bias)
    x = tf.nn.relu(tf.reshape(x, [len(x), -1]) @ weights[6] + weights[7])
    return x @ weights[8] + weights[9]


def gradient_of(weights, target, batch):
    """Σ −clip(δ, −1, 1) ∂Q(s, a), and δ, of a batch of single transitions."""
    weights = [tf.constant(weight) for weight in weights]
    reward = np.clip(batch.r_t[0], -1.0, 1.0)
    y = reward + 0.99 * batch.discount_t[0] * tf.reduce_max(q_of(target, batch.observation[1:]), axis=-1)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        q = tf.gather(q_of(weights, batch.observation[:4]), batch.a_tm1[0], batch_dims=1)
        error = tf.stop_gradient(y - q)
        loss = -tf.reduce_sum(tf.clip_by_value(error, -1.0, 1.0) * q)
    return [g.numpy() for g in tape.gradient(loss, weights)], error.numpy()


def test_two_updates_are_the_paper_s():
    small = {"environment.name": f"{__name__}:Noise", "replay.min_size": 64, "replay.size": 64}
    config = config_lib.load("configs/dqn_paper.yaml", small)
    training = lockstep.of(config)
    updates, errors, frames = training.updates(), [], []
    target = old = in_order(training.network.trainable_variables)
    mean = square = [np.zeros_like(weight) for weight in old]
    for _ in range(2):
        update = next(updates)
        new = in_order(training.network.trainable_variables)
        gradient, error = gradient_of(old, target, update.batch)
        mean = [0.95 * m + 0.05 * g for m, g in zip(mean, gradient)]
        square = [0.95 * s + 0.05 * g**2 for s, g in zip(square, gradient)]
        for one, other, g, m, s in zip(old, new, gradient, mean, square, strict=True):
            step = 2.5e-4 * g / np.sqrt(s - m**2 + 0.01)
            np.testing.assert_allclose(other, one - step, rtol=0, atol=1e-3 * np.abs(step).max())
        errors, frames, old = [*errors, error], [*frames, update.frames], new
    training.close()
    assert np.abs(errors).max() > 1.0 > np.abs(errors).min() and set(update.batch.discount_t[0].numpy()) == {0.0, 1.0}
    assert np.diff(frames) == [16], "an update every four steps, of four frames each"


def test_schedules_are_the_paper_s():
    spec = EnvironmentSpec("pong", ArraySpec((84, 84), np.uint8), Discrete(6), num_stacked=4, frames_per_step=4)
    epsilon, first = q_learning.make_exploration(PAPER, spec), 4 * 50_000
    steps = {0: 1.0, first: 1.0, first + 2_000_000: 0.55, first + 4_000_000: 0.1, PAPER.total_frames: 0.1}
    assert {frames: pytest.approx(epsilon(frames)) for frames in steps} == steps
    assert PAPER.steps_per_update == 4 and PAPER.agent.target_period == 10_000 and PAPER.agent.evaluation_epsilon == 0.05
