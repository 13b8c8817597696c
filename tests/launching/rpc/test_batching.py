"""Handlers that gather calls."""

import datetime
import threading
import time
import typing
from concurrent import futures

import numpy as np
import pytest

from impala.launching.rpc import codec
from impala.launching.rpc.batching import BatchedHandler, BuildBatchedHandlerWrapper
from impala.launching.rpc.client import Client, StatusCode, StatusNotOk
from impala.launching.rpc.server import Server

LONG = datetime.timedelta(seconds=20)
SHORT = datetime.timedelta(milliseconds=100)


@codec.register
class Point(typing.NamedTuple):
    x: object
    y: object


def build(function, batch_size=3, max_parallelism=1, timeout=LONG, pad_batch=False):
    return BuildBatchedHandlerWrapper("f", function, batch_size, max_parallelism, timeout, pad_batch)


def call_all(handler, calls):
    """Call at once from as many threads; return results or exceptions in the order of the calls."""
    with futures.ThreadPoolExecutor(len(calls)) as pool:
        pending = []
        for args, kwargs in calls:
            pending.append(pool.submit(handler, *args, **kwargs))
            time.sleep(0.02)  # in this order
        return [future.exception(30) or future.result(30) for future in pending]


def recorder(seen, result=lambda *args, **kwargs: args[0]):
    def function(*args, **kwargs):
        seen.append((args, kwargs))
        return result(*args, **kwargs)

    return function


def test_a_full_batch_runs_at_once_as_one_call():
    seen = []
    start = time.perf_counter()
    results = call_all(build(recorder(seen, lambda x: x * 10)), [((np.full(2, i),), {}) for i in range(3)])
    assert time.perf_counter() - start < 10
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0][0][0], [[0, 0], [1, 1], [2, 2]])
    np.testing.assert_array_equal(results, [[0, 0], [10, 10], [20, 20]])


BATCHED = [
    (1, 2, [1, 2]),
    (1.5, 2.5, [1.5, 2.5]),
    (True, False, [True, False]),
    ("a", "b", ["a", "b"]),
    (b"a", b"b", [b"a", b"b"]),
    (None, None, [None, None]),
    ([1], [2, 3], [[1], [2, 3]]),
    (np.float32(1), np.float32(2), np.array([1, 2], np.float32)),
    (np.zeros((2, 0)), np.zeros((2, 0)), np.zeros((2, 2, 0))),
    ((1, np.int8(2)), (3, np.int8(4)), ([1, 3], np.array([2, 4], np.int8))),
    ((), (), ()),
    ({"a": 1, "b": {"c": 2.0}}, {"b": {"c": 4.0}, "a": 3}, {"a": [1, 3], "b": {"c": [2.0, 4.0]}}),
    (Point(1, "a"), Point(2, "b"), Point([1, 2], ["a", "b"])),
]


@pytest.mark.parametrize("one, other, batched", BATCHED, ids=[repr(one) for one, _, _ in BATCHED])
def test_how_values_are_batched_and_taken_apart(one, other, batched):
    seen = []
    results = call_all(build(recorder(seen), batch_size=2), [((one,), {}), ((other,), {})])
    np.testing.assert_equal(seen[0][0][0], batched)
    assert type(seen[0][0][0]) is type(batched)
    np.testing.assert_equal(results[0], one)
    np.testing.assert_equal(results[1], other)
    assert [type(result) for result in results] == [type(one), type(other)]


def test_keyword_arguments_are_batched_by_name():
    seen = []
    function = recorder(seen, lambda a, b: b)
    assert call_all(build(function, 2), [((1,), {"b": 2}), ((), {"b": 4, "a": 3})][:1] * 2) == [2, 2]
    assert seen == [(([1, 1],), {"b": [2, 2]})]


def test_no_arguments_and_no_result():
    assert call_all(build(lambda: None, 2), [((), {})] * 2) == [None, None]


def test_the_first_caller_waits_for_the_timeout_and_takes_what_came():
    seen = []
    start = time.perf_counter()
    handler = build(recorder(seen), batch_size=8, timeout=datetime.timedelta(milliseconds=400))
    assert call_all(handler, [((i,), {}) for i in range(3)]) == [0, 1, 2]
    assert seen == [(([0, 1, 2],), {})]
    assert 0.4 <= time.perf_counter() - start < 5


def test_padding_repeats_the_first_call():
    seen = []
    handler = build(recorder(seen), batch_size=5, timeout=SHORT, pad_batch=True)
    assert call_all(handler, [((7,), {}), ((8,), {})]) == [7, 8]
    assert seen == [(([7, 8, 7, 7, 7],), {})]


@pytest.mark.parametrize("timeout", [datetime.timedelta(milliseconds=300), 300.0], ids=["timedelta", "ms"])
def test_both_forms_of_the_timeout(timeout):
    start = time.perf_counter()
    build(lambda x: x, timeout=timeout)(1)
    assert 0.3 <= time.perf_counter() - start < 3


def test_no_timeout_runs_at_once():
    start = time.perf_counter()
    assert build(lambda x: x, timeout=0.0)(1) == 1
    assert time.perf_counter() - start < 1


def test_an_error_goes_to_all_callers_and_to_no_later_ones():
    def fail_once(x):
        if 1 in x:
            raise KeyError("one")
        return x

    handler = build(fail_once, batch_size=2)
    assert [type(result) for result in call_all(handler, [((1,), {}), ((2,), {})])] == [KeyError, KeyError]
    assert call_all(handler, [((2,), {}), ((3,), {})]) == [2, 3]


MISMATCHES = {
    "kwargs": ([((), {"a": 1}), ((), {"b": 1})], SystemError),
    "number of arguments": ([((1,), {}), ((1, 2), {})], SystemError),
    "types": ([((1,), {}), (("1",), {})], SystemError),
    "lengths of tuples": ([(((1,),), {}), (((1, 2),), {})], SystemError),
    "keys of dicts": ([(({"a": 1},), {}), (({"b": 1},), {})], SystemError),
    "shapes": ([((np.zeros(2),), {}), ((np.zeros(3),), {})], ValueError),
    "dtypes": ([((np.zeros(2),), {}), ((np.zeros(2, "f4"),), {})], ValueError),
    "array and list": ([((np.zeros(2),), {}), (([0, 0],), {})], ValueError),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_calls_that_do_not_go_together(name):
    calls, error = MISMATCHES[name]
    results = call_all(build(lambda *args, **kwargs: None, 2), calls)
    assert all(isinstance(result, error) for result in results)


@pytest.mark.parametrize("result", [1, "ab", [1], np.zeros(1), np.array(1), {"a": [1]}, ([1, 2], 3)], ids=repr)
def test_results_that_cannot_be_taken_apart(result):
    errors = call_all(build(lambda x: result, 2), [((1,), {})] * 2)
    assert all(isinstance(error, ValueError) for error in errors)


@pytest.mark.parametrize("max_parallelism", [1, 2])
def test_parallelism_is_bounded_and_waiting_batches_fill_up(max_parallelism):
    running, most, sizes = [], [], []

    def function(x):
        running.append(1)
        most.append(len(running))
        sizes.append(len(x))
        time.sleep(0.3)
        running.pop()
        return x

    handler = build(function, batch_size=4, max_parallelism=max_parallelism, timeout=1.0)
    assert call_all(handler, [((i,), {}) for i in range(8)]) == list(range(8))
    assert max(most) == max_parallelism
    assert sum(sizes) == 8 and max(sizes) > 1  # while one ran, the others gathered


def test_many_callers_each_get_their_own():
    handler = build(lambda x: x + 1, batch_size=5, max_parallelism=2, timeout=2.0)

    def caller(start):
        return [int(handler(np.int64(start + i))) for i in range(20)]

    with futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(caller, range(0, 800, 100)))
    assert results == [[start + i + 1 for i in range(20)] for start in range(0, 800, 100)]


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"max_parallelism": 0}, {"timeout": -1.0}], ids=str)
def test_sizes_must_be_positive(wrong):
    with pytest.raises(ValueError):
        build(print, **wrong)


def test_through_a_server():
    server, seen = Server(thread_pool_size=8), []
    server.BindHandler("f", build(recorder(seen), batch_size=4))
    server.Start()
    clients = [Client(server.address, call_timeout=20) for _ in range(4)]
    pending = [client.futures.f(np.full(2, i)) for i, client in enumerate(clients)]
    np.testing.assert_array_equal([future.result(20) for future in pending], [[i, i] for i in range(4)])
    assert len(seen) == 1 and seen[0][0][0].shape == (4, 2)

    server.BindHandler("f", build(recorder(seen), batch_size=2))
    for future in [clients[0].futures.f(a=1), clients[1].futures.f(b=1)]:
        with pytest.raises(StatusNotOk, match="different keyword") as caught:
            future.result(20)
        assert caught.value.code is StatusCode.INTERNAL
    server.Stop()


def test_the_pool_must_exceed_the_batch():
    server = Server(thread_pool_size=4)
    server.BindHandler("f", build(print, batch_size=3))
    with pytest.raises(ValueError, match="thread_pool_size"):
        server.BindHandler("f", build(print, batch_size=4))


def test_an_interrupted_first_caller_releases_the_others():
    handler = build(lambda x: x, batch_size=3)
    assert isinstance(handler, BatchedHandler)
    entered = threading.Event()

    def wait_for(predicate, timeout=None):
        entered.set()
        handler._condition.wait(0.3)
        raise KeyboardInterrupt

    handler._condition.wait_for = wait_for
    results = []

    def follow():
        entered.wait(5)
        try:
            handler(2)
        except KeyboardInterrupt as error:
            results.append(error)

    follower = threading.Thread(target=follow)
    follower.start()
    with pytest.raises(KeyboardInterrupt):
        handler(1)
    follower.join(5)
    assert len(results) == 1
