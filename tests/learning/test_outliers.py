"""Which losses a bundle of Gorila's refuses."""

import numpy as np
import pytest

from impala.learning.outliers import Outliers


def test_a_loss_a_hundred_times_as_large_is_refused_and_leaves_the_statistics_alone():
    random = np.random.default_rng(0)
    losses = random.gamma(4.0, 0.25, size=3000)
    outliers = Outliers(4.0)
    assert not any(outliers(loss) for loss in losses[:1000]), "the first pass, whatever they are"
    refused = [outliers(loss) for loss in losses[1000:]]
    assert sum(refused) < 20
    assert outliers.mean == pytest.approx(1.0, abs=0.1) and outliers.deviation == pytest.approx(0.5, abs=0.1)
    before = outliers.mean, outliers.deviation
    assert outliers(100.0) and outliers(-100.0) and (outliers.mean, outliers.deviation) == before
    assert not outliers(float("nan")) and not outliers(float("inf")), "the server sees to these"
    assert not Outliers(None)(1e9)


def test_losses_that_stay_high_are_refused_a_hundred_times_and_no_more(caplog):
    outliers = Outliers(4.0)
    for number in range(2000):
        outliers(1.0 + 0.1 * (number % 2))
    for _ in range(5):
        assert [outliers(9.0) for _ in range(99)] == [True] * 99, "rare ones, if many"
        assert not outliers(1.0)
    assert not caplog.text
    assert [outliers(9.0) for _ in range(100)] == [True] * 100
    assert "100 losses in a row" in caplog.text
    for number in range(1000):
        assert not outliers(9.0 + 0.1 * (number % 2))
    assert outliers(90.0) and not outliers(9.0) and outliers.mean == pytest.approx(9.05, abs=0.01)
