"""The sum of several processes' arrays: what it is, who gets it, and what is said of those who end, freeze or stay away."""

import multiprocessing
import os
import signal
import socket
import threading
import time

import numpy as np
import pytest

from impala.launching.shared_memory import new_address
from impala.launching.shared_sum import SharedSum

SHAPES = [((0,), "f4"), ((3, 2), "f4"), ((), "f8"), ((), "f4"), ((0,), "f4"), ((700_000,), "f4"), ((3, 2), "f4"), ((5,), "i8")]


def share(index, number):
    shape, dtype = SHAPES[number]
    return (1e3 * np.random.default_rng([index, number]).normal(size=shape)).astype(dtype)


def bring_all(index, size, address, results):
    total = SharedSum(index, size, address)
    one_by_one = [total([share(index, number)])[0] for number in range(len(SHAPES))]
    results.put((index, one_by_one, total([share(index, number) for number in range(len(SHAPES))])))


def beside(function, *arguments):
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


@pytest.mark.parametrize("size", [2, 4])
def test_all_get_the_sum_bit_for_bit(size):
    address, results = new_address(), multiprocessing.get_context("spawn").Queue()
    processes = [beside(bring_all, index, size, address, results) for index in reversed(range(size))]
    sums = [results.get(timeout=60) for _ in processes]
    assert {index for index, *_ in sums} == set(range(size))
    for number in range(len(SHAPES)):
        expected = sum((share(index, number) for index in range(1, size)), start=share(0, number))
        for _, one_by_one, at_once in sums:
            for got in (one_by_one[number], at_once[number]):
                assert got.tobytes() == expected.tobytes()
                assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    for process in processes:
        process.join(30)
        assert process.exitcode == 0


def bring_and_end(index, size, address):
    total = SharedSum(index, size, address)
    total([np.zeros(1_000_000, np.float32)])
    os._exit(0)


def test_who_ends_after_a_sum_takes_it_from_nobody():
    """The first process ends the moment that it has the sum itself, before the other one has read it."""
    for _ in range(3):
        address = new_address()
        process = beside(bring_and_end, 0, 2, address)
        total = SharedSum(1, 2, address, patience_seconds=30.0)
        assert total([np.ones(1_000_000, np.float32)])[0].sum() == 1_000_000
        process.join(30)
        with pytest.raises(ConnectionError, match="process 0 ended"):
            total([np.ones(1, np.float32)])


def bring_twice_and(what, index, address, size=2):
    total = SharedSum(index, size, address)
    total([np.zeros(3)]), total([np.zeros(3)])
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
        total([np.ones(3)])
    elif what == "be slow":
        time.sleep(5.0)
        total([np.ones(3)])
    elif what == "go on":
        total([np.ones(3)])


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("what, least, most, message", [("end", 0.0, 2.0, "ended"), ("stop", 3.0, 5.5, "froze")])
def test_who_ends_or_freezes_is_named(index, what, least, most, message):
    address = new_address()
    process = beside(bring_twice_and, what, 1 - index, address)
    total = SharedSum(index, 2, address, patience_seconds=30.0)
    for link in total._links:
        link._frozen_seconds = 3.0
    total([np.zeros(3)]), total([np.zeros(3)])
    started = time.monotonic()
    with pytest.raises(ConnectionError, match=f"process {1 - index} {message}"):
        total([np.ones(3)])
    assert least <= time.monotonic() - started <= most
    if what == "stop":  # back again, it must not take what is brought now for what it was to sum
        with pytest.raises(ConnectionError, match=f"process {1 - index} froze"):
            total([np.full(3, 7.0)])
        os.kill(process.pid, signal.SIGCONT)
        process.join(10)
        assert process.exitcode == 1


def test_one_that_freezes_ends_the_sums_of_all():
    address = new_address()
    others = [beside(bring_twice_and, what, index, address, 3) for index, what in ((1, "go on"), (2, "stop"))]
    total = SharedSum(0, 3, address, patience_seconds=30.0)
    total._links[1]._frozen_seconds = 3.0
    total([np.zeros(3)]), total([np.zeros(3)])
    with pytest.raises(ConnectionError, match="process 2 froze"):
        total([np.ones(3)])
    others[0].join(10)
    assert others[0].exitcode == 1
    others[1].kill()


@pytest.mark.parametrize("index", [0, 1])
def test_who_is_slow_but_runs_is_waited_for(index):
    address = new_address()
    beside(bring_twice_and, "be slow", 1 - index, address)
    total = SharedSum(index, 2, address, patience_seconds=30.0)
    for link in total._links:
        link._frozen_seconds = 2.0
    total([np.zeros(3)]), total([np.zeros(3)])
    for _ in range(300):  # minutes in which the other one reads none of them
        total._links[0].beat()
    np.testing.assert_array_equal(total([np.full(3, 2.0)])[0], 3.0)


def test_who_does_not_come_is_named_and_a_taken_address_is_refused():
    address = new_address()
    with pytest.raises(ConnectionError, match="process 1 did not come within 0.5 s"):
        SharedSum(0, 3, address, patience_seconds=0.5)
    with pytest.raises(ConnectionError, match="process 0 did not come within 0.5 s"):
        SharedSum(2, 3, address, patience_seconds=0.5)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind("\0" + address)
        with pytest.raises(OSError, match="in use"):
            SharedSum(0, 2, address, patience_seconds=0.5)


def test_who_ends_while_it_connects_is_missed():
    address = new_address()

    def connect_and_end():
        with socket.socket(socket.AF_UNIX) as connection:
            while connection.connect_ex("\0" + address):
                time.sleep(0.01)

    threading.Thread(target=connect_and_end, daemon=True).start()
    with pytest.raises(ConnectionError, match="ended while it connected"):
        SharedSum(0, 2, address, patience_seconds=30.0)
