"""Runs a program in processes of this machine, watches them, and ends them in order.

Launchpad starts the processes (`lp.launch`, `local_mp`, output to files). Watching and ending is done here: Launchpad
notices a death only in some of its modes and then ends everything at once, the learner before its checkpoint included.
"""

import atexit
import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from impala.launching import rpc
from impala.launching.processes import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_TRY_AGAIN,
    EXIT_USAGE,
    GRACE_SECONDS,
    NODE_VARIABLE,
)

_TICK_SECONDS = 0.5
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, a polite kill, a terminal that went away
_STOP_ORDER = ("evaluator", "actor", "learner", "table")  # the learner's last checkpoint before the table goes


class Interrupts:
    """Counts the signals that ask for an end, from entering to leaving; `launch` and `supervise` lie between.

    A program that is half launched cannot be ended in order, so nothing is raised: whoever can act asks `count`.
    """

    _TOGETHER_SECONDS = 0.3

    def __init__(self):
        self.count, self._last = 0, float("-inf")

    def __enter__(self):
        ours = [n for n in _SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]  # nohup stays nohup
        self._previous = {number: signal.signal(number, self._on_signal) for number in ours}
        return self

    def __exit__(self, *_):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number, _):
        # The kernel and the shell both tell of a terminal that went away, and `timeout` tells a process and its group:
        # that is no second request.
        is_echo = time.monotonic() - self._last < self._TOGETHER_SECONDS
        self._last = time.monotonic()
        self.count = max(self.count, 1) if number == signal.SIGHUP or is_echo else self.count + 1


class Processes:
    """The processes of a launched program, by name (`actor/0`, `learner/0`, …)."""

    def __init__(self, by_name: dict[str, subprocess.Popen], logs: Path):
        self.by_name, self._logs = by_name, logs

    def log(self, name: str) -> Path:
        return self._logs / name

    def ended(self) -> dict[str, int]:
        """Returns the exit status of every process that has ended."""
        statuses = {name: process.poll() for name, process in self.by_name.items()}
        return {name: status for name, status in statuses.items() if status is not None}

    def stop(self, should_kill: Callable[[], bool] = lambda: False) -> None:
        """Ends the processes with SIGTERM, role after role; kills what outlives its time, or all when told to."""
        for role in _STOP_ORDER:
            members = [process for name, process in self.by_name.items() if name.startswith(role)]
            for process in members:
                if process.poll() is None:
                    process.terminate()
                    process.send_signal(signal.SIGCONT)  # one that was stopped could not hear it
            deadline = time.monotonic() + GRACE_SECONDS + 5.0
            while any(process.poll() is None for process in members):
                if should_kill():
                    return self.kill()
                if time.monotonic() > deadline:  # these only: the learner after them still has a checkpoint to write
                    _kill(members)
                time.sleep(0.05)

    def kill(self) -> None:
        """Ends every process at once."""
        _kill(self.by_name.values())


def _kill(processes: Iterable[subprocess.Popen]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()


def launch(program, folder: Path) -> Processes:
    """Launches `program` in processes whose output goes to `folder/logs`.

    Nodes but the learner see no GPU. The children start with SIGINT, SIGTERM and SIGHUP blocked, until
    `processes.prepare` has installed what handles them, so that a Ctrl-C during their imports is kept for later.
    """
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    os.environ["LAUNCHPAD_LOGGING_DIR"] = str(logs)  # read when launchpad is imported
    _new_token(folder)
    import launchpad as lp
    from launchpad.launch.run_locally import launch_local_output_to_files
    from launchpad.nodes.python.local_multi_processing import PythonProcess

    launch_local_output_to_files._LOGGING_DIR = str(logs)  # where launchpad was imported earlier
    for log in logs.glob("*/*"):
        if log.is_file() and log.suffix != ".previous":
            log.replace(log.with_suffix(".previous"))
    scratch = logs / "scratch"  # Launchpad's pickles and Reverb's folder, which nobody removes
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(exist_ok=True)
    common = {
        NODE_VARIABLE: str(os.getpid()), "TF_CPP_MIN_LOG_LEVEL": "2", "TZ": "UTC", "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(scratch),
    }  # fmt: skip
    resources = {
        label: PythonProcess(env=common if label == "learner" else common | {"CUDA_VISIBLE_DEVICES": ""})
        for label in program.groups
    }
    _keep_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    tempdir, tempfile.tempdir = tempfile.tempdir, str(scratch)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            manager = lp.launch(program, "local_mp", local_resources=resources, terminal="output_to_files")
    finally:
        tempfile.tempdir = tempdir
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    atexit.unregister(manager.wait)  # it would raise at exit for a node that failed
    by_name = {
        f"{label}/{index}": process
        for label, processes in _by_label(manager).items()
        for index, process in enumerate(processes)
    }
    for name in by_name:
        link = logs / (name.replace("/", "-") + ".log")
        link.unlink(missing_ok=True)
        link.symlink_to(name)
    return Processes(by_name, logs)


class Threads:
    """The nodes of a program as threads of this process; as `Processes`, but none can be killed and none has a log."""

    def __init__(self, manager):
        self._manager = manager
        self._futures = {
            f"{label}/{index}": worker.future
            for label, workers in manager._active_workers.items()
            for index, worker in enumerate(workers)
        }

    def ended(self) -> dict[str, int]:
        """Returns 0 for every node that returned; raises what a node raised."""
        return {name: 0 for name, future in self._futures.items() if future.done() and future.result() is None}

    def stop(self, should_kill: Callable[[], bool] = lambda: False) -> None:
        """Asks all nodes to stop and waits for them."""
        self._manager.stop_event().set()
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and not should_kill():
            if all(future.done() for future in self._futures.values()):  # one that failed: the learner still saves
                return
            time.sleep(0.05)

    def kill(self) -> None:
        """Does nothing: a thread ends with its process."""


def launch_threads(program, folder: Path) -> Threads:
    """Launches `program` in threads of this process, to be debugged; slower, since they share the interpreter."""
    import launchpad as lp

    _new_token(folder)
    _keep_signals()
    manager = lp.launch(program, "local_mt")
    return Threads(manager)


def _new_token(folder: Path) -> None:
    """Makes the secret that RPCs of this launch have to show."""
    token = folder / "token"
    token.unlink(missing_ok=True)
    rpc.new_token(token)
    os.environ["IMPALA_RPC_TOKEN_FILE"] = str(token)


def _keep_signals() -> None:
    """Lets Launchpad believe that its handlers are installed: they would end all nodes at once, the launcher too."""
    from launchpad.launch import worker_manager

    numbers = [signal.SIGTERM, signal.SIGQUIT, signal.SIGINT, signal.SIGALRM, signal.SIGUSR1]
    worker_manager._SIGNAL_HANDLERS = {number: set() for number in numbers}


def _by_label(manager) -> dict[str, list[subprocess.Popen]]:
    workers: dict[str, list] = {}
    for title, processes in manager._active_workers.items():  # the one thing Launchpad keeps to itself
        workers.setdefault(title.partition("/")[0], []).extend(processes)
    return workers


def supervise(
    processes: Processes | Threads, interrupts: Interrupts, on_tick: Callable[[], None], say: Callable[[str], None]
) -> int:
    """Watches until the learner is done, a node fails or the user interrupts; ends the rest; returns the exit status.

    Args:
      processes: of a launched program.
      interrupts: entered before the launch.
      on_tick: called twice a second.
      say: tells the user something.
    """
    try:
        while not interrupts.count:
            ended = processes.ended()
            if ended:
                break
            on_tick()
            time.sleep(_TICK_SECONDS)
        status = _end(processes, interrupts, say)
        if interrupts.count <= 1:
            on_tick()
        return status
    except BaseException:  # the dashboard cannot write any more, say (rich exits): no reason to lose what was learned
        processes.stop(should_kill=lambda: interrupts.count > 1)
        raise
    finally:
        processes.kill()


def _end(processes: Processes | Threads, interrupts: Interrupts, say: Callable[[str], None]) -> int:
    was_interrupted = interrupts.count > 0
    if was_interrupted:
        say("stopping: actors, learner (writes a checkpoint), table; Ctrl-C again to end at once")
    else:
        time.sleep(_TICK_SECONDS)  # a first failure may have others in its wake; let the statuses arrive
    ended = {} if was_interrupted else processes.ended()
    failed = {name: status for name, status in ended.items() if status != 0}
    # Several learners are done together; the first still has its checkpoint to write.
    is_done = was_interrupted or ended.get("learner/0") == 0
    is_done |= not failed and any(name.startswith("learner/") for name in ended)
    if failed and not is_done:
        say(f"{_worst(failed)} failed; stopping the rest")
    processes.stop(should_kill=lambda: interrupts.count > 1)
    if interrupts.count > 1:
        return EXIT_INTERRUPTED
    ended = processes.ended()
    learners = [status for name, status in ended.items() if name.startswith("learner/")]
    if is_done and learners and not any(learners):  # of a population each has its own last checkpoint
        return 0
    return _report(processes, failed or ended)


def _report(processes: Processes | Threads, ended: dict[str, int]) -> int:
    """Prints what a node that failed said last, and returns the run's exit status.

    The learner's words come before others', and before those of a node that only lost its peer.
    """
    failed = {name: status for name, status in ended.items() if status != 0} or ended
    if not failed or isinstance(processes, Threads):
        print("the nodes did not stop in time; the run's last checkpoint may be missing", file=sys.stderr)
        return EXIT_FAILED
    name = _worst(failed)
    status = failed[name]
    lines = processes.log(name).read_text(errors="replace").rstrip().splitlines()
    if status == EXIT_USAGE:
        print(lines[-1] if lines else name, file=sys.stderr)
        return EXIT_USAGE
    shown = f"signal {-status}" if status < 0 else f"status {status}"
    print(f"{name} ended with {shown}; the program was stopped. The end of {processes.log(name)}:", file=sys.stderr)
    print("\n".join(lines[_traceback_start(lines) :]), file=sys.stderr)
    # Where a learner was killed and its peers noticed, nothing is wrong with the program; nor where a peer never came.
    peer_noticed = status == -signal.SIGKILL and EXIT_TRY_AGAIN in processes.ended().values()
    is_temporary = status in (EXIT_TRY_AGAIN, -signal.SIGALRM) or peer_noticed
    return EXIT_TRY_AGAIN if is_temporary else EXIT_FAILED


def _worst(failed: dict[str, int]) -> str:
    return min(failed, key=lambda name: (failed[name] == EXIT_TRY_AGAIN, name != "learner/0", name))


def _traceback_start(lines: list[str]) -> int:
    starts = [i for i, line in enumerate(lines) if line.startswith("Traceback")]
    return starts[-1] if starts else max(0, len(lines) - 20)
