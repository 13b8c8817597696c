"""V-trace three ways: a transcription of the paper's double sum, identities, and exact ground truth."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala import corrections, returns
from tests.corrections import mdp

INF = float("inf")


def double_sum(v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t, clip_rho, clip_c, clip_pg, lambda_):
    """Equation 1 of the paper, term by term, one column at a time; a mask ends the sum."""
    length, width = v_tm1.shape
    rho = np.minimum(clip_rho, np.exp(log_rho_tm1))
    c = lambda_ * np.minimum(clip_c, np.exp(log_rho_tm1))
    target, advantage = np.array(v_tm1), np.zeros_like(v_tm1)
    for b in range(width):
        for s in range(length):
            product = 1.0
            for t in range(s, length):
                if not mask_t[t, b]:
                    break
                delta = rho[t, b] * (r_t[t, b] + discount_t[t, b] * v_t[t, b] - v_tm1[t, b])
                target[s, b] += product * delta
                product *= discount_t[t, b] * c[t, b]
        for s in range(length):
            follows = s + 1 < length and mask_t[s, b]
            next_target = v_t[s, b] + (target[s + 1, b] - v_tm1[s + 1, b] if follows else 0.0)
            weight = min(clip_pg, np.exp(log_rho_tm1[s, b]))
            advantage[s, b] = mask_t[s, b] * weight * (r_t[s, b] + discount_t[s, b] * next_target - v_tm1[s, b])
    return target, advantage


def random_arguments(seed, length=12, width=5, dtype="float64", with_mask=True, spread=1.0):
    random = np.random.default_rng(seed)
    shape = (length, width)
    mask_t = (random.random(shape) > 0.15) if with_mask else np.ones(shape)
    discount_t = 0.97 * (random.random(shape) > 0.2)
    v = random.normal(size=(length + 1, width))
    return dict(
        v_tm1=v[:-1].astype(dtype), v_t=v[1:].astype(dtype), r_t=random.normal(size=shape).astype(dtype),
        discount_t=discount_t.astype(dtype), log_rho_tm1=(spread * random.normal(size=shape)).astype(dtype),
        mask_t=mask_t.astype(dtype),
    )  # fmt: skip


CLIPS = [
    dict(clip_rho=1.0, clip_c=1.0, clip_pg=1.0, lambda_=1.0),
    dict(clip_rho=2.0, clip_c=0.7, clip_pg=1.3, lambda_=0.9),
    dict(clip_rho=INF, clip_c=INF, clip_pg=INF, lambda_=1.0),
    dict(clip_rho=1.5, clip_c=0.0, clip_pg=0.5, lambda_=0.5),
]


def test_long_unrolls_are_a_loop_with_the_same_numbers(monkeypatch):
    arguments, found = random_arguments(0), []
    for most in (11, 12):
        monkeypatch.setattr(returns, "_MOST_UNROLLED", most)
        graph = tf.function(lambda: corrections.vtrace(**arguments)).get_concrete_function()  # noqa: B023
        assert any(op.type in ("While", "StatelessWhile") for op in graph.graph.get_operations()) == (most == 11)
        found.append(graph())
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("clips", CLIPS)
@pytest.mark.parametrize("seed", range(3))
def test_matches_the_papers_double_sum(clips, seed):
    arguments = random_arguments(seed)
    if clips["clip_rho"] < INF:  # inputs that cross every clip
        assert (np.exp(arguments["log_rho_tm1"]) > clips["clip_rho"]).any()
        assert (np.exp(arguments["log_rho_tm1"]) < clips["clip_pg"]).any()
    targets = corrections.vtrace(**arguments, **clips)
    expected = double_sum(**arguments, **clips)
    np.testing.assert_allclose(targets.target_tm1, expected[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(targets.advantage_tm1, expected[1], rtol=1e-12, atol=1e-12)


def test_matches_for_an_unknown_length():
    arguments = random_arguments(7)
    static = corrections.vtrace(**arguments)
    signature = {name: tf.TensorSpec([None, None], tf.float64) for name in arguments}
    dynamic = tf.function(lambda a: corrections.vtrace(**a), input_signature=[signature])(arguments)
    np.testing.assert_allclose(static.target_tm1, dynamic.target_tm1, rtol=1e-12)


@pytest.mark.parametrize(
    "name, clips",
    [
        ("vtrace_1_1", {}),
        ("vtrace_rho2_c1_pg1", dict(clip_rho=2.0)),
        ("vtrace_lam.9_seed", dict(lambda_=0.9)),
        ("vtrace_c0", dict(clip_c=0.0)),
        ("pdis_unclipped", dict(clip_rho=INF, clip_c=INF, clip_pg=INF)),
    ],
)
def test_golden_unroll(name, clips):
    targets = corrections.vtrace(**mdp.golden_arguments(), **clips)
    np.testing.assert_allclose(targets.target_tm1[:, 0], mdp.GOLDEN[name]["vs"], rtol=1e-12)
    np.testing.assert_allclose(targets.advantage_tm1[:, 0], mdp.GOLDEN[name]["pg_adv"], rtol=1e-12)


def test_golden_unroll_without_correction():
    targets = corrections.none(**mdp.golden_arguments())
    np.testing.assert_allclose(targets.target_tm1[:, 0], mdp.GOLDEN["no_correction"]["vs"], rtol=1e-12)
    np.testing.assert_allclose(targets.advantage_tm1[:, 0], mdp.GOLDEN["no_correction"]["pg_adv"], rtol=1e-12)


@pytest.mark.parametrize(
    "key, clips",
    [
        ("enum_1_1_1_3", dict(clip_rho=1.0, clip_c=1.0, lambda_=1.0)),
        ("enum_2_1_0.9_3", dict(clip_rho=2.0, clip_c=1.0, lambda_=0.9)),
        ("enum_inf_inf_1_3", dict(clip_rho=INF, clip_c=INF, lambda_=1.0)),
    ],
)
def test_expected_target_over_all_trajectories_is_the_exact_operator(key, clips):
    """All three-step trajectories of MDP-A in one batch: E_μ[v_0 | x_0] must be (R_3 V)(x_0)."""
    value = np.array([0.3, -1.2, 2.0])
    probability, states, actions = map(np.array, zip(*mdp.trajectories(3)))
    s, a = states[:, :-1].T, actions.T  # [3, number of trajectories]
    targets = corrections.vtrace(
        v_tm1=value[s], v_t=value[states[:, 1:].T], r_t=mdp.R[s, a], discount_t=np.full(s.shape, mdp.GAMMA),
        log_rho_tm1=np.log(mdp.RHO[s, a]), **clips,
    )  # fmt: skip
    expectation = [np.sum((probability * targets.target_tm1[0].numpy())[s[0] == x]) for x in range(3)]
    np.testing.assert_allclose(expectation, mdp.TRUTH[key], rtol=1e-10)


@pytest.mark.parametrize("clip_rho", [1 / 3, 0.5, 1.0, 2.0, INF])
def test_fixed_point_is_the_value_of_the_clipped_policy(clip_rho):
    clipped = np.minimum(clip_rho * mdp.MU, mdp.PI)
    value = mdp.value_of(clipped / clipped.sum(axis=1, keepdims=True))
    probability, states, actions = map(np.array, zip(*mdp.trajectories(3)))
    s, a = states[:, :-1].T, actions.T
    targets = corrections.vtrace(
        v_tm1=value[s], v_t=value[states[:, 1:].T], r_t=mdp.R[s, a], discount_t=np.full(s.shape, mdp.GAMMA),
        log_rho_tm1=np.log(mdp.RHO[s, a]), clip_rho=clip_rho, clip_c=min(1.0, clip_rho),
    )  # fmt: skip
    expectation = [np.sum((probability * targets.target_tm1[0].numpy())[s[0] == x]) for x in range(3)]
    np.testing.assert_allclose(expectation, value, rtol=1e-10)


def test_on_policy_is_the_n_step_return():
    arguments = random_arguments(1, with_mask=False) | dict(log_rho_tm1=np.zeros((12, 5)))
    expected = np.zeros((12, 5))
    following = arguments["v_t"][-1]
    for t in reversed(range(12)):
        following = arguments["r_t"][t] + arguments["discount_t"][t] * following
        expected[t] = following
    for targets in (corrections.vtrace(**arguments), corrections.none(**arguments)):
        np.testing.assert_allclose(targets.target_tm1, expected, rtol=1e-12)
        np.testing.assert_allclose(targets.advantage_tm1, expected - arguments["v_tm1"], rtol=1e-10, atol=1e-12)


def test_truncation_bootstraps_and_termination_does_not():
    """By hand: an episode ends between index 1 and 2; row 2 leads into the next episode and is masked."""
    v = np.array([1.0, 2.0, 3.0, 4.0, 5.0])[:, None]
    arguments = dict(
        v_tm1=v[:-1], v_t=v[1:], r_t=np.array([0.5, 0.5, 9.0, 0.5])[:, None], log_rho_tm1=np.zeros((4, 1)),
        mask_t=np.array([1.0, 1.0, 0.0, 1.0])[:, None],
    )  # fmt: skip
    truncated = corrections.vtrace(**arguments, discount_t=np.full((4, 1), 0.5))
    #      v_3 = .5 + .5·5 = 3; row 2 is no transition: v_2 = V_2 = 3; v_1 = .5 + .5·3 = 2; v_0 = .5 + .5·2 = 1.5
    np.testing.assert_allclose(truncated.target_tm1[:, 0], [1.5, 2.0, 3.0, 3.0])
    np.testing.assert_allclose(truncated.advantage_tm1[:, 0], [0.5, 0.0, 0.0, -1.0])
    discount_t = np.array([0.5, 0.0, 0.5, 0.5])[:, None]
    terminated = corrections.vtrace(**arguments, discount_t=discount_t)
    np.testing.assert_allclose(terminated.target_tm1[:, 0], [0.75, 0.5, 3.0, 3.0])
    np.testing.assert_allclose(terminated.advantage_tm1[:, 0], [-0.25, -1.5, 0.0, -1.0])


def test_masked_rows_change_nothing():
    arguments = random_arguments(3)
    changed = {name: value.copy() for name, value in arguments.items()}
    masked = arguments["mask_t"] == 0
    assert masked.any()
    for name in ("r_t", "discount_t", "log_rho_tm1"):
        changed[name][masked] = 0.5
    for one, other in zip(corrections.vtrace(**arguments), corrections.vtrace(**changed)):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("scheme", corrections.SCHEMES.values(), ids=corrections.SCHEMES)
def test_no_gradient_flows_out(scheme):
    arguments = {name: tf.constant(value) for name, value in random_arguments(0).items()}
    with tf.GradientTape() as tape:
        for tensor in arguments.values():
            tape.watch(tensor)
        targets = scheme(**arguments)
        total = tf.reduce_sum(targets.target_tm1) + tf.reduce_sum(targets.advantage_tm1)
    assert all(gradient is None for gradient in tape.gradient(total, list(arguments.values())))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), spread=st.floats(0.1, 5.0))
def test_float32_matches_float64(seed, spread):
    wide = random_arguments(seed, spread=spread)
    wide["log_rho_tm1"] = np.clip(wide["log_rho_tm1"], -5, 5)
    narrow = {name: value.astype("float32") for name, value in wide.items()}
    for one, other in zip(corrections.vtrace(**wide), corrections.vtrace(**narrow)):
        assert other.dtype == tf.float32
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [10.0, 80.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_ratios_stay_finite(size, dtype):
    arguments = random_arguments(0, dtype=dtype)
    arguments["log_rho_tm1"] = np.where(arguments["log_rho_tm1"] > 0, size, -size).astype(dtype)
    for value in corrections.vtrace(**arguments):
        assert np.isfinite(value).all()
    capped = arguments | dict(log_rho_tm1=np.minimum(arguments["log_rho_tm1"], 0.0))  # any ratio above 1 is 1
    np.testing.assert_array_equal(corrections.vtrace(**arguments).target_tm1, corrections.vtrace(**capped).target_tm1)


@pytest.mark.parametrize("clips", CLIPS)
@pytest.mark.parametrize("size", [0.0, 5.0, 69.0])  # ratios of 1, and up to 1e±2 and 1e±30
@pytest.mark.parametrize("case", ["one step", "all done", "nothing"])
def test_extremes_are_those_of_the_double_sum(case, size, clips):
    arguments = random_arguments(3, length=1 if case == "one step" else 12, with_mask=False)
    arguments["log_rho_tm1"] = np.where(arguments["log_rho_tm1"] > 0, size, -size)
    if case == "all done":
        arguments["discount_t"] = np.zeros_like(arguments["discount_t"])
    elif case == "nothing":
        arguments["mask_t"] = np.zeros_like(arguments["mask_t"])
    expected = double_sum(**arguments, **clips)
    targets = corrections.vtrace(**{name: value.astype("float32") for name, value in arguments.items()}, **clips)
    # Without clips float32 rounds differences of numbers of 1e30, and how much that shows depends on the batch.
    most = 1e-6 if np.isfinite(clips["clip_rho"]) else 2e-5
    for one, other in zip(targets, expected):
        np.testing.assert_allclose(one, other, rtol=most, atol=most)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), shift=st.floats(-10, 10), scale=st.floats(0.1, 10))
def test_shift_and_scale_of_rewards(seed, shift, scale):
    gamma = 0.9
    arguments = random_arguments(seed, with_mask=False) | dict(discount_t=np.full((12, 5), gamma))
    targets = corrections.vtrace(**arguments)
    moved = arguments | dict(
        r_t=arguments["r_t"] + shift,
        v_tm1=arguments["v_tm1"] + shift / (1 - gamma),
        v_t=arguments["v_t"] + shift / (1 - gamma),
    )
    np.testing.assert_allclose(corrections.vtrace(**moved).advantage_tm1, targets.advantage_tm1, atol=1e-8)
    np.testing.assert_allclose(
        corrections.vtrace(**moved).target_tm1, targets.target_tm1 + shift / (1 - gamma), atol=1e-8
    )
    scaled = arguments | {name: scale * arguments[name] for name in ("r_t", "v_tm1", "v_t")}
    np.testing.assert_allclose(
        corrections.vtrace(**scaled).target_tm1, scale * targets.target_tm1, rtol=1e-9, atol=1e-9
    )


def test_nothing_before_a_termination_depends_on_what_follows():
    arguments = random_arguments(5, with_mask=False)
    arguments["discount_t"][6] = 0.0
    changed = {name: value.copy() for name, value in arguments.items()}
    for name in ("r_t", "v_tm1", "log_rho_tm1"):
        changed[name][7:] += 1.0
    changed["v_t"][6:] += 1.0
    for one, other in zip(corrections.vtrace(**arguments), corrections.vtrace(**changed)):
        np.testing.assert_array_equal(one[:7], other[:7])
        assert (one[7:].numpy() != other[7:].numpy()).any()


def test_columns_are_independent():
    arguments = random_arguments(2)
    order = np.random.default_rng(0).permutation(5)
    permuted = {name: value[:, order] for name, value in arguments.items()}
    np.testing.assert_array_equal(
        corrections.vtrace(**permuted).target_tm1, corrections.vtrace(**arguments).target_tm1.numpy()[:, order]
    )


def test_refuses_what_does_not_contract():
    with pytest.raises(ValueError, match="clip_c=2.0 > clip_rho=1.0"):
        corrections.vtrace(**mdp.golden_arguments(), clip_c=2.0)
    with pytest.raises(ValueError, match="lambda_=1.5"):
        corrections.vtrace(**mdp.golden_arguments(), lambda_=1.5)


def test_refuses_wrong_shapes():
    arguments = mdp.golden_arguments()
    with pytest.raises(ValueError):
        corrections.vtrace(**arguments | dict(v_t=np.zeros((4, 1))))
