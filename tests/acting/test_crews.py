"""Crews of threads: as many at work as are wanted, an error that is told."""

import threading
import time

import pytest

from impala.acting.crews import Crew, Gate


class Meeting:
    """A turn of work that knows how many are at it."""

    def __init__(self, seconds=0.02):
        self.lock, self.seconds, self.now, self.most, self.num_turns = threading.Lock(), seconds, 0, 0, 0

    def __call__(self):
        with self.lock:
            self.now += 1
            self.num_turns += 1
            self.most = max(self.most, self.now)
        time.sleep(self.seconds)
        with self.lock:
            self.now -= 1

    def seen(self, seconds=0.4):
        """Returns how many were at work at once in the last so many seconds."""
        time.sleep(2 * self.seconds)
        self.most = 0
        time.sleep(seconds)
        return self.most


def test_as_many_are_at_work_as_wanted_while_it_runs():
    meeting = Meeting()
    crew = Crew(meeting, 2, name="test")
    assert meeting.seen() == 2
    for size in (5, 1, 3):
        crew.size = size
        assert crew.size == size and meeting.seen() == size
    assert sum(thread.name == "test" for thread in threading.enumerate()) == 5, "who is not wanted sleeps"


def test_an_error_stops_the_crew_and_is_told():
    count = []

    def turn():
        count.append(1)
        raise FloatingPointError("at work")

    crew = Crew(turn, 3, name="test")
    deadline = time.monotonic() + 5
    while crew.error is None and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(FloatingPointError, match="at work"):
        crew.check()
    time.sleep(0.1)
    assert len(count) <= 3


def test_a_crew_of_nobody_is_refused():
    with pytest.raises(ValueError, match="size=0 of the crew 'test'; expected 1 or more"):
        Crew(lambda: None, 0, name="test")


def test_who_is_beyond_a_gate_waits_for_his_turn():
    gate = Gate(2)
    assert gate.may_pass(1, 0.0) and not gate.may_pass(2, 0.05)
    gate.size = 3
    assert gate.may_pass(2, 0.0)
