"""Every part of the bench runs, in a process of its own as in `impala bench`; its figures are not judged here."""

import pytest

from impala import bench
from impala import config as config_lib
from impala.bench import schemes, whole

CATCH = config_lib.load("configs/catch.yaml")


@pytest.mark.parametrize("name", bench._PARTS)
def test_a_part_alone(name):
    assert bench._alone(bench._PARTS[name], CATCH, 0.3) > 10


def test_lockstep_on_one_core():
    assert bench._alone(whole.lockstep_rate, CATCH, 0.5) > 100


def test_every_scheme_has_a_share():
    from impala import corrections, losses

    fractions = bench._alone(schemes.scheme_fractions, CATCH, 1.0)
    assert fractions.keys() == corrections.SCHEMES.keys() | losses.POLICY_TERMS.keys()
    assert all(0.0 <= fraction < 10.0 for fraction in fractions.values())


def test_the_bound_by_hand():
    assert bench.bound(env=4.0, inference=4.0, learner=2.0, table=float("inf")) == 1.0
