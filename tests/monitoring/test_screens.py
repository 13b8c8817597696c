"""What is shown from a thread of its own: in order, the newest state alone, and never at the cost of who tells it."""

import os
import sys
import threading
import time

import pytest

from impala.monitoring import dashboard, screens


class Shown:
    """Keeps what it is told; waits in `say` until it is let go, or raises."""

    def __init__(self, error=None):
        self.told, self.free, self.error = [], threading.Event(), error
        self.free.set()

    def __enter__(self):
        self.told.append("begin")

    def __exit__(self, *_):
        self.told.append("end")

    def say(self, text):
        self.free.wait(20)
        if self.error:
            raise self.error
        self.told.append(text)

    def update(self, row, notices):
        self.told.append((row, notices))


def test_all_is_told_in_order_before_it_ends():
    shown = Shown()
    with screens.Screen(shown) as screen:
        for number in range(100):
            screen.say(str(number))
    assert shown.told == ["begin", *map(str, range(100)), "end"] and not screen.is_stuck


def test_a_closed_pipe_is_heard_of(monkeypatch):
    """And not taken for an end with another status, as rich does."""
    end, start = os.pipe()
    os.close(end)
    monkeypatch.setattr(sys, "stdout", os.fdopen(start, "w", closefd=False))
    with pytest.raises(BrokenPipeError), screens.Screen(dashboard.Dashboard("run", total_frames=1)) as screen:
        for _ in range(2_000):
            screen.say("words")
            time.sleep(0.01)
    os.close(start)


def test_who_tells_waits_for_nothing_and_of_states_that_wait_the_newest_is_shown():
    shown, began = Shown(), time.monotonic()
    shown.free.clear()
    with screens.Screen(shown) as screen:
        screen.say("first")
        for number in range(5_000):
            screen.update({"updates": number}, {"a": "b"})
        screen.say("second")
        screen.update({"updates": 7}, {})
        assert time.monotonic() - began < 10
        shown.free.set()
    assert shown.told == ["begin", "first", ({"updates": 4_999}, {"a": "b"}), "second", ({"updates": 7}, {}), "end"]


def test_what_is_never_written_is_lost_and_the_end_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(screens, "_END_SECONDS", 0.2)
    shown = Shown()
    shown.free.clear()
    with screens.Screen(shown) as screen:
        for number in range(3_000):
            screen.say(str(number))
    assert screen.is_stuck and len(screen._jobs) <= 1_000
    shown.free.set()


@pytest.mark.parametrize("is_last", [False, True])
def test_a_pipe_that_is_closed_is_told_to_who_tells(is_last):
    shown = Shown(BrokenPipeError())
    with pytest.raises(BrokenPipeError):
        with screens.Screen(shown) as screen:
            screen.say("something")
            for _ in range(0 if is_last else 200):
                time.sleep(0.01)
                screen.update({}, {})
    assert not screen.is_stuck
