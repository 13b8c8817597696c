"""A command in whose own process an environment hangs."""

import signal
import subprocess
import sys
import time

import pytest

from tests.programs.running import ROOT

BLOCK = """
import sys, time, types
from impala.nodes import hangs
config = types.SimpleNamespace(
    environment=types.SimpleNamespace(tasks=["a", "b"]), own_parts={"network.torso": "m:f"}, liveness_seconds=2.0
)
with hangs.watched(config, "is played") as step:
    print("begun", flush=True)
    for _ in range(%d):
        time.sleep(0.05)
        assert step() is False
    time.sleep(%g)
time.sleep(3)
"""


def started(num_steps, seconds):
    code = BLOCK % (num_steps, seconds)
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n"
    return process


def test_it_ends_with_one_line_and_a_status_that_says_to_try_again():
    process = started(20, 1e6)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 75
    assert errors == (
        "environment.name: 'a', 'b', or network.torso: 'm:f' is silent for 2 s, liveness_seconds, while it is played; "
        "expected an answer\n"
    )


@pytest.mark.parametrize("num_steps", [0, 80])
def test_what_answers_goes_on(num_steps):
    """However long it takes in all, and whatever comes after it."""
    _, errors = (process := started(num_steps, 0.0)).communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")


def test_time_in_which_the_process_is_stopped_does_not_count():
    process = started(40, 0.0)
    process.send_signal(signal.SIGSTOP)
    time.sleep(4)
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
