"""The queue within a process: order, back-pressure, stopping."""

import itertools
import threading
import time

import numpy as np
import pytest

from impala.replay.memory import MemoryQueue, MemoryWindows


def test_every_chunk_comes_out_once_and_in_order():
    queue, seen = MemoryQueue(3), []
    writer = threading.Thread(target=lambda: [queue([2 * i, 2 * i + 1]) for i in range(50)], daemon=True)
    writer.start()
    for chunk in itertools.islice(queue.chunks(), 100):
        seen.append(chunk)
        assert queue.fill() <= 1.0
    writer.join(5)
    assert seen == list(range(100)) and not writer.is_alive()


def test_full_it_holds_the_writer_back():
    queue = MemoryQueue(2)
    queue([0, 1])
    assert queue.fill() == 1.0
    queue.blocked_fraction()
    writer = threading.Thread(target=queue, args=([2],), daemon=True)
    writer.start()
    time.sleep(1.2)
    assert writer.is_alive()
    assert 0.5 < queue.blocked_fraction() <= 1.0, "counted while it waits, in the period that it belongs to"
    assert next(queue.chunks()) == 0
    writer.join(5)
    assert not writer.is_alive()
    queue.blocked_fraction()
    assert queue.blocked_fraction() == 0.0


def test_a_writer_that_waits_hears_the_stop():
    stop = threading.Event()
    full = MemoryQueue(1, should_stop=stop.is_set)
    full([0])
    writer = threading.Thread(target=full, args=([1],), daemon=True)
    writer.start()
    stop.set()
    writer.join(3)
    assert not writer.is_alive()


def test_a_size_without_room_is_refused():
    with pytest.raises(ValueError, match="size=0; expected 1 or more chunks"):
        MemoryQueue(0)


def test_several_readers_take_whole_batches():
    queue, taken, lock = MemoryQueue(10), [], threading.Lock()

    def read():
        while batch := queue.take(4, 1.0):
            with lock:
                taken.append(batch)

    readers = [threading.Thread(target=read, daemon=True) for _ in range(3)]
    for reader in readers:
        reader.start()
    queue(list(range(42)))
    for reader in readers:
        reader.join(10)
    assert all(batch == list(range(batch[0], batch[0] + 4)) for batch in taken)
    assert sorted(chunk for batch in taken for chunk in batch) == list(range(40)) and queue.fill() == 0.2
    assert queue.take(3, 0.05) == [], "two are left"


def test_all_columns_of_a_drawn_window_are_its_own_steps_in_their_order():
    """Three windows of two environments, of which `a` has the last three steps and `b` two; `c` is of the last step."""
    windows = MemoryWindows(8, 2, lengths={"a": 3, "b": 2})
    for step in range(5):
        rows = [{name: np.array([step, i]) for name in "abc"} for i in range(2)]
        windows.write(rows)
        windows.end_windows(np.full(2, step >= 2), np.ones(2))
    drawn = windows.sample(64, np.random.default_rng(0))
    last, environment = 2 + drawn["key"] // 2, drawn["key"] % 2
    assert set(drawn["key"]) == set(range(6)) and drawn["a"].shape == (64, 3, 2) and drawn["b"].shape == (64, 2, 2)
    for name, length in (("a", 3), ("b", 2)):
        np.testing.assert_array_equal(drawn[name][..., 0], last[:, None] + np.arange(1 - length, 1))
        np.testing.assert_array_equal(drawn[name][..., 1], np.repeat(environment[:, None], length, axis=1))
    np.testing.assert_array_equal(drawn["c"], np.stack([last, environment], axis=1))
