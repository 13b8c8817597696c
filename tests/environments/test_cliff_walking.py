"""Cliff walking by hand: the way along the cliff, falls, the wind and the time limit."""

import numpy as np
import pytest

from impala import environments
from impala.environments.cliff_walking import COLUMNS, GOAL, START

N = 2000
UP, RIGHT, DOWN, LEFT = range(4)


def play(policy, num_steps, n=N):
    """Returns states, actions and steps; `policy` is given the states [n]."""
    environment, steps, actions = environments.make("cliff_walking", num_environments=n), [], []
    steps.append(environment.reset(0))
    for _ in range(num_steps):
        actions.append(policy(steps[-1].observation.argmax(axis=1)).astype(np.int32))
        environment.send(actions[-1])
        steps.append(environment.receive())
    return np.stack([step.observation.argmax(axis=1) for step in steps]), np.stack(actions), steps


def along_the_cliff(state):
    row, column = np.divmod(state, COLUMNS)
    return np.where(row == 3, UP, np.where(column < COLUMNS - 1, RIGHT, DOWN))


def test_the_way_along_the_cliff_in_wind():
    """Thirteen steps at best; one that the wind does not disturb arrives, one blown down falls."""
    states, actions, steps = play(along_the_cliff, 13)
    assert (states[0] == START).all() and steps[0].is_first.all()
    rewards = np.stack([step.reward for step in steps[1:]])
    is_last = np.stack([step.is_last for step in steps])
    discount = np.stack([step.discount for step in steps])
    assert (discount == ~is_last).all(), "both ends terminate"
    alive = ~np.cumsum(is_last, axis=0).astype(bool)
    undisturbed = np.cumprod(alive, axis=0).astype(bool)[:-1] & ~is_last[:-1]
    arrived, fell = states[1:] == GOAL, (states[1:] > START) & (states[1:] < GOAL)
    np.testing.assert_array_equal(is_last[1:][undisturbed], (arrived | fell)[undisturbed])
    np.testing.assert_array_equal(rewards[undisturbed & arrived], 1.0)
    np.testing.assert_array_equal(rewards[undisturbed & fell], -1.0)
    np.testing.assert_array_equal(rewards[undisturbed & ~arrived & ~fell], np.float32(-0.01))
    # Ten windless steps to the right, after one up that may take several tries, and down in any case.
    first_try = states[1] == START - COLUMNS
    assert abs((first_try & arrived.any(axis=0)).sum() / first_try.sum() - 0.9**11) < 5 * np.sqrt(0.31 * 0.69 / N)


@pytest.mark.parametrize("row, value, n", [(2, -0.385, 60_000), (1, 0.63, 10_000), (0, 0.78, 10_000)])
def test_the_further_from_the_cliff_the_better(row, value, n):
    """Against the module's own numbers, by one episode of each board."""
    environment = environments.make("cliff_walking", num_environments=n)
    step, score, plays = environment.reset(0), np.zeros(n), np.ones(n, bool)
    while plays.any():
        at, column = np.divmod(step.observation.argmax(axis=1), COLUMNS)
        environment.send(np.where(column == COLUMNS - 1, DOWN, np.where(at > row, UP, RIGHT)))
        step = environment.receive()
        score += np.where(plays, step.reward, 0.0)
        plays &= ~step.is_last
    error = score.std() / np.sqrt(n)
    assert abs(score.mean() - value) < 3 * error < 0.03
    assert row < 2 or abs(score.mean() + 0.40) > 3 * error


def test_the_wind_blows_down_in_every_tenth_step_and_edges_stop():
    states, actions, steps = play(lambda state: np.full(N, LEFT), 1)
    np.testing.assert_array_equal(states[1], START)  # left and down both stop at the corner
    states, _, _ = play(lambda state: np.full(N, UP), 4)
    risen = states[1] == START - COLUMNS
    assert (risen | (states[1] == START)).all() and abs(risen.mean() - 0.9) < 5 * np.sqrt(0.09 / N)
    assert states.min() == 0, "nobody rises above the highest row"


def test_an_episode_is_truncated_after_a_hundred_steps_and_starts_again():
    """Whoever always goes left stays in the corner."""
    states, _, steps = play(lambda state: np.full(2, LEFT), 205, n=2)
    assert [t for t, step in enumerate(steps) if step.is_last.all()] == [100, 201]  # a reset lies between
    assert all((step.discount == 1).all() for step in steps), "a truncated episode bootstraps"
    assert steps[101].is_first.all() and (states[101] == START).all() and not steps[101].reward.any()
