"""GA3C's adjustment: it keeps what is not slower, goes back otherwise, and never leaves its bounds."""

import itertools

import numpy as np

from impala.nodes.random_walk import RandomWalk


def walk(speed, num_periods, *, sizes=None, most=None, seed=0):
    """Walks where a period trains `speed(sizes)`; returns the sizes that held in each period."""
    history, count = [], 0
    adjusted = RandomWalk(sizes or dict(a=4, b=2), most=most or {}, apply=lambda sizes: None, seed=seed, clock=itertools.count().__next__)
    for _ in range(num_periods):
        adjusted.adjust(count)
        history.append(adjusted.sizes)
        count += speed(adjusted.sizes)
    return history


def test_it_finds_the_faster_numbers():
    for seed in range(5):
        history = walk(lambda s: 1000 - 10 * abs(s["a"] - 9) - 10 * abs(s["b"] - 5), 200, seed=seed)
        assert abs(history[-1]["a"] - 9) + abs(history[-1]["b"] - 5) <= 2


def test_each_number_moves_by_one_at_most_and_stays_in_bounds():
    for seed in range(5):
        history = walk(lambda s: 1, 300, most=dict(a=6), seed=seed)
        assert max(s["a"] for s in history) == 6 and min(min(s.values()) for s in history) == 1
        changes = [abs(now[name] - then[name]) for then, now in zip(history, history[1:]) for name in "ab"]
        assert set(changes) == {0, 1}


def test_a_trial_that_is_slower_is_undone_and_the_old_numbers_are_measured_again():
    applied, count = [], 0
    adjusted = RandomWalk(dict(a=10), most={}, apply=applied.append, seed=1, clock=itertools.count().__next__)
    adjusted.adjust(count)  # the start-up counts for nothing
    assert not applied
    adjusted.adjust(count := count + 100)
    while applied[-1] == dict(a=10):  # a trial of no change
        adjusted.adjust(count := count + 100)
    tried = applied[-1]
    adjusted.adjust(count := count + 99)
    assert applied[-1] == adjusted.sizes == dict(a=10) != tried
    num_applied = len(applied)
    adjusted.adjust(count := count + 50)  # all is slower now: that is the measure for the next trial
    assert len(applied) == num_applied + 1
    trial = applied[-1]
    adjusted.adjust(count + 50)
    assert len(applied) == num_applied + 2 and np.abs(adjusted.sizes["a"] - trial["a"]) <= 1, "kept: it is not slower"


def test_apply_hears_what_holds():
    applied = []
    adjusted = RandomWalk(dict(a=2, b=3), most={}, apply=applied.append, seed=3, clock=itertools.count().__next__)
    for count in (0, 10, 15, 30, 31, 80):
        adjusted.adjust(count)
        if applied:
            assert applied[-1] == adjusted.sizes


def test_a_period_that_lasted_longer_is_not_taken_for_a_faster_one():
    """Numbers are tried in the second period, which is half as fast and three times as long."""
    times, applied = iter([0.0, 10.0, 40.0]), []
    adjusted = RandomWalk(dict(a=50), most={}, apply=applied.append, seed=1, clock=lambda: next(times))
    for count in (0, 100, 250):
        adjusted.adjust(count)
    assert applied[-1] == dict(a=50) and len(applied) == 2
