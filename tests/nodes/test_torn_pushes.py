"""A worker that is killed between its pushes to two shards, at a barrier."""

import os
import threading
import time
from concurrent import futures

import numpy as np
import pytest

from impala import config as config_lib
from impala.acting import remote
from impala.learning.differentiators import Gradient
from impala.nodes import checking, exchanging, server_node
from impala.nodes.run import Run


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """Two shards that wait for the gradients of two workers, and a function: worker → its new exchange with them."""
    import impala.launching  # noqa: F401, isort: skip
    import launchpad as lp

    monkeypatch.setattr(lp, "stop_event", threading.Event)
    made = config_lib.load("configs/a3c_catch.yaml", {"server.num_shards": 2, "server.barrier": True, "target_return": None})
    run = Run(tmp_path, os.getpid(), time.monotonic(), 0)
    shards = [server_node.ShardNode(made, checking.check(made), run, index) for index in (0, 1)]
    arrays = [variable.numpy() for variable in shards[0].network.trainable_variables]
    pool = futures.ThreadPoolExecutor(8)
    for node in shards:
        node.begin(0, 0, [arrays[tensor] for tensor in node._shard.tensors], [])

    def join(worker, life):
        facts = [exchanging.Facts(*node._mine[:2], ["num_transitions"], ["task"], 4) for node in shards]
        rejoin = lambda: [node.join(worker, tuple(its))[0] for node, its in zip(shards, facts)]  # noqa: E731
        parts = [node._shard._replace(num_metrics=1, num_columns=1, width=4) for node in shards]
        requests = [remote.over_rpc(lambda number, *sent, node=node: pool.submit(node.push, (worker, life), number, *sent)) for node in shards]
        exchange = exchanging.Exchange(requests, parts, rejoin(), frames_per_step=1, should_stop=lambda: False)
        exchange.agree(rejoin)
        return exchange

    gradient = Gradient([np.full_like(array, 0.01) for array in arrays], True, np.zeros(1, np.float32), np.zeros((1, 4)))
    yield shards, join, gradient, pool
    for node in shards:
        node.stop.set()
    pool.shutdown()


def test_whoever_comes_back_after_its_push_reached_one_shard_only_is_at_one_update_of_both_again(nodes):
    """Else its gradients are, to the end of the launch, of parameters that were never together."""
    shards, join, gradient, pool = nodes
    dead, other, versions = join(0, 0), join(1, 0), []
    reached = [gradient.arrays[tensor] for tensor in dead._shards[0].tensors]
    pool.submit(shards[0].push, (0, 0), 1, np.array([0, 20, 1]), np.zeros(0), gradient.metrics, gradient.columns, *reached)
    waiting = pool.submit(other, gradient, 20, np.zeros(0))
    while shards[0].server.version < 1:
        time.sleep(0.01)
    assert not futures.wait([waiting], 0.3).done, "the second shard waits for the worker that is gone"

    def works(exchange):
        while len(versions) < 40:
            exchange(gradient, 20, np.zeros(0))
            versions.append(list(exchange.versions))

    back = join(0, 1)
    pool.submit(works, back)
    waiting.result(20)
    pool.submit(works, other)
    while len(versions) < 40:
        time.sleep(0.01)
    assert all(first == second for first, second in versions[20:40]), versions[20:40]
