"""What workers share: sums of many are the sums of one, and β follows the KL."""

import functools

import numpy as np
import pytest

from impala.learning.statistics import NOTHING, Statistics
from impala.losses.ppo_clip import adapted_penalty

FULL = Statistics(num_features=3, returns_discount=0.9, beta=1.0, adapt=functools.partial(adapted_penalty, target=0.01))


def test_moments_of_three_workers_are_those_of_all_that_they_saw():
    random = np.random.default_rng(0)
    seen = [random.normal(5.0, [0.1, 1.0, 30.0], size=(n, 3)).astype(np.float32) for n in (7, 100, 1)]
    returns = [random.normal(-20.0, 4.0, size=n) for n in (5, 50, 2)]
    state = FULL.initial()
    mean, deviation = FULL.observation_moments(state)
    assert mean.tolist() == [0, 0, 0] and deviation.tolist() == [1, 1, 1] and FULL.return_deviation(state) == 1.0
    one = sum(FULL.of_observations(x) for x in seen[:2]) + sum(FULL.of_returns(x) for x in returns[:2])
    state = FULL.merge(FULL.merge(state, one), FULL.of_observations(seen[2]) + FULL.of_returns(returns[2]))
    mean, deviation = FULL.observation_moments(state)
    everything = np.concatenate(seen).astype(float)
    np.testing.assert_allclose(mean, everything.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(deviation, everything.std(axis=0), rtol=1e-6)
    assert FULL.return_deviation(state) == pytest.approx(np.concatenate(returns).std(), rel=1e-8)
    assert FULL.beta(state) == 1.0, "without a KL β stays"


def test_beta_doubles_and_halves_by_the_mean_kl_of_all_workers():
    state, seen = FULL.initial(), []
    for kls in ((0.02, 0.02), (0.02, 0.0), (0.001, 0.001), (0.0, 0.0), (0.016, 0.0135)):
        state = FULL.merge(state, sum(FULL.of_kl(100 * kl, 100) for kl in kls))
        seen.append(FULL.beta(state))
    assert seen == [2.0, 2.0, 1.0, 0.5, 0.5]
    assert FULL.merge(state, np.zeros(FULL.size)).tolist() == state.tolist()


def test_what_a_refused_gradient_brought_comes_later_but_adapts_beta_no_more():
    seen = FULL.of_kl(2.0, 100) + FULL.of_observations(np.ones([4, 3])) + FULL.of_returns(np.array([1.0, 3.0]))
    state = FULL.merge(FULL.merge(FULL.initial(), seen), FULL.without_kl(seen))
    assert FULL.beta(state) == 2.0
    assert state[2:].tolist() == (2 * seen[2:]).tolist() and seen[0] == 2.0


def test_where_nothing_is_shared_there_is_nothing():
    assert NOTHING.size == 0 and NOTHING.initial().shape == (0,) and NOTHING.beta(NOTHING.initial()) == 0.0
    assert NOTHING.merge(NOTHING.initial(), np.zeros(0)).shape == NOTHING.without_kl(np.zeros(0)).shape == (0,)
    alone = Statistics(returns_discount=0.5)
    assert alone.merge(alone.initial(), alone.of_returns(np.array([1.0, 3.0])))[-3:].tolist() == [2.0, 4.0, 10.0]
