import numpy as np
import pytest
import reverb
from hypothesis import given, settings
from hypothesis import strategies as st

from impala.replay.priorities import importance_weights, probabilities

POSITIVE = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20)


def test_the_papers_formulas_by_hand():
    p = probabilities([1, 2, 3, 4], 0.6)
    np.testing.assert_allclose(p, [0.148230, 0.224674, 0.286555, 0.340542], atol=5e-7)
    weights = importance_weights(p, 4, 0.4)
    np.testing.assert_allclose(weights / weights.max(), [1, 0.846745, 0.768229, 0.716978], atol=5e-7)
    np.testing.assert_allclose(weights[0], (4 * 0.148230) ** -0.4, atol=5e-6)


def test_reverb_draws_with_these_probabilities():
    table = reverb.Table("prioritised", reverb.selectors.Prioritized(0.6), reverb.selectors.Fifo(), 10,
                         reverb.rate_limiters.MinSize(1))  # fmt: skip
    server = reverb.Server([table])
    client = reverb.Client(f"localhost:{server.port}")
    for priority in (1.0, 2.0, 3.0, 4.0):
        client.insert([np.float32(priority)], {"prioritised": priority})
    drawn = {float(s[0].data[0]): s[0].info.probability for s in client.sample("prioritised", 200)}
    np.testing.assert_allclose([drawn[k] for k in sorted(drawn)], probabilities(sorted(drawn), 0.6), rtol=1e-6)
    assert len(drawn) == 4
    server.stop()


@settings(deadline=None)
@given(POSITIVE, st.floats(0, 2))
def test_a_full_correction_makes_draws_uniform_and_exponent_0_is_uniform(priorities, exponent):
    p = probabilities(priorities, exponent)
    np.testing.assert_allclose(p.sum(), 1.0, rtol=1e-12)
    product = p * importance_weights(p, len(p), 1.0)
    np.testing.assert_allclose(product, 1 / len(p), rtol=1e-9)
    np.testing.assert_allclose(probabilities(priorities, 0.0), 1 / len(priorities), rtol=1e-12)
    assert importance_weights(p, len(p), 0.0).tolist() == [1.0] * len(p)


def test_a_probability_that_reverb_has_rounded_up_is_1():
    assert importance_weights([np.float32(1.0 + 5e-7)], 1, 0.4).tolist() == [1.0]


@pytest.mark.parametrize("wrong", [[1.0, 0.0], [1.0, -1.0], [1.0, np.nan], [1.0, np.inf]])
def test_what_is_no_priority_is_refused(wrong):
    with pytest.raises(ValueError, match="priorities"):
        probabilities(wrong, 0.6)
    with pytest.raises(ValueError, match="probability"):
        importance_weights(wrong, 2, 0.4)
    with pytest.raises(ValueError, match="exponent=-1"):
        probabilities([0.5], -1.0)
    with pytest.raises(ValueError, match="exponent=-1"):
        importance_weights([0.5], 2, -1.0)
