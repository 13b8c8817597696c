"""Distributions over actions: against numerical integrals, SciPy, and draws."""

import numpy as np
import pytest
import tensorflow as tf

from impala import distributions, sampling
from impala.types import Continuous, Discrete, MultiDiscrete

KINDS = {"discrete": Discrete(4), "multi_discrete": MultiDiscrete((2, 3, 4)), "continuous": Continuous(3)}


@pytest.fixture(params=KINDS)
def actions(request):
    return KINDS[request.param]


def parameters(actions, shape=(), seed=0):
    return np.random.default_rng(seed).normal(size=(*shape, actions.num_parameters)).astype(np.float32)


def draws(actions, given, count, seed=1):
    return sampling.of(actions).sample(np.tile(given, (count, 1)), np.random.default_rng(seed))


def test_draws_have_the_shape_and_dtype_of_actions(actions):
    given = parameters(actions, (7,))
    family = sampling.of(actions)
    for action in (family.sample(given, np.random.default_rng(0)), family.mode(given)):
        assert action.shape == (7, *actions.array.shape) and action.dtype == actions.array.dtype


def test_entropy_and_divergence_are_the_means_of_log_probabilities_over_draws(actions):
    family, given, other = distributions.of(actions), parameters(actions), parameters(actions, seed=5)
    p, q = family.normalise(given), family.normalise(other)
    action = draws(actions, given, 200_000)
    n = len(action)
    log_p = family.log_probability(tf.tile(p[None], [n, 1]), action).numpy()
    log_q = family.log_probability(tf.tile(q[None], [n, 1]), action).numpy()
    for mean_of, exact in ((-log_p, family.entropy(p)), (log_p - log_q, family.kl(p, q))):
        assert abs(mean_of.mean() - float(exact)) < 5 * mean_of.std() / n**0.5
    assert float(family.kl(p, p)) == pytest.approx(0.0, abs=1e-6)


def test_probabilities_sum_to_one():
    for actions in (KINDS["discrete"], KINDS["multi_discrete"]):
        sizes = np.atleast_1d(actions.num_actions)
        every = np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij"), -1).reshape(-1, len(sizes))
        every = every.reshape(-1, *actions.array.shape).astype(np.int32)
        family = distributions.of(actions)
        p = tf.tile(family.normalise(parameters(actions))[None], [len(every), 1])
        assert np.exp(family.log_probability(p, every)).sum() == pytest.approx(1.0, abs=1e-6)


def test_a_gaussian_against_scipy():
    from scipy import stats

    family, given = distributions.of(Continuous(2)), np.array([0.3, -1.0, 0.0, 2.0], np.float32)
    scale = np.log1p(np.exp(given[2:].astype(float)) * (np.e - 1.0)) + 1e-3
    exact = stats.multivariate_normal(given[:2], np.diag(scale**2))
    p, action = family.normalise(given[None]), np.array([[0.7, 1.5]], np.float32)
    assert float(family.log_probability(p, action)[0]) == pytest.approx(exact.logpdf(action[0]), abs=1e-5)
    assert float(family.entropy(p)[0]) == pytest.approx(exact.entropy(), abs=1e-5)
    assert scale[0] == pytest.approx(1.001)


def test_a_gaussian_draws_with_the_scale_that_losses_see():
    actions, given = Continuous(2), np.array([0.5, -2.0, -3.0, 4.0], np.float32)
    drawn = draws(actions, given, 100_000)
    mean, log_scale = np.split(distributions.of(actions).normalise(given).numpy(), 2)
    np.testing.assert_allclose(drawn.mean(0), mean, atol=4 * np.exp(log_scale).max() / 300)
    np.testing.assert_allclose(np.log(drawn.std(0)), log_scale, atol=0.015)


def test_numbers_far_out_stay_finite(actions):
    family = distributions.of(actions)
    for size in (-80.0, 80.0):
        given = np.full((1, actions.num_parameters), size, np.float32)
        given[0, 0] = 0.0
        with tf.GradientTape() as tape:
            x = tf.constant(given)
            tape.watch(x)
            p = family.normalise(x)
            total = family.log_probability(p, sampling.of(actions).mode(given)) + family.entropy(p) + family.kl(p, p)
        assert np.isfinite(total).all() and np.isfinite(tape.gradient(total, x)).all()


def test_features():
    one_hot = distributions.features(Discrete(3), tf.constant([[2, 0]]))
    np.testing.assert_array_equal(one_hot, [[[0, 0, 1], [1, 0, 0]]])
    side_by_side = distributions.features(MultiDiscrete((2, 3)), tf.constant([[1, 0]]))
    np.testing.assert_array_equal(side_by_side, [[0, 1, 1, 0, 0]])
    clipped = distributions.features(Continuous(2), tf.constant([[-7.0, 0.5]]))
    np.testing.assert_array_equal(clipped, [[-1.0, 0.5]])


def test_one_dimension_of_several_is_the_single_one():
    given, action = parameters(Discrete(4), (5,)), np.array([0, 1, 2, 3, 0], np.int32)
    single, several = distributions.of(Discrete(4)), distributions.of(MultiDiscrete((4,)))
    p = single.normalise(given)
    np.testing.assert_array_equal(several.normalise(given), p)
    np.testing.assert_array_equal(several.log_probability(p, action[:, None]), single.log_probability(p, action))
