"""Central inference: the batches of many callers."""

import concurrent.futures
import threading
import time

import numpy as np
import pytest

from impala.acting import policies
from impala.acting.inference import Gatherer, compute_together


def doubled(window, is_first, *memory):
    """A network whose outputs tell whose row they are."""
    x = window[-1].reshape(window.shape[1], -1)[:, :1].astype(np.float32)
    return np.tile(x, (1, 3)), 2 * x[:, 0], *(m + 1 for m in memory[2:])


def ask(gatherer, value, n=4):
    window = np.full((1, n, 2), value, np.float32) + np.arange(n, dtype=np.float32)[None, :, None] / 10
    return gatherer(window, np.zeros((1, n), bool))


def test_everyone_gets_his_own_rows_of_one_batch():
    sizes = []

    def network(window, is_first):
        sizes.append(window.shape[1])
        return doubled(window, is_first)

    gatherer = Gatherer(network, max_environments=32, timeout_seconds=5.0)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: ask(gatherer, i), range(8)))
    assert sizes == [32]
    for i, (logits, value) in enumerate(answers):
        np.testing.assert_allclose(logits, np.tile(i + np.arange(4)[:, None] / 10, (1, 3)), rtol=1e-6)
        np.testing.assert_allclose(value, 2 * (i + np.arange(4) / 10), rtol=1e-6)


def test_fewer_than_a_batch_go_when_their_time_is_out():
    gatherer = Gatherer(doubled, max_environments=64, timeout_seconds=0.2)
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda i: ask(gatherer, i), range(2)))
    assert 0.15 < time.monotonic() - started < 2.0
    assert (gatherer.log.num_batches, gatherer.log.num_environments) == (1, 8)


def test_a_slow_client_delays_nobody_beyond_the_timeout():
    gatherer = Gatherer(doubled, max_environments=8, timeout_seconds=0.1)
    started = time.monotonic()
    ask(gatherer, 1)  # the other four environments never ask
    assert time.monotonic() - started < 5.0


def test_a_request_is_never_divided_and_never_refused_for_its_size():
    sizes = []

    def network(window, is_first):
        sizes.append(window.shape[1])
        return doubled(window, is_first)

    gatherer = Gatherer(network, max_environments=6, timeout_seconds=0.05)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: ask(gatherer, i, 4), range(4)))
    ask(gatherer, 1, 9)
    assert sizes == [4, 4, 4, 4, 9]


def test_the_next_batch_fills_while_one_is_computed():
    sizes, entered, go_on = [], threading.Event(), threading.Event()

    def network(window, is_first):
        sizes.append(window.shape[1])
        entered.set()
        assert go_on.wait(10)
        return doubled(window, is_first)

    gatherer = Gatherer(network, max_environments=64, timeout_seconds=0.01)
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        first = pool.submit(ask, gatherer, 0)
        assert entered.wait(10)
        others = [pool.submit(ask, gatherer, i) for i in range(1, 5)]
        while gatherer._open is None or len(gatherer._open.requests) < 4:
            time.sleep(0.01)
        time.sleep(0.3)  # thirty time-outs
        go_on.set()
        for future in [first, *others]:
            future.result(10)
    assert sizes == [4, 16]


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_batch_of_many_requests_gives_what_each_alone_would_get(core):
    """Of a real network, to 1e-6: who else asks changes nothing."""
    from impala import networks
    from impala.types import ArraySpec, Discrete, EnvironmentSpec

    spec = EnvironmentSpec("frames", ArraySpec((84, 84), np.uint8), actions=Discrete(6), num_stacked=4)
    network = networks.make(spec, torso="shallow", core=core, core_size=16, seed=1)
    network._policy.kernel.assign(100.0 * network._policy.kernel)  # logits of about 1
    outputs, random = policies.network_outputs(network), np.random.default_rng(0)

    def request(n):
        arrays = [random.integers(256, size=(4, n, 84, 84), dtype=np.uint8), random.random((1, n)) < 0.3]
        if core == "lstm":
            arrays += [random.integers(6, size=(1, n)).astype(np.int32), random.normal(size=(1, n)).astype(np.float32)]
            arrays += [random.normal(size=(n, 2, 16)).astype(np.float32)]
        return tuple(arrays)

    requests = [request(n) for n in (1, 3, 2, 1)]
    alone = [outputs(*one) for one in requests]
    assert np.ptp(np.concatenate([logits for logits, *_ in alone])) > 0.1
    for count in range(1, 5):
        for ours, theirs in zip(compute_together(outputs, requests[:count]), alone):
            for one, other in zip(ours, theirs, strict=True):
                # Noise less its median, in sixteenths, rounds 16 times as coarsely as 255ths do; another row's is 0.1 off.
                np.testing.assert_allclose(one, other, rtol=0, atol=16e-6)


def test_two_batches_at_once_and_none_during_a_pause():
    entered, go_on, now = threading.Semaphore(0), threading.Event(), []

    def network(window, is_first):
        now.append(1)
        entered.release()
        assert go_on.wait(10)
        now.pop()
        return doubled(window, is_first)

    gatherer = Gatherer(network, max_environments=4, timeout_seconds=0.01, num_at_once=2)
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        others = [pool.submit(ask, gatherer, i) for i in range(4)]
        assert entered.acquire(timeout=10) and entered.acquire(timeout=10)
        assert not entered.acquire(timeout=0.2) and len(now) == 2
        pool.submit(lambda: time.sleep(0.1) or go_on.set())
        with gatherer.paused():
            assert go_on.is_set() and not now
            late = pool.submit(ask, gatherer, 5)
            with pytest.raises(concurrent.futures.TimeoutError):
                late.result(0.3)
        for future in (*others, late):
            future.result(10)


def test_what_the_network_raises_reaches_everyone_and_the_next_batch_is_computed():
    calls = []

    def network(window, is_first):
        calls.append(1)
        if len(calls) == 1:
            raise FloatingPointError("once")
        return doubled(window, is_first)

    gatherer = Gatherer(network, max_environments=8, timeout_seconds=5.0)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(ask, gatherer, i) for i in range(2)]
        assert all(isinstance(future.exception(10), FloatingPointError) for future in futures)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert len(list(pool.map(lambda i: ask(gatherer, i), range(2)))) == 2


@pytest.mark.parametrize(
    "numbers, words",
    [(dict(max_environments=0, timeout_seconds=1.0), "max_environments=0; expected 1 or more"),
     (dict(max_environments=8, timeout_seconds=0.0), "timeout_seconds=0.0; expected more than 0"),
     (dict(max_environments=8, timeout_seconds=1.0, num_at_once=0), "num_at_once=0; expected 1 or more")],
)  # fmt: skip
def test_numbers_without_a_meaning_are_refused(numbers, words):
    with pytest.raises(ValueError, match=words):
        Gatherer(doubled, **numbers)


def test_pauses_of_two_threads_follow_each_other():
    gatherer = Gatherer(doubled, max_environments=4, timeout_seconds=0.01, num_at_once=4)

    def pause_often():
        for _ in range(500):
            with gatherer.paused():
                pass

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(pause_often) for _ in range(2)]:
            future.result(30)
