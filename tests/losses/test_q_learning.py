"""The loss of Q-learning: by hand, what carries no gradient, and how an episode's end enters n steps."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from impala import corrections
from impala.losses import q_learning
from impala.networks import q_values
from impala.types import ArraySpec, Chunk, Discrete, EnvironmentSpec


def chunk(*, action, reward, discount, is_first=None, observation=None):
    """Windows of T transitions, [T, B] each."""
    reward = np.array(reward, np.float32)
    is_first = np.zeros([len(reward) + 1, reward.shape[1]], bool) if is_first is None else np.array(is_first)
    return Chunk(
        observation=observation, is_first=tf.constant(is_first), previous_action=(), previous_reward=(), logits_tm1=(),
        a_tm1=tf.constant(action, tf.int32), r_t=tf.constant(reward), discount_t=tf.constant(discount, tf.float32),
        weights_version=tf.zeros([reward.shape[1]], tf.int64), origin=tf.zeros([reward.shape[1], 6], tf.int64),
    )  # fmt: skip


def windows(q_tm1, q_t, target_q_t, num_valid):
    tensors = [tf.constant(x, tf.float32) for x in (q_tm1, q_t, target_q_t)]
    return q_values.Windows(*tensors, tf.constant(num_valid, tf.int32))


Q_TM1 = [[0.5, 1.0], [2.0, -1.0], [0.0, 0.25]]
TARGET_Q_T = [[1.0, 3.0], [5.0, 4.0], [-1.0, -2.0]]
Q_T = [[9.0, 1.0], [0.0, 7.0], [0.0, 8.0]]  # another action is best
BATCH = dict(action=[[1, 0, 1]], reward=[[0.25, -1.0, 0.5]], discount=[[1.0, 0.0, 1.0]])


def test_three_transitions_by_hand():
    """An ordinary one with |δ| > 1, a termination with |δ| > 1, an ordinary one with |δ| < 1."""
    delta = np.array([0.25 + 0.9 * 3.0 - 1.0, -1.0 - 2.0, 0.5 + 0.9 * -1.0 - 0.25])
    assert np.abs(delta).tolist() == pytest.approx([1.95, 3.0, 0.65])
    q_tm1 = tf.Variable(Q_TM1, dtype=tf.float32)
    loss = q_learning.q_learning(discount=0.9)
    with tf.GradientTape() as tape:
        outputs = windows(Q_TM1, Q_T, TARGET_Q_T, [1, 1, 1])._replace(q_tm1=q_tm1)
        value, metrics = loss(outputs, chunk(**BATCH))
    gradient = tape.gradient(value, q_tm1)
    clipped = np.clip(delta, -1, 1)
    np.testing.assert_allclose(gradient, [[0, -clipped[0]], [-clipped[1], 0], [0, -clipped[2]]], rtol=1e-6)
    huber = np.where(np.abs(delta) > 1, np.abs(delta) - 0.5, 0.5 * delta**2)
    np.testing.assert_allclose([value, metrics["value_loss"]], [huber.sum(), huber.mean()], rtol=1e-6)
    np.testing.assert_allclose(metrics["td_error"], np.abs(delta).mean(), rtol=1e-6)


def test_double_takes_the_online_networks_action_and_the_target_networks_value():
    double = q_learning.q_learning(discount=0.9, double=True, error=q_learning.squared, reduction="mean")
    value, _ = double(windows(Q_TM1, Q_T, TARGET_Q_T, [1, 1, 1]), chunk(**BATCH))
    delta = np.array([0.25 + 0.9 * 1.0 - 1.0, -3.0, 0.5 + 0.9 * -2.0 - 0.25])
    np.testing.assert_allclose(value, np.mean(0.5 * delta**2), rtol=1e-6)


def test_rewards_are_clipped_as_configured():
    batch = chunk(**BATCH | {"reward": [[4.0, -7.0, 0.5]]})
    clipped, as_they_are = (
        q_learning.q_learning(reward_clipping=kind)(windows(Q_TM1, Q_T, TARGET_Q_T, [1, 1, 1]), batch)[0].numpy()
        for kind in ("abs_one", "none")
    )
    assert clipped != as_they_are
    same = chunk(**BATCH | {"reward": [[1.0, -1.0, 0.5]]})
    assert clipped == q_learning.q_learning()(windows(Q_TM1, Q_T, TARGET_Q_T, [1, 1, 1]), same)[0].numpy()


def test_n_steps_end_at_a_termination_and_at_a_cut():
    """Columns: whole; terminated by the second transition; cut after the first, whose state bootstraps."""
    reward = np.array([[1.0] * 3, [2.0] * 3, [4.0] * 3], np.float32)
    discount = 0.5 * np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], np.float32)
    total, weight = q_learning.n_step(tf.constant(reward), tf.constant(discount), tf.constant([3, 3, 1]))
    np.testing.assert_allclose(total, [1 + 1 + 1, 1 + 1, 1])
    np.testing.assert_allclose(weight, [0.125, 0.0, 0.5])


SPEC = EnvironmentSpec("x", ArraySpec((3,), np.float32), Discrete(2))


def make_networks(is_dueling=False, spec=SPEC):
    def make():
        return q_values.make(spec, torso="mlp", hidden_sizes=(8,), is_dueling=is_dueling, seed=3)

    return q_values.WithTarget(make(), make(), num_stacked=spec.num_stacked)


@pytest.mark.parametrize("is_dueling", [False, True])
def test_nothing_flows_into_the_target_network_nor_through_the_bootstrap(is_dueling):
    network = make_networks(is_dueling)
    random = np.random.default_rng(0)
    observation = tf.constant(random.normal(size=(2, 3, 3)), tf.float32)
    batch = chunk(**BATCH, observation=observation)
    loss = q_learning.q_learning(double=True)
    with tf.GradientTape() as tape:
        value, _ = loss(network.on_windows(observation, batch.is_first), batch)
    online, target = network._online.trainable_variables, network._target.trainable_variables
    found = tape.gradient(value, [*online, *target])
    assert all(g is not None for g in found[: len(online)]) and all(g is None for g in found[len(online) :])

    with tf.GradientTape() as tape:  # what the bootstrap is of makes no difference to the gradient's direction
        outputs = network.on_windows(observation, batch.is_first)
        value = tf.reduce_sum(tf.gather(outputs.q_tm1, batch.a_tm1[0], batch_dims=1))
    alone = tape.gradient(value, online)
    with tf.GradientTape() as tape:
        loss = q_learning.q_learning(error=lambda error: -error)
        value, _ = loss(network.on_windows(observation, batch.is_first), batch)
    for a, b in zip(alone, tape.gradient(value, online)):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_windows_look_at_the_first_state_and_at_the_last_before_a_cut():
    """Stacked frames of two planes, T = 3: whole, cut after one transition, cut after two."""
    spec = EnvironmentSpec("x", ArraySpec((2,), np.float32), Discrete(2), num_stacked=2)
    network = make_networks(spec=spec)
    for old in network._target.trainable_variables:
        old.assign_add(tf.ones_like(old))
    observation = np.random.default_rng(1).normal(size=(5, 3, 2)).astype(np.float32)
    is_first = np.zeros((4, 3), bool)
    is_first[2, 1] = is_first[3, 2] = True
    found = network.on_windows(tf.constant(observation), tf.constant(is_first))
    assert found.num_valid.numpy().tolist() == [3, 1, 2]
    nothing = tf.zeros([1, 1], tf.bool)
    for column, last in enumerate([3, 1, 2]):
        first, end = observation[:2, [column]], observation[last : last + 2, [column]]
        np.testing.assert_allclose(found.q_tm1[column], network(first, nothing).q[0, 0], atol=1e-6)
        np.testing.assert_allclose(found.q_t[column], network(end, nothing).q[0, 0], atol=1e-6)
        np.testing.assert_allclose(found.target_q_t[column], network._target(end, nothing).q[0, 0], atol=1e-6)
    assert np.abs(found.q_t - found.target_q_t).max() > 0.1


def test_dueling_is_value_plus_advantages_less_their_mean():
    network = make_networks(is_dueling=True)._online
    observation, nothing = tf.ones([1, 4, 3]), tf.zeros([1, 4], tf.bool)
    before = network(observation, nothing).q
    bias = network._advantage[-1].bias
    bias.assign_add([5.0, 5.0])  # of all advantages: says nothing
    np.testing.assert_allclose(network(observation, nothing).q, before, atol=1e-5)
    network._value[-1].bias.assign_add([5.0])
    np.testing.assert_allclose(network(observation, nothing).q, before + 5.0, atol=1e-5)
    bias.assign_add([2.0, 0.0])
    np.testing.assert_allclose(network(observation, nothing).q, before + np.array([6.0, 4.0]), atol=1e-5)


def test_the_same_seed_makes_the_same_network_and_another_another():
    one, same, other = (q_values.make(SPEC, torso="mlp", is_dueling=True, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one.trainable_variables, same.trainable_variables))
    assert not all(np.array_equal(a, b) for a, b in zip(one.trainable_variables, other.trainable_variables))


def test_what_is_drawn_by_priority_counts_with_its_share_of_the_largest_importance():
    batch = chunk(**BATCH)._replace(importance=tf.constant([2.0, 4.0, 1.0]))
    loss = q_learning.q_learning(discount=0.9, error=q_learning.squared)
    value, metrics = loss(windows(Q_TM1, Q_T, TARGET_Q_T, [1, 1, 1]), batch)
    delta = np.array([1.95, -3.0, -0.65])
    np.testing.assert_allclose(delta**2, [1.95**2, 9.0, 0.65**2])
    np.testing.assert_allclose(value, np.sum(0.5 * delta**2 * [0.5, 1.0, 0.25]), rtol=1e-6)
    np.testing.assert_allclose(metrics["priority"], np.abs(delta), rtol=1e-6)
    assert metrics["importance_max"] == 4.0


def test_first_priorities_by_hand():
    """Windows of three steps: whole; terminated by the second transition; cut after the first; with a clipped reward."""
    reward = np.array([[1, 1, 1, 5], [1, 1, 1, 0], [1, 1, 1, 0]], np.float32)
    discount = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 1]], np.float32)
    first = np.zeros((4, 4), bool)
    first[3, 1] = first[2, 2] = True
    taken, best = np.full((4, 4), 0.25, np.float32), np.array([[9.0] * 4, [2.0] * 4, [3.0] * 4, [4.0] * 4], np.float32)
    found = q_learning.first_priorities(reward, discount, first, taken, best, discount=0.5)
    whole, terminated, cut = 1 + 0.5 + 0.25 + 0.125 * 4, 1 + 0.5, 1 + 0.5 * 2
    np.testing.assert_allclose(found, np.array([whole, terminated, cut, 1 + 0.125 * 4]) - 0.25)
    same = q_learning.first_priorities(reward[:1], discount[:1], first[:2], 1 + 0.5 * best[1:2], best[:2], discount=0.5)
    assert same[0] == np.float32(q_learning.MIN_PRIORITY), "a table draws nothing with a priority of 0"


def sequences(seed=0, length=4, width=6, actions=3):
    """Windows with a termination, a cut and rewards beyond the clip: (outputs of every state, batch)."""
    random = np.random.default_rng(seed)
    q, target_q = random.normal(size=(2, length + 1, width, actions)).astype(np.float32)
    discount, first = np.ones((length, width), np.float32), np.zeros((length + 1, width), bool)
    discount[0, 0], discount[1, 1] = 0.0, 0.0
    first[2, 0] = first[3, 1] = first[2, 2] = True  # two after a termination, one after a cut
    batch = chunk(
        action=random.integers(actions, size=(length, width)), reward=2 * random.normal(size=(length, width)),
        discount=discount, is_first=first,
    )  # fmt: skip
    mu = random.normal(size=(length, width, actions)).astype(np.float32)
    return q_values.WindowStates(*(tf.constant(x) for x in (q[0], q, target_q))), batch._replace(logits_tm1=tf.constant(mu))


@pytest.mark.parametrize("double", [False, True])
def test_peng_with_lambda_1_is_the_n_step_return(double):
    outputs, batch = sequences()
    num_valid = np.cumprod(~batch.is_first.numpy()[1:], axis=0).sum(axis=0)
    last = lambda q: tf.gather(q, num_valid, axis=0, batch_dims=0).numpy()[np.arange(6), np.arange(6)]  # noqa: E731
    n_step = q_learning.q_learning(discount=0.9, double=double)
    expected, _ = n_step(windows(outputs.q_tm1, last(outputs.q), last(outputs.target_q), num_valid), batch)
    peng = functools.partial(corrections.peng_q_lambda, lambda_=1.0)
    found, metrics = q_learning.corrected(peng, discount=0.9, double=double)(outputs, batch)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert metrics["td_error"] > 0


def test_a_greedy_policy_makes_retrace_and_tree_backup_one_and_a_softer_one_does_not():
    outputs, batch = sequences(1)

    def target(scheme, **kwargs):
        return q_learning.corrected(scheme, discount=0.9, **kwargs)(outputs, batch)[0].numpy()

    retrace, tree_backup = corrections.retrace, corrections.tree_backup
    assert target(retrace) == pytest.approx(target(tree_backup), rel=1e-4)
    assert abs(target(retrace, policy_epsilon=0.3) - target(tree_backup, policy_epsilon=0.3)) > 1e-3
    one_step = functools.partial(retrace, lambda_=0.0)
    assert abs(target(retrace) - target(one_step)) > 1e-3


def test_how_far_the_policy_is_from_the_one_that_acted_is_of_the_windows_own_episode():
    outputs, batch = sequences(3)
    _, metrics = q_learning.corrected(corrections.retrace, policy_epsilon=0.3)(outputs, batch)
    valid = np.cumprod(~batch.is_first.numpy()[1:], axis=0).astype(bool)
    assert 0 < valid.sum() < valid.size
    q, logits = outputs.target_q.numpy()[:-1], batch.logits_tm1.numpy().astype(np.float64)
    pi = np.where(q == q.max(-1, keepdims=True), 0.8, 0.1)
    mu = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    rho = np.take_along_axis(pi / mu, batch.a_tm1.numpy()[..., None], -1)[..., 0][valid]
    kl = (mu * np.log(mu / pi)).sum(-1)[valid]
    expected = dict(log_rho_mean=np.log(rho).mean(), rho_clipped_fraction=(rho > 1).mean(), kl_mu_pi=kl.mean(),
                    effective_sample_size=rho.sum() ** 2 / (len(rho) * (rho**2).sum()))  # fmt: skip
    assert {name: float(metrics[name]) for name in expected} == pytest.approx(expected, rel=1e-5)
    plain = q_learning.q_learning()(windows(outputs.q_tm1, outputs.q[-1], outputs.target_q[-1], np.full(6, 4)), batch)[1]
    assert not {*expected} & {*plain}, "n steps value no π"


def test_no_gradient_but_that_of_the_value_of_the_action_taken():
    outputs, batch = sequences(2)
    q_tm1 = tf.Variable(outputs.q_tm1)
    with tf.GradientTape() as tape:
        tape.watch(outputs.q)
        tape.watch(outputs.target_q)
        total, _ = q_learning.corrected(corrections.retrace)(outputs._replace(q_tm1=q_tm1), batch)
    gradients = tape.gradient(total, [q_tm1, outputs.q, outputs.target_q])
    assert gradients[1] is None and gradients[2] is None
    others = 1 - tf.one_hot(batch.a_tm1[0], 3).numpy()
    assert not (gradients[0].numpy() * others).any() and gradients[0].numpy().any()


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_the_epsilon_greedy_policy_is_a_distribution(epsilon):
    """Of 18 actions, none of them impossible: logarithms stay finite."""
    log_pi = q_learning.log_epsilon_greedy(tf.random.normal([5, 18], seed=1), epsilon).numpy().astype(np.float64)
    np.testing.assert_allclose(np.exp(log_pi).sum(axis=-1), 1.0, atol=2e-7)
    assert np.exp(log_pi).min() > 0.9e-6 and np.exp(log_pi).max() == pytest.approx(1 - epsilon * 17 / 18, abs=2e-5)
