import numpy as np
import pytest

from impala.acting.exploration import epsilon_ladder


def test_published_ladders():
    np.testing.assert_allclose(epsilon_ladder(8)[[0, 1, 2, -1]], [0.4, 0.16, 0.064, 0.00065536], rtol=1e-12)
    many = epsilon_ladder(360)
    np.testing.assert_allclose(many[[0, 1, 2]], [0.4, 0.392917, 0.385959], atol=5e-7)
    np.testing.assert_allclose([many[-1], many.mean()], [0.00065536, 0.062646], rtol=1e-5)
    assert epsilon_ladder(1) == [0.4]


@pytest.mark.parametrize(("arguments", "name"), [
    (dict(num_actors=0), "num_actors=0"), (dict(num_actors=2, base=0.0), "base=0.0"),
    (dict(num_actors=2, exponent=-1.0), "exponent=-1.0"),
])  # fmt: skip
def test_what_is_out_of_range_is_refused(arguments, name):
    with pytest.raises(ValueError, match=name):
        epsilon_ladder(**arguments)
