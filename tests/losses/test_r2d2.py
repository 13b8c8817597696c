"""R2D2's loss by hand-computed numbers and slow loops: rescaling, targets of n steps, priorities, corrections."""

import math

import numpy as np
import pytest
import tensorflow as tf

from impala.agents import q_learning
from impala.config import LossConfig
from impala.config.sections import CORRECTIONS_OF
from impala.losses import r2d2
from impala.losses.q_learning import log_epsilon_greedy
from impala.networks.q_sequences import Sequences
from impala.types import Chunk

T, B, A, BURN_IN = 6, 5, 3, 2


def test_rescaling_by_hand():
    np.testing.assert_allclose(r2d2.rescaled(np.array([0.0, 3.0, -8.0])), [0.0, 1.003, -2.008], rtol=1e-12)
    np.testing.assert_allclose(r2d2.unscaled(np.array([0.0, 1.003, -2.008])), [0.0, 3.0, -8.0], rtol=1e-10)


@pytest.mark.parametrize("dtype, rtol", [(np.float64, 1e-10), (np.float32, 1e-5)])
def test_unscaled_undoes_rescaled(dtype, rtol):
    x = np.concatenate([sign * np.logspace(-6, 6, 101) for sign in (1, -1)]).astype(dtype)
    for as_tensor in (np.asarray, tf.constant):
        back = r2d2.unscaled(r2d2.rescaled(as_tensor(x)))
        np.testing.assert_allclose(back, x, rtol=rtol, atol=1e-6 if dtype == np.float32 else 1e-12)


def make_batch(seed=0, num_resets=4):
    random = np.random.default_rng(seed)
    is_first = np.zeros((BURN_IN + T + 1, B), bool)
    discount = np.ones((BURN_IN + T, B), np.float32)
    for _ in range(num_resets):
        t, b = random.integers(1, BURN_IN + T), random.integers(B)
        is_first[t, b] = True
        if t > 1:
            discount[t - 2, b] = random.integers(2)  # terminated, or cut off
    batch = Chunk(*[()] * 10)._replace(
        is_first=is_first, discount_t=discount, r_t=random.normal(size=(BURN_IN + T, B)).astype(np.float32) * 3,
        a_tm1=random.integers(A, size=(BURN_IN + T, B)).astype(np.int32), importance=random.uniform(0.1, 2.0, B).astype(np.float32),
        logits_tm1=np.log(random.dirichlet(np.ones(A), size=(BURN_IN + T, B))).astype(np.float32),
    )  # fmt: skip
    q, target_q = (random.normal(size=(T + 1, B, A)).astype(np.float32) for _ in "ab")
    return Chunk(*(tf.constant(x) if isinstance(x, np.ndarray) else x for x in batch)), Sequences(tf.constant(q), tf.constant(target_q))


def slow_target(t, r, d, is_first, value, n, discount):
    """The sum of up to n rewards from time t, and the value of the state where it stops; one sequence."""
    total, factor = 0.0, 1.0
    for step in range(t, min(t + n, len(r))):
        if step > t and is_first[step + 1]:  # across a reset: the state before it bootstraps
            return total + factor * value[step]
        total += factor * r[step]
        factor *= discount * d[step]
        if factor == 0.0:
            return total
    return total + factor * value[min(t + n, len(r))]


@pytest.mark.parametrize("n", [1, 3, 5, 6])
def test_targets_are_those_of_a_slow_loop_with_ends_inside(n):
    for seed in range(20):
        batch, outputs = make_batch(seed)
        is_first, r, d = (x.numpy()[BURN_IN:] for x in (batch.is_first, batch.r_t, batch.discount_t))
        value = outputs.target_q.numpy().max(axis=-1)
        found = r2d2.n_step_targets(tf.constant(r), 0.9 * tf.constant(d), tf.constant(is_first), tf.constant(value), n).numpy()
        np.testing.assert_allclose(found, r2d2.n_step_targets(r, np.float32(0.9) * d, is_first, value, n), rtol=1e-5)
        for b in range(B):
            for t in range(T):
                if not is_first[t + 1, b]:
                    expected = slow_target(t, r[:, b], d[:, b], is_first[:, b], value[:, b], n, 0.9)
                    np.testing.assert_allclose(found[t, b], expected, rtol=1e-4, atol=1e-5)


def h(x):
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x


def h_inverse(y):
    root = (math.sqrt(1 + 4e-3 * (abs(y) + 1 + 1e-3)) - 1) / 2e-3
    return math.copysign(root**2 - 1, y)


def test_loss_and_priorities_are_those_of_a_slow_loop():
    batch, outputs = make_batch(3)
    q, target_q, weights = outputs.q.numpy(), outputs.target_q.numpy(), batch.importance.numpy()
    is_first, r, d, a = (x.numpy()[BURN_IN:] for x in (batch.is_first, batch.r_t, batch.discount_t, batch.a_tm1))
    losses, priorities, every = [], [], []
    for b in range(B):
        value = [h_inverse(float(target_q[t, b, q[t, b].argmax()])) for t in range(T + 1)]
        errors = [
            h(slow_target(t, r[:, b], d[:, b], is_first[:, b], value, 3, 0.997)) - q[t, b, a[t, b]]
            for t in range(T) if not is_first[t + 1, b]
        ]  # fmt: skip
        losses.append(0.5 * sum(e**2 for e in errors) * weights[b] / weights.max())
        sizes = [abs(e) for e in errors]
        every += sizes
        priorities.append(0.9 * max(sizes) + 0.1 * sum(sizes) / len(sizes))
    loss, metrics = r2d2.r2d2(n_step=3, burn_in=BURN_IN)(outputs, batch)
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-4)
    np.testing.assert_allclose(metrics["priority"], priorities, rtol=1e-4)
    assert len(every) < T * B
    np.testing.assert_allclose(metrics["td_error"], np.mean(every), rtol=1e-4)
    np.testing.assert_allclose(metrics["value_loss"], np.mean(np.square(every)) / 2, rtol=1e-4)
    summed, _ = r2d2.r2d2(n_step=3, burn_in=BURN_IN, reduction="sum")(outputs, batch)
    np.testing.assert_allclose(summed, np.sum(losses), rtol=1e-4)


def test_first_priorities_are_the_loss_s_where_one_network_does_all():
    for seed in range(5):
        batch, outputs = make_batch(seed)
        outputs = outputs._replace(target_q=outputs.q)
        _, metrics = r2d2.r2d2(n_step=5, burn_in=BURN_IN)(outputs, batch)
        q, a = outputs.q.numpy(), batch.a_tm1.numpy()[BURN_IN:]
        taken = np.concatenate([np.take_along_axis(q[:-1], a[..., None], axis=-1)[..., 0], np.zeros((1, B), np.float32)])
        columns = (x.numpy()[BURN_IN:] for x in (batch.r_t, batch.discount_t, batch.is_first))
        found = r2d2.first_priorities(*columns, taken, q.max(axis=-1), n_step=5)
        np.testing.assert_allclose(found, metrics["priority"], rtol=1e-4)


@pytest.mark.parametrize("word", [word for word in CORRECTIONS_OF["r2d2"] if word != "n_step"])
def test_a_correction_gives_targets_in_the_units_of_rewards(word):
    batch, outputs = make_batch(1)
    make = q_learning.make_correction(LossConfig.model_validate({"correction": word, "lambda": 0.8}))
    _, metrics = r2d2.r2d2(n_step=1, burn_in=BURN_IN, correction=make, policy_epsilon=0.1)(outputs, batch)
    target_q = r2d2.unscaled(outputs.target_q.numpy())
    log_pi = log_epsilon_greedy(outputs.q, 0.1)
    late = {name: getattr(batch, name)[BURN_IN:] for name in ("a_tm1", "r_t", "discount_t", "logits_tm1", "is_first")}
    targets = make(
        q_tm1=target_q[:-1], q_t=target_q[1:], a_tm1=late["a_tm1"], r_t=late["r_t"], discount_t=0.997 * late["discount_t"],
        log_pi_tm1=log_pi[:-1], log_pi_t=log_pi[1:], log_mu_tm1=late["logits_tm1"],
        mask_t=1.0 - tf.cast(late["is_first"][1:], tf.float32),
    ).target_tm1.numpy()  # fmt: skip
    valid = ~late["is_first"].numpy()[1:]
    taken = tf.gather(outputs.q[:-1], late["a_tm1"], batch_dims=2).numpy()
    errors = np.where(valid, np.abs(r2d2.rescaled(targets) - taken), 0.0)
    expected = 0.9 * errors.max(axis=0) + 0.1 * errors.sum(axis=0) / valid.sum(axis=0)
    np.testing.assert_allclose(metrics["priority"], expected, rtol=1e-4)


def test_nothing_of_burn_in_is_learned_and_no_gradient_flows_into_targets():
    batch, outputs = make_batch(2)
    loss = r2d2.r2d2(n_step=3, burn_in=BURN_IN)
    other = batch._replace(
        r_t=tf.concat([batch.r_t[:BURN_IN] + 5, batch.r_t[BURN_IN:]], 0),
        a_tm1=tf.concat([(batch.a_tm1[:BURN_IN] + 1) % A, batch.a_tm1[BURN_IN:]], 0),
    )
    assert loss(outputs, batch)[0] == loss(outputs, other)[0]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([outputs.q, outputs.target_q])
        value, _ = loss(outputs, batch)
    assert tape.gradient(value, outputs.target_q) is None
    gradient = tape.gradient(value, outputs.q).numpy()
    actions = batch.a_tm1.numpy()[BURN_IN:]
    others = np.ones((T, B, A), bool)
    np.put_along_axis(others, actions[..., None], False, axis=-1)
    assert (gradient[:-1][others] == 0).all() and (gradient[-1] == 0).all() and (gradient[:-1][~others] != 0).any()
