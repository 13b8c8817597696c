"""Schemes on the terms of the loss: truth tables, gradients against their equations, limits, masks."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from impala import corrections, losses
from impala.losses import telemetry
from impala.losses.actor_critic import Rows, Terms, actor_critic
from impala.losses.laser import relevance
from impala.losses.ppo_clip import adapted_penalty, clipped_surrogate
from impala.networks.actor_critic import Outputs
from impala.networks.target import TargetOutputs
from tests.corrections import mdp
from tests.losses.test_actor_critic import A, B, T, log_softmax, make_case


def rows_of(log_pi, log_mu, action, *, log_target=None, v=None, v_behaviour=None, is_replayed=None):
    """Rows of distributions [T, B, A], numpy in float32."""
    log_pi, log_mu = (tf.constant(x, tf.float32) for x in (log_pi, log_mu))
    zeros = np.zeros(log_pi.shape[:2], np.float32)
    return Rows(
        log_pi, log_mu, log_pi if log_target is None else tf.constant(log_target, tf.float32), tf.constant(action),
        zeros if v is None else v, zeros if v_behaviour is None else v_behaviour,
        zeros[0] if is_replayed is None else is_replayed,
    )  # fmt: skip


def random_rows(seed=0, **kwargs):
    random = np.random.default_rng(seed)
    log_pi, log_mu, log_target = log_softmax(2 * random.normal(size=(3, T, B, A)))
    return rows_of(log_pi, log_mu, random.integers(A, size=(T, B)), log_target=log_target, **kwargs)


def gradient_of_log_pi(terms, rows, advantage):
    """d objective / d log π(a) [T, B]."""
    with tf.GradientTape() as tape:
        tape.watch(rows.pi_tm1)
        objective, is_clipped = terms.policy(rows, advantage)
        total = tf.reduce_sum(objective)
    gradient = tape.gradient(total, rows.pi_tm1)
    gradient = tf.zeros_like(rows.pi_tm1) if gradient is None else gradient
    others = gradient.numpy().sum(-1) - rows.log_taken(gradient).numpy()
    np.testing.assert_allclose(others, 0.0, atol=1e-6)  # the objective depends on π(a) alone
    return rows.log_taken(gradient).numpy(), is_clipped.numpy()


def test_every_term_rests_on_the_targets_that_its_paper_has():
    assert {word: term.correction for word, term in losses.POLICY_TERMS.items()} == {
        "epsilon_add": "none", "epsilon_max": "none", "ppo_clip": "td_lambda", "appo": "vtrace_unweighted_pg",
        "impact": "vtrace", "clear": "vtrace", "laser": "vtrace",
    }  # fmt: skip


# --- ε-correction


@pytest.mark.parametrize("probability, factor", [(1e-6, 0.5), (1e-4, 1e-4 / (1e-4 + 1e-6)), (0.5, 0.5 / (0.5 + 1e-6))])
def test_epsilon_add_scales_the_gradient_by_pi_over_pi_plus_epsilon(probability, factor):
    log_pi = np.log([[[probability, 1 - probability]]])
    gradient, _ = gradient_of_log_pi(losses.POLICY_TERMS["epsilon_add"].make(), rows_of(log_pi, log_pi, [[0]]), np.float32([[3.0]]))
    np.testing.assert_allclose(gradient, 3.0 * factor, rtol=1e-5)


@pytest.mark.parametrize("probability, factor", [(1e-7, 0.0), (1e-5, 1.0), (0.5, 1.0)])
def test_epsilon_max_has_no_gradient_below_epsilon(probability, factor):
    log_pi = np.log([[[probability, 1 - probability]]])
    gradient, is_clipped = gradient_of_log_pi(losses.POLICY_TERMS["epsilon_max"].make(), rows_of(log_pi, log_pi, [[0]]), np.float32([[3.0]]))
    np.testing.assert_allclose(gradient, 3.0 * factor, rtol=1e-5)
    assert is_clipped == 1.0 - factor


@pytest.mark.parametrize("word", ["epsilon_add", "epsilon_max"])
def test_epsilon_goes_into_the_entropy_and_vanishes_in_the_limit(word):
    rows = random_rows()
    make = losses.POLICY_TERMS[word].make
    exact = Terms().entropy(rows).numpy()
    np.testing.assert_allclose(make(epsilon=1e-30).entropy(rows), exact, rtol=1e-5)
    np.testing.assert_allclose(make(epsilon=1e-30).policy(rows, tf.ones([T, B]))[0], Terms().policy(rows, tf.ones([T, B]))[0], rtol=1e-5)
    pi = np.exp(rows.pi_tm1)
    safe = np.log(pi + 0.1) if word == "epsilon_add" else np.log(np.maximum(pi, 0.1))
    np.testing.assert_allclose(make(epsilon=0.1).entropy(rows), -np.sum(pi * safe, axis=-1), rtol=1e-5)


# --- PPO and IMPACT


@pytest.mark.parametrize("ratio, advantage, objective, slope", [
    (0.5, 1.0, 0.5, 1.0), (0.5, -1.0, -0.8, 0.0), (0.9, 1.0, 0.9, 1.0), (0.9, -1.0, -0.9, -1.0), (1.1, 1.0, 1.1, 1.0),
    (1.1, -1.0, -1.1, -1.0), (1.5, 1.0, 1.2, 0.0), (1.5, -1.0, -1.5, -1.0),
])  # fmt: skip
def test_truth_table_of_the_clipped_surrogate(ratio, advantage, objective, slope):
    x = tf.constant(ratio)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value, is_clipped = clipped_surrogate(x, tf.constant(advantage), 0.2)
    np.testing.assert_allclose(value, objective, rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(value, x), slope)
    assert is_clipped == (slope == 0.0)


def test_the_penalty_follows_how_far_updates_go():
    beta, seen = 1.0, []
    for kl in (0.02, 0.02, 0.01, 0.005, 0.0066):  # the last is just below 0.01 / 1.5
        seen.append(beta := adapted_penalty(beta, kl, 0.01))
    assert seen == [2.0, 4.0, 4.0, 2.0, 1.0]
    # Heess et al. 2017, algorithm 1: α = 1.5, and β_high = 2, β_low = 1/2 of the target.
    by_heess, seen = functools.partial(adapted_penalty, target=0.01, tolerance=2.0, factor=1.5), []
    for kl in (0.021, 0.019, 0.0051, 0.0049, 0.0049):
        seen.append(beta := by_heess(beta, kl))
    assert seen == pytest.approx([1.5, 1.5, 1.5, 1.0, 1 / 1.5])
    for kl in (0.0, 1.0):  # an update that hardly moves, and one that leaps, for thousands of iterations
        for _ in range(3000):
            beta = adapted_penalty(beta, kl, 0.01)
        assert 0 < beta < float("inf")
        beta = adapted_penalty(beta, 0.02, 0.01)
    for wrong in ((0.0, 0.01, 0.01), (1.0, -0.01, 0.01), (1.0, 0.01, 0.0), (1.0, float("nan"), 0.01)):
        with pytest.raises(ValueError, match="beta="):
            adapted_penalty(*wrong)


def test_ppo_clip_takes_the_ratio_to_the_behaviour_policy():
    rows = random_rows(1)
    advantage = np.random.default_rng(2).normal(size=(T, B)).astype(np.float32)
    ratio = np.exp(rows.log_taken(rows.pi_tm1) - rows.log_taken(rows.mu_tm1))
    terms = losses.POLICY_TERMS["ppo_clip"].make(surrogate_clip=0.3)
    expected = np.minimum(ratio * advantage, np.clip(ratio, 0.7, 1.3) * advantage)
    np.testing.assert_allclose(terms.policy(rows, advantage)[0], expected, rtol=1e-5)
    assert 0 < terms.policy(rows, advantage)[1].numpy().mean() < 1
    on_policy = rows._replace(mu_tm1=rows.pi_tm1)
    np.testing.assert_allclose(gradient_of_log_pi(terms, on_policy, advantage)[0], advantage, rtol=1e-5)


@pytest.mark.parametrize("clip, is_same", [(1e6, True), (0.2, False)])
def test_appo_without_its_clip_is_vtrace_without_the_policy_gradients(clip, is_same):
    """∇ρ = ρ ∇log π: the surrogate has the ratio that V-trace's advantage has."""
    (logits, value), batch = make_case(3)
    tensors = [tf.constant(logits), tf.constant(value)]

    def gradients(correction, terms):
        with tf.GradientTape() as tape:
            for tensor in tensors:
                tape.watch(tensor)
            total, _ = actor_critic(correction, terms)(Outputs(*tensors, core_state=(), moments=(), hidden=()), batch)
        return tape.gradient(total, tensors)

    term = losses.POLICY_TERMS["appo"]
    appo = gradients(corrections.SCHEMES[term.correction], term.make(surrogate_clip=clip))
    vtrace = gradients(functools.partial(corrections.vtrace, clip_pg=float("inf")), Terms())
    np.testing.assert_allclose(appo[1], vtrace[1], rtol=1e-5, atol=1e-6)
    assert np.allclose(appo[0], vtrace[0], rtol=1e-4, atol=1e-5) == is_same


def test_impact_truncates_the_ratio_of_behaviour_to_target():
    """μ/π_target = 3, π/μ = ½, ρ_max = 2: the ratio is 1, and 1.5 without truncation."""
    log = lambda p: np.log([[[p, 1 - p]]])  # noqa: E731
    rows = rows_of(log(0.3), log(0.6), [[0]], log_target=log(0.2))
    for ratio_max, expected in ((2.0, 1.0), (10.0, 1.5)):
        terms = losses.POLICY_TERMS["impact"].make(surrogate_clip=10.0, ratio_max=ratio_max)
        np.testing.assert_allclose(terms.policy(rows, 1.0)[0], expected, rtol=1e-5)


def test_impact_is_the_papers_form_and_with_the_behaviour_as_target_ppo():
    rows = random_rows(3)
    taken = lambda x: np.exp(rows.log_taken(x))  # noqa: E731
    pi, mu, target = taken(rows.pi_tm1), taken(rows.mu_tm1), taken(rows.pi_target_tm1)
    objective = losses.POLICY_TERMS["impact"].make(surrogate_clip=1e6, ratio_max=2.0).policy(rows, 1.0)[0]
    np.testing.assert_allclose(objective, pi / np.maximum(target, mu / 2.0), rtol=1e-4)
    assert (mu / target > 2.0).any() and (mu / target < 2.0).any()
    same = rows._replace(pi_target_tm1=rows.mu_tm1)
    advantage = np.random.default_rng(0).normal(size=(T, B)).astype(np.float32)
    one = losses.POLICY_TERMS["impact"].make(surrogate_clip=0.2).policy(same, advantage)[0]
    np.testing.assert_allclose(one, losses.POLICY_TERMS["ppo_clip"].make(surrogate_clip=0.2).policy(same, advantage)[0], rtol=1e-5)


def test_impact_corrects_towards_the_target_network():
    """Targets and advantages are V-trace between π_target and μ; no gradient reaches the target's logits."""
    (logits, value), batch = make_case(1)
    target_logits = np.random.default_rng(9).normal(size=logits.shape).astype(np.float32)
    seen = {}

    def spy(**arguments):
        seen.update(arguments)
        return corrections.vtrace(**arguments)

    loss = actor_critic(spy, losses.POLICY_TERMS["impact"].make())
    tensors = [tf.constant(x) for x in (logits, value, target_logits)]
    with tf.GradientTape() as tape:
        for tensor in tensors:
            tape.watch(tensor)
        total, _ = loss(TargetOutputs(*tensors[:2], core_state=(), moments=(), hidden=(), target_logits=tensors[2]), batch)
    gradients = tape.gradient(total, tensors)
    assert np.abs(gradients[0]).max() > 0 and np.abs(gradients[1]).max() > 0
    assert gradients[2] is None or not np.abs(gradients[2]).any()
    action = batch.a_tm1.numpy()[..., None]
    of = lambda x: np.take_along_axis(log_softmax(x), action, -1)[..., 0]  # noqa: E731
    np.testing.assert_allclose(seen["log_rho_tm1"], of(target_logits[:-1]) - of(batch.logits_tm1.numpy()), rtol=1e-4, atol=1e-5)


# --- CLEAR


def test_clear_clones_what_is_replayed_only():
    random = np.random.default_rng(5)
    v, v_behaviour = random.normal(size=(2, T, B)).astype(np.float32)
    is_replayed = np.float32([1, 0, 1, 0])
    rows = random_rows(5, v=v, v_behaviour=v_behaviour, is_replayed=is_replayed)
    terms = losses.POLICY_TERMS["clear"].make(policy_cloning_cost=0.3, value_cloning_cost=0.7)
    mu, log_ratio = np.exp(rows.mu_tm1), rows.mu_tm1.numpy() - rows.pi_tm1.numpy()
    expected = is_replayed * (0.3 * np.sum(mu * log_ratio, axis=-1) + 0.7 * (v - v_behaviour) ** 2)
    np.testing.assert_allclose(terms.extra(rows), expected, rtol=1e-4, atol=1e-6)
    assert not losses.POLICY_TERMS["clear"].make(policy_cloning_cost=0.0, value_cloning_cost=0.0).extra(rows).numpy().any()


# --- LASER


def test_relevance_on_the_mdp():
    """KL(π ‖ π_ρ̄=1) per state; b = 0.1 rejects state 2 only."""
    kl = relevance(tf.constant(np.log(mdp.PI)), tf.constant(np.log(mdp.MU)), 1.0)
    np.testing.assert_allclose(kl, mdp.TRUTH["laser_kl"], rtol=1e-9)
    rows = rows_of(np.log(mdp.PI)[:, None], np.log(mdp.MU)[:, None], [[0], [0], [0]])
    np.testing.assert_array_equal(losses.POLICY_TERMS["laser"].make(trust_threshold=0.1).is_trusted(rows)[:, 0], [1, 1, 0])


def test_laser_trusts_everything_on_policy_and_everywhere_for_an_infinite_region():
    rows = random_rows(6)
    make = losses.POLICY_TERMS["laser"].make
    assert make(trust_threshold=float("inf")).is_trusted(rows).numpy().all()
    assert make(trust_threshold=1e-3).is_trusted(rows._replace(mu_tm1=rows.pi_tm1)).numpy().all()
    assert 0 < make(trust_threshold=0.1).is_trusted(rows).numpy().mean() < 1


def test_laser_counts_entropy_on_fresh_data_only():
    rows = random_rows(7, is_replayed=np.float32([0, 1, 0, 1]))
    entropy = losses.POLICY_TERMS["laser"].make().entropy(rows).numpy()
    assert not entropy[:, [1, 3]].any()
    np.testing.assert_allclose(entropy[:, [0, 2]], Terms().entropy(rows).numpy()[:, [0, 2]])


def test_laser_leaves_untrusted_transitions_out_and_bootstraps_at_them():
    """The same loss as when the untrusted rows were resets, but the row before still bootstraps from V."""
    (logits, value), batch = make_case(3)
    batch = batch._replace(is_first=tf.zeros_like(batch.is_first), discount_t=tf.ones_like(batch.discount_t))
    trusted = tf.constant(np.random.default_rng(0).random((T, B)) > 0.3)
    terms = Terms(is_trusted=lambda rows: tf.cast(trusted, tf.float32))
    total, metrics = actor_critic(corrections.vtrace, terms)((logits, value), batch)
    as_resets = batch._replace(is_first=tf.concat([tf.zeros([1, B], tf.bool), ~trusted], axis=0))
    expected, _ = actor_critic(corrections.vtrace)((logits, value), as_resets)
    np.testing.assert_allclose(total, expected, rtol=1e-6)
    np.testing.assert_allclose(metrics["rejected_fraction"], 1 - trusted.numpy().mean(), rtol=1e-6)
    assert float(metrics["num_transitions"]) == T * B  # frames count all the same


# --- the loss around them


@pytest.mark.parametrize("word", losses.POLICY_TERMS)
def test_every_term_leaves_resets_out(word):
    """Changing what lies on masked rows changes neither loss nor gradient."""
    (logits, value), batch = make_case(4)
    batch = batch._replace(v_behaviour_tm1=tf.random.normal([T, B], seed=1), is_replayed=tf.constant([True, False, True, False]))
    term = losses.POLICY_TERMS[word]
    loss = actor_critic(corrections.SCHEMES[term.correction], term.make())
    outputs = (logits, value) + ((logits[::-1].copy(),) if word == "impact" else ())
    masked = batch.is_first.numpy()[1:]
    assert masked.any()

    def perturbed(x):
        x = np.array(x)
        x[masked] = x[masked] + 1
        return tf.constant(x)

    changed = batch._replace(
        r_t=perturbed(batch.r_t), v_behaviour_tm1=perturbed(batch.v_behaviour_tm1),
        logits_tm1=tf.constant(np.where(masked[..., None], np.float32([0.3, 0.1, -2.0]), batch.logits_tm1)),
    )  # fmt: skip
    np.testing.assert_allclose(loss(outputs, batch)[0], loss(outputs, changed)[0], rtol=1e-6)


@pytest.mark.parametrize("word", losses.POLICY_TERMS)
def test_every_term_learns_from_gradients_that_are_finite(word):
    (logits, value), batch = make_case(5)
    batch = batch._replace(v_behaviour_tm1=tf.random.normal([T, B], seed=1), is_replayed=tf.constant([True, False, True, False]))
    term = losses.POLICY_TERMS[word]
    loss = actor_critic(corrections.SCHEMES[term.correction], term.make())
    variables = [tf.constant(logits), tf.constant(value)]
    with tf.GradientTape() as tape:
        for tensor in variables:
            tape.watch(tensor)
        total, metrics = loss((*variables, tf.constant(logits[::-1].copy())) if word == "impact" else variables, batch)
    for gradient in tape.gradient(total, variables):
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0
    assert all(np.isfinite(metric) for metric in metrics.values())


@pytest.mark.parametrize("word, parameters", [
    ("epsilon_add", dict(epsilon=0.0)), ("epsilon_max", dict(epsilon=-1.0)), ("ppo_clip", dict(surrogate_clip=0.0)),
    ("appo", dict(surrogate_clip=-0.1)),
    ("impact", dict(surrogate_clip=0.0)), ("impact", dict(ratio_max=0.0)), ("clear", dict(policy_cloning_cost=-1.0)),
    ("clear", dict(value_cloning_cost=-1.0)), ("laser", dict(trust_threshold=0.0)), ("laser", dict(clip_rho=0.0)),
])  # fmt: skip
def test_parameters_out_of_range_are_refused(word, parameters):
    with pytest.raises(ValueError, match="expected"):
        losses.POLICY_TERMS[word].make(**parameters)


# --- telemetry


def test_telemetry_by_hand():
    """Two columns of three steps; one termination, one reset, one replayed column."""
    mu_a = np.array([[0.25, 0.5], [0.5, 0.4], [0.2, 0.5]])
    logits_mu = np.log(np.stack([mu_a, 1 - mu_a], axis=-1)).astype(np.float32)
    _, batch = make_case()
    batch = batch._replace(
        observation=None, a_tm1=tf.zeros([3, 2], tf.int32), logits_tm1=tf.constant(logits_mu), r_t=tf.ones([3, 2]),
        discount_t=tf.constant([[1.0, 1.0], [0.0, 1.0], [1.0, 1.0]]),
        is_first=tf.constant([[False, False], [False, True], [False, False], [False, False]]),
        is_replayed=tf.constant([False, True]),
    )  # fmt: skip
    outputs = (tf.zeros([4, 2, 2]), tf.zeros([4, 2]))
    _, metrics = actor_critic(functools.partial(corrections.vtrace, clip_c=0.9), clip_rho=1.0, clip_c=0.9)(outputs, batch)
    metrics = {name: float(value) for name, value in metrics.items()}
    rho = np.array([2.0, 1.0, 2.5, 1.25, 1.0])  # without the masked row, column after column
    assert metrics["num_transitions"] == 3  # fresh ones
    np.testing.assert_allclose(metrics["log_rho_mean"], np.log(rho).mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["log_rho_max"], np.log(2.5), rtol=1e-5)
    np.testing.assert_allclose(metrics["rho_clipped_fraction"], 3 / 5)
    np.testing.assert_allclose(metrics["c_clipped_fraction"], 1.0)
    np.testing.assert_allclose(metrics["effective_sample_size"], rho.sum() ** 2 / (5 * np.sum(rho**2)), rtol=1e-5)
    # Column 0: [1 + .9 · 1, 1 (terminates), 1]; column 1: none, [1 + .9 · 1, 1].
    np.testing.assert_allclose(metrics["trace_length"], (1.9 + 1 + 1 + 1.9 + 1) / 5, rtol=1e-5)
    np.testing.assert_allclose(metrics["replayed_fraction"], 0.5)
    np.testing.assert_allclose(metrics["rejected_fraction"], 0.0, atol=1e-7)
    # v − V with V = 0, r = 1, γ = .99: last rows 1; row 0: 1 + .99 · .9 · 1.
    corrections_of = np.array([1 + 0.99 * 0.9, 1.0, 1.0, 1 + 0.99 * 0.9, 1.0])
    np.testing.assert_allclose(metrics["value_correction"], np.sqrt(np.mean(corrections_of**2)), rtol=1e-5)


def test_the_entropy_that_is_logged_is_the_policys_whatever_the_bonus_counts():
    outputs, batch = make_case(4)
    batch = batch._replace(is_replayed=tf.constant(np.arange(batch.r_t.shape[1]) % 2 == 0))
    plain = actor_critic(corrections.vtrace)(outputs, batch)[1]
    laser = actor_critic(corrections.vtrace, losses.POLICY_TERMS["laser"].make(trust_threshold=0.05))(outputs, batch)[1]
    assert float(laser["entropy_bonus"]) < 0.7 * float(plain["entropy_bonus"])
    np.testing.assert_allclose(laser["entropy"], plain["entropy"], rtol=1e-6)
    np.testing.assert_allclose(plain["entropy"], plain["entropy_bonus"], rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_the_trace_length_is_the_mean_sum_of_products(seed, monkeypatch):
    """Σ_{t ≥ s} Π_{i=s}^{t−1} c_i, with traces that differ from step to step, until an episode ends."""
    random = np.random.default_rng(seed)
    outputs, batch = make_case(seed)
    shape = tuple(np.asarray(batch.r_t).shape)
    trace_tm1 = random.uniform(0.1, 1.5, shape).astype(np.float32)

    def scheme(**x):
        targets = corrections.none(**x)
        targets.trace_tm1 = tf.constant(trace_tm1)
        return targets

    mask_t, lengths = 1 - np.asarray(batch.is_first)[1:].astype(int), []
    goes_on = (np.asarray(batch.discount_t) != 0) & (mask_t == 1)
    assert not goes_on.all() and goes_on.any()
    for s, b in zip(*np.nonzero(mask_t)):
        product, length = 1.0, 0.0
        for t in range(s, shape[0]):
            length += product * mask_t[t, b]
            product *= trace_tm1[t, b] * goes_on[t, b]
        lengths.append(length)
    for long in (telemetry._LONG, 0):  # as short unrolls, and as long ones
        monkeypatch.setattr(telemetry, "_LONG", long)
        metrics = actor_critic(scheme)(outputs, batch)[1]
        np.testing.assert_allclose(metrics["trace_length"], np.mean(lengths), rtol=1e-4)


def test_the_trace_length_tells_the_schemes_apart():
    outputs, batch = make_case(2)
    length = {
        name: float(actor_critic(scheme)(outputs, batch)[1]["trace_length"]) for name, scheme in corrections.SCHEMES.items()
    }  # fmt: skip
    assert length["none"] > length["vtrace"] > length["vtrace_c0"] == 1.0
    assert np.isnan(float(actor_critic(lambda **x: corrections.Targets(x["v_tm1"], x["r_t"]))(outputs, batch)[1]["trace_length"]))
