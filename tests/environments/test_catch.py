"""Catch by hand: nine steps, +1 under the ball, −1 elsewhere."""

import numpy as np

from impala import environments


def play(policy, num_steps=60, n=8):
    environment = environments.make("catch", num_environments=n)
    step = environment.reset(0)
    steps = [step]
    for _ in range(num_steps):
        environment.send(policy(step))
        step = environment.receive()
        steps.append(step)
    return steps


def position(step):
    """(row and column of the ball, column of the paddle) of boards with the ball above the lowest row."""
    ball = step.observation[:, :-1].reshape(len(step.observation), -1)
    return (*np.divmod(ball.argmax(axis=1), 5), step.observation[:, -1].argmax(axis=1))


def follow(step):
    _, ball, paddle = position(step)
    return np.where(step.is_last, 1, np.sign(ball - paddle) + 1).astype(np.int32)


def flee(step):
    _, ball, _ = position(step)
    return np.where(ball >= 2, 0, 2).astype(np.int32)


def test_who_follows_the_ball_catches_it_and_who_flees_misses():
    for policy, score in ((follow, 1.0), (flee, -1.0)):
        steps = play(policy)
        rewards = np.array([step.reward for step in steps])
        is_last = np.array([step.is_last for step in steps])
        assert is_last.sum() == 6 * 8
        assert (rewards[is_last] == score).all() and not rewards[~is_last].any()


def test_episodes_take_nine_steps_and_terminate():
    steps = play(follow)
    assert [t for t, step in enumerate(steps) if step.is_last.any()] == [9, 19, 29, 39, 49, 59]
    assert all((step.discount == np.where(step.is_last, 0, 1)).all() for step in steps)


def test_the_ball_falls_straight_from_every_column():
    steps = play(lambda step: np.ones(8, np.int32))
    columns = set()
    for start in range(0, 60, 10):
        for fallen in range(9):
            row, column, paddle = position(steps[start + fallen])
            assert (row == fallen).all() and (paddle == 2).all()
            np.testing.assert_array_equal(column, position(steps[start])[1])
        columns |= set(position(steps[start])[1].tolist())
    assert columns == {0, 1, 2, 3, 4}


def test_walls_stop_the_paddle():
    for action, column in ((0, 0), (2, 4)):
        steps = play(lambda step: np.full(8, action, np.int32), num_steps=8)
        assert (position(steps[-1])[2] == column).all()
