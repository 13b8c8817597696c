"""What every node does first and last, each in a process of its own."""

import os
import select
import signal
import socket
import subprocess
import sys
import time

import pytest

from impala.launching import processes


def run_node(code, stdin=None, **environment):
    """Runs `code` as the process of a node does."""
    return subprocess.Popen(
        [sys.executable, "-c", code], text=True, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"IMPALA_NODE_PROCESS": str(os.getpid())} | environment,
    )  # fmt: skip


@pytest.mark.parametrize("reuse", [False, True])
def test_a_busy_port_ends_the_run_with_status_2_and_one_line(reuse):
    """Whatever listens there, also what shares ports, as a second Reverb server would."""
    with socket.socket() as busy:
        if reuse:
            busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        busy.bind(("", 0))
        busy.listen()
        port = busy.getsockname()[1]
        node = run_node(f"from impala.launching import processes; processes.check_port_is_free({port}); print('free')")
        output, errors = node.communicate(timeout=30)
        assert node.returncode == 2 and "free" not in output
        assert errors.splitlines() == [f"port {port}: Address already in use; expected a free port, start the run again"]
        with pytest.raises(processes.UsageError, match=f"port {port}"):
            processes.check_port_is_free(port)  # in a thread of the launcher it raises
    processes.check_port_is_free(port)


HOLD = """
import sys, threading
from impala.launching import processes
from pathlib import Path
processes.hold(Path({path!r}), threading.Event())
print("held", flush=True)
sys.stdin.read()
"""


def test_a_node_waits_for_one_of_an_earlier_launch_that_still_writes(tmp_path):
    code = HOLD.format(path=str(tmp_path / "lock"))
    first = run_node(code, stdin=subprocess.PIPE)
    assert first.stdout.readline() == "held\n"
    second = run_node(code, stdin=subprocess.PIPE)
    time.sleep(1.0)
    assert not select.select([second.stdout], [], [], 0.0)[0], "the first has it"
    first.kill()
    assert second.stdout.readline() == "held\n"
    for node in (first, second):
        node.communicate()


SIGNALS = """
import threading, time
from impala.launching import processes
stop = threading.Event()
processes.GRACE_SECONDS = 1.0
processes.restore_signals(stop)
print("ready", flush=True)
{loop}
print("stopped", flush=True)
processes.finish(0)
"""


def test_a_node_ignores_ctrl_c_and_stops_on_sigterm():
    node = run_node(SIGNALS.format(loop="stop.wait()"))
    assert node.stdout.readline() == "ready\n"
    node.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert node.poll() is None
    node.send_signal(signal.SIGTERM)
    output, _ = node.communicate(timeout=10)
    assert node.returncode == 0 and output == "stopped\n"


def test_a_node_that_does_not_stop_in_time_ends_itself():
    node = run_node(SIGNALS.format(loop="time.sleep(60)"))
    assert node.stdout.readline() == "ready\n"
    node.send_signal(signal.SIGTERM)
    _, errors = node.communicate(timeout=10)
    assert node.returncode == processes.EXIT_TRY_AGAIN
    assert "did not stop within 1 s" in errors and "Thread" in errors  # and says where it was


def test_finish_does_not_wait_for_threads():
    code = (
        "import threading, time; from impala.launching import processes; "
        "threading.Thread(target=time.sleep, args=(60,)).start(); processes.finish(3)"
    )
    started = time.monotonic()
    node = run_node(code)
    node.communicate(timeout=20)
    assert node.returncode == 3 and time.monotonic() - started < 15
