"""How often a random action is taken: in evaluations `agent.evaluation_epsilon`, by actors what the schedule says."""

import os
import threading
import time
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import reverb
import tensorflow as tf

from impala import agents, lockstep
from impala import config as config_lib
from impala.nodes import checking, replaying, solo_node
from impala.nodes.bundling import Bundle
from impala.nodes.playing import play
from impala.nodes.run import Run

NUM_ACTIONS, LENGTH = 5, 125


class Other(gymnasium.Env):
    """Pays 1 for every action but the first, so that a score counts what the network would not have chosen."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(NUM_ACTIONS)
    num_steps = num_others = 0  # of all environments

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = LENGTH
        return np.ones(2, np.float32), {}

    def step(self, action):
        is_other, self._left = int(action != 0), self._left - 1
        Other.num_steps, Other.num_others = Other.num_steps + 1, Other.num_others + is_other
        return np.ones(2, np.float32), float(is_other), self._left == 0, False, {}


def make_config(word, **overrides):
    return config_lib.load(f"configs/{word}.yaml", {
        "environment.name": f"{__name__}:Other", **{key.replace("__", "."): value for key, value in overrides.items()}
    })  # fmt: skip


def prefer_the_first_action(network):
    """Makes the first action the best one, whatever is seen: all is 0 but the bias of the layer of actions."""
    for variable in network.trainable_variables:
        variable.assign(tf.zeros_like(variable))
        if variable.shape == (NUM_ACTIONS,):
            variable.assign([1.0] + [0.0] * (NUM_ACTIONS - 1))
    return network


def assert_share(num_others, num_decisions, epsilon):
    """A random action is another one in A − 1 of A cases; four standard deviations of a binomial."""
    expected = epsilon * (NUM_ACTIONS - 1) / NUM_ACTIONS
    deviation = np.sqrt(expected * (1 - expected) / num_decisions)
    assert num_others / num_decisions == pytest.approx(expected, abs=4 * deviation), (num_others, num_decisions)


@pytest.mark.parametrize("word", ["dqn_catch", "r2d2_catch", "q_unrolls_catch"])
def test_evaluations_take_random_actions_as_often_as_configured_and_none_if_greedy(word):
    def num_others(greedy=False, **overrides):
        return sum(play(network, make_config(word, **overrides), num_episodes=16, greedy=greedy, seed=0))

    config = make_config(word)
    network = prefer_the_first_action(agents.of(config).make_network(config, checking.check(config)))
    assert num_others(greedy=True, agent__evaluation_epsilon=0.2) == 0
    assert_share(num_others(agent__evaluation_epsilon=0.2), 16 * LENGTH, 0.2)
    assert_share(num_others(), 16 * LENGTH, 0.001)


def others_of(act, num_calls):
    """Returns how many of the actions that `num_calls` of `act` take are not the first one, and how many there are."""
    Other.num_steps = Other.num_others = 0
    for _ in range(num_calls):
        act()
    return Other.num_others, Other.num_steps


FALLING = dict(agent__epsilon_start=0.8, agent__epsilon_end=0.1, agent__epsilon_frames=4_000)
BEGIN = 12_000  # frames that are played before the first update
POINTS = [(BEGIN, 0.8), (BEGIN + 2_000, 0.45), (90_000, 0.1)]  # frames, ε


def test_dqn_s_actors_explore_as_much_as_is_scheduled(monkeypatch, tmp_path):
    config = make_config("dqn_catch", replay__min_size=BEGIN, actor__num_lanes=2, **FALLING)
    spec, now = checking.check(config), 0
    learning = SimpleNamespace(
        learner=SimpleNamespace(network=prefer_the_first_action(agents.of(config).make_network(config, spec)), num_updates=0),
        frames=lambda: now, stop=threading.Event(), is_over=False, jobs=[], columns=[], counts=[], after_agreement=[], at_end=[],
    )  # fmt: skip
    monkeypatch.setattr(solo_node, "LearnerNode", lambda *_, **__: learning)
    server = reverb.Server(replaying.make_tables(config, spec), port=None)
    run = Run(tmp_path, os.getpid(), time.monotonic(), 0)
    node = solo_node.SoloNode(config, spec, run, table=server.localhost_client())
    for now, epsilon in POINTS:
        assert_share(*others_of(lambda: next(node._steps), 150), epsilon)
        assert learning.columns[-1]() == {"exploration_epsilon": pytest.approx(epsilon)}
    server.stop()


def test_gorila_s_bundles_explore_as_much_as_is_scheduled():
    config = make_config("gorila_catch", replay__min_size=BEGIN // 2, actor__num_actors=2, **FALLING)
    bundle = Bundle(config, checking.check(config), 0)
    prefer_the_first_action(bundle.network)
    for frames, epsilon in POINTS:
        bundle._frames = frames - bundle._num_steps  # of all bundles; its own since the last answer are added
        num_others, num_steps = others_of(bundle.act, 100)
        assert_share(num_others, num_steps, bundle.epsilon())
        assert bundle.epsilon() == pytest.approx(epsilon, abs=0.71 * 400 / 4_000)
    bundle.close()


def test_in_lockstep_too():
    few_updates, changes_nothing = dict(replay__samples_per_insert=0.25), dict(learner__learning_rate=1e-30)
    config = make_config("dqn_catch", replay__min_size=1_000, **few_updates, **changes_nothing, **FALLING)
    training = lockstep.of(config)
    prefer_the_first_action(training.network)
    updates = training.updates(10_000)
    assert_share(*others_of(lambda: next(updates), 1), 0.8)  # all that is played before the first update
    while training.frames < 5_000:
        next(updates)
    assert_share(*others_of(lambda: next(updates), 15), 0.1)
    training.close()
