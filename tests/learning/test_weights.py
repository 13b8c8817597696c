"""Weights on their way back: versions that only rise, answers without arrays, and many threads at once."""

import concurrent.futures
import threading
import time

import numpy as np
import pytest

from impala.learning.weights import Fetcher, Publisher
from impala.types import Weights


class Source:
    """A learner's parameters: two arrays that say their version all over."""

    def __init__(self):
        self.version = 0
        self.num_copies = 0
        self._arrays = [np.zeros(50_000), np.zeros((3, 7))]

    def update(self):
        self.version += 1
        for array in self._arrays:
            array[:] = self.version

    def read(self):
        self.num_copies += 1
        return Weights(self.version, [array.copy() for array in self._arrays])


def test_newer_weights_come_with_arrays_and_old_ones_without():
    source = Source()
    publisher = Publisher(source.read)
    version, arrays = publisher.get(newer_than=-1)
    assert version == 0 and [a.shape for a in arrays] == [(50_000,), (3, 7)]
    assert publisher.get(newer_than=0) == (0, [])
    with publisher.updating():
        source.update()
    version, arrays = publisher.get(newer_than=0)
    assert version == 1 and all((array == 1).all() for array in arrays)
    assert publisher.get(newer_than=1) == (1, [])
    assert publisher.get(newer_than=7) == (1, [])


def test_one_copy_a_version_and_none_unasked():
    source = Source()
    publisher = Publisher(source.read)
    for _ in range(5):
        with publisher.updating():
            source.update()
    assert source.num_copies == 0
    for _ in range(4):
        publisher.get(newer_than=-1)
    assert source.num_copies == 1


def test_nobody_sees_an_update_half_done():
    source, inside, leave = Source(), threading.Event(), threading.Event()
    publisher = Publisher(source.read)

    def update():
        with publisher.updating():
            inside.set()
            leave.wait(20)
            source.update()

    threading.Thread(target=update, daemon=True).start()
    inside.wait(20)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(publisher.get, -1)
        time.sleep(0.2)
        assert not asked.done()
        leave.set()
        assert asked.result(20)[0] == 1


def test_who_waits_for_weights_goes_before_the_next_update():
    """Updates back to back must not starve actors: a request waits for the update under way and for no other."""
    source, inside, stop = Source(), threading.Event(), threading.Event()
    publisher = Publisher(source.read)

    def train():
        while not stop.is_set():
            with publisher.updating():
                inside.set()
                time.sleep(0.005)
                source.update()
                inside.clear()

    learner = threading.Thread(target=train, daemon=True)
    learner.start()
    waited = []
    for _ in range(30):
        inside.wait(20)
        asked_at = source.version
        waited.append(publisher.get(newer_than=-1)[0] - asked_at)
    stop.set()
    learner.join(20)
    assert not learner.is_alive()
    assert waited.count(1) >= 27, waited


def test_a_flood_of_requests_does_not_hold_back_the_learner():
    source, stop = Source(), threading.Event()
    publisher = Publisher(source.read)

    def ask():
        while not stop.is_set():
            publisher.get(newer_than=-1)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    done = threading.Event()

    def train():
        for _ in range(10):
            with publisher.updating():
                source.update()
        done.set()

    threading.Thread(target=train, daemon=True).start()
    finished = done.wait(10)
    stop.set()
    assert finished, f"{source.version} of 10 updates in 10 s"


def test_an_update_that_fails_blocks_nobody():
    source = Source()
    publisher = Publisher(source.read)
    with pytest.raises(RuntimeError), publisher.updating():
        source.update()
        raise RuntimeError
    assert publisher.get(newer_than=0)[0] == 1


def test_a_copy_that_fails_blocks_no_update():
    source, failing = Source(), [True]

    def read():
        if failing.pop():
            raise MemoryError("no room for a copy")
        return source.read()

    publisher = Publisher(read)
    with pytest.raises(MemoryError):
        publisher.get(newer_than=-1)
    done = threading.Event()

    def update():
        with publisher.updating():
            source.update()
        done.set()

    threading.Thread(target=update, daemon=True).start()
    assert done.wait(5), "the next update waits for a request that has long failed"
    failing.append(False)
    assert publisher.get(newer_than=-1)[0] == 1


def test_many_threads_see_whole_versions_that_only_rise():
    source, stop = Source(), threading.Event()
    publisher, problems, num_seen = Publisher(source.read), [], [0] * 4

    def ask(thread):
        newest = -1
        while not stop.is_set():
            version, arrays = publisher.get(newer_than=newest)
            if version < newest or bool(arrays) != (version > newest):
                problems.append(f"{version} after {newest} with {len(arrays)} arrays")
            if any((array != version).any() for array in arrays):
                problems.append(f"the arrays of version {version} hold others")
            num_seen[thread] += version > newest
            newest = version
            time.sleep(0.0005)

    threads = [threading.Thread(target=ask, args=(thread,), daemon=True) for thread in range(4)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    while min(num_seen) < 20 and time.monotonic() < deadline:
        with publisher.updating():
            source.update()
        time.sleep(0.0005)
    stop.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert problems == [] and min(num_seen) >= 20


class Wire:
    """Requests by hand: each is a future that the test answers."""

    def __init__(self):
        self.asked, self.futures, self.assigned = [], [], []

    def request(self, newer_than):
        self.asked.append(newer_than)
        self.futures.append(concurrent.futures.Future())
        return self.futures[-1]

    def fetcher(self, old_seconds=float("inf"), **kwargs):
        fetcher = Fetcher(self.request, self.assigned.append, **kwargs)
        fetcher._OLD_SECONDS = old_seconds
        return fetcher


def test_an_answer_is_as_old_as_it_has_been_there_not_as_the_request_is():
    wire = Wire()
    fetcher = wire.fetcher(old_seconds=0.2)
    fetcher.prefetch()
    time.sleep(0.3)
    wire.futures[0].set_result((5, ["a"]))
    assert fetcher.sync() == 5 and wire.asked == [-1], "it came just now"
    fetcher.prefetch()
    wire.futures[1].set_result((6, ["b"]))
    time.sleep(0.3)
    threading.Timer(0.1, lambda: wire.futures[2].set_result((7, ["c"]))).start()
    assert fetcher.sync() == 7 and wire.asked == [-1, 5, 6]


def test_a_prefetched_answer_is_assigned_at_the_next_sync():
    wire = Wire()
    fetcher = wire.fetcher()
    assert fetcher.version == -1
    fetcher.prefetch()
    fetcher.prefetch()  # one request at a time
    assert wire.asked == [-1] and wire.assigned == []
    wire.futures[0].set_result((5, ["a", "b"]))
    assert wire.assigned == [], "weights may not change in the middle of an unroll"
    assert fetcher.sync() == fetcher.version == 5
    assert wire.assigned == [Weights(5, ["a", "b"])]
    assert wire.asked == [-1]


def test_weights_that_were_asked_for_before_a_long_wait_are_asked_for_again():
    """An actor that waited for room in the queue begins its unroll with the weights of now, and gets none twice."""
    wire = Wire()
    answers = iter([(5, ["old"]), (9, ["new"]), RuntimeError("lost"), (9, [])])

    def request(newer_than):
        future, answer = wire.request(newer_than), next(answers)
        future.set_exception(answer) if isinstance(answer, Exception) else future.set_result(answer)
        return future

    fetcher = Fetcher(request, wire.assigned.append)
    fetcher._OLD_SECONDS = 0.02
    fetcher.prefetch()
    time.sleep(0.05)
    assert fetcher.sync() == 9 and wire.asked == [-1, 5] and wire.assigned == [Weights(5, ["old"]), Weights(9, ["new"])]
    fetcher.prefetch()
    time.sleep(0.05)
    assert fetcher.sync() == 9 and wire.asked == [-1, 5, 9, 9] and len(wire.assigned) == 2


def test_a_request_that_is_not_answered_yet_is_not_repeated():
    """The learner is in the midst of an update: its answer will be of now."""
    wire = Wire()
    fetcher = wire.fetcher(old_seconds=0.02)
    fetcher.prefetch()
    time.sleep(0.05)
    threading.Timer(0.1, lambda: wire.futures[0].set_result((5, ["new"]))).start()
    assert fetcher.sync() == 5 and wire.asked == [-1]


def test_an_answer_without_arrays_keeps_weights_and_version():
    wire = Wire()
    fetcher = wire.fetcher()
    for version, arrays in ((3, ["a"]), (3, []), (4, ["b"])):
        fetcher.prefetch()
        wire.futures[-1].set_result((version, arrays))
        assert fetcher.sync() == version
    assert wire.asked == [-1, 3, 3]
    assert wire.assigned == [Weights(3, ["a"]), Weights(4, ["b"])]


def test_weights_are_fetched_once_in_a_period_of_unrolls():
    wire = Wire()
    fetcher, versions = wire.fetcher(period=3), []
    for version in range(1, 8):  # one unroll each
        fetcher.prefetch()
        if not wire.futures[-1].done():
            wire.futures[-1].set_result((version, ["a"]))
        versions.append(fetcher.sync())
    assert versions == [1, 1, 1, 4, 4, 4, 7] and wire.asked == [-1, 1, 4]


def test_without_a_prefetch_sync_asks_and_waits():
    wire = Wire()
    fetcher = wire.fetcher()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        synced = pool.submit(fetcher.sync)
        while not wire.futures:
            time.sleep(0.01)
        assert not synced.done()
        wire.futures[0].set_result((2, ["a"]))
        assert synced.result(20) == 2


def test_a_failed_request_is_the_actors_error():
    wire = Wire()
    fetcher = wire.fetcher()
    fetcher.prefetch()
    wire.futures[0].set_exception(ConnectionError("the learner is gone"))
    with pytest.raises(ConnectionError, match="the learner is gone"):
        fetcher.sync()


def test_waiting_for_an_answer_hears_the_stop_signal():
    stop, wire = threading.Event(), Wire()
    threading.Timer(0.3, stop.set).start()
    started = time.monotonic()
    assert wire.fetcher(should_stop=stop.is_set).sync() == -1 and not wire.assigned
    assert 0.3 <= time.monotonic() - started < 2.0


def test_the_error_of_an_answer_is_raised():
    failed = concurrent.futures.Future()
    failed.set_exception(TimeoutError("the RPC's own deadline"))
    with pytest.raises(TimeoutError, match="own deadline"):
        Fetcher(lambda newer_than: failed, lambda weights: None).sync()


def test_fetcher_and_publisher_together():
    source = Source()
    publisher, assigned = Publisher(source.read), []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        fetcher = Fetcher(lambda newer_than: pool.submit(publisher.get, newer_than), assigned.append)
        versions = []
        for _ in range(20):
            versions.append(fetcher.sync())
            with publisher.updating():
                source.update()
            fetcher.prefetch()
    assert versions == list(range(20))
    assert [weights.version for weights in assigned] == versions
    assert all((array == weights.version).all() for weights in assigned for array in weights.arrays)
