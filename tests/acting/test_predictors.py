"""The prediction queue: everyone's own rows, batches of what waits, back-pressure, errors, many clients."""

import concurrent.futures
import threading
import time

import numpy as np
import pytest

from impala.acting.predictors import Predictors
from tests.acting.test_inference import ask, doubled


class Held:
    """`doubled`, which waits until it is let go."""

    def __init__(self):
        self.sizes, self.go_on, self.entered = [], threading.Event(), threading.Semaphore(0)

    def __call__(self, window, is_first, *memory):
        self.sizes.append(window.shape[1])
        self.entered.release()
        assert self.go_on.wait(10)
        return doubled(window, is_first, *memory)


def make(network=doubled, *, max_environments=32, num_threads=2, queue_size=100):
    return Predictors(network, max_environments=max_environments, num_threads=num_threads, queue_size=queue_size)


def waiting(predictors):
    return len(predictors._requests)


def until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_lone_request_is_answered_at_once():
    logits, value = ask(make(), 7)
    np.testing.assert_allclose(value, 2 * (7 + np.arange(4) / 10), rtol=1e-6)
    np.testing.assert_allclose(logits[:, 0], value / 2)


def test_what_waits_goes_together_and_everyone_gets_his_own_rows():
    network = Held()
    predictors = make(network, num_threads=1, max_environments=16)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, predictors, 0)]
        assert network.entered.acquire(timeout=10)
        answers += [pool.submit(ask, predictors, i) for i in range(1, 7)]
        until(lambda: waiting(predictors) == 6)
        network.go_on.set()
        for i, answer in enumerate(answers):
            np.testing.assert_allclose(answer.result(10)[1], 2 * (i + np.arange(4) / 10), rtol=1e-6)
    assert network.sizes == [4, 16, 8]
    columns = predictors.log.columns()
    assert columns["inference_batch_mean"] == pytest.approx(28 / 3) and 0 < columns["inference_seconds_max"] < 10
    assert predictors.log.columns() == {}


def test_several_predict_at_the_same_time():
    network = Held()
    predictors = make(network, num_threads=2)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(ask, predictors, i) for i in range(2)]
        # One takes the first request, the other one the second, unless the first one found both.
        assert network.entered.acquire(timeout=10)
        until(lambda: waiting(predictors) == 0)
        network.go_on.set()
        for answer in answers:
            answer.result(10)
    assert sum(network.sizes) == 8


def test_a_full_queue_holds_back_who_asks():
    network = Held()
    predictors = make(network, num_threads=1, max_environments=4, queue_size=3)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, predictors, i) for i in range(8)]
        assert network.entered.acquire(timeout=10)
        until(lambda: waiting(predictors) == 3)
        time.sleep(0.3)
        assert waiting(predictors) == 3
        network.go_on.set()
        for i, answer in enumerate(answers):
            np.testing.assert_allclose(answer.result(10)[1][0], 2 * i, atol=1e-6)


def test_what_the_network_raises_reaches_who_asked_and_the_next_is_answered():
    calls = []

    def network(window, is_first):
        calls.append(1)
        if len(calls) == 1:
            raise FloatingPointError("once")
        return doubled(window, is_first)

    predictors = make(network, num_threads=1)
    with pytest.raises(FloatingPointError, match="once"):
        ask(predictors, 1)
    assert ask(predictors, 1)[1].shape == (4,)
    predictors.crew.check()


def test_a_core_state_goes_along():
    memory = np.zeros((1, 4), np.int32), np.zeros((1, 4), np.float32), np.arange(8, dtype=np.float32).reshape(4, 2)
    network = Held()
    predictors = make(network, num_threads=1, max_environments=8)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        window, is_first = np.ones((1, 4, 2), np.float32), np.zeros((1, 4), bool)
        answers = [pool.submit(predictors, window, is_first, *memory)]
        assert network.entered.acquire(timeout=10)
        answers += [pool.submit(predictors, window, is_first, *memory) for _ in range(2)]
        until(lambda: waiting(predictors) == 2)
        network.go_on.set()
        for answer in answers:
            np.testing.assert_array_equal(answer.result(10)[2], memory[2] + 1)
    assert network.sizes == [4, 8]


def test_64_clients_get_every_answer_once_and_in_order_while_the_crew_changes():
    predictors = make(max_environments=64, num_threads=2, queue_size=20)

    def client(i):
        for k in range(100):
            _, value = ask(predictors, 1000 * i + k, n=2)
            np.testing.assert_allclose(value[0], 2 * (1000 * i + k), rtol=1e-6)
        return True

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        clients = [pool.submit(client, i) for i in range(64)]
        for size in (1, 4, 2):
            time.sleep(0.1)
            predictors.crew.size = size
        assert all(c.result(60) for c in clients)
    assert predictors.log.num_environments == 64 * 100 * 2
    assert predictors.log.num_batches < 64 * 100


@pytest.mark.parametrize(
    "numbers, words",
    [(dict(max_environments=0), "max_environments=0; expected 1 or more"),
     (dict(queue_size=0), "queue_size=0; expected 1 or more requests"),
     (dict(num_threads=0), "size=0 of the crew 'predictor'; expected 1 or more")],
)  # fmt: skip
def test_numbers_without_a_meaning_are_refused(numbers, words):
    with pytest.raises(ValueError, match=words):
        make(**numbers)
