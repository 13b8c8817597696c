"""River swim: its transition probabilities by counting, its rewards and its time limit."""

import numpy as np

from impala import environments
from impala.environments import river_swim

N = 4000


def test_transitions_and_rewards_follow_the_table():
    """Every (state, action) of 4,000 rivers over 100 steps; a frequency is off by 5 standard deviations at most."""
    river = environments.make("river_swim", num_environments=N)
    random, step = np.random.default_rng(99), river.reset(0)  # seeds apart, or both draw the same
    assert (step.observation.argmax(1) == 0).all()
    counts, rewards = np.zeros((6, 2, 6)), {}
    for _ in range(99):
        before = step.observation.argmax(1)
        action = (random.random(N) < 0.85).astype(np.int32)  # mostly right, or nobody would arrive
        river.send(action)
        step = river.receive()
        np.add.at(counts, (before, action, step.observation.argmax(1)), 1)
        for s, a in np.unique(np.stack([before, action], 1), axis=0):
            rewards.setdefault((s, a), set()).update(step.reward[(before == s) & (action == a)].tolist())
    expected = np.zeros((6, 2, 6))
    for s in range(6):
        expected[s, 0, max(s - 1, 0)] = 1.0
        back, stay = (0.0, 0.4) if s == 0 else (0.4, 0.6) if s == 5 else (0.05, 0.6)
        expected[s, 1, max(s - 1, 0)] += back
        expected[s, 1, s] += stay
        expected[s, 1, min(s + 1, 5)] += 1.0 - back - stay
    transition, reward = river_swim.model()
    np.testing.assert_allclose(transition, expected)
    assert reward[0, 0] == 0.005 and reward[5, 1] == 1.0 and np.count_nonzero(reward) == 2
    total = counts.sum(axis=-1, keepdims=True)
    assert total.min() > 200, "a pair that was hardly seen shows nothing"
    assert (np.abs(counts / total - expected) <= 5 * np.sqrt(expected * (1 - expected) / total) + 1e-12).all()
    assert {key: values for key, values in rewards.items() if values != {0.0}} == {
        (0, 0): {np.float32(0.005)}, (5, 1): {1.0},
    }  # fmt: skip


def test_an_episode_is_truncated_after_a_hundred_steps():
    river = environments.make("river_swim", num_environments=2)
    river.reset(0)
    steps = []
    for _ in range(205):
        river.send(np.ones(2, np.int32))
        steps.append(river.receive())
    assert [t for t, step in enumerate(steps) if step.is_last.all()] == [99, 200]  # a reset lies between
    assert all((step.discount == 1).all() for step in steps), "a truncated episode bootstraps"
    assert (steps[100].observation.argmax(1) == 0).all()
