"""Runs a program in processes of this machine, watches them, and ends them in order.

Launchpad starts the processes (`lp.launch`, `local_mp`, output to files). Watching and ending is done here: Launchpad
notices a death only in some of its modes, and then ends everything at once, even a learner that has yet to save.
"""

import atexit
import contextlib
import faulthandler
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from impala.launching import beats, rpc
from impala.launching.processes import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_TRY_AGAIN,
    EXIT_USAGE,
    GRACE_SECONDS,
    NODE_VARIABLE,
)
from impala.launching.roles import Roles

_TICK_SECONDS = 0.5
_HANGING_SECONDS = 4.0  # to end a node that has nothing to save; twice that for a frozen learner
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, a polite kill, a terminal that went away


class Interrupts:
    """A context manager, around `launch` and `supervise`, that counts the signals that ask for an end.

    A program that is half launched cannot be ended in order, so nothing is raised: code that can act looks at `count`.
    """

    _TOGETHER_SECONDS = 0.3

    def __init__(self):
        self.count, self._last = 0, float("-inf")

    def __enter__(self):
        ours = [n for n in _SIGNALS if signal.getsignal(n) != signal.SIG_IGN]  # nohup, background jobs: stay ignored
        self._previous = {number: signal.signal(number, self._on_signal) for number in ours}
        return self

    def __exit__(self, *_):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number, _):
        # An echo is not a second request: the kernel and the shell both report a terminal that went away, and `timeout`
        # signals a process and its group.
        is_echo = time.monotonic() - self._last < self._TOGETHER_SECONDS
        self._last = time.monotonic()
        self.count = max(self.count, 1) if number == signal.SIGHUP or is_echo else self.count + 1


class Processes:
    """The processes of a launched program, by name (`actor/0`, `learner/0`, …), and what is heard of them."""

    def __init__(self, by_name: dict[str, subprocess.Popen], roles: Roles, logs: Path, listener: beats.Listener):
        self.by_name, self.roles, self._logs, self._listener = by_name, roles, logs, listener

    def log(self, name: str) -> Path:
        return self._logs / name

    def names(self) -> list[str]:
        """Returns the names of all nodes."""
        return list(self.by_name)

    def nodes(self) -> dict[str, beats.Node]:
        """Returns what is known of every node whose process has not ended."""
        return {name: self.node(name) for name in self.left()}

    def node(self, name: str) -> beats.Node:
        """Returns what was last known of a node."""
        return self._listener.node(name)

    def ended(self) -> dict[str, int]:
        """Returns the exit status of every process that has ended."""
        statuses = {name: process.poll() for name, process in self.by_name.items()}
        return {name: status for name, status in statuses.items() if status is not None}

    def dump_stacks(self, name: str) -> None:
        """Makes a node write the stacks of all its threads into its log, if it has got far enough to handle that."""
        if self._listener.has_heard(name) and (process := self.by_name[name]).poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGUSR2)
            time.sleep(1.0)

    def stop(self, should_kill: Callable[[], bool] = lambda: False) -> None:
        """Ends the processes with SIGTERM, turn after turn; kills those that take too long, or all on `should_kill`."""
        for turn in self.roles.turns():
            members = {n: p for n, p in self.by_name.items() if self.roles.of(n).turn == turn and p.poll() is None}
            seconds = {name: self._seconds_to_end(name) for name in members}
            deadlines = {name: time.monotonic() + seconds[name] for name in members}
            for name, process in members.items():
                process.terminate()
                process.send_signal(signal.SIGCONT)  # a stopped process could not handle SIGTERM
                if not self._listener.has_heard(name):  # still importing, with signals blocked: nothing to save
                    process.kill()
            while any(process.poll() is None for process in members.values()):
                if should_kill():
                    return self.kill()
                if any(self._is_saving(name) for name in members):  # a slow disk; peers wait for the one that writes
                    deadlines = {name: time.monotonic() + seconds[name] for name in members}
                # Only these roles: the learner, which comes later, still has a checkpoint to write.
                _kill(members[name] for name in members if time.monotonic() > deadlines[name])
                time.sleep(0.05)

    def _seconds_to_end(self, name: str) -> float:
        if not self.roles.of(name).is_head:
            return _HANGING_SECONDS
        return 2 * _HANGING_SECONDS if self.node(name).is_frozen else GRACE_SECONDS  # an update may take its time

    def _is_saving(self, name: str) -> bool:
        node = self.node(name)
        return node.doing == "saving" and not node.is_frozen and self.by_name[name].poll() is None

    def left(self) -> list[str]:
        """Returns the names of the nodes whose processes have not ended."""
        return [name for name, process in self.by_name.items() if process.poll() is None]

    def kill(self) -> None:
        """Ends every process at once."""
        _kill(self.by_name.values())


def _kill(processes: Iterable[subprocess.Popen]) -> None:
    processes = list(processes)
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()


def launch(program, folder: Path, roles: Roles) -> Processes:
    """Launches `program` in processes whose output goes to `folder/logs`.

    Only nodes whose role says so see GPUs. The children start with SIGINT, SIGTERM and SIGHUP blocked, until
    `processes.prepare` has decided what these signals do.
    """
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    os.environ["LAUNCHPAD_LOGGING_DIR"] = str(logs)  # read when launchpad is imported
    _new_token(folder)
    import launchpad as lp
    from launchpad.launch.run_locally import launch_local_output_to_files
    from launchpad.nodes.python.local_multi_processing import PythonProcess

    launch_local_output_to_files._LOGGING_DIR = str(logs)  # in case launchpad was imported earlier
    for log in logs.glob("*/*"):
        if log.is_file() and log.suffix != ".previous":
            log.replace(log.with_suffix(".previous"))
    scratch = logs / "scratch"  # Launchpad's pickles and Reverb's folder, which nobody else removes
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(exist_ok=True)
    listener = beats.Listener()
    common = {
        NODE_VARIABLE: str(os.getpid()), beats.ADDRESS_VARIABLE: listener.address, "TZ": "UTC",
        "PYTHONUNBUFFERED": "1", "TMPDIR": str(scratch),
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3"),  # else each log begins with CUDA's absence
    }  # fmt: skip
    resources = {
        label: PythonProcess(env=common if roles.of(label).sees_gpu else common | {"CUDA_VISIBLE_DEVICES": ""})
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
    return Processes(by_name, roles, logs, listener)


class Threads:
    """The nodes of a program as threads of this process; like `Processes`, but none can be killed or has a log."""

    def __init__(self, manager, roles: Roles, listener: beats.Listener):
        self._manager, self.roles, self._listener = manager, roles, listener
        self._futures = {
            f"{label}/{index}": worker.future
            for label, workers in manager._active_workers.items()
            for index, worker in enumerate(workers)
        }

    def names(self) -> list[str]:
        """Returns the names of all nodes."""
        return list(self._futures)

    def nodes(self) -> dict[str, beats.Node]:
        """Returns what is known of every node that has not returned."""
        return {name: self.node(name) for name in self.left()}

    def node(self, name: str) -> beats.Node:
        """Returns what was last known of a node."""
        return self._listener.node(name)

    def dump_stacks(self, name: str) -> None:
        """Writes the stacks of all threads to standard error."""
        faulthandler.dump_traceback(all_threads=True)

    def ended(self) -> dict[str, int]:
        """Returns the status of every node that returned; raises what a node raised."""
        done = [name for name, future in self._futures.items() if future.done() and future.result() is None]
        return {name: self.node(name).facts.get("status", 0) for name in done}

    def stop(self, should_kill: Callable[[], bool] = lambda: False) -> None:
        """Asks all nodes to stop and waits for them; for those with the weights longer than for others."""
        self._manager.stop_event().set()
        began = time.monotonic()
        while (left := self.left()) and not should_kill():  # if one failed: the learner still saves
            patience = GRACE_SECONDS if self.roles.heads(left) else _HANGING_SECONDS
            if time.monotonic() - began > patience:
                return
            time.sleep(0.05)
        time.sleep(0.2)  # for the facts that they sent last

    def left(self) -> list[str]:
        """Returns the names of the nodes that have not returned: only the end of the process ends them."""
        return [name for name, future in self._futures.items() if not future.done()]

    def kill(self) -> None:
        """Does nothing: a thread ends with its process."""


def launch_threads(program, folder: Path, roles: Roles) -> Threads:
    """Launches `program` in threads of this process, for debugging; slower, since they share the interpreter."""
    import launchpad as lp

    _new_token(folder)
    _keep_signals()
    listener = beats.Listener()
    os.environ[beats.ADDRESS_VARIABLE] = listener.address
    manager = lp.launch(program, "local_mt")
    return Threads(manager, roles, listener)


def _new_token(folder: Path) -> None:
    """Makes the secret that RPCs of this launch must present."""
    token = folder / "token"
    token.unlink(missing_ok=True)
    rpc.new_token(token)
    os.environ["IMPALA_RPC_TOKEN_FILE"] = str(token)


def _keep_signals() -> None:
    """Makes Launchpad believe that its handlers are installed: the real ones end all nodes and the launcher at once."""
    from launchpad.launch import worker_manager

    numbers = [signal.SIGTERM, signal.SIGQUIT, signal.SIGINT, signal.SIGALRM, signal.SIGUSR1]
    worker_manager._SIGNAL_HANDLERS = {number: set() for number in numbers}


def _by_label(manager) -> dict[str, list[subprocess.Popen]]:
    workers: dict[str, list] = {}
    for title, processes in manager._active_workers.items():  # private to Launchpad; there is no public way
        workers.setdefault(title.partition("/")[0], []).extend(processes)
    return workers


def supervise(
    processes: Processes | Threads, interrupts: Interrupts, on_tick: Callable[[], None], say: Callable[[str], None],
    *, liveness_seconds: float = float("inf"),
) -> int:  # fmt: skip
    """Watches until the learner is done, a node fails or the user interrupts; then ends the rest.

    Args:
      processes: of a launched program.
      interrupts: entered before the launch.
      on_tick: called twice a second.
      say: tells the user something.
      liveness_seconds: a node that is silent for longer ends the run, with status 75.

    Returns:
      The exit status.
    """
    try:
        silent = None
        while not interrupts.count and not processes.ended() and silent is None:
            on_tick()
            time.sleep(_TICK_SECONDS)
            silent = _silent(processes, liveness_seconds)
        if silent is None or interrupts.count:
            status = _end(processes, interrupts, say)
        else:
            status = _end_silent(processes, silent, interrupts, say)
        if interrupts.count <= 1:
            on_tick()
        return status
    except BaseException:  # e.g. the dashboard cannot write any more (rich exits): no reason to lose what was learned
        processes.stop(should_kill=lambda: interrupts.count > 1)
        raise
    finally:
        processes.kill()


def _silent(processes: Processes | Threads, seconds: float) -> str | None:
    """Returns the node that has been silent for longest, if that is longer than `beats.patience`, else None."""
    nodes = processes.nodes()
    limits = {name: beats.patience(doing, seconds) for name, doing in doing_of(nodes, processes.roles).items()}
    late = {name: node.silent_seconds for name, node in nodes.items() if node.silent_seconds > limits[name]}
    return max(late, key=late.get, default=None)


def doing_of(nodes: Mapping[str, beats.Node], roles: Roles) -> dict[str, str]:
    """Returns what each node does; while one with the weights saves, all of those do, since its peers wait for it.

    A frozen process saves nothing: one that waits for a slow disk still sends signs of life.
    """
    doing, heads = {name: node.doing for name, node in nodes.items()}, roles.heads(nodes)
    doing |= {name: "running" for name in nodes if doing[name] == "saving" and nodes[name].is_frozen}
    return doing | dict.fromkeys(heads, "saving") if any(doing[name] == "saving" for name in heads) else doing


def _end_silent(processes: Processes | Threads, name: str, interrupts: Interrupts, say: Callable[[str], None]) -> int:
    node = processes.node(name)
    processes.dump_stacks(name)
    what = "its process gave no sign of life" if node.is_frozen else "its loop made no step, its environment may hang"
    where = "standard error" if isinstance(processes, Threads) else processes.log(name)
    say(f"{name} was silent for {node.silent_seconds:.0f} s ({what}): ending the run; its stacks are in {where}")
    processes.stop(should_kill=lambda: interrupts.count > 1)
    return EXIT_INTERRUPTED if interrupts.count > 1 else EXIT_TRY_AGAIN


def _end(processes: Processes | Threads, interrupts: Interrupts, say: Callable[[str], None]) -> int:
    was_interrupted = interrupts.count > 0
    if was_interrupted:
        say("stopping: actors, learner (writes a checkpoint), table; Ctrl-C again to end at once")
    else:
        time.sleep(_TICK_SECONDS)  # one failure may cause others: let their statuses arrive
    ended = {} if was_interrupted else processes.ended()
    # Only a node that has the weights may end by itself, and it does so with status 0 when all is done.
    roles, first = processes.roles, f"{processes.roles.head}/0"
    failed = {name: status for name, status in ended.items() if status != 0 or not roles.of(name).is_head}
    # Several learners are done together; the first still has its checkpoint to write.
    is_done = was_interrupted or ended.get(first) == 0
    is_done |= not failed and bool(roles.heads(ended))
    if failed and not is_done:
        say(f"{_worst(failed, first)} failed; stopping the rest")
    processes.stop(should_kill=lambda: interrupts.count > 1)
    if interrupts.count > 1:
        return EXIT_INTERRUPTED
    ended = processes.ended()
    heads = {name: ended[name] for name in roles.heads(ended)}
    if not (was_interrupted or is_done):
        return _report(processes, failed or ended)
    # In a population each learner has its own last checkpoint, unless it had nothing to save yet.
    began = {name for name in heads if _has_begun(processes, name, heads[name])}
    if was_interrupted and not began:
        say("interrupted before the first update: there is nothing new to save")
        return EXIT_INTERRUPTED
    lost = {name: heads[name] for name in began if heads[name] != 0}
    return _report(processes, lost or failed or ended) if lost or not heads else 0


def _has_begun(processes: Processes | Threads, name: str, status: int) -> bool:
    """Returns whether a learner had something to save: it made an update, or failed by itself before its first."""
    has_trained = processes.node(name).facts.get("has_trained")
    return bool(has_trained) or status not in (EXIT_INTERRUPTED, -signal.SIGTERM, -signal.SIGKILL)


def _report(processes: Processes | Threads, ended: dict[str, int]) -> int:
    """Prints the last words of a node that failed, and returns the run's exit status.

    The first learner's come before those of other nodes; those of nodes that only lost a peer come last.
    """
    failed = {name: status for name, status in ended.items() if status != 0} or ended
    if not failed:
        _tell("the nodes did not stop in time; the run's last checkpoint may be missing")
        return EXIT_FAILED
    name = _worst(failed, f"{processes.roles.head}/0")
    status = failed[name]
    words = processes.node(name).facts.get("last_words")
    if status == EXIT_USAGE:
        _tell(words or name)
        return EXIT_USAGE
    shown = f"signal {-status}" if status < 0 else f"status {status}"
    if words or isinstance(processes, Threads):
        _tell(f"{name} ended with {shown}: {words}")
    else:
        _tell(f"{name} ended with {shown}; the program was stopped. The end of {processes.log(name)}:")
        _tell(_end_of_log(processes.log(name)))
    # If a learner was killed and its peers noticed, or a peer never came, nothing is wrong with the program.
    peer_noticed = status == -signal.SIGKILL and EXIT_TRY_AGAIN in processes.ended().values()
    is_temporary = status in (EXIT_TRY_AGAIN, -signal.SIGALRM) or peer_noticed
    return EXIT_TRY_AGAIN if is_temporary else EXIT_FAILED


def _tell(text: str) -> None:
    """Prints to standard error; on a full disk the text is lost and the exit status is not."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _worst(failed: dict[str, int], first: str) -> str:
    return min(failed, key=lambda name: (failed[name] == EXIT_TRY_AGAIN, name != first, name))


def _end_of_log(log: Path) -> str:
    """Returns the last traceback of a node's log, or its last lines."""
    try:
        lines = log.read_text(errors="replace").rstrip().splitlines()
    except OSError as error:
        return f"it cannot be read: {error}"
    starts = [i for i, line in enumerate(lines) if line.startswith("Traceback")]
    return "\n".join(lines[starts[-1] if starts else max(0, len(lines) - 20) :])
