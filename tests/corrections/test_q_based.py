"""The Q-based schemes: golden case, exact fixed points and contraction on MDP-A, ACER's identity, contracts."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala import corrections
from impala.corrections.acer import trust_region
from tests.corrections import mdp

INF = float("inf")
CASE = mdp.GOLDEN["q_case"]
every_scheme = pytest.mark.parametrize("scheme", corrections.Q_SCHEMES.values(), ids=corrections.Q_SCHEMES)


def golden_arguments():
    q, pi, action = np.array(CASE["q"]), np.array(CASE["pi"]), np.array(CASE["a"])
    mu = np.empty((5, 2))
    mu[np.arange(5), action] = CASE["mu_a"]
    mu[np.arange(5), 1 - action] = 1 - np.array(CASE["mu_a"])
    return dict(
        q_tm1=q[:-1, None], q_t=q[1:, None], a_tm1=action[:, None], r_t=mdp.column(mdp.R_T),
        discount_t=mdp.column(mdp.DISCOUNT_T), log_pi_tm1=np.log(pi)[:-1, None], log_pi_t=np.log(pi)[1:, None],
        log_mu_tm1=np.log(mu)[:, None],
    )  # fmt: skip


def random_arguments(seed, length=9, width=4, actions=3, dtype="float64", with_mask=True):
    random = np.random.default_rng(seed)
    log = lambda x: x - np.log(np.exp(x).sum(axis=-1, keepdims=True))  # noqa: E731
    q, pi = random.normal(size=(2, length + 1, width, actions))
    floats = dict(
        q_tm1=q[:-1], q_t=q[1:], log_pi_tm1=log(pi)[:-1], log_pi_t=log(pi)[1:],
        log_mu_tm1=log(random.normal(size=(length, width, actions))), r_t=random.normal(size=(length, width)),
        discount_t=0.95 * (random.random((length, width)) > 0.2),
        mask_t=(random.random((length, width)) > 0.15) if with_mask else np.ones((length, width)),
    )  # fmt: skip
    floats = {name: x.astype(dtype) for name, x in floats.items()}
    return floats | dict(a_tm1=random.integers(actions, size=(length, width)))


@pytest.mark.parametrize("key, scheme, parameters", [
    ("q_retrace_1", corrections.retrace, {}),
    ("q_retrace_.9", corrections.retrace, dict(lambda_=0.9)),
    ("q_tree_backup_1", corrections.tree_backup, {}),
    ("q_q_lambda_.5", corrections.q_lambda, dict(lambda_=0.5)),
    ("q_importance_sampling", corrections.importance_sampling, {}),
    ("q_one_step_expected_sarsa", corrections.q_lambda, dict(lambda_=0.0)),
    ("q_one_step_expected_sarsa", corrections.retrace, dict(lambda_=0.0)),
    ("q_one_step_expected_sarsa", corrections.tree_backup, dict(lambda_=0.0)),
    ("q_retrace_1", corrections.acer, {}),
])  # fmt: skip
def test_golden_case(key, scheme, parameters):
    targets = scheme(**golden_arguments(), **parameters)
    np.testing.assert_allclose(targets.target_tm1[:, 0], mdp.GOLDEN[key], rtol=1e-12)


def transcription(x, trace):
    """Munos et al., equation 3, term by term; `trace` of (ratio, π(a)) is c."""
    length, width = x["r_t"].shape
    target = np.empty((length, width))
    for b in range(width):
        a = x["a_tm1"][:, b]
        taken = lambda y: y[np.arange(length), b, a]  # noqa: B023, E731
        q, pi, mu = taken(x["q_tm1"]), np.exp(taken(x["log_pi_tm1"])), np.exp(taken(x["log_mu_tm1"]))
        v_t = np.sum(np.exp(x["log_pi_t"][:, b]) * x["q_t"][:, b], axis=-1)
        for s in range(length):
            target[s, b], weight = q[s], 1.0
            for t in range(s, length):
                if not x["mask_t"][t, b]:
                    break
                if t > s:
                    weight *= trace(pi[t] / mu[t], pi[t])
                target[s, b] += weight * (x["r_t"][t, b] + x["discount_t"][t, b] * v_t[t] - q[t])
                weight *= x["discount_t"][t, b]
    return target


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scheme, parameters, trace", [
    (corrections.importance_sampling, {}, lambda ratio, pi: ratio),
    (corrections.q_lambda, dict(lambda_=0.7), lambda ratio, pi: 0.7),
    (corrections.tree_backup, dict(lambda_=0.7), lambda ratio, pi: 0.7 * pi),
    (corrections.retrace, dict(lambda_=0.7), lambda ratio, pi: 0.7 * min(1.0, ratio)),
    (corrections.acer, {}, lambda ratio, pi: min(1.0, ratio)),
])  # fmt: skip
def test_targets_match_a_slow_transcription(scheme, parameters, trace, seed):
    arguments = random_arguments(seed)
    assert (arguments["mask_t"] == 0).any() and (arguments["discount_t"] == 0).any()
    np.testing.assert_allclose(scheme(**arguments, **parameters).target_tm1, transcription(arguments, trace), rtol=1e-10)


@pytest.mark.parametrize("scheme", [s for s in corrections.Q_SCHEMES.values() if s is not corrections.peng_q_lambda])
@pytest.mark.parametrize("num_steps", [1, 3])
def test_fixed_point_is_the_value_of_the_target_policy(scheme, num_steps):
    q = np.array(mdp.TRUTH["Q_pi"])
    np.testing.assert_allclose(q, mdp.q_value_of(mdp.PI), rtol=1e-12)
    np.testing.assert_allclose(mdp.expected_q_target(scheme, q, num_steps), q, rtol=1e-10)
    other = np.array(mdp.TRUTH["Q_mu"])
    assert np.abs(mdp.expected_q_target(scheme, other, num_steps) - other).max() > 0.1


def fixed_point(operator):
    """Returns q [3, 2] with operator(q) = q, for an operator that is linear but for a constant."""
    constant = operator(np.zeros((3, 2))).ravel()
    matrix = np.stack([operator(unit.reshape(3, 2)).ravel() - constant for unit in np.eye(6)], axis=1)
    return np.linalg.solve(np.eye(6) - matrix, constant).reshape(3, 2)


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 1.0])
def test_peng_matches_a_slow_transcription_and_is_biased_towards_the_behaviour(lambda_):
    x = random_arguments(4)
    v_t = np.sum(np.exp(x["log_pi_t"]) * x["q_t"], axis=-1)
    expected = np.take_along_axis(x["q_tm1"], x["a_tm1"][..., None], -1)[..., 0].copy()
    length, width = x["r_t"].shape
    for b in range(width):
        for s in reversed(range(length)):
            if x["mask_t"][s, b]:
                follows = s + 1 < length and x["mask_t"][s + 1, b]
                later = (1 - lambda_) * v_t[s, b] + lambda_ * expected[s + 1, b] if follows else v_t[s, b]
                expected[s, b] = x["r_t"][s, b] + x["discount_t"][s, b] * later
    np.testing.assert_allclose(corrections.peng_q_lambda(**x, lambda_=lambda_).target_tm1, expected, rtol=1e-10)
    mixed = mdp.q_value_of((1 - lambda_) * mdp.PI + lambda_ * mdp.MU)
    found = fixed_point(lambda q: mdp.expected_q_target(corrections.peng_q_lambda, q, 3, lambda_=lambda_))
    if lambda_ == 0.0:
        np.testing.assert_allclose(found, mixed, rtol=1e-8)
    else:  # at a window's end π decides, whatever λ is: between the two
        one, other = np.array(mdp.TRUTH["Q_pi"]), mixed
        assert (np.minimum(one, other) - 1e-9 <= found).all() and (found <= np.maximum(one, other) + 1e-9).all()
        assert np.abs(found - one).max() > 0.01


TRACES = {
    "retrace_1": np.minimum(1, mdp.RHO), "retrace_.9": 0.9 * np.minimum(1, mdp.RHO), "tree_backup_1": mdp.PI,
    "q_lambda_.5": np.full((3, 2), 0.5), "q_lambda_1": np.ones((3, 2)), "IS": mdp.RHO, "one_step": np.zeros((3, 2)),
}  # fmt: skip
SCHEMES = {
    "retrace_1": (corrections.retrace, {}), "retrace_.9": (corrections.retrace, dict(lambda_=0.9)),
    "tree_backup_1": (corrections.tree_backup, {}), "q_lambda_.5": (corrections.q_lambda, dict(lambda_=0.5)),
    "q_lambda_1": (corrections.q_lambda, {}), "IS": (corrections.importance_sampling, {}),
    "one_step": (corrections.q_lambda, dict(lambda_=0.0)),
}  # fmt: skip


def q_operator_matrix(c, num_steps):
    """The linear part [6, 6] of the expected n-step operator (None: infinite) from trace weights c [3, 2]."""
    to = lambda w: mdp.GAMMA * np.einsum("sat,tb->satb", mdp.P, w).reshape(6, 6)  # noqa: E731
    traced, error = to(mdp.MU * c), to(mdp.PI) - np.eye(6)
    if num_steps is None:
        return np.eye(6) + np.linalg.solve(np.eye(6) - traced, error)
    return np.eye(6) + sum(np.linalg.matrix_power(traced, k) for k in range(num_steps)) @ error


@pytest.mark.parametrize("name", TRACES)
def test_contraction_coefficients(name):
    matrix, truth = q_operator_matrix(TRACES[name], None), mdp.TRUTH["q_ops"][name]
    np.testing.assert_allclose(np.abs(matrix).sum(axis=1).max(), truth["eta"], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.abs(np.linalg.eigvals(matrix)).max(), truth["radius"], rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("name", TRACES)
def test_expected_target_is_the_exact_operator(name):
    scheme, parameters = SCHEMES[name]
    zero = mdp.expected_q_target(scheme, np.zeros((3, 2)), 3, **parameters)
    columns = [mdp.expected_q_target(scheme, unit.reshape(3, 2), 3, **parameters) - zero for unit in np.eye(6)]
    own = np.stack([column.ravel() for column in columns], axis=1)
    np.testing.assert_allclose(own, q_operator_matrix(TRACES[name], 3), atol=1e-10)


def test_q_lambda_is_safe_up_to_the_bound_only():
    distance = np.abs(mdp.PI - mdp.MU).sum(axis=1).max()
    bound = (1 - mdp.GAMMA) / (mdp.GAMMA * distance)
    np.testing.assert_allclose(bound, 0.138889, rtol=1e-5)
    eta = lambda lambda_: np.abs(q_operator_matrix(np.full((3, 2), lambda_), None)).sum(axis=1).max()  # noqa: E731
    assert eta(bound) < 1 < eta(1.0)


# --- ACER


@pytest.mark.parametrize("truncation", [0.0, 1.0, 10.0, INF])
def test_acer_is_unbiased_with_exact_values_for_every_truncation(truncation):
    q = mdp.q_value_of(mdp.PI)
    probability, first, _, arguments = mdp.q_enumeration_arguments(q, 1)
    weight = corrections.acer(**arguments, truncation=truncation).policy_weight_tm1[0].numpy()
    component = weight[:, 0] * mdp.PI[first, 1] - weight[:, 1] * mdp.PI[first, 0]  # Σ_b w_b ∂ log π(b) / ∂ logit of 0
    gradient = [np.sum((probability * component)[first == x]) for x in range(3)]
    np.testing.assert_allclose(gradient, mdp.TRUTH["pg_component0"]["true"], rtol=1e-9)


@pytest.mark.parametrize("truncation", [0.0, 1.0, 10.0, INF])
def test_acers_weights_match_the_papers_equation(truncation):
    x = random_arguments(3)
    targets = corrections.acer(**x, truncation=truncation)
    pi, mu = np.exp(x["log_pi_tm1"]), np.exp(x["log_mu_tm1"])
    v = np.sum(pi * x["q_tm1"], axis=-1)
    ratio = pi / mu
    expected = pi * np.maximum(0.0, 1.0 - truncation / ratio) * (x["q_tm1"] - v[..., None]) if truncation < INF else np.zeros_like(pi)
    for t, b in np.ndindex(*v.shape):
        a = x["a_tm1"][t, b]
        expected[t, b, a] += min(truncation, ratio[t, b, a]) * (targets.target_tm1[t, b] - v[t, b])
    np.testing.assert_allclose(targets.policy_weight_tm1, expected * x["mask_t"][..., None], rtol=1e-9, atol=1e-12)
    assert (ratio > 1).any() and (ratio < 1).any()


def test_acer_without_truncation_is_importance_sampling_and_with_zero_needs_no_sample():
    x = random_arguments(5)
    np.testing.assert_allclose(
        corrections.acer(**x, truncation=INF).policy_weight_tm1, corrections.retrace(**x).policy_weight_tm1, atol=1e-12
    )
    pi = np.exp(x["log_pi_tm1"])
    v = np.sum(pi * x["q_tm1"], axis=-1, keepdims=True)
    np.testing.assert_allclose(
        corrections.acer(**x, truncation=0.0).policy_weight_tm1, x["mask_t"][..., None] * pi * (x["q_tm1"] - v), atol=1e-12
    )


def test_the_policy_weight_of_the_others_is_on_the_action_taken():
    x = random_arguments(6)
    for scheme in (corrections.retrace, corrections.tree_backup, corrections.q_lambda, corrections.importance_sampling):
        targets = scheme(**x)
        v = np.sum(np.exp(x["log_pi_tm1"]) * x["q_tm1"], axis=-1)
        for t, b in np.ndindex(*v.shape):
            a, expected = x["a_tm1"][t, b], np.zeros(3)
            ratio = np.exp(x["log_pi_tm1"][t, b, a] - x["log_mu_tm1"][t, b, a])
            expected[a] = x["mask_t"][t, b] * ratio * (targets.target_tm1[t, b] - v[t, b])
            np.testing.assert_allclose(targets.policy_weight_tm1[t, b], expected, rtol=1e-10, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), delta=st.floats(0.0, 2.0))
def test_trust_region_is_the_nearest_point_of_the_half_space(seed, delta):
    gradient, kl = np.random.default_rng(seed).normal(size=(2, 5, 4))
    z = trust_region(gradient, kl, delta).numpy()
    inside = np.sum(kl * gradient, axis=-1) <= delta
    np.testing.assert_array_equal(z[inside], gradient[inside])
    np.testing.assert_allclose(np.sum(kl * z, axis=-1)[~inside], delta, atol=1e-9)
    across = z - gradient  # parallel to k
    np.testing.assert_allclose(np.abs(np.sum(across * kl, axis=-1)), np.linalg.norm(across, axis=-1) * np.linalg.norm(kl, axis=-1), atol=1e-9)
    np.testing.assert_array_equal(trust_region(gradient, kl, INF), gradient)
    np.testing.assert_array_equal(trust_region(gradient, np.zeros_like(kl), delta), gradient)


# --- identities and contracts


def test_on_policy_identities():
    x = random_arguments(7)
    on_policy = x | dict(log_mu_tm1=x["log_pi_tm1"])
    one, other = corrections.retrace(**on_policy).target_tm1, corrections.importance_sampling(**on_policy).target_tm1
    np.testing.assert_allclose(one, other, rtol=1e-12)
    np.testing.assert_allclose(one, corrections.q_lambda(**on_policy).target_tm1, rtol=1e-12)
    assert np.abs(one - corrections.tree_backup(**on_policy).target_tm1).max() > 0.1  # it cuts even on policy


def test_on_policy_retrace_is_not_the_n_step_return():
    """It keeps E_π Q − Q(a), of mean zero, where V-trace keeps nothing."""
    x = random_arguments(8, with_mask=False)
    on_policy = x | dict(log_mu_tm1=x["log_pi_tm1"])
    v = lambda log_pi, q: np.sum(np.exp(log_pi) * q, axis=-1)  # noqa: E731
    n_step = corrections.none(
        v_tm1=v(x["log_pi_tm1"], x["q_tm1"]), v_t=v(x["log_pi_t"], x["q_t"]), r_t=x["r_t"], discount_t=x["discount_t"],
        log_rho_tm1=np.zeros_like(x["r_t"]),
    ).target_tm1  # fmt: skip
    assert np.abs(n_step[:-1] - corrections.retrace(**on_policy).target_tm1[:-1]).max() > 0.1
    np.testing.assert_allclose(n_step[-1], corrections.retrace(**on_policy).target_tm1[-1], rtol=1e-12)


@every_scheme
def test_masked_rows_are_no_transitions(scheme):
    x = random_arguments(2)
    masked = x["mask_t"] == 0
    changed = {name: np.array(value) for name, value in x.items()}
    changed["r_t"][masked] = 7.0
    changed["log_mu_tm1"][masked] = -1e3  # the ratio's exponential overflows
    for one, other in zip(scheme(**x), scheme(**changed)):
        np.testing.assert_allclose(one, other, atol=1e-12)
    q_a = np.take_along_axis(x["q_tm1"], x["a_tm1"][..., None], -1)[..., 0]
    np.testing.assert_allclose(scheme(**x).target_tm1.numpy()[masked], q_a[masked])
    assert not scheme(**x).policy_weight_tm1.numpy()[masked].any()


@every_scheme
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), end=st.integers(0, 7))
def test_nothing_before_a_termination_depends_on_what_follows(scheme, seed, end):
    x = random_arguments(seed, with_mask=False)
    x["discount_t"][end] = 0.0
    changed = {name: np.array(value) for name, value in x.items()}
    for name in ("r_t", "q_tm1"):
        changed[name][end + 1 :] += 1.0
    changed["q_t"][end:] += 1.0
    changed["log_mu_tm1"][end + 1 :] = -1e3  # not even a ratio that overflows
    for one, other in zip(scheme(**x), scheme(**changed)):
        np.testing.assert_array_equal(one[: end + 1], other[: end + 1])


@pytest.mark.parametrize("scheme, parameters", [
    (corrections.retrace, {}), (corrections.tree_backup, {}), (corrections.q_lambda, dict(lambda_=0.1)),
    (corrections.acer, dict(truncation=10.0)),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_ratios_leave_finite_targets(scheme, parameters, dtype):
    x = random_arguments(0, dtype=dtype)
    x["log_mu_tm1"] = np.where(x["log_mu_tm1"] > x["log_pi_tm1"], x["log_pi_tm1"] + 80, x["log_pi_tm1"] - 80).astype(dtype)
    targets = scheme(**x, **parameters)
    assert np.isfinite(targets.target_tm1).all()
    if scheme is corrections.acer:  # the others' policy weight is the plain ratio
        assert np.isfinite(targets.policy_weight_tm1).all()


@every_scheme
def test_no_gradient_flows_out(scheme):
    x = {name: tf.constant(value) for name, value in random_arguments(0).items()}
    floats = [value for value in x.values() if value.dtype.is_floating]
    with tf.GradientTape() as tape:
        for tensor in floats:
            tape.watch(tensor)
        total = sum(tf.reduce_sum(part) for part in scheme(**x))
    assert all(gradient is None for gradient in tape.gradient(total, floats))


@every_scheme
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), spread=st.floats(0.0, 2.0))
def test_float32_matches_float64(scheme, seed, spread):
    narrow = random_arguments(seed, length=5, dtype="float32")
    mu = spread * np.random.default_rng(seed).normal(size=narrow["log_mu_tm1"].shape)
    mu = narrow["log_pi_tm1"] + np.clip(mu, -5, 5)  # a ratio of log ρ, not a distribution: only the arithmetic counts
    narrow["log_mu_tm1"] = mu.astype("float32")
    wide = {name: value if name == "a_tm1" else value.astype("float64") for name, value in narrow.items()}
    for one, other in zip(scheme(**wide), scheme(**narrow)):
        assert other.dtype == tf.float32
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(one).max()))


@every_scheme
@pytest.mark.parametrize("argument", ["q_tm1", "r_t", "q_t", "log_pi_tm1", "log_pi_t", "log_mu_tm1"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_never_becomes_a_finite_target_in_silence(scheme, argument, bad):
    x = random_arguments(0, with_mask=False)
    x["discount_t"][:] = 0.9
    x[argument][4, 2] = bad
    targets = scheme(**x)
    assert not np.isfinite(targets.target_tm1[4, 2])
    assert not np.isfinite(targets.policy_weight_tm1[4, 2]).all()


@every_scheme
@pytest.mark.parametrize("argument", ["q_t", "a_tm1", "r_t", "discount_t", "log_pi_tm1", "log_pi_t", "log_mu_tm1", "mask_t"])
def test_shapes_that_do_not_agree_are_named(scheme, argument):
    with pytest.raises(ValueError, match=f"^{argument} has shape"):
        scheme(**random_arguments(0) | {argument: np.zeros((4, 1, 3) if argument[0] in "ql" else (4, 1), int if argument[0] == "a" else float)})


@every_scheme
def test_dtypes_that_do_not_agree_are_named(scheme):
    with pytest.raises(ValueError, match="^r_t is float32; expected float64"):
        scheme(**random_arguments(0) | dict(r_t=np.zeros((9, 4), "float32")))
    with pytest.raises(ValueError, match="^a_tm1 is float64; expected integers"):
        scheme(**random_arguments(0) | dict(a_tm1=np.zeros((9, 4))))
    lists = {name: x.tolist() for name, x in random_arguments(0, dtype="float32").items()}
    np.testing.assert_allclose(scheme(**lists).target_tm1, scheme(**random_arguments(0, dtype="float32")).target_tm1)


@pytest.mark.parametrize("scheme, parameters, message", [
    (corrections.retrace, dict(lambda_=1.5), "lambda_=1.5"),
    (corrections.tree_backup, dict(lambda_=-0.1), "lambda_=-0.1"),
    (corrections.q_lambda, dict(lambda_=float("nan")), "lambda_=nan"),
    (corrections.peng_q_lambda, dict(lambda_=2.0), "lambda_=2.0"),
    (corrections.acer, dict(truncation=-1.0), "truncation=-1.0"),
])  # fmt: skip
def test_parameters_out_of_range_are_refused(scheme, parameters, message):
    with pytest.raises(ValueError, match=message):
        scheme(**random_arguments(0), **parameters)
