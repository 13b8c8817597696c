"""A shard of the parameter server and callers through shared memory that are killed in the middle of a push."""

import functools
import json
import os
import subprocess
import sys
import threading
import time
from concurrent import futures
from pathlib import Path

import numpy as np
import pytest

from impala import config as config_lib
from impala.agents import shared
from impala.launching.shared_memory import Caller
from impala.learning import server as servers
from impala.learning.server import Verdict
from impala.nodes import checking, exchanging, server_node
from impala.nodes.run import Run

CALLER = """
import json
import sys
import time
import numpy as np
from impala.launching.shared_memory import Caller
address, name, arguments, results, facts, scale = json.loads(sys.argv[1])
caller = Caller(address, name, arguments=arguments, results=results)
arrays = [np.full(shape, scale, dtype) for shape, dtype in arguments]
arrays[0][:] = facts
pending = caller(1, *arrays)
print("said", flush=True)
while not pending.wait(60.0):
    pass
print("answered", flush=True)
"""


class Shard:
    """A node that workers 0 and 1 have joined, and their pushes: all elements of a gradient are the same number."""

    def __init__(self, made, folder):
        run = Run(folder, os.getpid(), time.monotonic(), 0)
        self._config, self.node = made, server_node.ShardNode(made, checking.check(made), run, 0)
        self._first = [variable.numpy() for variable in self.node.network.trainable_variables]
        self.node.begin(0, 0, self._first, [])
        for worker in (0, 1):
            self.node.join(worker, tuple(exchanging.Facts(*self.node._mine[:2], ["num_transitions"], ["task"], 4)))
        self._shard = self.node._shard._replace(num_metrics=1, num_columns=1, width=4)

    def alone(self):
        """Returns a server that begins with the same, for pushes without processes."""
        make_optimizer = functools.partial(shared.make_optimizer, self._config)
        return servers.ParameterServer(servers.State(0, 0, self._first, []), make_optimizer, shared.make_schedules(self._config))

    def gradients(self, scale):
        return [np.full(shape, scale, np.float32) for shape in self._shard.shapes]

    def push(self, worker, life, version, scale, flags=exchanging.FINITE):
        """Pushes through shared memory from this process; returns verdict and version."""
        arguments, results = self._shard.fields()
        caller = Caller(self.node.address(), (worker, life), arguments=arguments, results=results)
        arrays = [np.full(shape, scale, dtype) for shape, dtype in arguments]
        arrays[0][:] = version, 20, flags
        pending = caller(1, *arrays)
        assert pending.wait(20.0), "no answer"
        verdict, now, _ = pending.result()[0].tolist()
        caller.close()
        return Verdict(verdict), now

    def killed(self, worker, version, scale, when):
        """Pushes from another process, which is killed once `when` holds and before it has an answer."""
        arguments, results = ([(list(shape), np.dtype(dtype).str) for shape, dtype in fields] for fields in self._shard.fields())
        what = json.dumps([self.node.address(), [worker, 0], arguments, results, [version, 20, 1], scale])
        process = subprocess.Popen([sys.executable, "-c", CALLER, what], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout.readline() == "said\n"
            until(when, "the push is there")
        finally:
            process.kill()
        assert process.communicate()[0] == "", "it was answered before"

    def counts(self):
        return {verdict.name: count for verdict, count in self.node.server.counts.items() if count}


def until(condition, what):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_of_what_is_refused_a_filler_alone_is_not_counted(shard):
    ours = shard(server__max_staleness=0)
    for life, flags in enumerate((exchanging.FILLER, 0, exchanging.FINITE | exchanging.OUTLIER)):
        assert ours.push(0, life, 0, 0.25, flags)[0] is (Verdict.OUTLIER if flags & exchanging.OUTLIER else Verdict.NONFINITE)
    assert ours.counts() == {"NONFINITE": 1, "OUTLIER": 1}


def test_where_stale_gradients_are_refused_no_staleness_is_expected_of_the_others(shard):
    ours = shard(server__max_staleness=0)
    ours.node._num_refused, told = 0, lambda: server_node.ServerNode._staleness(ours.node)
    assert told() == {} and ours.push(0, 0, 0, 0.25) == (Verdict.ACCEPTED, 1)
    assert told() == dict(staleness_mean=0, staleness_expected=1, staleness_max=0, staleness_histogram="0:1")
    assert ours.push(1, 0, 0, 0.5) == (Verdict.STALE, 1) and ours.push(0, 1, 1, 0.25) == (Verdict.ACCEPTED, 2)
    assert told()["staleness_expected"] is None
    assert ours.push(1, 1, 2, 0.5) == (Verdict.ACCEPTED, 3) and told()["staleness_expected"] == 1


def num_threads():
    return sum(thread.name == "shared memory" for thread in threading.enumerate())


@pytest.fixture
def shard(tmp_path, monkeypatch):
    import impala.launching  # noqa: F401, isort: skip
    import launchpad as lp

    monkeypatch.setattr(lp, "stop_event", threading.Event)
    return lambda **overrides: Shard(config_lib.load("configs/a3c_catch.yaml", {k.replace("__", "."): v for k, v in overrides.items()}), tmp_path)


def assert_is_as(server, other):
    for one, two in zip(server.read()[2], other.read()[2], strict=True):
        np.testing.assert_array_equal(one, two)


def test_what_a_worker_has_announced_before_it_is_killed_is_applied_whole_and_once(shard):
    """Its gradient lies in memory that the server holds, too, and nobody waits for whoever is gone."""
    ours = shard()
    alone, before = ours.alone(), num_threads()
    with ours.node.server.held():  # nothing is applied before it is dead
        ours.killed(0, 0, 0.25, when=lambda: True)
        assert ours.node.server.version == 0
    until(lambda: ours.node.server.version == 1, "it is applied")
    alone.push(servers.Push(0, 0, 1, 0, ours.gradients(0.25), 20))
    assert_is_as(ours.node.server, alone)
    assert ours.push(0, 0, 1, 0.25) == (Verdict.REPEATED, 1)
    assert ours.push(1, 0, 1, -0.5) == (Verdict.ACCEPTED, 2)
    assert ours.push(0, 1, 2, 0.75) == (Verdict.ACCEPTED, 3), "its next life"
    for number, scale in enumerate((-0.5, 0.75), start=2):
        alone.push(servers.Push(0, 0, number, number - 1, ours.gradients(scale), 20))
    assert_is_as(ours.node.server, alone)
    assert ours.counts() == {"ACCEPTED": 3, "REPEATED": 1} and ours.node.server.frames == 60
    until(lambda: num_threads() <= before, "its thread has ended")


@pytest.mark.parametrize("comes_back_first", [False, True])
def test_a_worker_that_is_killed_while_its_push_waits_at_a_barrier_keeps_nobody_waiting(shard, comes_back_first):
    """If it is back before the round is complete, its new gradient takes the place of the old one."""
    ours = shard(server__barrier=True)
    server, alone, before = ours.node.server, ours.alone(), num_threads()
    ours.killed(0, 0, 0.25, when=lambda: 0 in server._round)
    assert server.version == 0 and list(server._round) == [0]
    with futures.ThreadPoolExecutor(2) as pool:
        if comes_back_first:
            back = pool.submit(ours.push, 0, 1, 0, 0.5)
            until(lambda: server._round[0][0].life == 1, "it is back")
        assert ours.push(1, 0, 0, 1.0) == (Verdict.ACCEPTED, 1)
        if comes_back_first:
            assert back.result(20) == (Verdict.ACCEPTED, 1)
        until(lambda: sum(server.counts.values()) == 2 + comes_back_first, "the lost push is counted")
        assert ours.counts() == ({"ACCEPTED": 2, "REPEATED": 1} if comes_back_first else {"ACCEPTED": 2})
        alone.push(servers.Push(0, 0, 1, 0, ours.gradients(1.5 if comes_back_first else 1.25), 20))
        assert_is_as(server, alone)
        pushed = [pool.submit(ours.push, worker, 2, 1, 0.5) for worker in (0, 1)]
        assert [one.result(20) for one in pushed] == [(Verdict.ACCEPTED, 2)] * 2, "the next round"
    assert server.frames == 80 and not server._round
    until(lambda: num_threads() <= before, "its thread has ended")
