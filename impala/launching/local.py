"""Runs a program in processes of this machine, watches them, and ends them in order.

Launchpad starts the processes (`lp.launch`, `local_mp`, output to files). Watching and ending is done here: Launchpad
notices a death only in some of its modes and then ends everything at once, the learner before its checkpoint included.
"""

import atexit
import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from impala.launching import rpc
from impala.launching.processes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TRY_AGAIN, EXIT_USAGE, GRACE_SECONDS

_TICK_SECONDS = 0.5
_STOP_ORDER = ("actor", "learner", "table")  # the learner's last checkpoint before the table goes


class Processes:
    """The processes of a launched program, by name (`actor/0`, `learner/0`, …)."""

    def __init__(self, by_name: dict[str, subprocess.Popen], logs: Path):
        self.by_name, self._logs = by_name, logs

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self.by_name.items()}

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
            deadline = time.monotonic() + GRACE_SECONDS + 5.0
            while any(process.poll() is None for process in members):
                if should_kill() or time.monotonic() > deadline:
                    self.kill()
                    return
                time.sleep(0.05)

    def kill(self) -> None:
        """Ends every process at once."""
        for process in self.by_name.values():
            if process.poll() is None:
                process.kill()
        for process in self.by_name.values():
            process.wait()


def launch(program, folder: Path) -> Processes:
    """Launches `program` in processes whose output goes to `folder/logs`.

    Nodes but the learner see no GPU. The children start with SIGINT and SIGTERM blocked, until `processes.prepare` has
    installed what handles them, so that a Ctrl-C during their imports is kept for later.
    """
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    os.environ["LAUNCHPAD_LOGGING_DIR"] = str(logs)  # read when launchpad is imported
    token = folder / "token"
    token.unlink(missing_ok=True)
    rpc.new_token(token)
    os.environ["IMPALA_RPC_TOKEN_FILE"] = str(token)
    import launchpad as lp
    from launchpad.launch.run_locally import launch_local_output_to_files
    from launchpad.nodes.python.local_multi_processing import PythonProcess

    launch_local_output_to_files._LOGGING_DIR = str(logs)  # where launchpad was imported earlier
    for log in logs.glob("*/*"):
        if log.is_file() and log.suffix != ".previous":
            log.replace(log.with_suffix(".previous"))
    common = {"IMPALA_NODE_PROCESS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "TZ": "UTC", "PYTHONUNBUFFERED": "1"}
    resources = {
        label: PythonProcess(env=common if label == "learner" else common | {"CUDA_VISIBLE_DEVICES": ""})
        for label in program.groups
    }
    ours = [signal.SIGINT, signal.SIGTERM]
    handlers = {number: signal.getsignal(number) for number in [*ours, signal.SIGQUIT, signal.SIGALRM]}
    signal.pthread_sigmask(signal.SIG_BLOCK, ours)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            manager = lp.launch(program, "local_mp", local_resources=resources, terminal="output_to_files")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ours)
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
    """The nodes of a program as threads of this process; the same members as `Processes`, but nothing can be killed."""

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
        while len(self.ended()) < len(self._futures) and time.monotonic() < deadline and not should_kill():
            time.sleep(0.05)

    def kill(self) -> None:
        """Does nothing: a thread ends with its process."""


def launch_threads(program) -> Threads:
    """Launches `program` in threads of this process, to be debugged; slower, since they share the interpreter."""
    import launchpad as lp

    manager = lp.launch(program, "local_mt")
    return Threads(manager)


def _by_label(manager) -> dict[str, list[subprocess.Popen]]:
    workers: dict[str, list] = {}
    for title, processes in manager._active_workers.items():  # the one thing Launchpad keeps to itself
        workers.setdefault(title.partition("/")[0], []).extend(processes)
    return workers


def supervise(processes: Processes, on_tick: Callable[[], None], say: Callable[[str], None] = print) -> int:
    """Watches until the learner is done, a node fails or the user interrupts; ends the rest; returns the exit status.

    Args:
      processes: of a launched program.
      on_tick: called twice a second.
      say: tells the user something.
    """
    interrupts: list[int] = []

    def on_interrupt(number, _):
        interrupts.append(number)

    previous = {number: signal.signal(number, on_interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not interrupts:
            ended = processes.ended()
            if ended:
                break
            on_tick()
            time.sleep(_TICK_SECONDS)
        status = _end(processes, interrupts, say)
        if not interrupts or len(interrupts) == 1:
            on_tick()
        return status
    finally:
        processes.kill()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _end(processes: Processes, interrupts: list[int], say: Callable[[str], None]) -> int:
    if interrupts:
        say("stopping: actors, learner (writes a checkpoint), table; Ctrl-C again to end at once")
    time.sleep(
        0 if interrupts else _TICK_SECONDS
    )  # a first failure may have others in its wake; let the statuses arrive
    failed = {} if interrupts else {name: status for name, status in processes.ended().items() if status != 0}
    done = processes.ended().get("learner/0") == 0
    processes.stop(should_kill=lambda: len(interrupts) > 1)
    if len(interrupts) > 1:
        return EXIT_INTERRUPTED
    if done or (interrupts and processes.ended().get("learner/0") == 0):
        return 0
    if not failed:
        failed = {name: status for name, status in processes.ended().items() if status != 0} or processes.ended()
    return _report(processes, failed)


def _report(processes: Processes, failed: dict[str, int]) -> int:
    """Prints what the first failing node said last and returns the run's exit status."""
    name = min(failed, key=lambda n: (n != "learner/0", n))
    status = failed[name]
    lines = processes.log(name).read_text(errors="replace").rstrip().splitlines()
    if status == EXIT_USAGE:
        print(lines[-1] if lines else name, file=sys.stderr)
        return EXIT_USAGE
    shown = f"signal {-status}" if status < 0 else f"status {status}"
    print(f"{name} ended with {shown}; the program was stopped. The end of {processes.log(name)}:", file=sys.stderr)
    print("\n".join(lines[_traceback_start(lines) :]), file=sys.stderr)
    return EXIT_TRY_AGAIN if status == EXIT_TRY_AGAIN else EXIT_FAILED


def _traceback_start(lines: list[str]) -> int:
    starts = [i for i, line in enumerate(lines) if line.startswith("Traceback")]
    return starts[-1] if starts else max(0, len(lines) - 20)
