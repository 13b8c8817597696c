"""Central inference as a component: many clients, and what happens when a client, the server or the queue fails."""

import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest

from impala.launching import shared_memory
from tests.programs.central_worker import Central, N, Predicting, T, caller, network, step_of
from tests.programs.running import ROOT, wait_for

WORKER = [sys.executable, "-m", "tests.programs.central_worker"]


@pytest.fixture
def address():
    return shared_memory.new_address()


def start(*arguments):
    return subprocess.Popen(
        [*WORKER, *map(str, arguments)], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def drained(queue):
    """Takes whatever comes into a queue, in a thread; returns the growing list of origins."""
    origins = []

    def drain():
        for chunk in queue.chunks():
            origins.append(tuple(chunk.origin.tolist()))

    threading.Thread(target=drain, daemon=True).start()
    return origins


@pytest.mark.parametrize(
    "num_requests, n",
    [
        (25_000, 16), *(pytest.param(200_000, n, marks=pytest.mark.soak) for n in (16, 1)),
        *(pytest.param(6_400_000, n, marks=[pytest.mark.soak, pytest.mark.timeout(7200)]) for n in (16, 1)),
    ],
)  # fmt: skip
def test_64_clients_get_every_reply_once_and_in_order(address, num_requests, n):
    """A request is of one environment; a message carries those of the client's `n`, and its answer theirs."""
    central = Central(address, max_environments=64 * min(n, 4))
    origins, each = drained(central.queue), num_requests // 64 // n
    workers = [start("ask", address, 16 * i, 16, each, 0, n) for i in range(4)]
    wait_for(lambda: central.gatherer.log.num_environments > 0.2 * num_requests, 7200, "a fifth")
    early, num_early = psutil.Process().memory_info().rss, len(origins)
    outputs = [worker.communicate() for worker in workers]
    late = psutil.Process().memory_info().rss
    assert all(worker.returncode == 0 for worker in workers), outputs
    said = np.array([list(map(float, out.split())) for out, _ in outputs])
    assert said[:, 0].sum() == 64 * each == central.gatherer.log.num_environments / n
    print(f"p50 {1e3 * said[:, 1].max():.2f} ms, p99 {1e3 * said[:, 2].max():.2f} ms; {central.gatherer.log.columns()}")
    growth = (late - early) / 1e6 - 150e-6 * (len(origins) - num_early)  # the origins that this test keeps
    assert growth < 30, f"{growth:.0f} MB in four fifths of the requests"
    wait_for(lambda: len(origins) == 64 * n * ((each - 1) // T), 30, "all unrolls")
    by_client = {}
    for origin in origins:
        by_client.setdefault((origin[1], origin[2]), []).append(origin[4])
    assert all(seqs == list(range((each - 1) // T)) for seqs in by_client.values()) and len(by_client) == 64 * n
    assert central.num_episodes == 64 * n * (each // 100) and central.lanes.num_dropped_unrolls == 0
    central.server.close()


def test_a_client_that_is_killed_costs_its_unroll_alone(address):
    central = Central(address, max_environments=N, timeout_seconds=0.05)
    origins = drained(central.queue)
    victim, other = start("ask", address, 1, 1, 10**9, 0), start("ask", address, 2, 1, 3000, 0)
    wait_for(lambda: {1, 2} <= {origin[1] for origin in origins}, 30, "both are played")
    victim.kill()
    victim.communicate()
    time.sleep(0.5)  # what it had asked for last is taken
    lanes = [lane for name, lane in central.lanes._lanes.items() if name[0] == 1]
    wait_for(lambda: not any(lane.busy.locked() for lane in lanes), 30, "and answered")
    unfinished = sum(lane.num_unfinished_unrolls for lane in lanes)
    again = start("ask", address, 1, 1, 500, 7)  # it lives again
    for process in (again, other):
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    lives = [origin[3] for origin in origins if origin[1] == 1]
    assert set(lives) == {0, 7} and lives == sorted(lives), "two lives never meet"
    assert central.lanes.num_dropped_unrolls == unfinished
    central.server.close()


def test_a_server_that_is_killed_and_started_again_is_asked_again(address):
    def unrolls(server, count):
        return [tuple(map(int, server.stdout.readline().split())) for _ in range(count)]

    server = start("serve", address)
    assert server.stdout.readline() == "SERVING\n"
    client = start("ask", address, 3, 1, 1_500, 0)
    assert [unroll[4] for unroll in unrolls(server, 3)] == [0, 1, 2]
    server.kill()
    server.communicate()
    time.sleep(0.5)
    server = start("serve", address)
    assert server.stdout.readline() == "SERVING\n"
    (first, second) = unrolls(server, 2)
    *_, seq, _, is_first, which = first
    assert (seq, is_first) == (0, 1) and which > 10, "it goes on where it was, as if an episode began"
    assert second[4] == 1 and second[7] == which + T and second[6] == (second[7] % 100 == 0)
    threading.Thread(target=server.stdout.read, daemon=True).start()
    _, errors = client.communicate(timeout=60)
    assert client.returncode == 0, errors
    server.kill()


def test_a_full_queue_holds_clients_back_and_lets_them_go_on(address):
    central = Central(address, queue_size=2 * N)
    client = start("ask", address, 1, 4, 200, 0)
    wait_for(lambda: central.queue.fill() == 1.0, 30, "the queue is full")
    time.sleep(2.0)
    before = central.gatherer.log.num_environments
    time.sleep(0.5)
    assert central.gatherer.log.num_environments == before and client.poll() is None
    origins = drained(central.queue)
    _, errors = client.communicate(timeout=60)
    assert client.returncode == 0, errors
    wait_for(lambda: len(origins) == 4 * N * (199 // T), 10, "all unrolls")
    central.server.close()


def test_a_slow_client_delays_nobody_beyond_the_timeout(address):
    central = Central(address, max_environments=4 * N, timeout_seconds=0.2)
    origins = drained(central.queue)
    slow, quick = caller(address, 1), caller(address, 2)
    slow(0, *step_of(1, 0, is_first=True))
    assert slow.wait(5.0)
    for which in range(5):
        started = time.monotonic()
        quick(which, *step_of(2, which, is_first=which == 0))
        assert quick.wait(5.0) and time.monotonic() - started < 2.0
        quick.result()
    assert not origins
    central.server.close()


def test_whoever_is_killed_in_a_batch_costs_the_others_nothing(address):
    """Dead before the network has answered: those who shared the batch get their rows, GA3C's agents and SEED's."""
    entered, go_on = threading.Event(), threading.Event()

    def held(window, is_first):
        if window.shape[1] > N:
            entered.set()
            assert go_on.wait(30)
        return network(window, is_first)

    central = Central(address, max_environments=2 * N, timeout_seconds=20.0, outputs=held)
    drained(central.queue)
    victim, other = start("ask", address, 1, 1, 1, 0), start("ask", address, 2, 1, 1, 0)
    assert entered.wait(30), "both are in one batch"
    victim.kill()
    victim.communicate()
    go_on.set()
    _, errors = other.communicate(timeout=30)
    assert other.returncode == 0, errors
    central.server.close()


def test_an_agent_that_is_killed_costs_the_other_agents_nothing(address):
    predicting = Predicting(address)
    victim, *others = [start("predict", address, who, 10**9 if who == 0 else 2_000) for who in range(3)]
    wait_for(lambda: predicting.predictors.log.num_environments > 500 * N, 30, "all three ask")
    victim.kill()
    victim.communicate()
    for process in others:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    again = start("predict", address, 0, 100)
    _, errors = again.communicate(timeout=60)
    assert again.returncode == 0, errors
    predicting.close()


def test_a_client_with_other_spaces_is_told_so(address):
    central = Central(address)
    other = shared_memory.Caller(
        address, [1, 0, 0, 0], results=[((N,), np.int32), ((N, 3), np.float32), ((N,), np.float32), ((N,), np.int64)],
        arguments=[((N, 5), np.float32), ((N,), np.float32), ((N,), np.float32), ((N,), np.bool_), ((N,), np.bool_)],
    )  # fmt: skip
    other(0, np.zeros((N, 5), np.float32), *step_of(1, 0)[1:])
    assert other.wait(5.0)
    with pytest.raises(shared_memory.CallFailed, match=r"observation is float32\[16, 5\]; expected float32\[16, 2\], as numbers has it"):
        other.result()
    central.server.close()
