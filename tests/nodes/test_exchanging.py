"""What passes between a worker and the shards of a server: in how many parts a gradient goes changes no weight."""

import os
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from impala import config as config_lib
from impala.acting import remote
from impala.learning import server
from impala.nodes import checking, exchanging, server_node, workers
from impala.nodes.run import Run

MAX_NORM = 0.5


def config(num_shards):
    return config_lib.load("configs/a3c_catch.yaml", {
        "actor.num_environments": 4, "actor.num_lanes": 1, "learner.batch_size": 4, "target_return": None,
        "learner.max_grad_norm": MAX_NORM, "server.num_shards": num_shards,
    })  # fmt: skip


@pytest.fixture
def connect(tmp_path, monkeypatch):
    """Returns a function: a worker and a number of shards → its exchange with them, which hold its parameters."""
    import impala.launching  # noqa: F401, isort: skip
    import launchpad as lp

    monkeypatch.setattr(lp, "stop_event", threading.Event)

    def make(worker, num_shards):
        made, run = config(num_shards), Run(tmp_path, os.getpid(), time.monotonic(), 0)
        shards = exchanging.shards_of(made, [tuple(v.shape) for v in worker.variables], worker.facts, 0)
        spec = checking.check(config(1))  # more than two shards are counted in another process
        nodes = [server_node.ShardNode(made, spec, run, index) for index in range(num_shards)]
        for node, shard in zip(nodes, shards):
            node.begin(0, 0, [worker.variables[tensor].numpy() for tensor in shard.tensors], [])
            facts = exchanging.Facts(*node._mine[:2], *worker.facts[2:])  # in one process layers get other names
            node.join(0, tuple(facts))
        return exchanging.Exchange(
            [request_to(node) for node in nodes], shards, [0] * num_shards, frames_per_step=1, should_stop=lambda: False
        )  # fmt: skip

    return make


def request_to(node):
    def request(number, *sent):
        answer = node.push((0, 0), number, *sent)
        return SimpleNamespace(wait=lambda seconds: True, result=lambda: answer)

    return request


def test_weights_are_the_same_bit_for_bit_through_one_shard_and_through_three(connect):
    """Every gradient is clipped, as a whole and by the worker: a shard that clipped its part would apply another one."""
    made = config(1)
    worker = workers.make(made, checking.check(made), 0)
    first, batches, weights, norms = [v.numpy() for v in worker.variables], [], {1: [], 3: []}, []
    for num_shards in weights:
        worker.assign(0, 0, first, np.zeros(0))
        exchange = connect(worker, num_shards)
        for number in range(20):
            while len(batches) <= number:
                worker.act()
                batches += [batch] if (batch := worker.batch()) is not None else []
            gradient = worker.differentiate(batches[number])
            norms.append(gradient.metrics[worker.metrics.index("grad_norm")])
            assert np.sqrt(sum(np.square(g).sum() for g in gradient.arrays)) == pytest.approx(MAX_NORM, rel=1e-5)
            answer = exchange(gradient, worker.num_transitions(gradient), worker.increments())
            assert (answer.verdict, answer.version, exchange.versions) == (0, number + 1, [number + 1] * num_shards)
            worker.assign(answer.version, answer.frames, answer.arrays, answer.statistics)
            weights[num_shards].append(answer.arrays)
    worker.close()
    assert min(norms) > 1.2 * MAX_NORM, "all of them were clipped"
    for of_one, of_three in zip(weights[1], weights[3], strict=True):
        for one, three in zip(of_one, of_three, strict=True):
            np.testing.assert_array_equal(one, three)
    assert min(np.abs(last - array).max() for array, last in zip(first, weights[1][-1])) > 0.001, "all weights moved"


def agreeing(versions, answers=(), *, stops=False):
    """An exchange with two shards that agrees; `answers`: what joining finds, time after time. Returns what was sent."""
    sent, joined = [], iter(answers)

    def request(number, head, *arrays):
        sent.append(int(head[0]))
        assert head[2] == exchanging.FILLER, "it says itself that it is none"
        verdict = [np.array([server.Verdict.ENDED, 1, 0]), *arrays]
        return SimpleNamespace(wait=lambda seconds: True, result=lambda: verdict)

    parts = [exchanging.Shard([0], [(2,)], 1, 1, 4, 0, 2)] * 2
    exchange = exchanging.Exchange(
        [request] * 2, parts, versions, frames_per_step=1, should_stop=lambda: stops and not next(joined, None)
    )
    exchange.agree(lambda: next(joined))
    return sent, exchange.versions


def test_shards_that_go_on_meanwhile_are_sent_no_gradient_that_is_none():
    """With `server.num_late` the others' rounds end without whoever joins, and between two of its reads."""
    assert agreeing([10, 11], [[12, 13], [14, 14]]) == ([], [14, 14])


def test_a_shard_that_waits_is_sent_one_and_the_end_is_heard():
    assert agreeing([10, 11], [[10, 12], [10, 12]]) == ([10, -1], [10, 12])


def test_a_worker_whose_shards_never_agree_stops_when_it_is_to():
    with pytest.raises(remote.Stopped):
        agreeing([10, 11], stops=True)
