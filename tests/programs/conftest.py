import functools
import os
import threading
import time
from concurrent import futures
from types import SimpleNamespace

import pytest

from impala.nodes import checking, server_node
from impala.nodes.run import Run
from tests.programs import running


def pytest_collection_modifyitems(items):
    """Several processes import TensorFlow before a program does anything, which took 80 s on a busy machine."""
    for item in items:
        if "programs" in item.path.parts and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(autouse=True)
def nothing_goes_on():
    """Ends what a failed test left running, which would take the cores from all others."""
    yield
    running.kill_all()


@pytest.fixture
def two_shards(monkeypatch):
    """Returns a function (config, folder, member) → the first shard and the second of a server, in this process."""
    import impala.launching  # noqa: F401, isort: skip
    import launchpad as lp

    monkeypatch.setattr(lp, "stop_event", threading.Event)
    calling = futures.ThreadPoolExecutor(4)

    def make(config, folder, member=0):
        spec, its_run = checking.check(config), Run(folder, os.getpid(), time.monotonic(), 0, member=member)
        shard = server_node.ShardNode(config, spec, its_run, 1)
        other = SimpleNamespace(**{
            name: functools.partial(calling.submit, getattr(shard, name)) for name in shard.RPCS
        })  # fmt: skip
        server = server_node.ServerNode(config, spec, its_run, others=[SimpleNamespace(futures=other)])
        shard.begin(*server._part(1))
        server._vary_all()
        return server, shard

    yield make
    calling.shutdown()
