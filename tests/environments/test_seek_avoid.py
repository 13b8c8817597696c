"""Seek and avoid by hand: who lies where, what a step brings, what is taken comes back, and the time limit."""

import numpy as np

from impala import environments
from impala.environments.seek_avoid import MAX_STEPS, NUM_APPLES, NUM_LEMONS, SIZE

N = 500
MOVES = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]])


def play(num_steps, n=N, seed=0):
    environment, random = environments.make("seek_avoid", num_environments=n), np.random.default_rng(99)
    steps, actions = [environment.reset(seed)], []
    for _ in range(num_steps):
        actions.append(random.integers(4, size=n).astype(np.int32))
        environment.send(actions[-1])
        steps.append(environment.receive())
    return steps, actions


def test_agent_apples_and_lemons_lie_in_cells_of_their_own():
    for step in play(60)[0]:
        np.testing.assert_array_equal(step.observation.sum(axis=(1, 2)), [[1, NUM_APPLES, NUM_LEMONS]] * N)
        assert step.observation.sum(axis=-1).max() == 1.0


def test_a_step_moves_the_agent_and_takes_what_lies_there():
    steps, actions = play(MAX_STEPS)
    taken = []
    for before, action, after in zip(steps, actions, steps[1:]):
        agent = np.argwhere(before.observation[..., 0])[:, 1:]
        expected = np.clip(agent + MOVES[action], 0, SIZE - 1)
        np.testing.assert_array_equal(np.argwhere(after.observation[..., 0])[:, 1:], expected)
        there = before.observation[np.arange(N), expected[:, 0], expected[:, 1]]
        np.testing.assert_array_equal(after.reward, there[:, 1] - there[:, 2])
        # The rest stays: one apple or lemon changes its cell where one was taken, none elsewhere.
        moved = (before.observation[..., 1:] * (1 - after.observation[..., 1:])).sum(axis=(1, 2))
        np.testing.assert_array_equal(moved, there[:, 1:])
        taken.append(there[:, 1:].sum(axis=0))
    assert np.min(np.sum(taken, axis=0)) > 1000, "few were taken, which shows little"


def test_what_was_taken_comes_back_in_every_free_cell_alike():
    steps, _ = play(8 * MAX_STEPS)
    new = np.zeros((SIZE, SIZE))
    chance = np.zeros((SIZE, SIZE))
    for before, after in zip(steps, steps[1:]):
        if after.is_first.any():
            continue
        for fruit in (1, 2):
            appeared = after.observation[..., fruit] * (1 - before.observation[..., fruit])
            where = appeared.any(axis=(1, 2))
            free = (1 - after.observation[..., 0]) * (1 - before.observation[..., 1:].max(axis=-1))
            new += appeared[where].sum(axis=0)
            chance += (free / free.sum(axis=(1, 2), keepdims=True))[where].sum(axis=0)
    assert abs(chance.sum() - new.sum()) < 1e-3 and new.sum() > 10_000
    assert (np.abs(new - chance) < 5 * np.sqrt(chance)).all()


def test_an_episode_is_truncated_after_fifty_steps_and_laid_out_anew():
    steps, _ = play(2 * MAX_STEPS + 1)
    assert [t for t, step in enumerate(steps) if step.is_last.all()] == [MAX_STEPS, 2 * MAX_STEPS + 1]
    assert all((step.discount == 1).all() for step in steps), "a truncated episode bootstraps"
    first = steps[MAX_STEPS + 1]
    assert first.is_first.all() and not first.reward.any()
    assert abs(first.observation[:, 2, 2, 0].mean() - 1 / SIZE**2) < 0.05
