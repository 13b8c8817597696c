import numpy as np
import pytest

from impala.acting import exploration
from impala.acting.exploration import epsilon_ladder
from impala.types import Continuous


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


def test_gaussian_noise_has_its_deviation_for_each_environment_and_stays_within_the_bounds():
    behaviour = exploration.gaussian(Continuous(2), 3, lambda: np.array([0.3, 0.0, 5.0]))
    mean, observation = np.full((3, 2), 0.1, np.float32), np.zeros((3, 3), np.float32)
    random = np.random.default_rng(0)
    drawn = []
    for _ in range(50_000):
        action, kept = behaviour.choose((mean, observation), random)
        drawn.append(action)
        assert kept[0] is observation and kept[1] is action
    drawn = np.stack(drawn)
    assert drawn.dtype == np.float32 and np.abs(drawn).max() == 1.0 and (drawn[:, 1] == np.float32(0.1)).all()
    inside = drawn[:, 0][np.abs(drawn[:, 0]).max(axis=-1) < 1.0]
    assert drawn[:, 0].mean() == pytest.approx(0.1, abs=0.01) and inside.std() == pytest.approx(0.3, abs=0.01)
    assert np.mean(np.abs(drawn[:, 2]) == 1.0) > 0.8
