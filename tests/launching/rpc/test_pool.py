"""The threads of a server's handlers."""

import threading
import time
from concurrent import futures

import pytest

from impala.launching.rpc.pool import DaemonPool


def test_calls_run_beside_each_other_up_to_so_many():
    pool, barrier = DaemonPool(3, "handler"), threading.Barrier(3)
    assert [future.result(20) for future in [pool.submit(barrier.wait, 20) for _ in range(3)]].count(0) == 1
    for future in [pool.submit(threading.current_thread) for _ in range(50)]:
        assert future.result(20).name.startswith("handler-")
    assert len(pool._threads) == 3


def test_threads_are_started_as_they_are_needed():
    pool = DaemonPool(8, "handler")
    for _ in range(20):
        pool.submit(int).result(20)
        time.sleep(0.01)  # the thread comes back
    assert len(pool._threads) == 1


def test_after_a_queue_there_are_as_many_threads_as_calls_need():
    """What waited for a thread is not taken for a thread that waits."""
    pool, free = DaemonPool(2, "handler"), threading.Event()
    waiting = [pool.submit(free.wait, 20) for _ in range(6)]
    free.set()
    futures.wait(waiting, 20)
    time.sleep(0.1)
    assert pool._waiting._num == 2
    barrier = threading.Barrier(2)
    assert len([future.result(20) for future in [pool.submit(barrier.wait, 20) for _ in range(2)]]) == 2


def test_a_thread_that_the_system_refuses_costs_no_call(monkeypatch):
    """An error would end gRPC's own thread, and with it the server."""
    pool, start = DaemonPool(4, "handler"), threading.Thread.start

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    free = threading.Event()
    waiting = [pool.submit(free.wait, 20) for _ in range(3)]
    free.set()
    assert [future.result(20) for future in waiting] == 3 * [True] and len(pool._threads) == 1
    with pytest.raises(RuntimeError):
        DaemonPool(4, "handler")
    monkeypatch.setattr(threading.Thread, "start", start)
    time.sleep(0.1)
    barrier = threading.Barrier(4)
    assert len([future.result(20) for future in [pool.submit(barrier.wait, 20) for _ in range(4)]]) == 4
