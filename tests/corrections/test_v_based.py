"""Every V-based scheme: golden unrolls, slow transcriptions, exact fixed points, identities, contracts."""

import functools
import inspect

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala import corrections
from tests.corrections import mdp
from tests.corrections.test_vtrace import random_arguments

INF = float("inf")
SCHEMES = corrections.SCHEMES

# Every scheme with parameters that differ from its defaults where it has some.
VARIANTS = {
    "none": (corrections.none, {}),
    "one_step_is": (corrections.one_step_is, dict(clip_pg=1.2)),
    "vtrace": (corrections.vtrace, dict(clip_rho=1.5, clip_c=1.1, clip_pg=1.3, lambda_=0.9)),
    "vtrace_mixed": (corrections.vtrace, dict(lambda_=0.8, pg_bootstrap="mixed")),
    "vtrace_c0": (corrections.vtrace_c0, dict(clip_rho=1.5, clip_pg=1.3)),
    "vtrace_unweighted_pg": (corrections.vtrace_unweighted_pg, dict(lambda_=0.9)),
    "leaky_vtrace": (corrections.leaky_vtrace, dict(alpha_rho=0.3, alpha_c=0.6, lambda_=0.9)),
    "per_decision_is": (corrections.per_decision_is, {}),
    "per_decision_is_plain": (corrections.per_decision_is, dict(control_variate=False)),
    "full_is": (corrections.full_is, {}),
    "weighted_is": (corrections.weighted_is, {}),
    "td_lambda": (corrections.td_lambda, dict(lambda_=0.95)),
    "upgo": (corrections.upgo, dict(clip_pg=1.2)),
}
every_variant = pytest.mark.parametrize("name", VARIANTS)


def apply(name, arguments):
    scheme, parameters = VARIANTS[name]
    return scheme(**arguments, **parameters)


def test_the_variants_cover_the_shelf():
    assert {scheme for scheme, _ in VARIANTS.values()} == set(SCHEMES.values())


# --- golden unroll


@pytest.mark.parametrize("scheme, parameters, targets, advantages", [
    (corrections.none, {}, ("no_correction", "vs"), ("no_correction", "pg_adv")),
    (corrections.one_step_is, {}, ("one_step_is", "vs"), ("one_step_is", "pg_adv")),
    (corrections.vtrace, dict(lambda_=0.9, pg_bootstrap="mixed"), ("vtrace_lam.9_rlax", "vs"), ("vtrace_lam.9_rlax", "pg_adv")),
    (corrections.vtrace, dict(lambda_=0.9), ("vtrace_lam.9_seed", "vs"), ("vtrace_lam.9_seed", "pg_adv")),
    (corrections.vtrace_c0, {}, ("vtrace_c0", "vs"), ("vtrace_c0", "pg_adv")),
    (corrections.per_decision_is, {}, ("pdis_unclipped", "vs"), ("pdis_unclipped", "pg_adv")),
    (corrections.per_decision_is, dict(control_variate=False), ("pdis_no_control_variate",), None),
    (corrections.full_is, {}, ("full_product_is",), None),
    (corrections.leaky_vtrace, {}, ("leaky_.5_.5", "vs"), ("leaky_.5_.5", "pg_adv")),
    (corrections.td_lambda, dict(lambda_=0.95), ("gae_.95", "td_lambda_target"), ("gae_.95", "gae_adv")),
    (corrections.upgo, {}, ("upgo", "G"), ("upgo", "pg_adv")),
])  # fmt: skip
def test_golden_unroll(scheme, parameters, targets, advantages):
    def golden(path):
        return functools.reduce(lambda node, key: node[key], path, mdp.GOLDEN)

    result = scheme(**mdp.golden_arguments(), **parameters)
    np.testing.assert_allclose(result.target_tm1[:, 0], golden(targets), rtol=1e-12)
    if advantages:
        np.testing.assert_allclose(result.advantage_tm1[:, 0], golden(advantages), rtol=1e-12)


def test_advantages_of_importance_sampling_are_the_causal_form():
    """ρ_s (r_s + γ G_{s+1} − V_s) by hand, from the golden returns."""
    for name, scheme, key in [
        ("per decision", functools.partial(corrections.per_decision_is, control_variate=False), "pdis_no_control_variate"),
        ("full", corrections.full_is, "full_product_is"),
    ]:
        following = np.append(mdp.GOLDEN[key][1:], mdp.V[-1])
        expected = mdp.RHO_TM1 * (mdp.R_T + mdp.DISCOUNT_T * following - mdp.V[:-1])
        advantage = scheme(**mdp.golden_arguments()).advantage_tm1[:, 0]
        np.testing.assert_allclose(advantage, expected, rtol=1e-12, err_msg=name)


# --- slow transcriptions, on batches with terminations and masks


def columns(arguments):
    """Yields every column as a dictionary of [T], with its index."""
    for b in range(arguments["v_tm1"].shape[1]):
        yield b, {name: x[:, b] for name, x in arguments.items()}


def last_of_episode(x, s):
    """Index of the last transition of the episode that s is in, or of the unroll."""
    e = s
    while e + 1 < len(x["r_t"]) and x["discount_t"][e] != 0 and x["mask_t"][e + 1]:
        e += 1
    return e


def n_step_return(x, s):
    e = last_of_episode(x, s)
    total, weight = 0.0, 1.0
    for t in range(s, e + 1):
        total += weight * x["r_t"][t]
        weight *= x["discount_t"][t]
    return total + weight * x["v_t"][e]


def slow_full(x, s):
    return np.exp(np.sum(x["log_rho_tm1"][s : last_of_episode(x, s) + 1])) * n_step_return(x, s)


def slow_plain_per_decision(x, s):
    """Σ_t γ^{t−s} (Π_{i≤t} ρ_i) r_t, and the bootstrap with all of them."""
    e, total, weight = last_of_episode(x, s), 0.0, 1.0
    for t in range(s, e + 1):
        weight *= np.exp(x["log_rho_tm1"][t])
        total += weight * x["r_t"][t]
        weight *= x["discount_t"][t]
    return total + weight * x["v_t"][e]


def slow_gae(x, s, lambda_=0.95):
    total, weight = x["v_tm1"][s], 1.0
    for t in range(s, last_of_episode(x, s) + 1):
        total += weight * (x["r_t"][t] + x["discount_t"][t] * x["v_t"][t] - x["v_tm1"][t])
        weight *= lambda_ * x["discount_t"][t]
    return total


def slow_upgo(x, s):
    following = x["v_t"][s]
    if s < last_of_episode(x, s):
        if x["r_t"][s + 1] + x["discount_t"][s + 1] * x["v_t"][s + 1] >= x["v_tm1"][s + 1]:
            following = slow_upgo(x, s + 1)
    return x["r_t"][s] + x["discount_t"][s] * following


# (ρ̂, c, w, b) of ρ, with the parameters of VARIANTS written out: v_s = V_s + Σ (Π γ c) ρ̂ δ, and
# A_s = w (r + γ [V_{s+1} + b (v_{s+1} − V_{s+1})] − V_s).
TEMPLATE = {
    "none": lambda rho: (1.0, 1.0, 1.0, 1.0),
    "one_step_is": lambda rho: (1.0, 1.0, min(1.2, rho), 1.0),
    "vtrace": lambda rho: (min(1.5, rho), 0.9 * min(1.1, rho), min(1.3, rho), 1.0),
    "vtrace_mixed": lambda rho: (min(1.0, rho), 0.8 * min(1.0, rho), min(1.0, rho), 0.8),
    "vtrace_c0": lambda rho: (min(1.5, rho), 0.0, min(1.3, rho), 1.0),
    "vtrace_unweighted_pg": lambda rho: (min(1.0, rho), 0.9 * min(1.0, rho), 1.0, 0.9),
    "leaky_vtrace": lambda rho: (
        0.3 * min(1.0, rho) + 0.7 * rho, 0.9 * (0.6 * min(1.0, rho) + 0.4 * rho), 0.3 * min(1.0, rho) + 0.7 * rho, 1.0,
    ),
    "per_decision_is": lambda rho: (rho, rho, rho, 1.0),
    "td_lambda": lambda rho: (1.0, 0.95, 1.0, 0.95),
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATE)
@pytest.mark.parametrize("seed", range(3))
def test_targets_and_advantages_match_the_template_term_by_term(name, seed):
    arguments = random_arguments(seed)
    result = apply(name, arguments)
    target_tm1, advantage_tm1 = np.array(arguments["v_tm1"]), np.zeros_like(arguments["v_tm1"])
    for b, x in columns(arguments):
        weights = [TEMPLATE[name](rho) for rho in np.exp(x["log_rho_tm1"])]
        length, target = len(x["r_t"]), target_tm1[:, b]
        for s in range(length):
            product = 1.0
            for t in range(s, length):
                if not x["mask_t"][t]:
                    break
                rho_hat, c, _, _ = weights[t]
                target[s] += product * rho_hat * (x["r_t"][t] + x["discount_t"][t] * x["v_t"][t] - x["v_tm1"][t])
                product *= x["discount_t"][t] * c
        for s in range(length):
            _, _, w, bootstrap = weights[s]
            correction = target[s + 1] - x["v_tm1"][s + 1] if s + 1 < length else 0.0
            q = x["r_t"][s] + x["discount_t"][s] * (x["v_t"][s] + bootstrap * correction)
            advantage_tm1[s, b] = x["mask_t"][s] * w * (q - x["v_tm1"][s])
    np.testing.assert_allclose(result.target_tm1, target_tm1, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.advantage_tm1, advantage_tm1, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name, slow", [
    ("none", n_step_return), ("one_step_is", n_step_return), ("full_is", slow_full),
    ("per_decision_is_plain", slow_plain_per_decision), ("td_lambda", slow_gae), ("upgo", slow_upgo),
])  # fmt: skip
def test_targets_match_a_slow_transcription(name, slow, seed):
    arguments = random_arguments(seed)
    assert (arguments["mask_t"] == 0).any() and (arguments["discount_t"] == 0).any()
    targets = apply(name, arguments).target_tm1.numpy()
    for b, x in columns(arguments):
        expected = [slow(x, s) if x["mask_t"][s] else x["v_tm1"][s] for s in range(len(targets))]
        np.testing.assert_allclose(targets[:, b], expected, rtol=1e-9, atol=1e-10)


def test_weighted_is_matches_a_slow_transcription():
    arguments = random_arguments(4)
    targets, advantages = (x.numpy() for x in corrections.weighted_is(**arguments))
    length, width = targets.shape
    x = dict(columns(arguments))
    expected = np.array(arguments["v_tm1"])
    for s in range(length):
        alive = [b for b in range(width) if arguments["mask_t"][s, b]]
        product = {b: np.exp(np.sum(x[b]["log_rho_tm1"][s : last_of_episode(x[b], s) + 1])) for b in alive}
        for b in alive:
            expected[s, b] = product[b] / np.mean([*product.values()]) * n_step_return(x[b], s)
    np.testing.assert_allclose(targets, expected, rtol=1e-9, atol=1e-10)
    for s in range(length):
        alive = [b for b in range(width) if arguments["mask_t"][s, b]]
        rho = {b: np.exp(arguments["log_rho_tm1"][s, b]) for b in alive}
        for b in range(width):
            if b not in alive:
                assert advantages[s, b] == 0
                continue
            goes_on = s < last_of_episode(x[b], s)
            following = expected[s + 1, b] - x[b]["v_tm1"][s + 1] + x[b]["v_t"][s] if goes_on else x[b]["v_t"][s]
            q = x[b]["r_t"][s] + x[b]["discount_t"][s] * following
            weight = rho[b] / np.mean([*rho.values()])
            np.testing.assert_allclose(advantages[s, b], weight * (q - x[b]["v_tm1"][s]), rtol=1e-9, atol=1e-10)


# --- exact ground truth on MDP-A, through the batch functions

V_PI, V_MU = mdp.TRUTH["V_pi"], mdp.TRUTH["V_mu"]
FIXED_POINTS = [
    (corrections.none, {}, V_MU),
    (corrections.one_step_is, {}, V_MU),
    (corrections.td_lambda, dict(lambda_=0.7), V_MU),
    *((corrections.vtrace, dict(clip_rho=float(rho), clip_c=min(1.0, float(rho)), lambda_=lambda_), truth["V"])
      for rho, truth in mdp.TRUTH["fixed_points"].items() for lambda_ in (1.0, 0.5)),
    (corrections.vtrace_c0, dict(clip_rho=2.0), mdp.TRUTH["fixed_points"]["2.0"]["V"]),
    (corrections.vtrace_unweighted_pg, {}, mdp.TRUTH["fixed_points"]["1.0"]["V"]),
    (corrections.per_decision_is, {}, V_PI),
    (corrections.per_decision_is, dict(control_variate=False), V_PI),
    (corrections.full_is, {}, V_PI),
    *((corrections.leaky_vtrace,
       dict(alpha_rho=truth["alpha_rho"], alpha_c=truth["alpha_c"], allow_expansion=True), truth["V"])
      for truth in mdp.TRUTH["leaky"]),
]  # fmt: skip


@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("scheme, parameters, value", FIXED_POINTS)
def test_fixed_point(scheme, parameters, value, num_steps):
    """v = E_μ[target] at the documented value function, and nowhere near it."""
    np.testing.assert_allclose(mdp.expected_target(scheme, value, num_steps, **parameters), value, rtol=1e-10)
    moved = np.array(value) + [1.0, 0.0, 0.0]
    if num_steps == 1 and scheme in (corrections.full_is, corrections.per_decision_is):
        return  # one step of importance sampling moves V(0) by γ only
    assert np.abs(mdp.expected_target(scheme, moved, num_steps, **parameters) - moved).max() > 1e-3


def test_the_documented_fixed_points_are_the_values_of_their_policies():
    for rho, truth in mdp.TRUTH["fixed_points"].items():
        implied = mdp.policy_proportional_to(np.minimum(float(rho) * mdp.MU, mdp.PI))
        np.testing.assert_allclose(implied, truth["pi_bar"], rtol=1e-12)
        np.testing.assert_allclose(mdp.value_of(implied), truth["V"], rtol=1e-12)
    leaky = mdp.policy_proportional_to(0.5 * np.minimum(mdp.MU, mdp.PI) + 0.5 * mdp.PI)
    np.testing.assert_allclose(mdp.value_of(leaky), mdp.TRUTH["leaky"][1]["V"], rtol=1e-12)


@pytest.mark.parametrize("scheme, parameters", [
    (corrections.per_decision_is, dict(control_variate=True)),
    (corrections.per_decision_is, dict(control_variate=False)),
    (corrections.full_is, {}),
])  # fmt: skip
def test_importance_sampling_agrees_in_expectation(scheme, parameters):
    expectation = mdp.expected_target(scheme, [0.3, -1.2, 2.0], 3, **parameters)
    np.testing.assert_allclose(expectation, mdp.TRUTH["enum_inf_inf_1_3"], rtol=1e-10)


@pytest.mark.parametrize("num_steps", [1, 3, 5])
@pytest.mark.parametrize("scheme, parameters, rho, c", [
    (corrections.none, {}, np.ones((3, 2)), np.ones((3, 2))),
    (corrections.td_lambda, dict(lambda_=0.6), np.ones((3, 2)), 0.6 * np.ones((3, 2))),
    (corrections.vtrace, dict(clip_rho=2.0, clip_c=0.5, lambda_=0.9), np.minimum(2, mdp.RHO), 0.9 * np.minimum(0.5, mdp.RHO)),
    (corrections.leaky_vtrace, dict(alpha_rho=0.2, alpha_c=0.7), 0.2 * np.minimum(1, mdp.RHO) + 0.8 * mdp.RHO,
     0.7 * np.minimum(1, mdp.RHO) + 0.3 * mdp.RHO),
    (corrections.per_decision_is, {}, mdp.RHO, mdp.RHO),
])  # fmt: skip
def test_expected_target_is_the_exact_operator(scheme, parameters, rho, c, num_steps):
    value = np.array([0.3, -1.2, 2.0])
    expected = mdp.operator(num_steps, rho, c, value)
    np.testing.assert_allclose(mdp.expected_target(scheme, value, num_steps, **parameters), expected, rtol=1e-10)


def weights_of(truth):
    rho_bar, c_bar = float(truth["rho_bar"]), float(truth["c_bar"])
    return np.minimum(rho_bar, mdp.RHO), truth["lam"] * np.minimum(c_bar, mdp.RHO)


@pytest.mark.parametrize("truth", mdp.TRUTH["eta"], ids=lambda t: f"{t['rho_bar']}-{t['c_bar']}-{t['lam']}-{t['n']}")
def test_contraction_coefficients(truth):
    num_steps = None if truth["n"] is None else int(truth["n"])
    rho, c = weights_of(truth)
    eta = mdp.contraction(lambda value: mdp.operator(num_steps, rho, c, value))
    np.testing.assert_allclose(eta, truth["eta"], rtol=1e-9, atol=1e-12)
    contracts = float(truth["rho_bar"]) >= float(truth["c_bar"])
    assert (eta <= truth["bound"] + 1e-12) if contracts else True
    if truth["n"] is None and contracts:  # max_x 1 − (1 − γ) [(I − γ P_c)⁻¹ d_ρ](x)
        inverse = np.linalg.inv(np.eye(3) - mdp.GAMMA * np.einsum("sa,sa,sat->st", mdp.MU, c, mdp.P))
        closed = np.max(1 - (1 - mdp.GAMMA) * inverse @ np.sum(mdp.MU * rho, axis=1))
        np.testing.assert_allclose(closed, truth["eta"], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(closed, truth["closed_form"], rtol=1e-9, atol=1e-12)
    if num_steps in (1, 5):  # the same from the library's own targets
        clips = dict(clip_rho=float(truth["rho_bar"]), clip_c=float(truth["c_bar"]), lambda_=truth["lam"])
        own = mdp.contraction(lambda v: mdp.expected_target(corrections.vtrace, v, num_steps, **clips))
        np.testing.assert_allclose(own, truth["eta"], rtol=1e-9)
    # The operator whose coefficient that is is the library's.
    value = np.array([0.3, -1.2, 2.0])
    clips = dict(clip_rho=float(truth["rho_bar"]), clip_c=float(truth["c_bar"]), lambda_=truth["lam"])
    for n in (1, 3):
        expected = mdp.expected_target(corrections.vtrace, value, n, **clips, allow_expansion=True)
        np.testing.assert_allclose(mdp.operator(n, rho, c, value), expected, rtol=1e-10)


def test_contraction_on_policy():
    """γⁿ; with λ and no end γ (1 − λ) / (1 − γ λ) (CORRECTIONS.md 3.3)."""
    ones = np.ones((3, 2))
    for n, eta in ((1, 0.9), (3, 0.729), (5, 0.59049)):
        np.testing.assert_allclose(mdp.contraction(lambda v, n=n: mdp.operator(n, ones, ones, v)), eta, rtol=1e-9)
    eta = mdp.contraction(lambda v: mdp.operator(None, ones, 0.5 * ones, v))
    np.testing.assert_allclose(eta, 0.9 * 0.5 / (1 - 0.45), rtol=1e-9)
    np.testing.assert_allclose(eta, 0.818182, atol=1e-6)


@pytest.mark.parametrize("clip_c", [0.1, 0.25, 1.0, 2.0, 5.0, INF])
@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("num_steps", [1, 3])
def test_the_fixed_point_of_vtrace_depends_on_the_ratio_clip_alone(clip_c, lambda_, num_steps):
    for rho_bar, truth in mdp.TRUTH["fixed_points"].items():
        clips = dict(clip_rho=float(rho_bar), clip_c=clip_c, lambda_=lambda_, allow_expansion=True)
        target = mdp.expected_target(corrections.vtrace, truth["V"], num_steps, **clips)
        np.testing.assert_allclose(target, truth["V"], rtol=1e-12)
        # And without end, by the operator, where the sum over traces exists.
        rho, c = np.minimum(float(rho_bar), mdp.RHO), lambda_ * np.minimum(clip_c, mdp.RHO)
        np.testing.assert_allclose(mdp.operator(None, rho, c, np.array(truth["V"])), truth["V"], rtol=1e-9)


def test_a_trace_clip_above_the_ratio_clip_expands():
    """The reason for the refusal: η = 1.2879 with c̄ = 5 > ρ̄ = 1 and long unrolls; the library's own targets agree."""
    rho, c = np.minimum(1, mdp.RHO), np.minimum(5, mdp.RHO)
    eta = {n: mdp.contraction(lambda v, n=n: mdp.operator(n, rho, c, v)) for n in (1, 5, 20, None)}
    assert eta[1] < 1 < eta[20] and abs(eta[None] - 1.287922) < 1e-6
    clips = dict(clip_rho=1.0, clip_c=5.0, allow_expansion=True)
    own = mdp.contraction(lambda v: mdp.expected_target(corrections.vtrace, v, 5, **clips))
    np.testing.assert_allclose(own, eta[5], rtol=1e-9)


@pytest.mark.parametrize("truth", mdp.TRUTH["leaky"], ids=lambda t: f"{t['alpha_rho']}-{t['alpha_c']}")
def test_leaky_contraction_coefficients(truth):
    mix = [a * np.minimum(1, mdp.RHO) + (1 - a) * mdp.RHO for a in (truth["alpha_rho"], truth["alpha_c"])]
    eta = mdp.contraction(lambda value: mdp.operator(None, *mix, value))
    np.testing.assert_allclose(eta, truth["eta"], rtol=1e-9, atol=1e-12)


def test_importance_sampling_contracts_at_once():
    """With infinitely many steps η is 0; with n steps it is γ^n, from the library's targets."""
    for scheme, parameters in [(corrections.per_decision_is, {}), (corrections.full_is, {})]:
        eta = mdp.contraction(lambda v: mdp.expected_target(scheme, v, 3, **parameters))
        np.testing.assert_allclose(eta, mdp.GAMMA**3, rtol=1e-9)


# --- limits and identities


@every_variant
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), clip_c=st.floats(1, 50), more=st.floats(0, 50), clip_pg=st.floats(1, 50))
def test_on_policy_every_scheme_is_the_n_step_return(name, seed, clip_c, more, clip_pg):
    """For any clips from 1 on; but those with λ < 1, with c = 0, and UPGO, whose limits are their own."""
    scheme, parameters = VARIANTS[name]
    clips = dict(clip_rho=clip_c + more, clip_c=clip_c, clip_pg=clip_pg)
    taken = inspect.signature(scheme).parameters
    parameters = {key: value for key, value in parameters.items() if key != "lambda_"}
    parameters |= {key: value for key, value in clips.items() if key in taken}
    arguments = random_arguments(seed, length=6) | dict(log_rho_tm1=np.zeros((6, 5)))
    one, expected = scheme(**arguments, **parameters), corrections.none(**arguments)
    if name == "vtrace_c0":
        expected = corrections.td_lambda(**arguments, lambda_=0.0)
        np.testing.assert_allclose(one.target_tm1, expected.target_tm1, atol=1e-12)
    elif name == "upgo":
        assert np.all(one.target_tm1 >= corrections.td_lambda(**arguments, lambda_=0.0).target_tm1 - 1e-12)
    else:
        np.testing.assert_allclose(one.target_tm1, expected.target_tm1, atol=1e-12)
        np.testing.assert_allclose(one.advantage_tm1, expected.advantage_tm1, atol=1e-12)


def same(one, other):
    np.testing.assert_allclose(one.target_tm1, other.target_tm1, atol=1e-10)
    np.testing.assert_allclose(one.advantage_tm1, other.advantage_tm1, atol=1e-10)


any_batch = given(seed=st.integers(0, 10**6))


@settings(max_examples=20, deadline=None)
@any_batch
def test_leaky_vtrace_between_vtrace_and_importance_sampling(seed):
    x = random_arguments(seed, length=6)
    same(corrections.leaky_vtrace(**x, alpha_rho=1.0, alpha_c=1.0, clip_rho=1.4), corrections.vtrace(**x, clip_rho=1.4))
    same(corrections.leaky_vtrace(**x, alpha_rho=0.0, alpha_c=0.0), corrections.per_decision_is(**x))


@settings(max_examples=20, deadline=None)
@any_batch
def test_vtrace_without_clips_is_per_decision_importance_sampling(seed):
    x = random_arguments(seed, length=6)
    same(corrections.vtrace(**x, clip_rho=INF, clip_c=INF, clip_pg=INF), corrections.per_decision_is(**x))


def test_limits_of_lambda():
    x = random_arguments(9)
    same(corrections.td_lambda(**x, lambda_=1.0), corrections.none(**x))
    np.testing.assert_allclose(corrections.vtrace(**x, lambda_=0.0).target_tm1, corrections.vtrace_c0(**x).target_tm1)
    same(corrections.vtrace(**x), corrections.vtrace(**x, pg_bootstrap="mixed"))
    on_policy = x | dict(log_rho_tm1=np.zeros((12, 5)))
    same(
        corrections.vtrace(**on_policy, lambda_=0.9, pg_bootstrap="mixed"),
        corrections.td_lambda(**on_policy, lambda_=0.9),
    )


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), lambda_=st.floats(0, 1), clip=st.floats(0.1, 5))
def test_mixed_advantages_of_equal_clips_are_the_corrections(seed, lambda_, clip):
    """A = v − V where the bootstrap is mixed and ρ̄ = c̄ = ρ̄_pg (RLax's convention); only λ = 1 has it otherwise."""
    x = random_arguments(seed, length=6)
    clips = dict(clip_rho=clip, clip_c=clip, clip_pg=clip, lambda_=lambda_)
    targets = corrections.vtrace(**x, **clips, pg_bootstrap="mixed")
    np.testing.assert_allclose(targets.advantage_tm1, targets.target_tm1 - x["v_tm1"], atol=1e-9)


def test_limits_of_upgo():
    """All better than expected: the n-step return; all worse: one step."""
    x = random_arguments(10)
    better, worse = x | dict(r_t=np.abs(x["r_t"]) + 50.0), x | dict(r_t=-np.abs(x["r_t"]) - 50.0)
    np.testing.assert_allclose(corrections.upgo(**better).target_tm1, corrections.none(**better).target_tm1)
    one_step = corrections.td_lambda(**worse, lambda_=0.0)
    np.testing.assert_allclose(corrections.upgo(**worse).target_tm1, one_step.target_tm1)
    np.testing.assert_array_less(corrections.td_lambda(**x, lambda_=0.0).target_tm1, corrections.upgo(**x).target_tm1 + 1e-9)


def test_weighted_is_of_equal_ratios_and_of_a_batch_of_one_is_no_correction():
    x = random_arguments(11, with_mask=False) | dict(discount_t=np.full((12, 5), 0.9))
    equal = x | dict(log_rho_tm1=np.tile(x["log_rho_tm1"][:, :1], (1, 5)))
    same(corrections.weighted_is(**equal), corrections.none(**equal))
    one = {name: value[:, :1] for name, value in x.items()}
    same(corrections.weighted_is(**one), corrections.none(**one))


def test_weighted_is_is_consistent():
    """Many copies of the enumeration in their proportions: the weighted mean over a batch is the expectation."""
    random = np.random.default_rng(0)
    probability, first, arguments = mdp.enumeration_arguments(np.array([0.3, -1.2, 2.0]), 3)
    members = np.flatnonzero(first == 0)
    draw = random.choice(members, size=200_000, p=probability[members])
    batch = {name: x[:, draw] for name, x in arguments.items()}
    mean = np.mean(corrections.weighted_is(**batch).target_tm1[0])
    np.testing.assert_allclose(mean, mdp.TRUTH["enum_inf_inf_1_3"][0], atol=0.03)
    weights = corrections.weighted_is(**{name: x[:, draw[:64]] for name, x in arguments.items()})
    assert np.abs(weights.target_tm1).max() <= 64 * np.abs(corrections.none(**arguments).target_tm1).max()


def test_the_symmetric_bandit_has_an_implied_policy_of_one_half():
    """μ = (φ, 1 − φ), π = (1 − φ, φ), ρ̄ = 1: mean reward / (1 − γ) for every φ."""
    for phi in (0.1, 0.3, 0.8):
        mu, pi, reward = np.array([phi, 1 - phi]), np.array([1 - phi, phi]), np.array([2.0, 5.0])
        value = reward.mean() / (1 - 0.9)
        targets = corrections.vtrace(
            v_tm1=np.full((1, 2), value), v_t=np.full((1, 2), value), r_t=reward[None],
            discount_t=np.full((1, 2), 0.9), log_rho_tm1=np.log(pi / mu)[None],
        ).target_tm1[0]  # fmt: skip
        np.testing.assert_allclose(np.sum(mu * targets), value)


# --- the policy gradient, component of action 0 in each state, with exact values


def gradient_component(scheme, value, **parameters):
    """E_μ[A ∇ log π(a)] for the logit of action 0 of a softmax, one step from each state, by enumeration."""
    probability, first, arguments = mdp.enumeration_arguments(np.asarray(value, float), 1)
    action = np.array([a[0] for _, _, a in mdp.trajectories(1)])
    advantage = scheme(**arguments, **parameters).advantage_tm1[0].numpy()
    score = (action == 0) - mdp.PI[first, 0]
    return [np.sum((probability * advantage * score)[first == x]) for x in range(3)]


@pytest.mark.parametrize("key, scheme, value", [
    ("no_correction (V^mu)", corrections.none, V_MU),
    ("1-step IS (V^mu, rho<=1)", corrections.one_step_is, V_MU),
    ("V-trace rho_bar=1", corrections.vtrace, mdp.TRUTH["fixed_points"]["1.0"]["V"]),
    ("full IS", corrections.full_is, V_PI),
    ("full IS", corrections.per_decision_is, V_PI),
    ("true", corrections.per_decision_is, V_PI),
])  # fmt: skip
def test_policy_gradient_direction(key, scheme, value):
    np.testing.assert_allclose(gradient_component(scheme, value), mdp.TRUTH["pg_component0"][key], rtol=1e-9)


def test_the_vtrace_policy_gradient_can_prefer_the_worse_action():
    """LASER's counterexample: Q = (2, 5), μ = (.9, .1), π = (.5, .5): weighted Q is (2, 1)."""
    mu, pi, q = np.array([0.9, 0.1]), np.array([0.5, 0.5]), np.array([2.0, 5.0])
    zeros = np.zeros((1, 2))
    advantage = corrections.vtrace(
        v_tm1=zeros, v_t=zeros, r_t=q[None], discount_t=zeros, log_rho_tm1=np.log(pi / mu)[None]
    ).advantage_tm1[0].numpy()  # fmt: skip
    np.testing.assert_allclose(mu * advantage / pi, mdp.TRUTH["laser"])


# --- stochastic convergence


@pytest.mark.parametrize("parameters, tolerance", [
    pytest.param(dict(clip_rho=1.0, clip_c=1.0), 0.05, marks=pytest.mark.soak),
    pytest.param(dict(clip_rho=1.0, clip_c=0.25), 0.05, marks=pytest.mark.soak),
    pytest.param(dict(clip_rho=2.0, clip_c=1.0), 0.05, marks=pytest.mark.soak),
    (dict(clip_rho=1.0, clip_c=1.0, lambda_=0.9), 0.05),
])  # fmt: skip
def test_stochastic_updates_converge_to_the_fixed_point_and_to_no_other(parameters, tolerance):
    """256 chains under μ, T = 20, 1,500 updates with step sizes of Robbins and Monro, in the manner of Theorem 2."""
    value = run_chains(functools.partial(corrections.vtrace, **parameters))
    truth = np.array(mdp.TRUTH["fixed_points"][str(parameters["clip_rho"])]["V"])
    assert np.abs(value - truth).max() < tolerance
    assert np.abs(value - V_MU).max() > 1
    # V^π is 1.6 away from the fixed point of ρ̄ = 1 and 0.43 from that of ρ̄ = 2.
    assert np.abs(value - V_PI).max() > (1 if parameters["clip_rho"] == 1 else 0.3)


def test_uncorrected_updates_converge_to_the_behaviour_policys_value():
    value = run_chains(corrections.none)
    assert np.abs(value - V_MU).max() < 0.05
    assert np.abs(value - mdp.TRUTH["fixed_points"]["1.0"]["V"]).max() > 1


@functools.cache
def chains(num_chains, length, num_updates):
    """What the behaviour policy plays: states [length + 1, num_chains] and actions for each update."""
    random, cumulative, played = np.random.default_rng(0), mdp.P.cumsum(axis=-1), []
    state = random.integers(3, size=num_chains)
    for _ in range(num_updates):
        states, actions = [state], []
        for _ in range(length):
            action = (random.random(num_chains) > mdp.MU[state, 0]).astype(int)
            state = (random.random((num_chains, 1)) > cumulative[state, action]).sum(axis=1).clip(max=2)
            states.append(state)
            actions.append(action)
        played.append((np.array(states), np.array(actions)))
    return played


def run_chains(scheme, num_chains=256, length=20, num_updates=1500):
    compiled = tf.function(
        lambda v_tm1, v_t, r_t, log_rho_tm1: scheme(
            v_tm1=v_tm1, v_t=v_t, r_t=r_t, log_rho_tm1=log_rho_tm1, discount_t=tf.fill(tf.shape(r_t), tf.constant(mdp.GAMMA, tf.float64))
        ).target_tm1,
        input_signature=[tf.TensorSpec([length, num_chains], tf.float64)] * 4,
    )
    value = np.zeros(3)
    for update, (states, a) in enumerate(chains(num_chains, length, num_updates)):
        s, following = states[:-1], states[1:]
        target = compiled(value[s], value[following], mdp.R[s, a], np.log(mdp.RHO[s, a])).numpy()
        step = 1.0 / (1.0 + update / 20.0)
        error = np.bincount(s.ravel(), (target - value[s]).ravel(), 3) / np.maximum(np.bincount(s.ravel(), minlength=3), 1)
        value = value + step * error
    return value


# --- properties of every scheme


@every_variant
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), shift=st.floats(-10, 10), scale=st.floats(0.1, 10))
def test_shift_and_scale_of_rewards(name, seed, shift, scale):
    gamma = 0.9
    arguments = random_arguments(seed, length=6, with_mask=False) | dict(discount_t=np.full((6, 5), gamma))
    targets = apply(name, arguments)
    scaled = apply(name, arguments | {key: scale * arguments[key] for key in ("r_t", "v_tm1", "v_t")})
    np.testing.assert_allclose(scaled.target_tm1, scale * targets.target_tm1, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(scaled.advantage_tm1, scale * targets.advantage_tm1, rtol=1e-8, atol=1e-8)
    if name in ("full_is", "weighted_is", "per_decision_is_plain"):
        return  # without a control variate a constant reward is weighted as any other
    move = shift / (1 - gamma)
    moved = apply(name, arguments | dict(
        r_t=arguments["r_t"] + shift, v_tm1=arguments["v_tm1"] + move, v_t=arguments["v_t"] + move
    ))  # fmt: skip
    if name == "upgo":  # its comparison is exact only up to rounding
        errors = arguments["r_t"] + gamma * arguments["v_t"] - arguments["v_tm1"]
        if np.abs(errors).min() < 1e-9:
            return
    size = 1 + np.abs(targets.advantage_tm1).max()
    np.testing.assert_allclose(moved.advantage_tm1, targets.advantage_tm1, atol=1e-9 * size * (1 + abs(move)))
    np.testing.assert_allclose(moved.target_tm1, targets.target_tm1 + move, atol=1e-9 * size * (1 + abs(move)))


@every_variant
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), end=st.integers(0, 7))
def test_nothing_before_a_termination_depends_on_what_follows(name, seed, end):
    arguments = random_arguments(seed, length=9, with_mask=False)
    arguments["discount_t"][end] = 0.0
    changed = {key: value.copy() for key, value in arguments.items()}
    for key in ("r_t", "v_tm1"):
        changed[key][end + 1 :] += 1.0
    changed["v_t"][end:] += 1.0
    changed["log_rho_tm1"][end + 1 :] = 1e3  # not even a ratio that overflows
    for one, other in zip(apply(name, arguments), apply(name, changed)):
        np.testing.assert_array_equal(one[: end + 1], other[: end + 1])
        assert (one[end + 1 :].numpy() != other[end + 1 :].numpy()).any()


@every_variant
def test_masked_rows_are_no_transitions(name):
    arguments = random_arguments(3)
    masked = arguments["mask_t"] == 0
    changed = {key: value.copy() for key, value in arguments.items()}
    for key in ("r_t", "discount_t"):
        changed[key][masked] = 0.5
    changed["log_rho_tm1"][masked] = 1e3  # its exponential overflows
    one, other = apply(name, arguments), apply(name, changed)
    for a, b in zip(one, other):
        np.testing.assert_allclose(a, b, atol=1e-12)
    np.testing.assert_array_equal(one.target_tm1.numpy()[masked], arguments["v_tm1"][masked])
    assert not one.advantage_tm1.numpy()[masked].any()


@every_variant
def test_a_truncated_step_bootstraps_from_its_own_last_observation(name):
    """v_t of the row before a masked one may be any value: the target takes it, and nothing of the next episode."""
    scheme, parameters = VARIANTS[name]
    targets = scheme(
        v_tm1=np.array([[1.0], [3.0], [5.0]]), v_t=np.array([[7.0], [5.0], [2.0]]), r_t=np.array([[0.5], [9.0], [0.5]]),
        discount_t=np.full((3, 1), 0.5), log_rho_tm1=np.zeros((3, 1)), mask_t=np.array([[1.0], [0.0], [1.0]]), **parameters,
    )  # fmt: skip
    np.testing.assert_allclose(targets.target_tm1[:, 0], [0.5 + 0.5 * 7.0, 3.0, 0.5 + 0.5 * 2.0])
    np.testing.assert_allclose(targets.advantage_tm1[:, 0], [3.0, 0.0, -3.5])


@every_variant
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_order_of_the_columns_and_of_the_axes_in_memory_does_not_count(name, seed):
    arguments = random_arguments(seed, length=6)
    order = np.random.default_rng(seed).permutation(5)
    permuted = apply(name, {key: value[:, order] for key, value in arguments.items()})
    batch_major = {key: np.ascontiguousarray(value.T) for key, value in arguments.items()}  # [B, T], as a table keeps it
    transposed = apply(name, {key: tf.transpose(value) for key, value in batch_major.items()})
    for one, two, other in zip(permuted, transposed, apply(name, arguments)):
        np.testing.assert_allclose(one, other.numpy()[:, order], rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(two, other)


@every_variant
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), spread=st.floats(0.1, 5.0))
def test_float32_matches_float64(name, seed, spread):
    wide = random_arguments(seed, length=5)
    wide["log_rho_tm1"] = np.random.default_rng(seed).uniform(-spread, spread, size=(5, 5))
    wide = {key: value.astype("float32").astype("float64") for key, value in wide.items()}
    narrow = {key: value.astype("float32") for key, value in wide.items()}
    for one, other in zip(apply(name, wide), apply(name, narrow)):
        assert other.dtype == tf.float32
        if name == "upgo" and np.abs(wide["r_t"] + wide["discount_t"] * wide["v_t"] - wide["v_tm1"]).min() < 1e-5:
            continue
        size = np.abs(one).max()
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * max(1.0, size))


@pytest.mark.parametrize("name", [
    "none", "one_step_is", "vtrace", "vtrace_mixed", "vtrace_c0", "vtrace_unweighted_pg", "weighted_is", "td_lambda", "upgo",
])  # fmt: skip
@pytest.mark.parametrize("size", [10.0, 80.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_ratios_stay_finite_where_they_are_clipped(name, size, dtype):
    arguments = random_arguments(0, dtype=dtype)
    arguments["log_rho_tm1"] = np.where(arguments["log_rho_tm1"] > 0, size, -size).astype(dtype)
    for value in apply(name, arguments):
        assert np.isfinite(value).all()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), clip_rho=st.floats(0.1, 3.0), share=st.floats(0, 1))
def test_vtrace_targets_stay_within_the_bound(seed, clip_rho, share):
    """|v − V| ≤ ρ̄ max|δ| / (1 − γ c̄) where γ c̄ < 1."""
    gamma, clip_c = 0.9, min(clip_rho, 1.05) * share
    x = random_arguments(seed, with_mask=False) | dict(discount_t=np.full((12, 5), gamma))
    targets = corrections.vtrace(**x, clip_rho=clip_rho, clip_c=clip_c)
    error = np.abs(x["r_t"] + gamma * x["v_t"] - x["v_tm1"]).max()
    assert np.abs(targets.target_tm1 - x["v_tm1"]).max() <= clip_rho * error / (1 - gamma * clip_c) + 1e-9


# --- bad input


@every_variant
@pytest.mark.parametrize("argument", ["v_tm1", "v_t", "r_t", "discount_t", "log_rho_tm1"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_never_becomes_a_finite_target_in_silence(name, argument, bad):
    arguments = random_arguments(0, with_mask=False)
    arguments["discount_t"][:] = 0.9
    arguments[argument][4, 2] = bad
    targets = apply(name, arguments)
    assert not np.isfinite(targets.target_tm1[4, 2]), "target"
    assert not np.isfinite(targets.advantage_tm1[4, 2]), "advantage"
    assert np.isfinite(targets.target_tm1.numpy()[:, 0]).all() or name == "weighted_is"  # it mixes columns


@every_variant
@pytest.mark.parametrize("argument", ["v_t", "r_t", "discount_t", "log_rho_tm1", "mask_t"])
def test_shapes_that_do_not_agree_are_named(name, argument):
    arguments = random_arguments(0)
    with pytest.raises(ValueError, match=f"^{argument} has shape"):
        apply(name, arguments | {argument: np.zeros((4, 1))})
    with pytest.raises(ValueError, match="^v_tm1 has shape"):
        apply(name, arguments | dict(v_tm1=np.zeros(12)))


@every_variant
def test_dtypes_that_do_not_agree_are_named(name):
    with pytest.raises(ValueError, match="^r_t is float32; expected float64"):
        apply(name, random_arguments(0) | dict(r_t=np.zeros((12, 5), "float32")))


@pytest.mark.parametrize("scheme, parameters, message", [
    (corrections.vtrace, dict(clip_c=2.0), "clip_c=2.0 > clip_rho=1.0"),
    (corrections.vtrace_unweighted_pg, dict(clip_c=2.0), "clip_c=2.0 > clip_rho=1.0"),
    (corrections.leaky_vtrace, dict(clip_c=2.0), "clip_c=2.0 > clip_rho=1.0"),
    (corrections.leaky_vtrace, dict(alpha_rho=1.0, alpha_c=0.5), "alpha_rho=1.0 > alpha_c=0.5"),
    (corrections.leaky_vtrace, dict(alpha_rho=1.5), "alpha_rho=1.5"),
    (corrections.leaky_vtrace, dict(lambda_=-0.1), "lambda_=-0.1"),
    (corrections.vtrace, dict(clip_rho=-1.0, clip_c=-2.0), "clip_rho=-1.0 is negative"),
    (corrections.vtrace, dict(lambda_=1.5), "lambda_=1.5"),
    (corrections.vtrace, dict(pg_bootstrap="seed"), "pg_bootstrap='seed'; expected 'target' or 'mixed'"),
    (corrections.td_lambda, dict(lambda_=float("nan")), "lambda_=nan"),
    (corrections.vtrace_unweighted_pg, dict(lambda_=2.0), "lambda_=2.0"),
    (corrections.vtrace, dict(clip_pg=-1.0), "clip_pg=-1.0 is negative; expected 0 or more"),
    (corrections.one_step_is, dict(clip_pg=float("nan")), "clip_pg=nan is negative"),
    (corrections.leaky_vtrace, dict(clip_pg=-1.0), "clip_pg=-1.0 is negative"),
    (corrections.upgo, dict(clip_pg=-1.0), "clip_pg=-1.0 is negative"),
])  # fmt: skip
def test_parameters_out_of_range_are_refused(scheme, parameters, message):
    with pytest.raises(ValueError, match=message):
        scheme(**mdp.golden_arguments(), **parameters)


def test_expansion_can_be_forced():
    forced = corrections.vtrace(**mdp.golden_arguments(), clip_c=2.0, allow_expansion=True)
    assert np.isfinite(forced.target_tm1).all()


@every_variant
def test_targets_are_a_pair_that_remembers_its_traces(name):
    targets = apply(name, random_arguments(0))
    target, advantage = targets
    assert target.shape == advantage.shape == targets.trace_tm1.shape == (12, 5)


@pytest.mark.parametrize("word", ["vtrace", "one_step_is", "vtrace_unweighted_pg"])
def test_a_masked_ratio_that_overflows_counts_for_nothing_without_a_clip_too(word):
    random = np.random.default_rng(0)
    v_tm1, v_t, r_t, log_rho = (random.normal(size=(4, 2)).astype(np.float32) for _ in range(4))
    mask = np.ones((4, 2), np.float32)
    mask[2, 0] = 0.0
    clips = {"vtrace": ("clip_rho", "clip_c", "clip_pg"), "one_step_is": ("clip_pg",), "vtrace_unweighted_pg": ("clip_rho", "clip_c")}
    found = []
    for masked in (0.0, 1000.0):
        log_rho[2, 0] = masked
        found.append(corrections.SCHEMES[word](
            v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=np.full((4, 2), 0.9, np.float32), log_rho_tm1=log_rho, mask_t=mask,
            **dict.fromkeys(clips[word], np.inf),
        ))  # fmt: skip
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)
        assert np.isfinite(one).all()
