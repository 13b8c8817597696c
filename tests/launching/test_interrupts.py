"""What counts as being asked to stop."""

import os
import signal
import time

import pytest

from impala.launching.interrupts import Interrupts


@pytest.fixture
def hangups_are_heard():
    """Tests that run under nohup ignore them, which `Interrupts` respects."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)


def test_every_request_counts_and_a_terminal_that_goes_away_once(hangups_are_heard):
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        assert interrupts.count == 0
        for number, count in ((signal.SIGHUP, 1), (signal.SIGHUP, 1), (signal.SIGINT, 2), (signal.SIGTERM, 3)):
            os.kill(os.getpid(), number)
            assert interrupts.count == count
            os.kill(os.getpid(), number)  # at once: `timeout` tells a process and then its group
            assert interrupts.count == count
            time.sleep(0.35)
    assert signal.getsignal(signal.SIGINT) is before


def test_nohup_stays_nohup():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupts.count == 0
    finally:
        signal.signal(signal.SIGHUP, previous)
