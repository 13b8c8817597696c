"""What every node does first and last, each in a process of its own."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from impala.launching import beats, processes
from tests.programs import running
from tests.programs.running import alive


def run_node(code, stdin=None, **environment):
    """Runs `code` as the process of a node does."""
    return subprocess.Popen(
        [sys.executable, "-c", code], text=True, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"IMPALA_NODE_PROCESS": str(os.getpid())} | environment,
    )  # fmt: skip


@pytest.mark.parametrize("reuse", [False, True])
def test_a_busy_port_ends_the_node_in_one_line_and_may_be_free_later(reuse):
    """Whatever listens there, also what shares ports, as a second Reverb server would."""
    with socket.socket() as busy:
        if reuse:
            busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        busy.bind(("", 0))
        busy.listen()
        port = busy.getsockname()[1]
        node = run_node(f"from impala.launching import processes; processes.check_port_is_free({port}); print('free')")
        output, errors = node.communicate(timeout=30)
        assert node.returncode == 75 and "free" not in output
        owner = f"process {os.getpid()} ({psutil.Process().name()})"
        assert errors.splitlines() == [f"port {port}: Address already in use by {owner}; expected a free port"]
        with pytest.raises(processes.UsageError, match=f"port {port}"):
            processes.check_port_is_free(port)  # in a thread of the launcher it raises
    processes.check_port_is_free(port)


def test_what_takes_too_long_in_c_ends_the_node_with_words():
    """As where TensorFlow waits for a peer that never comes, and lets no Python run."""
    node = run_node(
        "import ctypes\nfrom impala.launching import processes\n"
        "with processes.time_limit(1, 'the learners did not meet'): ctypes.PyDLL(None).sleep(60)"
    )
    started = time.monotonic()
    _, errors = node.communicate(timeout=30)
    assert node.returncode == -signal.SIGALRM and time.monotonic() - started < 10.0
    assert "within 1 s, or else: the learners did not meet" in errors
    node = run_node("from impala.launching import processes\nwith processes.time_limit(1, ''): pass\nimport time; time.sleep(1.5)")
    assert node.wait(30) == 0, "the limit is that of the block"


HOLD = """
import sys, threading
from impala.launching import beats, processes
from pathlib import Path
processes.hold(Path({path!r}), beats.Pulse("learner/0", threading.Event()))
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


def test_what_an_environment_forks_can_fork_and_keep_its_own_files(tmp_path):
    """The fork closes the node's lock; its first file gets that number, which a fork of the fork must not close."""
    fork = """
if not os.fork():
    file = open({data!r}, "w")
    if not os.fork():
        file.write("written")
        file.close()
        os._exit(0)
    os.wait()
    os._exit(0)
os.wait()
"""
    code = "import os\n" + HOLD.format(path=str(tmp_path / "lock")).replace("sys.stdin.read()", fork.format(data=str(tmp_path / "data")))
    node = run_node(code)
    assert node.wait(30) == 0 and (tmp_path / "data").read_text() == "written"


def test_what_an_environment_forks_does_not_hold_the_lock_of_a_node_that_is_gone(tmp_path):
    fork = 'helper = os.fork()\nif not helper:\n    time.sleep(60)\nprint(helper, flush=True)\nsys.stdin.read()'
    code = "import os, time" + HOLD.format(path=str(tmp_path / "lock")).replace("sys.stdin.read()", fork)
    first = run_node(code, stdin=subprocess.PIPE)
    assert first.stdout.readline() == "held\n"
    helper = int(first.stdout.readline())
    try:
        first.kill()
        os.kill(helper, 0)
        second = run_node(HOLD.format(path=str(tmp_path / "lock")), stdin=subprocess.PIPE)
        assert second.stdout.readline() == "held\n"
        second.communicate()
    finally:
        os.kill(helper, signal.SIGKILL)
        first.communicate()


NODE = """
import os, sys, threading, time
os.environ["IMPALA_NODE_PROCESS"] = str(os.getppid())
import impala.launching
from impala.launching import processes, roles
from absl import flags
from launchpad.launch import worker_manager
flags.FLAGS(sys.argv)
worker_manager.WorkerManager(register_in_thread=True)
processes.GRACE_SECONDS = 1.0
stop = processes.prepare(roles.{role}, 0)
print("prepared", flush=True)
{loop}
"""
RUN = "processes.begin(stop); print('begun', flush=True); stop.wait(); print('stopped', flush=True); processes.finish(0)"


def prepared(loop, role="LEARNER", **environment):
    node = run_node(NODE.format(loop=loop, role=role), **environment)
    assert node.stdout.readline() == "prepared\n", node.stderr.read()
    return node


def test_a_node_ignores_ctrl_c_and_stops_on_sigterm():
    node = prepared(RUN)
    assert node.stdout.readline() == "begun\n"
    node.send_signal(signal.SIGINT)
    node.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert node.poll() is None
    node.send_signal(signal.SIGTERM)
    output, _ = node.communicate(timeout=10)
    assert node.returncode == 0 and output == "stopped\n"


def test_a_sigterm_that_interrupts_the_main_thread_while_it_holds_the_lock_of_its_event_stops_it():
    node = prepared("processes.begin(stop)\nwith stop._event._cond: os.kill(os.getpid(), 15); time.sleep(0.2)\nprint(stop.wait(5))")
    output, errors = node.communicate(timeout=20)
    assert output == "True\n", errors


def test_what_an_environment_forks_ends_as_it_is_told_and_not_in_the_nodes_name():
    node = prepared(
        "processes.begin(stop)\nimport multiprocessing\n"
        "worker = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,)); worker.start()\n"
        "worker.terminate(); worker.join(20); print(worker.exitcode)\n"
        "if not (child := os.fork()): sys.exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )  # fmt: skip
    output, errors = node.communicate(timeout=40)
    assert output == "-15\n3\n", errors


def test_a_standard_error_that_takes_nothing_holds_up_nobody(monkeypatch):
    end, start = os.pipe()
    os.set_blocking(start, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(start, 65_536 * b"x")
    os.set_blocking(start, True)
    monkeypatch.setattr(processes, "_TELLING_SECONDS", 0.2)
    monkeypatch.setattr(sys, "stderr", os.fdopen(start, "w"))
    began = time.monotonic()
    processes.tell("words")
    assert processes.is_stuck() and time.monotonic() - began < 10
    os.close(end)  # lets the thread end
    running.wait_for(lambda: not processes.is_stuck(), 20, "the thread has ended")


def test_before_its_loop_begins_sigterm_ends_a_node_at_once():
    node = prepared("time.sleep(60)")
    node.send_signal(signal.SIGTERM)
    node.communicate(timeout=5)
    assert node.returncode == -signal.SIGTERM


def test_a_node_that_does_not_stop_in_time_ends_itself():
    node = prepared("processes.begin(stop); print('begun', flush=True); time.sleep(60)")
    assert node.stdout.readline() == "begun\n"
    node.send_signal(signal.SIGTERM)
    _, errors = node.communicate(timeout=10)
    assert node.returncode == processes.EXIT_TRY_AGAIN
    assert "did not stop within 1 s" in errors and "Thread" in errors  # and says where it was


def test_an_actor_whose_environment_hangs_ends_within_five_seconds_of_a_sigterm():
    node = prepared("processes.begin(stop); print('begun', flush=True); time.sleep(60)", role="ACTOR")
    assert node.stdout.readline() == "begun\n"
    node.send_signal(signal.SIGTERM)
    began = time.monotonic()
    _, errors = node.communicate(timeout=30)
    assert node.returncode == processes.EXIT_TRY_AGAIN and "did not stop within 3 s" in errors
    assert time.monotonic() - began < 6.0, "5 s, and what the machine takes"


SAVE = "processes.begin(stop); stop.wait(); open(os.environ['SAVED'], 'w').close(); processes.finish(0)"


@pytest.mark.parametrize("role, loop, is_saved", [
    ("ACTOR", "import ctypes; ctypes.PyDLL(None).sleep(60)", False), ("LEARNER", SAVE, True),
])  # fmt: skip
def test_a_node_ends_with_its_launcher(tmp_path, role, loop, is_saved):
    """An actor at once, even where its environment keeps the interpreter; a learner in order: it saves what it has."""
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {NODE.format(loop=loop, role=role)!r}], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
time.sleep(0.5)
print(child.pid, flush=True)
time.sleep(60)
"""
    launcher = run_node(code, SAVED=str(tmp_path / "saved"))
    node = psutil.Process(int(launcher.stdout.readline()))
    launcher.kill()
    deadline = time.monotonic() + 10
    while alive([node]):
        assert time.monotonic() < deadline, "it outlives its launcher"
        time.sleep(0.05)
    launcher.communicate()
    assert (tmp_path / "saved").exists() == is_saved


def test_an_exception_ends_a_node_at_once_past_its_threads():
    node = prepared("threading.Thread(target=time.sleep, args=(60,)).start(); raise ValueError('broken')")
    started = time.monotonic()
    _, errors = node.communicate(timeout=10)
    assert node.returncode == 1 and "ValueError: broken" in errors and time.monotonic() - started < 5


def test_what_a_node_says_last_reaches_the_launcher_though_the_disk_is_full():
    listener = beats.Listener()
    with open("/dev/full", "w") as full:
        loop = "sys.stderr = open('/dev/full', 'w'); processes.refuse('no room')"
        node = subprocess.Popen(
            [sys.executable, "-c", NODE.format(loop=loop, role="LEARNER")], stdout=subprocess.PIPE, stderr=full,
            env=os.environ | {beats.ADDRESS_VARIABLE: listener.address},
        )  # fmt: skip
        node.communicate(timeout=60)
    assert node.returncode == processes.EXIT_USAGE
    assert listener.node("learner/0").facts["last_words"] == "no room"
    listener.close()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_what_an_environment_prints_on_a_full_disk_is_lost_and_not_the_node(stream):
    loop = f"print('of a game', file=sys.{stream}, flush=True); processes.finish(7)"
    code = NODE.format(loop=loop, role="ACTOR").replace('print("prepared", flush=True)', "")
    with open("/dev/full", "w") as full:
        node = subprocess.run([sys.executable, "-u", "-c", code], stdout=full, stderr=full, timeout=60)
    assert node.returncode == 7


def test_finish_does_not_wait_for_threads():
    code = (
        "import threading, time; from impala.launching import processes; "
        "threading.Thread(target=time.sleep, args=(60,)).start(); processes.finish(3)"
    )
    started = time.monotonic()
    node = run_node(code)
    node.communicate(timeout=20)
    assert node.returncode == 3 and time.monotonic() - started < 15
