"""Runs a program in processes of this machine: starts them, starts them again, and ends them in order.

Launchpad says which processes a program has (`commands`). Starting, watching and ending them is done here: Launchpad
restarts nothing, notices a death only in some of its modes, and then ends everything at once, even a learner that has
yet to save.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from impala.launching import beats, commands, rpc
from impala.launching.processes import GRACE_SECONDS, INCARNATION_VARIABLE, NODE_VARIABLE
from impala.launching.roles import Roles

_HANGING_SECONDS = 4.0  # to end a node that has nothing to save; twice that for a frozen learner
_BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # in a child, until `processes.prepare` decides what they do


class Processes:
    """The processes of a launched program, by name (`actor/0`, `learner/0`, …), and what is heard of them.

    Args:
      starts: a command for each.
      logs: the folder that their output goes to.
    """

    can_start_again = True

    def __init__(self, starts: Sequence[commands.Command], roles: Roles, logs: Path, listener: beats.Listener):
        self.roles, self._logs, self._listener = roles, logs, listener
        self._commands = {command.name: command for command in starts}
        self._due: dict[str, float] = {}  # when those that ended are started again
        self._began: dict[str, float] = {}
        self._by_name: dict[str, subprocess.Popen] = {}
        try:
            for name in self._commands:
                self._start(name)
        except BaseException:
            self.kill()
            raise

    def _start(self, name: str, **environment: str) -> None:
        command, log = self._commands[name], self.log(name)
        log.parent.mkdir(exist_ok=True)
        self._listener.begin_anew(name)
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        try:
            with log.open("a") as output:
                self._by_name[name] = subprocess.Popen(
                    command.argv, env={**os.environ, **command.environment, **environment}, stdout=output, stderr=output
                )
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
        self._began[name] = time.monotonic()

    def log(self, name: str) -> Path:
        return self._logs / name

    def names(self) -> list[str]:
        """Returns the names of all nodes."""
        return list(self._commands)

    def nodes(self) -> dict[str, beats.Node]:
        """Returns what is known of every node whose process has not ended."""
        return {name: self.node(name) for name in self.left()}

    def node(self, name: str) -> beats.Node:
        """Returns what was last known of a node."""
        return self._listener.node(name)

    def lived_seconds(self, name: str) -> float:
        """Returns for how long ago a node was started last."""
        return time.monotonic() - self._began[name]

    def ended(self) -> dict[str, int]:
        """Returns the exit status of every process that has ended and is not to be started again."""
        statuses = {name: process.poll() for name, process in self._by_name.items() if name not in self._due}
        return {name: status for name, status in statuses.items() if status is not None}

    def start_again(self, name: str, seconds: float) -> None:
        """Lets `start_due` start a node that has ended, `seconds` from now or later."""
        self._due[name] = time.monotonic() + seconds

    def start_due(self, new_incarnation: Callable[[str], int]) -> None:
        """Starts the nodes whose time has come; each gets an incarnation of its own."""
        for name in [name for name, due in self._due.items() if time.monotonic() >= due]:
            self._start(name, **{INCARNATION_VARIABLE: str(new_incarnation(name))})
            del self._due[name]

    def dump_stacks(self, name: str) -> None:
        """Makes a node write the stacks of all its threads into its log, if it has got far enough to handle that."""
        if self._listener.has_heard(name) and (process := self._by_name[name]).poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGUSR2)
            time.sleep(1.0)

    def stop(self, should_kill: Callable[[], bool] = lambda: False) -> None:
        """Ends the processes with SIGTERM, turn after turn; kills those that take too long, or all on `should_kill`."""
        for turn in self.roles.turns():
            members = {n: p for n, p in self._by_name.items() if self.roles.of(n).turn == turn and p.poll() is None}
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
        return node.doing == "saving" and not node.is_frozen and self._by_name[name].poll() is None

    def left(self) -> list[str]:
        """Returns the names of the nodes whose processes have not ended."""
        return [name for name, process in self._by_name.items() if process.poll() is None]

    def kill(self, name: str | None = None) -> None:
        """Ends every process, or that of one node, at once."""
        _kill(self._by_name.values() if name is None else [self._by_name[name]])


def _kill(processes: Iterable[subprocess.Popen]) -> None:
    processes = list(processes)
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()


def keep_previous_logs(folder: Path) -> None:
    """Sets the logs of an earlier launch aside; those that were set aside before are gone."""
    for log in (folder / "logs").glob("*/*"):
        if log.is_file() and log.suffix != ".previous":
            log.replace(log.with_suffix(".previous"))


def launch(program, folder: Path, roles: Roles) -> Processes:
    """Launches `program` in processes whose output goes to `folder/logs`; only roles that say so see GPUs."""
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    rpc.use_new_token(folder / "token")
    scratch = logs / "scratch"  # Launchpad's pickles and Reverb's folder, which nobody else removes
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(exist_ok=True)
    listener = beats.Listener()
    common = {
        NODE_VARIABLE: str(os.getpid()), beats.ADDRESS_VARIABLE: listener.address, "TZ": "UTC",
        "PYTHONUNBUFFERED": "1", "TMPDIR": str(scratch),
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3"),  # else each log begins with CUDA's absence
    }  # fmt: skip
    starts = commands.of(
        program, scratch, lambda label: common if roles.of(label).sees_gpu else common | {"CUDA_VISIBLE_DEVICES": ""}
    )
    for command in starts:
        link = logs / (command.name.replace("/", "-") + ".log")
        link.unlink(missing_ok=True)
        link.symlink_to(command.name)
    return Processes(starts, roles, logs, listener)
