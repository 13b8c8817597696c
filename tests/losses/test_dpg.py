"""Deterministic policy gradients: by hand, which gradient goes where, and a linear system whose Q is known."""

import numpy as np
import pytest
import tensorflow as tf

from impala.learning import learners, optimizers
from impala.losses import dpg
from impala.networks import dpg as networks
from impala.types import ArraySpec, Chunk, Continuous, EnvironmentSpec

SPEC = EnvironmentSpec("numbers", ArraySpec((3,), np.float32), Continuous(2))
EMPTY = Chunk(*[()] * len(Chunk._fields))


def pair(spec=SPEC, sizes=(16, 16), seeds=(0, 0)):
    return networks.WithTarget(*(networks.make(spec, policy_sizes=sizes, value_sizes=sizes, seed=seed) for seed in seeds))


def windows(count, length=1, seed=0, **fields):
    random = np.random.default_rng(seed)
    return EMPTY._replace(
        observation=tf.constant(random.normal(size=(length + 1, count, 3)), tf.float32),
        is_first=tf.zeros([length + 1, count], tf.bool),
        a_tm1=tf.constant(random.uniform(-1, 1, (length, count, 2)), tf.float32),
        r_t=tf.constant(random.normal(size=(length, count)), tf.float32), discount_t=tf.ones([length, count]), **fields,
    )  # fmt: skip


def test_the_value_learns_from_the_error_and_the_policy_from_the_clipped_gradient_of_the_value():
    network, batch, clip = pair(), windows(6), 1e-3
    online, target = network._online, network._target
    loss = dpg.dpg(discount=0.9, action_gradient_clip=clip)
    with tf.GradientTape() as tape:
        total, metrics = loss(network.on_windows(batch.observation, batch.is_first), batch)
    found = tape.gradient(total, network.trainable_variables)
    x, y, a = batch.observation[0], batch.observation[1], batch.a_tm1[0]
    delta = batch.r_t[0] + 0.9 * target.value(y, target.policy(y)) - online.value(x, a)
    np.testing.assert_allclose(metrics["td_error"], np.mean(np.abs(delta)), rtol=1e-5)
    step = 1e-3  # ∂Q/∂a by central differences, which clip to ±1e-3
    differences = []
    for dimension in range(2):
        e = step * tf.one_hot([dimension], 2)
        at = online.policy(x)
        differences.append((online.value(x, at + e) - online.value(x, at - e)) / (2 * step))
    gradient = np.clip(np.stack(differences, axis=-1), -clip, clip)
    assert 0 < np.mean(np.abs(gradient) == np.float32(clip)) < 1, "the clip acts, on some"
    with tf.GradientTape(persistent=True) as tape:
        error = 0.5 * tf.reduce_sum(tf.square(tf.stop_gradient(delta + online.value(x, a)) - online.value(x, a)))
        policy = -tf.reduce_sum(tf.constant(gradient, tf.float32) * online.policy(x))
    for variable, of_all in zip(network.trainable_variables, found, strict=True):
        parts = [tape.gradient(each, variable) for each in (error, policy)]
        (expected,) = [part for part in parts if part is not None]  # each parameter learns from one of the two
        np.testing.assert_allclose(of_all, expected, rtol=1e-3, atol=1e-7)


def test_importance_weighs_both_terms_and_says_what_surprised():
    network, batch = pair(), windows(4)
    weighted = batch._replace(importance=tf.constant([4.0, 0.0, 0.0, 0.0]))
    alone = batch._replace(**{
        name: getattr(batch, name)[:, :1] for name in ("observation", "is_first", "a_tm1", "r_t", "discount_t")
    })  # fmt: skip
    loss = dpg.dpg()
    one, _ = loss(network.on_windows(alone.observation, alone.is_first), alone)
    found, metrics = loss(network.on_windows(weighted.observation, weighted.is_first), weighted)
    np.testing.assert_allclose(found, one, rtol=1e-5)
    assert metrics["priority"].shape == [4] and metrics["importance_max"] == 4.0


def test_n_steps_bootstrap_where_an_episode_was_cut_off():
    network = pair(seeds=(0, 1))
    batch = windows(2, length=3)
    first = np.zeros((4, 2), bool)
    first[2, 1] = True  # the second window: one transition, then another episode
    batch = batch._replace(is_first=tf.constant(first))
    outputs = network.on_windows(batch.observation, batch.is_first)
    np.testing.assert_array_equal(outputs.last, [batch.observation[3, 0], batch.observation[1, 1]])
    assert outputs.num_valid.numpy().tolist() == [3, 1]


def test_a_termination_within_the_steps_ends_the_sum():
    """Columns: whole; terminated by the second transition; by the third; cut off after the first."""
    network, first = pair(), np.zeros((4, 4), bool)
    first[2, 3] = True
    for variable in network.trainable_variables:
        variable.assign_add(0.1 * tf.ones_like(variable))  # the targets are older
    batch = windows(4, length=3, importance=tf.ones([4]))._replace(
        r_t=tf.constant([[1.0] * 4, [2.0] * 4, [4.0] * 4]), is_first=tf.constant(first),
        discount_t=tf.constant([[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 1.0]]),
    )  # fmt: skip
    _, metrics = dpg.dpg(discount=0.5)(network.on_windows(batch.observation, batch.is_first), batch)

    def bootstrap(time, column):
        x = batch.observation[time, column : column + 1]
        return network._target.value(x, network._target.policy(x)).numpy()[0]

    target = np.array([1 + 1 + 1 + bootstrap(3, 0) / 8, 1 + 1, 1 + 1 + 1, 1 + bootstrap(1, 3) / 2])
    expected = np.abs(target - network._online.value(batch.observation[0], batch.a_tm1[0]))
    np.testing.assert_allclose(metrics["priority"], expected, rtol=1e-5)


def test_a_linear_system_with_a_known_q():
    """x' = 0.9 x + 0.5 u, r = −(x² + 0.1 u²), γ = 0.9: u = −K x, Q(x, u) = −(x² + 0.1 u² + γ P x'²)."""
    a, b, cost, gamma = 0.9, 0.5, 0.1, 0.9
    p = 1.0
    for _ in range(1_000):  # the Riccati equation
        p = 1 + gamma * a**2 * p - (gamma * a * b * p) ** 2 / (cost + gamma * b**2 * p)
    gain = gamma * a * b * p / (cost + gamma * b**2 * p)
    assert 1.0 < gain < 1.5
    spec = EnvironmentSpec("linear", ArraySpec((1,), np.float32), Continuous(1))
    network = pair(spec, sizes=(64, 64))

    def renew(result):
        if result.num_updates % 50 == 0:
            network.renew()

    learner = learners.Learner(
        network, dpg.dpg(discount=gamma, reduction="mean"),
        optimizers.make("adam", network.trainable_variables, epsilon=1e-5),
        forward=network.on_windows, max_grad_norm=1e3, after_update=[renew],
    )  # fmt: skip
    random = np.random.default_rng(0)
    for t in range(1_500):
        x, u = random.uniform(-1, 1, 256), random.uniform(-1, 1, 256)
        batch = EMPTY._replace(
            observation=tf.constant(np.stack([x, a * x + b * u])[..., None], tf.float32),
            is_first=tf.zeros([2, 256], tf.bool), a_tm1=tf.constant(u[None, :, None], tf.float32),
            r_t=tf.constant(-(x**2 + cost * u**2)[None], tf.float32), discount_t=tf.ones([1, 256]),
            weights_version=tf.zeros([256], tf.int64), origin=tf.zeros([256, 6], tf.int64),
        )  # fmt: skip
        learner.update(batch, 2e-3 if t < 1_000 else 2e-4)
    x = np.linspace(-0.7, 0.7, 15, dtype=np.float32)[:, None]
    np.testing.assert_allclose(network._online.policy(tf.constant(x))[:, 0], -gain * x[:, 0], atol=0.1)
    u = -x[::-1] * 0.5
    expected = -(x**2 + cost * u**2 + gamma * p * (a * x + b * u) ** 2)[:, 0]
    np.testing.assert_allclose(network._online.value(tf.constant(x), tf.constant(u)), expected, atol=0.05)


def test_actions_beyond_the_bounds_count_as_the_bounds():
    network, batch = pair(), windows(5)
    batch = batch._replace(a_tm1=3.0 * tf.sign(batch.a_tm1))
    same = batch._replace(a_tm1=tf.sign(batch.a_tm1))
    outputs = network.on_windows(batch.observation, batch.is_first)
    assert float(dpg.dpg()(outputs, batch)[0]) == pytest.approx(float(dpg.dpg()(outputs, same)[0]))
