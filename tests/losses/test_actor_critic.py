"""The actor-critic loss against a numpy transcription, its masks, its gradient."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from impala import corrections
from impala.corrections import Targets
from impala.losses.actor_critic import REWARD_CLIPPING, actor_critic
from impala.types import Chunk

T, B, A = 6, 4, 3


def make_case(seed=0, reward_scale=3.0):
    """Outputs and a batch with resets, terminations and rewards beyond the clips."""
    random = np.random.default_rng(seed)
    is_first = random.random((T + 1, B)) < 0.25
    is_first[2, 0] = True
    batch = Chunk(
        observation=np.zeros((T + 1, B), np.float32),
        is_first=is_first,
        previous_action=np.zeros(B, np.int32),
        previous_reward=np.zeros(B, np.float32),
        a_tm1=random.integers(A, size=(T, B)).astype(np.int32),
        logits_tm1=random.normal(size=(T, B, A)).astype(np.float32),
        r_t=(reward_scale * random.normal(size=(T, B))).astype(np.float32),
        discount_t=(random.random((T, B)) > 0.2).astype(np.float32),
        weights_version=np.zeros(B, np.int64),
        origin=np.zeros((B, 6), np.int64),
    )
    logits = random.normal(size=(T + 1, B, A)).astype(np.float32)
    value = random.normal(size=(T + 1, B)).astype(np.float32)
    return (logits, value), Chunk(*(tf.constant(f) if not isinstance(f, tuple) else f for f in batch))


def log_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def transcription(outputs, batch, *, discount, baseline_cost, entropy_cost, clip_rewards, reduction, clips):
    """Section 4.2 row by row in float64, rows across a reset left out altogether."""
    logits, value = (np.asarray(x, np.float64) for x in outputs)
    batch = [np.asarray(f, np.float64) if not isinstance(f, tuple) else f for f in batch]
    batch = Chunk(*batch)
    policy_loss = value_loss = entropy = count = 0.0
    for b in range(B):
        log_pi = log_softmax(logits[:, b])
        log_mu = log_softmax(batch.logits_tm1[:, b])
        rows = [t for t in range(T) if not batch.is_first[t + 1, b]]
        action = batch.a_tm1[:, b].astype(int)
        ratio = np.array([np.exp(log_pi[t, action[t]] - log_mu[t, action[t]]) for t in range(T)])
        r = np.clip(batch.r_t[:, b], -1, 1) if clip_rewards else batch.r_t[:, b]
        gamma, v = discount * batch.discount_t[:, b], value[:, b]
        target = v.copy()
        for t in reversed(range(T)):
            if t in rows:
                delta = min(clips[0], ratio[t]) * (r[t] + gamma[t] * v[t + 1] - v[t])
                trace = target[t + 1] - v[t + 1] if t + 1 < T else 0.0
                target[t] = v[t] + delta + gamma[t] * min(clips[1], ratio[t]) * trace
        for t in rows:
            next_target = target[t + 1] if t + 1 < T else v[T]
            advantage = min(clips[2], ratio[t]) * (r[t] + gamma[t] * next_target - v[t])
            policy_loss -= log_pi[t, action[t]] * advantage
            value_loss += 0.5 * (target[t] - v[t]) ** 2
            entropy -= np.sum(np.exp(log_pi[t]) * log_pi[t])
            count += 1
    total = policy_loss + baseline_cost * value_loss - entropy_cost * entropy
    return dict(
        loss=total / count if reduction == "mean" else total, policy_loss=policy_loss / count,
        value_loss=value_loss / count, entropy=entropy / count, num_transitions=count,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("reward_clipping", ["none", "abs_one"])
def test_matches_the_transcription(seed, reduction, reward_clipping):
    outputs, batch = make_case(seed)
    assert (np.abs(batch.r_t) > 1).any() and (np.abs(batch.r_t) < 1).any()
    assert 0 < np.sum(batch.is_first[1:]) < T * B
    numbers = dict(discount=0.9, baseline_cost=0.3, entropy_cost=0.05, reduction=reduction)
    correction = functools.partial(corrections.vtrace, clip_rho=1.2, clip_c=0.8, clip_pg=1.1)
    loss, metrics = actor_critic(correction, reward_clipping=reward_clipping, **numbers)(outputs, batch)
    expected = transcription(
        outputs, batch, clip_rewards=reward_clipping == "abs_one", clips=(1.2, 0.8, 1.1), **numbers
    )
    np.testing.assert_allclose(loss, expected["loss"], rtol=2e-5)
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=2e-5, atol=1e-6, err_msg=name)


def test_another_reduction_is_refused():
    with pytest.raises(ValueError, match="reduction='average'; expected 'sum' or 'mean'"):
        actor_critic(corrections.vtrace, reduction="average")


@pytest.mark.parametrize("correction", corrections.SCHEMES.values(), ids=corrections.SCHEMES)
def test_the_mean_is_the_sum_over_the_transitions_that_are_some(correction):
    outputs, batch = make_case(1)
    total, metrics = actor_critic(correction, reduction="sum")(outputs, batch)
    mean, _ = actor_critic(correction, reduction="mean")(outputs, batch)
    count = T * B - np.sum(batch.is_first[1:])
    assert float(metrics["num_transitions"]) == count < T * B
    np.testing.assert_allclose(total, mean * count, rtol=1e-5)


@pytest.mark.parametrize("correction", corrections.SCHEMES.values(), ids=corrections.SCHEMES)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_rows_across_a_reset_contribute_nothing(correction, reduction):
    """Whatever stands in them, neither loss nor metrics nor gradients change."""
    (logits, value), batch = make_case(2)
    masked = np.array(batch.is_first[1:])
    changed = batch._replace(
        r_t=np.where(masked, 99.0, batch.r_t).astype(np.float32),
        discount_t=np.where(masked, 0.5, batch.discount_t).astype(np.float32),
        a_tm1=np.where(masked, A - 1 - batch.a_tm1, batch.a_tm1).astype(np.int32),
        logits_tm1=np.where(masked[..., None], -batch.logits_tm1, batch.logits_tm1).astype(np.float32),
    )
    loss = actor_critic(correction, reduction=reduction)
    results = []
    for a_batch in (batch, changed):
        with tf.GradientTape() as tape:
            outputs = tf.constant(logits), tf.constant(value)
            tape.watch(outputs)
            total, metrics = loss(outputs, a_batch)
        results.append((total, metrics, tape.gradient(total, outputs)))
    (one, metrics, gradients), (other, other_metrics, other_gradients) = results
    assert float(one) == float(other)
    assert {name: float(m) for name, m in metrics.items()} == {name: float(m) for name, m in other_metrics.items()}
    for a, b in zip(gradients, other_gradients):
        np.testing.assert_array_equal(a, b)
    # A masked row's own logits get no gradient either, nor does the value of an episode's last observation.
    assert masked.any() and not gradients[0].numpy()[:-1][masked].any() and not gradients[1].numpy()[:-1][masked].any()
    assert gradients[0].numpy()[:-1][~masked].any(axis=-1).all()


def test_the_value_loss_is_masked_whatever_the_correction_says():
    outputs, batch = make_case(2)

    def careless(*, v_tm1, **_):
        return Targets(v_tm1 + 2.0, tf.zeros_like(v_tm1))

    loss, metrics = actor_critic(careless, baseline_cost=0.5, entropy_cost=0.0)(outputs, batch)
    count = T * B - np.sum(batch.is_first[1:])
    assert count < T * B
    np.testing.assert_allclose(metrics["value_loss"], 0.5 * 2.0**2, rtol=1e-5)
    np.testing.assert_allclose(loss, 0.5 * count * 0.5 * 2.0**2, rtol=1e-5)


def test_a_batch_of_nothing_but_resets_is_zero_and_finite():
    outputs, batch = make_case(0)
    batch = batch._replace(is_first=np.ones((T + 1, B), bool))
    for reduction in ("sum", "mean"):
        loss, metrics = actor_critic(corrections.vtrace, reduction=reduction)(outputs, batch)
        assert float(loss) == 0.0
        assert np.isnan(metrics.pop("explained_variance"))  # of targets that do not vary
        assert all(np.isfinite(metric) for metric in metrics.values())


def test_policy_gradient_of_a_tabular_softmax():
    """∂L/∂logits[t, a] = −A_t (1[a = a_t] − π_t(a)), with the loss's own advantages."""
    (logits, value), batch = make_case(3)
    advantage = np.random.default_rng(0).normal(size=(T, B)).astype(np.float32)

    def correction(*, v_tm1, mask_t, **_):
        return Targets(tf.stop_gradient(v_tm1), mask_t * advantage)

    logits = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss, _ = actor_critic(correction, baseline_cost=0.0, entropy_cost=0.0)((logits, value), batch)
    gradient = tape.gradient(loss, logits).numpy()
    pi = np.exp(log_softmax(logits.numpy()[:-1]))
    mask = 1.0 - np.asarray(batch.is_first[1:], np.float32)
    expected = -(mask * advantage)[..., None] * (np.eye(A)[batch.a_tm1] - pi)
    np.testing.assert_allclose(gradient[:-1], expected, atol=1e-6)
    assert not gradient[-1].any()  # the last observation only bootstraps


def own_one_step(*, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t=None):
    """A user's own, as README.md asks for it: it stops no gradient itself."""
    v = r_t + discount_t * v_t
    return Targets(v, tf.exp(log_rho_tm1) * (v - v_tm1))


@pytest.mark.parametrize("correction", [*corrections.SCHEMES.values(), own_one_step], ids=[*corrections.SCHEMES, "own"])
def test_no_gradient_through_targets(correction):
    """The gradient with respect to V is (V − v) alone, v held fixed; the last value gets none."""
    (logits, value), batch = make_case(4)
    value, seen = tf.constant(value), {}

    def watched(**arguments):
        seen["targets"], seen["mask_t"] = correction(**arguments), arguments["mask_t"]
        return seen["targets"]

    with tf.GradientTape() as tape:
        tape.watch(value)
        loss, _ = actor_critic(watched, baseline_cost=0.7)((tf.constant(logits), value), batch)
    gradient = tape.gradient(loss, value).numpy()
    expected = 0.7 * seen["mask_t"] * (value[:-1] - seen["targets"].target_tm1)
    np.testing.assert_allclose(gradient[:-1], expected, atol=1e-6)
    assert np.abs(expected).max() > 0.1
    assert not gradient[-1].any()


def test_importance_ratios_carry_no_gradient():
    """A correction that lets its ratios through must not be differentiated through them."""
    (logits, value), batch = make_case(5)

    def leaking(*, v_tm1, log_rho_tm1, **_):
        return Targets(v_tm1, log_rho_tm1)

    logits = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss, _ = actor_critic(leaking, baseline_cost=0.0, entropy_cost=0.0)((logits, value), batch)
    gradient = tape.gradient(loss, logits).numpy()[:-1]
    log_pi, log_mu = log_softmax(logits.numpy()[:-1]), log_softmax(np.asarray(batch.logits_tm1))
    chosen = np.eye(A)[batch.a_tm1]
    log_rho = np.sum(chosen * (log_pi - log_mu), axis=-1) * ~batch.is_first.numpy()[1:]
    np.testing.assert_allclose(gradient, -log_rho[..., None] * (chosen - np.exp(log_pi)), atol=1e-5)


def test_the_entropy_bonus_pushes_towards_the_uniform_policy():
    (logits, value), batch = make_case(6)
    entropy = []
    logits = tf.Variable(logits)
    for _ in range(50):
        with tf.GradientTape() as tape:
            loss, metrics = actor_critic(lambda **a: Targets(tf.stop_gradient(a["v_tm1"]), 0.0 * a["v_tm1"]),
                                         entropy_cost=1.0)((logits, value), batch)  # fmt: skip
        logits.assign_sub(0.5 * tape.gradient(loss, logits))
        entropy.append(float(metrics["entropy"]))
    assert all(later > earlier for earlier, later in zip(entropy, entropy[1:]))
    assert entropy[-1] > 0.95 * np.log(A) > entropy[0]
    assert float(loss) < 0


def test_more_entropy_cost_lowers_the_loss_by_exactly_the_entropy():
    outputs, batch = make_case(7)
    without, metrics = actor_critic(corrections.vtrace, entropy_cost=0.0)(outputs, batch)
    with_, _ = actor_critic(corrections.vtrace, entropy_cost=0.1)(outputs, batch)
    np.testing.assert_allclose(without - with_, 0.1 * metrics["entropy_bonus"] * metrics["num_transitions"], rtol=1e-3)


def test_discount_is_applied_once_and_not_where_episodes_terminate():
    seen = {}

    def spy(**arguments):
        seen.update(arguments)
        return corrections.vtrace(**arguments)

    outputs, batch = make_case(8)
    actor_critic(spy, discount=0.5, reward_clipping="none")(outputs, batch)
    np.testing.assert_allclose(seen["discount_t"], 0.5 * np.asarray(batch.discount_t))
    np.testing.assert_array_equal(seen["r_t"], batch.r_t)
    np.testing.assert_array_equal(seen["mask_t"], 1.0 - np.asarray(batch.is_first[1:], np.float32))
    np.testing.assert_array_equal(seen["v_tm1"], outputs[1][:-1])
    np.testing.assert_array_equal(seen["v_t"], outputs[1][1:])


def test_on_policy_ratios_are_one():
    (logits, value), batch = make_case(9)
    batch = batch._replace(logits_tm1=tf.constant(logits[:-1]) + 3.0)  # a shift of all logits is the same policy
    _, metrics = actor_critic(corrections.vtrace)((logits, value), batch)
    assert float(metrics["log_rho_max"]) < 1e-5
    assert abs(float(metrics["kl_mu_pi"])) < 1e-6
    np.testing.assert_allclose(metrics["effective_sample_size"], 1.0, rtol=1e-5)


def test_telemetry_by_hand():
    """One environment, two transitions and one that is none."""
    ones = np.log(np.array([[0.5, 0.5]], np.float32))
    logits = np.repeat(np.log(np.array([[[0.8, 0.2]]], np.float32)), 4, axis=0)
    batch = Chunk(
        observation=np.zeros((4, 1)), is_first=np.array([[True], [False], [False], [True]]),
        previous_action=None, previous_reward=None, a_tm1=np.array([[0], [1], [1]], np.int32),
        logits_tm1=np.repeat(ones[None], 3, axis=0), r_t=np.zeros((3, 1), np.float32),
        discount_t=np.ones((3, 1), np.float32), weights_version=None, origin=None,
    )  # fmt: skip
    _, metrics = actor_critic(corrections.vtrace)((logits, np.array([[1], [3], [9], [9]], np.float32)), batch)
    rho = np.array([1.6, 0.4])  # 0.8 / 0.5 and 0.2 / 0.5
    expected = dict(
        num_transitions=2, log_rho_mean=np.log(rho).mean(), log_rho_max=np.log(rho).max(),
        rho_clipped_fraction=0.5, effective_sample_size=rho.mean() ** 2 / (rho**2).mean(), value=2.0,
        kl_mu_pi=0.5 * np.log(0.5 / 0.8) + 0.5 * np.log(0.5 / 0.2),
        entropy=-0.8 * np.log(0.8) - 0.2 * np.log(0.2),
        # A_1 = 0.4 (0.99 · 9 − 3), which is v_1 − V_1 too; A_0 = 0.99 (3 + A_1) − 1
        advantage_mean=(2.364 + 4.31036) / 2, advantage_std=(4.31036 - 2.364) / 2,
    )  # fmt: skip
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)


def test_the_explained_variance_is_that_of_the_targets_where_transitions_are_some():
    (logits, value), batch = make_case(5)
    target = np.random.default_rng(1).normal(size=(T, B)).astype(np.float32)

    def correction(*, v_tm1, **_):
        return Targets(tf.constant(target), tf.zeros_like(v_tm1))

    valid = ~batch.is_first.numpy()[1:]
    wanted = 1 - np.var((target - value[:-1])[valid]) / np.var(target[valid])
    _, metrics = actor_critic(correction)((tf.constant(logits), tf.constant(value)), batch)
    np.testing.assert_allclose(metrics["explained_variance"], wanted, rtol=1e-4)
    target[:] = 2.0
    _, metrics = actor_critic(correction)((tf.constant(logits), tf.constant(value)), batch)
    assert np.isnan(metrics["explained_variance"]), "there is nothing to explain"


def test_reward_clippings():
    rewards = tf.constant([-5.0, -1.0, -0.5, 0.0, 0.5, 1.0, 5.0])
    np.testing.assert_array_equal(REWARD_CLIPPING["none"](rewards), rewards)
    np.testing.assert_array_equal(REWARD_CLIPPING["abs_one"](rewards), [-1, -1, -0.5, 0, 0.5, 1, 1])
    paper = [0.3 * min(np.tanh(r), 0) + 5 * max(np.tanh(r), 0) for r in rewards.numpy()]
    np.testing.assert_allclose(REWARD_CLIPPING["soft_asymmetric"](rewards), paper, rtol=1e-6)
    code = [5 * np.tanh(r / 5) if r >= 0 else 1.5 * np.tanh(r / 5) for r in rewards.numpy()]
    np.testing.assert_allclose(REWARD_CLIPPING["soft_asymmetric_code"](rewards), code, rtol=1e-6)


def test_shapes_that_do_not_agree_are_named():
    (logits, value), batch = make_case(0)
    loss = actor_critic(corrections.vtrace)
    with pytest.raises(ValueError, match="^logits has shape"):
        loss((logits[:-1], value), batch)
    with pytest.raises(ValueError, match="^value has shape"):
        loss((logits, value[:, :-1]), batch)
    with pytest.raises(ValueError, match="^r_t has shape"):
        loss((logits, value), batch._replace(r_t=batch.r_t[0]))
    for name in ("discount_t", "is_first", "logits_tm1", "a_tm1"):
        with pytest.raises(ValueError, match=f"^{name} has shape"):
            loss((logits, value), batch._replace(**{name: getattr(batch, name)[:-1]}))
    with pytest.raises(ValueError, match="^logits_tm1 has shape"):
        loss((logits, value), batch._replace(logits_tm1=batch.logits_tm1[..., :-1]))
    with pytest.raises(ValueError, match="^v_behaviour_tm1 has shape"):
        loss((logits, value), batch._replace(v_behaviour_tm1=value))
