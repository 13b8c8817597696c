"""PPO's loss, each term by hand."""

import numpy as np
import pytest
import tensorflow as tf

from impala import distributions
from impala.learning.epochs import Batch
from impala.losses.ppo import ppo
from impala.networks import Outputs
from impala.types import Discrete

T, B, A = 3, 4, 5
CATEGORICAL = distributions.of(Discrete(A))


def batch(seed=0, **fields):
    random = np.random.default_rng(seed)
    floats = lambda *shape: random.normal(size=shape).astype(np.float32)  # noqa: E731
    made = Batch(
        observation=floats(T, B, 2), is_first=np.zeros((T, B), bool), previous_action=np.zeros(B, np.int32),
        previous_reward=np.zeros(B, np.float32), a_tm1=random.integers(A, size=(T, B)).astype(np.int32),
        logits_tm1=floats(T, B, A), r_t=floats(T, B), weights_version=np.zeros(B, np.int64),
        origin=np.zeros((B, 6), np.int64), v_behaviour_tm1=floats(T, B), core_state=(), is_replayed=np.zeros(B, np.float32),
        advantage_tm1=floats(T, B), target_tm1=floats(T, B), valid_t=(random.random((T, B)) < 0.8).astype(np.float32),
        trains=np.ones(2, np.float32), beta=np.float32(0.7),
    )  # fmt: skip
    return made._replace(**fields)


def gradient(loss, logits, made):
    logits = tf.Variable(logits)
    with tf.GradientTape() as tape:
        total, metrics = loss(Outputs(tf.identity(logits), tf.constant(made.v_behaviour_tm1)), made)
    return float(total), metrics, tape.gradient(total, logits).numpy()


@pytest.mark.parametrize("word", ["clip", "penalty"])
def test_where_nothing_has_moved_its_gradient_is_the_policy_gradient(word):
    made = batch()
    loss = ppo(word, distribution=CATEGORICAL, baseline_cost=0.0, entropy_cost=0.0, kl_hinge=1000.0)
    _, metrics, ours = gradient(loss, made.logits_tm1, made)
    logits = tf.Variable(made.logits_tm1)
    with tf.GradientTape() as tape:
        log_pi = tf.gather(tf.nn.log_softmax(logits), made.a_tm1, batch_dims=2)
        expected = -tf.reduce_sum(made.valid_t * log_pi * made.advantage_tm1) / made.valid_t.sum()
    np.testing.assert_allclose(ours, tape.gradient(expected, logits).numpy(), atol=1e-6)
    assert float(metrics["kl_mu_pi"]) == pytest.approx(0.0, abs=1e-6)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def test_the_penalty_is_beta_times_the_kl_of_old_and_new_and_a_hinge_on_its_mean():
    made = batch()
    moved = made.logits_tm1 + np.random.default_rng(1).normal(size=(T, B, A)).astype(np.float32)
    old, new = softmax(made.logits_tm1), softmax(moved)
    kl = np.sum(old * (np.log(old) - np.log(new)), axis=-1)
    assert abs(np.sum(new * (np.log(new) - np.log(old)), axis=-1) - kl).max() > 0.01, "the other direction is another number"
    taken = lambda p: np.take_along_axis(p, made.a_tm1[..., None], axis=-1)[..., 0]  # noqa: E731
    mean = lambda x: np.sum(made.valid_t * x) / made.valid_t.sum()  # noqa: E731
    expected = mean(-taken(new) / taken(old) * made.advantage_tm1 + 0.7 * kl) + 3.0 * (mean(kl) - 2 * 0.01) ** 2
    total, metrics, _ = gradient(
        ppo("penalty", distribution=CATEGORICAL, baseline_cost=0.0, entropy_cost=0.0, kl_hinge=3.0, kl_target=0.01), moved, made
    )  # fmt: skip
    assert total == pytest.approx(expected, rel=1e-5)
    assert float(metrics["kl_mu_pi"]) == pytest.approx(mean(kl), rel=1e-5)
    below, _, _ = gradient(
        ppo("penalty", distribution=CATEGORICAL, baseline_cost=0.0, entropy_cost=0.0, kl_hinge=3.0, kl_target=mean(kl)), moved, made
    )  # fmt: skip
    assert below == pytest.approx(mean(-taken(new) / taken(old) * made.advantage_tm1 + 0.7 * kl), rel=1e-5), "no hinge below twice the target"


@pytest.mark.parametrize("value, old, target, expected", [
    (1.0, 1.0, 3.0, 2.0),  # where it was: ½ 2²
    (1.5, 1.0, 3.0, 1.62),  # moved past 1 ± 0.2 towards the target: as if at 1.2, ½ 1.8²
    (0.5, 1.0, -1.0, 1.62),  # the same downwards
    (0.0, 1.0, 3.0, 4.5),  # moved away from it: the larger of the two
])  # fmt: skip
def test_values_are_clipped_about_the_old_ones(value, old, target, expected):
    fields = {name: np.full((T, B), x, np.float32) for name, x in (("v_behaviour_tm1", old), ("target_tm1", target))}
    made = batch(**fields, advantage_tm1=np.zeros((T, B), np.float32))
    outputs = Outputs(tf.constant(made.logits_tm1), tf.fill([T, B], value))
    clipped = ppo(distribution=CATEGORICAL, value_clip=True, baseline_cost=1.0, entropy_cost=0.0)
    assert float(clipped(outputs, made)[0]) == pytest.approx(expected, rel=1e-5)
    free = ppo(distribution=CATEGORICAL, baseline_cost=1.0, entropy_cost=0.0)
    assert float(free(outputs, made)[0]) == pytest.approx(0.5 * (target - value) ** 2, rel=1e-5)


def test_a_pass_trains_what_it_is_for():
    policy, values = (batch(trains=np.array(trains, np.float32)) for trains in ((1, 0), (0, 1)))
    moved = policy.logits_tm1 + 0.1
    loss = ppo(distribution=CATEGORICAL, entropy_cost=0.1)
    parts = [gradient(loss, moved, made) for made in (policy, values, batch())]
    assert parts[0][0] + parts[1][0] == pytest.approx(parts[2][0], rel=1e-5)
    assert not parts[1][2].any() and parts[0][2].any()
    assert parts[0][0] != 0.0 != parts[1][0]


def test_sum_is_the_mean_times_the_valid_transitions():
    made = batch()
    mean, total = (ppo(distribution=CATEGORICAL, reduction=word)(Outputs(tf.constant(made.logits_tm1), tf.zeros([T, B])), made)[0] for word in ("mean", "sum"))
    assert float(total) == pytest.approx(float(mean) * made.valid_t.sum(), rel=1e-6)
