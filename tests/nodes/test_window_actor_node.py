"""An actor that fills a replay table, in this process: how it explores, when it fetches weights, how far it runs ahead."""

import os
import threading
import time
from concurrent import futures
from types import SimpleNamespace

import numpy as np
import pytest
import reverb

from impala import agents, lockstep
from impala import config as config_lib
from impala.acting import episodes
from impala.environments import atari
from impala.nodes import checking, playing, window_actor_node
from impala.nodes.run import Run
from impala.nodes.window_actor_node import WindowActorNode
from impala.replay import tables, windows
from tests.acting import scripted
from tests.programs.running import wait_for

SMALL = {"network.hidden_sizes": [4], "agent.dueling": False}


class Learner:
    """Serves weights that rise by one with every request, and keeps whatever `note` returns at each."""

    def __init__(self, note):
        self.network, self.notes = None, []
        self._note, self.futures = note, SimpleNamespace(get_weights=self._get_weights, report=lambda *_: done(None))

    def _get_weights(self, newer_than):
        self.notes.append(self._note())
        arrays = [variable.numpy() for variable in self.network.trainable_variables]
        return done((len(self.notes), arrays))


def done(value):
    future = futures.Future()
    future.set_result(value)
    return future


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Makes the node of an actor, with a learner and a real table that takes 33 windows and then waits for a reader."""
    import impala.launching  # noqa: F401, isort: skip; installs the RPC stand-in, without which launchpad does not import
    import launchpad as lp

    monkeypatch.setattr(lp, "stop_event", threading.Event)
    servers, nodes = [], []

    def make_node(config, spec, index=0, note=lambda: None):
        chunk = agents.of(config).make_chunk_spec(config, spec)
        table = windows.table(windows.window_spec(chunk), 1000, min_size=1, samples_per_insert=1.0, batch_size=4)
        servers.append(reverb.Server([table]))
        learner, run = Learner(note), Run(tmp_path, os.getpid(), time.monotonic(), 0)
        node = WindowActorNode(
            config, spec, run, index, tables=[servers[-1].localhost_client()], reports=learner, weights=learner
        )
        learner.network = node._network
        nodes.append(node)
        return node, learner

    make_node.servers = servers
    yield make_node
    for node in nodes:
        node._stop._event.set()
        for environment in node._environments:
            environment.close()
        for sink in node._sink._sinks:
            sink.close()
    for server in servers:
        server.stop()


class Drawn:
    """Draws the same number for every environment, and an action that is not the best."""

    def __init__(self, number):
        self._number = number

    def random(self, count):
        return np.broadcast_to(self._number, count)

    def integers(self, num_actions, size, dtype):
        return np.full(size, num_actions - 1, dtype)


def assert_explores_with(behaviour, epsilon):
    """An action is random where a number below ε is drawn, and the best one where it is above; [N] each."""
    q = np.tile(np.float32([1, 0, 0]), (len(epsilon), 1))
    for factor, is_best in ((1 - 1e-9, False), (1 + 1e-9, True)):
        action, _ = behaviour.choose((q,), Drawn(factor * np.array(epsilon)))
        assert (action == 0).tolist() == [is_best] * len(epsilon), (epsilon, factor)


def test_every_environment_plays_the_rung_of_its_number_among_all_actors(make):
    """Of 3 actors with 2 lanes of 2, the second has environments 4 to 7."""
    overrides = SMALL | {"actor.num_actors": 3, "actor.num_environments": 4, "actor.num_lanes": 2}
    config = config_lib.load("configs/apex_catch.yaml", overrides)
    spec = checking.check(config)
    node, _ = make(config, spec, index=1)
    first, second = (lane._policy._behaviour for lane in node._lanes)
    assert_explores_with(first, [0.4 ** (1 + 7 * 4 / 11), 0.4 ** (1 + 7 * 5 / 11)])
    assert_explores_with(second, [0.4 ** (1 + 7 * 6 / 11), 0.4 ** (1 + 7 * 7 / 11)])
    node, _ = make(config, spec, index=2)
    assert_explores_with(node._lanes[1]._policy._behaviour, [0.4 ** (1 + 7 * 10 / 11), 0.4**8])  # the last of all


def test_who_evaluates_has_an_epsilon_of_its_own_or_no_noise():
    config = config_lib.load("configs/apex_catch.yaml", SMALL)
    make_behaviour, spec = agents.of(config).make_behaviour, checking.check(config)
    assert_explores_with(make_behaviour(config, spec), [0.001] * 3)
    best, _ = make_behaviour(config, spec, greedy=True).choose((np.float32([[1, 0, 0]]),), Drawn(0.0))
    assert best.tolist() == [0]
    config = config_lib.load("configs/apex_dpg_pendulum.yaml")
    spec, mean = checking.check(config), np.float32([[0.25], [-0.5]])
    numbers, random = (mean, np.zeros((2, 3), np.float32)), np.random.default_rng(0)
    action, _ = agents.of(config).make_behaviour(config, spec).choose(numbers, random)
    noisy, _ = agents.behaviour_of_lane(config, spec, 0, 2).choose(numbers, random)
    np.testing.assert_array_equal(action, mean)
    assert (noisy != mean).all()


def of_four_frames(monkeypatch, **overrides):
    """A configuration whose environments are scripted, with four frames a step; these, as they are made; their spec."""
    made = []

    def make_environment(config, num_environments, num_threads, **how):
        made.append(scripted.Scripted([[(5, "terminated")]] * num_environments, num_stacked=1, shape=(2,), frames_per_step=4))
        return made[-1]

    monkeypatch.setattr(window_actor_node, "make_environment", make_environment)
    lanes = {"actor.num_actors": 1, "actor.num_environments": 4, "actor.num_lanes": 2}
    config = config_lib.load("configs/apex_catch.yaml", SMALL | lanes | overrides)
    return config, made, scripted.Scripted([[(5, "terminated")]], num_stacked=1, shape=(2,), frames_per_step=4).spec


@pytest.mark.parametrize("num_frames, num_steps", [(20, 5), (3, 1)])
def test_weights_are_fetched_every_so_many_frames_of_an_environment_and_no_oftener(make, monkeypatch, num_frames, num_steps):
    config, made, spec = of_four_frames(monkeypatch, **{"actor.weight_frames": num_frames})
    node, learner = make(config, spec, note=lambda: made[0].num_sent)
    versions, send = [], made[0].send

    def noting(action):
        versions.append(node._fetcher.version)
        send(action)
        if len(versions) == 3 * num_steps:
            node._stop._event.set()

    made[0].send = noting
    node.run()
    assert set(learner.notes) == {0, num_steps, 2 * num_steps}, "steps played when they are asked for, once or again"
    of_fetches = [versions[first : first + num_steps] for first in range(0, 3 * num_steps, num_steps)]
    assert all(len(set(of_fetch)) == 1 for of_fetch in of_fetches) and len(set(versions)) == 3, versions


def test_no_more_windows_are_on_their_way_than_an_actor_may_have(make, monkeypatch):
    """Ten of four environments are two of each; those of the step that waits for room come on top."""
    config, _, spec = of_four_frames(monkeypatch, **{"actor.max_pending": 10, "actor.send_size": 1})
    node, _ = make(config, spec)
    client, num_created = make.servers[0].localhost_client(), [0, 0]
    for lane, sink in enumerate(node._sink._sinks):

        def end_windows(is_window, priority, lane=lane, ends=sink.end_windows):
            num_created[lane] += int(is_window.sum())
            ends(is_window, priority)

        sink.end_windows = end_windows

    def num_inserted():
        return client.server_info(timeout=10)[tables.REPLAY].rate_limiter_info.insert_stats.completed

    acting = threading.Thread(target=node.run, daemon=True)
    acting.start()
    wait_for(lambda: sum(num_created) > 33 + 4, 30, "a lane has four on their way, and one or two more")
    time.sleep(1.0)  # the other one has none to four: the table lets in whose come first
    before = sum(num_created)
    assert before <= 33 + 2 * 4 + 2 and num_inserted() == 33 and acting.is_alive(), "it waits for room"
    assert len(list(client.sample(tables.REPLAY, 20, emit_timesteps=False))) == 20
    wait_for(lambda: sum(num_created) > before, 30, "there is room again")
    node._stop._event.set()
    acting.join(30)
    assert not acting.is_alive()


def test_episodes_are_cut_short_for_training_and_not_where_they_are_scored(make, monkeypatch):
    vector_environment, limits = atari.AtariVectorEnv, []

    def noting(**arguments):
        limits.append(arguments["max_num_frames_per_episode"])
        return vector_environment(**arguments)

    monkeypatch.setattr(atari, "AtariVectorEnv", noting)
    overrides = {"environment.name": "atari:pong", "network.torso": "shallow", "actor.num_environments": 1, "actor.max_episode_frames": 2_000}
    config = config_lib.load("configs/apex_catch.yaml", SMALL | overrides)
    node, _ = make(config, checking.check(config))
    assert limits.pop() == 2_000
    limits.clear()
    assert playing.play(node._network, config, num_episodes=1, greedy=False, seed=0, should_stop=lambda: True) == []
    assert limits == [episodes.MAX_EPISODE_FRAMES] == [108_000]
    limits.clear()
    lockstep.ReplayLockstep(config)
    assert limits == [2_000], "as the actors'"
