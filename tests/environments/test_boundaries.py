"""Every case of (terminated, truncated, lost life) on scripted arrays: one environment a column."""

import numpy as np

from impala.environments.boundaries import Boundaries


def play(terminated, truncated, lost_life=None, reward=None):
    """Feeds rows of flags [steps, N] after a reset; returns stacked Step fields [steps, N]."""
    terminated, truncated = np.array(terminated, bool), np.array(truncated, bool)
    num_steps, n = terminated.shape
    reward = np.ones((num_steps, n)) if reward is None else np.array(reward)
    boundaries = Boundaries(n)
    boundaries.reset(np.zeros((n, 1)))
    steps = [
        boundaries.step(
            np.full((n, 1), t), reward[t], terminated[t], truncated[t],
            lost_life=None if lost_life is None else np.array(lost_life, bool)[t],
        )
        for t in range(num_steps)
    ]  # fmt: skip
    return {name: np.stack([getattr(step, name) for step in steps]) for name in steps[0]._fields}


def test_reset_starts_every_episode():
    observation = np.arange(6).reshape(3, 2)
    step = Boundaries(3).reset(observation)
    assert step.observation is observation
    assert step.is_first.all() and not step.is_last.any()
    assert not step.reward.any() and (step.discount == 1).all()
    assert step.reward.dtype == step.discount.dtype == np.float32
    assert step.is_first.dtype == step.is_last.dtype == bool


def test_terminated_truncated_and_both():
    """Columns: goes on, terminates, is truncated, both at once; each at its second step."""
    ends = [[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]
    cut = [[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]
    steps = play(ends, cut)
    np.testing.assert_array_equal(steps["is_last"], [[0, 0, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(steps["is_first"], [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]])
    np.testing.assert_array_equal(steps["discount"], [[1, 1, 1, 1], [1, 0, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1]])
    np.testing.assert_array_equal(steps["reward"], [[1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1]])


def test_whatever_the_reset_step_reports_is_no_transition():
    """An environment that repeats its flags and its reward on the step that resets it."""
    steps = play([[1], [1], [0]], [[0], [1], [0]], reward=[[2.0], [3.0], [4.0]])
    assert steps["is_first"].ravel().tolist() == [False, True, False]
    assert steps["is_last"].ravel().tolist() == [True, False, False]
    assert steps["discount"].ravel().tolist() == [0.0, 1.0, 1.0]
    assert steps["reward"].ravel().tolist() == [2.0, 0.0, 4.0]


def test_an_episode_of_one_step():
    steps = play([[1], [0], [1], [0]], np.zeros((4, 1)))
    assert steps["is_last"].ravel().tolist() == [True, False, True, False]
    assert steps["is_first"].ravel().tolist() == [False, True, False, True]


def test_a_lost_life_sets_the_discount_and_nothing_else():
    steps = play(np.zeros((3, 2)), np.zeros((3, 2)), lost_life=[[0, 0], [0, 1], [0, 0]])
    assert not steps["is_last"].any() and not steps["is_first"].any()
    np.testing.assert_array_equal(steps["discount"], [[1, 1], [1, 0], [1, 1]])
    assert (steps["reward"] == 1).all()


def test_a_lost_life_at_a_truncation_does_not_bootstrap():
    steps = play([[0], [0]], [[1], [0]], lost_life=[[1], [0]])
    assert steps["is_last"].ravel().tolist() == [True, False] and steps["discount"].ravel().tolist() == [0.0, 1.0]


def test_a_full_reset_forgets_that_an_episode_had_ended():
    boundaries = Boundaries(1)
    boundaries.reset(np.zeros(1))
    yes, no = np.array([True]), np.array([False])
    assert boundaries.step(np.zeros(1), np.ones(1), yes, no).is_last.all()
    boundaries.reset(np.zeros(1))
    assert not boundaries.step(np.zeros(1), np.ones(1), no, no).is_first.any()


def test_what_needs_more_steps_to_begin_has_more_first_ones():
    """And what is over before it has begun is no episode: it begins anew."""
    boundaries, game = Boundaries(1), []
    boundaries.reset(np.zeros(1))
    #                     reset, FIRE; goes on; ends; reset; FIRE, which ends it; reset; FIRE; goes on
    for over, beginning in [(0, 1), (0, 0), (1, 0), (0, 0), (1, 1), (0, 0), (0, 1), (0, 0)]:
        step = boundaries.step(
            np.zeros(1), np.ones(1), np.array([over > 0]), np.zeros(1, bool), is_beginning=np.array([beginning > 0])
        )
        game.append((bool(step.is_first[0]), bool(step.is_last[0]), float(step.reward[0]), float(step.discount[0])))
    first, on, last = (True, False, 0.0, 1.0), (False, False, 1.0, 1.0), (False, True, 1.0, 0.0)
    assert game == [first, on, last, first, first, first, first, on]
