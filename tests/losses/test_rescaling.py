import decimal
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impala.losses.r2d2 import rescaled, unscaled


def test_numbers_by_hand():
    x = np.array([1.0, 10.0, 100.0, 1000.0])
    np.testing.assert_allclose(rescaled(x), [0.41521356, 2.32662479, 9.14987562, 31.63858404], atol=5e-9)
    np.testing.assert_array_equal(rescaled(-x), -rescaled(x))


@settings(deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1.0))
def test_one_undoes_the_other(x, epsilon):
    np.testing.assert_allclose(unscaled(rescaled(np.float64(x), epsilon), epsilon), x, rtol=1e-7, atol=1e-9)


# 1e-12 … 1e12, of both signs, and 0
NUMBERS = [0.0, *(sign * 10.0 ** (exponent / 2) for exponent in range(-24, 25) for sign in (1, -1))]


def h(x, epsilon):
    """Pohlen et al. 2018, section 3.2, as printed, with sixty digits."""
    return Decimal(1).copy_sign(x) * ((abs(x) + 1).sqrt() - 1) + epsilon * x


def h_inverse(x, epsilon):
    """Their proposition A.2, as printed, with sixty digits."""
    root = (1 + 4 * epsilon * (abs(x) + 1 + epsilon)).sqrt()
    return Decimal(1).copy_sign(x) * (((root - 1) / (2 * epsilon)) ** 2 - 1)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-8, 1e-6, 1e-3, 1e-2, 0.3, 1.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_digit_of_the_papers_formulas_at_any_size(dtype, epsilon):
    numbers, digits = np.array(NUMBERS, dtype), 8 * float(np.finfo(dtype).eps)
    with decimal.localcontext(decimal.Context(prec=60)):
        for ours, theirs in ((rescaled, h), (unscaled, h_inverse)):
            exact = [float(theirs(Decimal(float(x)), Decimal(epsilon))) for x in numbers]
            np.testing.assert_allclose(ours(numbers, epsilon).astype(float), exact, rtol=digits, atol=1e-40)  # of the oracle at 0
    assert rescaled(numbers, epsilon).dtype == unscaled(numbers, epsilon).dtype == dtype


@pytest.mark.parametrize("epsilon", [1e-12, 1e-3, 1.0])
def test_there_and_back_in_float32_loses_no_digit(epsilon):
    numbers = np.array(NUMBERS, np.float32)
    np.testing.assert_allclose(unscaled(rescaled(numbers, epsilon), epsilon), numbers, rtol=2e-6, atol=0)
