"""Sampling, greed, and the window of frames."""

import numpy as np
import pytest

from impala import environments, networks
from impala.acting import behaviours, policies
from impala.types import ArraySpec, Discrete, EnvironmentSpec, Step

LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
SPEC = EnvironmentSpec("x", ArraySpec((2,), np.float32), actions=Discrete(4))


def step(observation, is_first=None):
    n = len(observation)
    is_first = np.zeros(n, bool) if is_first is None else np.array(is_first, bool)
    return Step(observation, np.zeros(n, "f4"), np.ones(n, "f4"), is_first, np.zeros(n, bool))


def constant_logits(window, is_first):
    return np.tile(LOGITS, (window.shape[1], 1)), np.arange(window.shape[1], dtype=np.float32)


def policy(n, **kwargs):
    return policies.FeedForwardPolicy(constant_logits, SPEC, n, **dict(seed=0) | kwargs)


def test_sampling_follows_the_softmax():
    """χ² over 40,000 draws: 3 degrees of freedom, 21.1 is exceeded once in 10,000."""
    sampler = policy(1000)
    actions = np.concatenate([sampler.decide().action for _ in range(40)])
    expected = np.exp(LOGITS) * len(actions)
    observed = np.bincount(actions, minlength=4)
    assert np.sum((observed - expected) ** 2 / expected) < 21.1


def test_draws_are_independent_in_time_and_between_environments():
    sampler = policy(2000)
    one, other = sampler.decide().action, sampler.decide().action
    for a, b in ((one, other), (one[:-1], one[1:])):
        agree = np.mean(a == b)
        chance = np.sum(np.exp(LOGITS) ** 2)
        assert abs(agree - chance) < 5 * np.sqrt(chance * (1 - chance) / len(a))


def test_a_decision_holds_the_logits_it_was_drawn_from():
    decision = policy(5).decide()
    assert decision.action.dtype == np.int32 and decision.action.shape == (5,)
    logits, value = decision.kept
    assert logits.dtype == np.float32
    np.testing.assert_array_equal(logits, np.tile(LOGITS, (5, 1)))
    np.testing.assert_array_equal(value, np.arange(5))


def test_greedy_takes_the_most_probable():
    greedy = behaviours.sampled(SPEC.actions, greedy=True)
    assert not policy(500, behaviour=greedy).decide().action.any()
    assert policy(500).decide().action.any()


def test_same_seed_same_actions():
    one, same, other = (policy(50, seed=seed).decide().action for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_the_window_starts_empty_and_forgets_at_a_reset():
    spec = EnvironmentSpec("x", ArraySpec((1,), np.uint8), actions=Discrete(4), num_stacked=3)
    watcher = policies.FeedForwardPolicy(constant_logits, spec, 2, seed=0)
    shown = []
    for t, is_first in enumerate([[1, 1], [0, 0], [0, 1], [0, 0], [0, 0], [1, 0]]):
        watcher.observe(step(np.full((2, 1), t + 1, np.uint8), is_first))
        shown.append(watcher.window[:, :, 0].T.tolist())
    assert shown == [
        [[0, 0, 1], [0, 0, 1]],
        [[0, 1, 2], [0, 1, 2]],
        [[1, 2, 3], [0, 0, 3]],
        [[2, 3, 4], [0, 3, 4]],
        [[3, 4, 5], [3, 4, 5]],
        [[0, 0, 6], [4, 5, 6]],
    ]


def test_the_network_sees_the_step_that_was_observed_last():
    seen = []
    watcher = policies.FeedForwardPolicy(
        lambda w, f: (seen.append((w.copy(), f.copy())), constant_logits(w, f))[1], SPEC, 2, seed=0
    )
    watcher.observe(step(np.array([[1, 2], [3, 4]], np.float32), [True, False]))
    watcher.decide()
    np.testing.assert_array_equal(seen[0][0], [[[1, 2], [3, 4]]])
    np.testing.assert_array_equal(seen[0][1], [[True, False]])


@pytest.mark.parametrize("name, torso", [("catch", "mlp"), ("atari:pong", "shallow")])
def test_policies_of_several_lanes_share_one_trace(name, torso):
    environment = environments.make(name, num_environments=2)
    network = networks.make(environment.spec, torso=torso)
    traces = []

    def counted(window, is_first):  # runs while tracing only
        traces.append(window.shape)
        return network(window, is_first)

    counted.numbers = network.numbers
    logits = policies.network_outputs(counted)
    lanes = [policies.FeedForwardPolicy(logits, environment.spec, 2, seed=lane) for lane in range(2)]
    first = environment.reset(0)
    for lane in lanes:
        lane.observe(first)
    for _ in range(3):
        for lane in lanes:
            environment.send(lane.decide().action)
            lane.observe(environment.receive())
    environment.close()
    assert len(traces) == 1
