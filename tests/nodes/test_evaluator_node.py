"""What an evaluator writes and tells, and in which order."""

import os
import threading
import time
from concurrent import futures
from types import SimpleNamespace

import pytest

from impala import config as config_lib
from impala.agents import actor_critic
from impala.learning import checkpoints
from impala.monitoring.logs import read_csv
from impala.nodes import checking
from impala.nodes.evaluator_node import EvaluatorNode
from impala.nodes.run import Run


class Learner:
    """Serves the weights of a network, and keeps what an evaluator tells, and what lay in its folder then."""

    def __init__(self, network, folder):
        self._network, self._folder, self.told = network, folder, []
        self.futures = SimpleNamespace(frames=self._frames, get_weights=self._get_weights, evaluated=self._evaluated)

    def _frames(self):
        return _done(70)

    def _get_weights(self, newer_than):
        return _done((7, [variable.numpy() for variable in self._network.trainable_variables]))

    def _evaluated(self, mean, num_updates):
        self.told.append((mean, len(read_csv(self._folder / "evaluations.csv")), (self._folder / "best").exists()))
        return _done(None)


def _done(value):
    future = futures.Future()
    future.set_result(value)
    return future


@pytest.fixture
def make(monkeypatch, tmp_path):
    import impala.launching  # noqa: F401, isort: skip; installs the RPC stand-in, without which launchpad does not import
    import launchpad as lp

    monkeypatch.setattr(lp, "stop_event", threading.Event)
    return make_node(tmp_path)


def make_node(folder, **evaluator):
    config = config_lib.load("configs/catch.yaml", {"evaluator.num_episodes": 4} | evaluator)
    spec = checking.check(config)
    learner = Learner(actor_critic.make_network(config, spec), folder)
    return EvaluatorNode(config, spec, Run(folder, os.getpid(), time.monotonic(), 0), learner=learner), learner


def test_the_learner_is_told_when_all_is_written(make, tmp_path):
    """It may end the run then."""
    node, learner = make
    (mean,) = node.evaluate().values()
    assert learner.told == [(mean, 1, True)]
    assert checkpoints.read_state(tmp_path / "best")["fitness"] == mean
    assert node.evaluate() is None and len(learner.told) == 1, "no new weights"


@pytest.mark.parametrize("updates, evaluator, is_replaced", [
    (5, {}, False), (9, {}, False), (5, {"evaluator.greedy": True}, True), (5, {"evaluator.num_episodes": 3}, True),
])  # fmt: skip
def test_the_best_stay_until_something_better_comes_or_they_are_not_comparable(make, tmp_path, updates, evaluator, is_replaced):
    """One of a later update was played just before all nodes started again; one by other rules says nothing."""
    node, _ = make
    node._best.save(updates, dict(frames=50, fitness=99.0, means={}, episodes=4, greedy=False))
    node, _ = make_node(tmp_path, **evaluator)
    for _ in range(2):  # also a second, worse evaluation
        node._evaluated = None
        node.evaluate()
    state = checkpoints.read_state(tmp_path / "best")
    assert (state["updates"], state["fitness"] < 2.0) == ((7, True) if is_replaced else (updates, False))


def test_the_learner_is_told_also_where_nothing_can_be_written(make, tmp_path, caplog):
    node, learner = make
    (tmp_path / "evaluations.csv").mkdir()  # so that it cannot be appended to
    told = []
    learner.futures.evaluated = lambda mean, num_updates: told.append(mean) or _done(None)
    (mean,) = node.evaluate().values()
    assert told == [mean] and "could not be kept" in caplog.text
