"""Nodes as threads of one process, and how they are ended."""

import threading
import time
from concurrent import futures
from types import SimpleNamespace

from impala.launching import beats, threads
from impala.launching.roles import ACTOR, LEARNER, Roles


def test_a_node_that_failed_does_not_cut_the_others_short():
    """The learner still has its last checkpoint to write when an actor has raised."""
    stop, saved = threading.Event(), []

    def learner():
        stop.wait(10)
        time.sleep(0.5)
        saved.append("checkpoint")

    def actor():
        raise RuntimeError("broken")

    with futures.ThreadPoolExecutor() as pool:
        nodes = {"actor": pool.submit(actor), "learner": pool.submit(learner)}
        workers = {label: [SimpleNamespace(future=future)] for label, future in nodes.items()}
        manager = SimpleNamespace(_active_workers=workers, stop_event=lambda: stop)
        threads.Threads(manager, Roles((ACTOR, LEARNER)), beats.Listener()).stop()
        assert saved == ["checkpoint"]
