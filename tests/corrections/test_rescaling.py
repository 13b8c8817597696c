import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impala.corrections.rescaling import rescale, unscale


def test_numbers_by_hand():
    x = np.array([1.0, 10.0, 100.0, 1000.0])
    np.testing.assert_allclose(rescale(x), [0.41521356, 2.32662479, 9.14987562, 31.63858404], atol=5e-9)
    np.testing.assert_array_equal(rescale(-x), -rescale(x).numpy())


@settings(deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1.0))
def test_one_undoes_the_other(x, epsilon):
    np.testing.assert_allclose(unscale(rescale(np.float64(x), epsilon), epsilon), x, rtol=1e-7, atol=1e-9)


def test_in_float32_the_inverse_does_not_cancel():
    x = np.float32([1e-3, 0.1, 1.0, 30.0, 1e4])
    exact = rescale(x.astype(np.float64)).numpy()
    np.testing.assert_allclose(unscale(exact.astype(np.float32)), x, rtol=3e-6)


def test_an_epsilon_of_0_is_refused():
    for function in (rescale, unscale):
        with pytest.raises(ValueError, match="epsilon=0.0"):
            function(1.0, 0.0)
