"""Runs one node on a host of a cluster: starts the node's process there, and reports what becomes of it.

It is plain Python, without Ray, and does nothing but what `local.Processes` does for a process of its own machine: the
process has the same command, signals and signs of life, and ends with the process that this object lives in.
"""

import contextlib
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from impala import own, provenance
from impala.launching import addresses, beats, commands, fork_server, local, memory, ports, processes
from impala.launching.processes import DEVICE_VARIABLE, INCARNATION_VARIABLE, STARTED_VARIABLE
from impala.launching.rpc.server import BIND_ADDRESS_VARIABLE
from impala.launching.rpc.tokens import TOKEN_FILE_VARIABLE
from impala.launching.runs import PACKAGES, SIMULATORS
from impala.launching.shared_memory import machine

PREFIX = "impala-node-"
_LOG_BYTES = 1_000_000  # of one answer; the rest follows
_LOG_BYTES_BEHIND = 4_000_000  # of what was written since the last answer; of more the older part is left out
_HEARING_SECONDS = 1.0  # for what a process said last
_FILES = "impala's files"  # a fact of a host
EDITED = ("commit", _FILES)  # facts of a host that change where its checkout is edited


class Job(NamedTuple):
    """What a host needs to start a node."""

    name: str
    number: int  # of the start, at this host; `Status.number` tells which one an answer is of
    task: int
    token: str
    addresses: dict[str, str]
    age: float  # seconds since the launch
    machine: str  # of the launcher: see `shared_memory.machine`
    sees_gpu: bool
    imports: Sequence[str]  # modules that the host keeps for the node's next start: see `fork_server`
    prepares: bool  # calls `processes.prepare`, which unblocks signals `local._BLOCKED`; others may not
    incarnation: int | None  # of a node that is started again
    memory: str  # the file that the launcher keeps for `memory.resident_mb`
    current_folder: str  # of the launcher; where it is on this host too, nodes find the user's modules in it


class Status(NamedTuple):
    """What is known of a node's process."""

    number: int  # see `Job`; 0: no start has come
    exit_status: int | None  # None while it runs
    is_begun: bool  # the process exists; before that, what it needs may still be imported
    node: beats.Node
    has_heard: bool  # any sign of life
    wants_end: bool  # it called `lp.stop()`
    log: bytes  # what it wrote from the byte `log_at` on
    log_at: int


class _Waiting(NamedTuple):
    """A process that is to be started."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: str | None
    prepares: bool


class NodeHost:
    """Starts one process, again and again if it dies, and answers questions about it."""

    def __init__(self):
        _sweep()
        self._scratch = Path(tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-"))
        self._listener, self._ports, self._server = beats.Listener(), ports.Holder(), None
        self._name, self._number, self._failure = "", 0, None
        self._process: subprocess.Popen | fork_server.Child | None = None
        self._waiting: _Waiting | None = None  # until the server has imported what the process needs
        self._ended_early: int | None = None  # the exit status of a process that was ended before it existed
        self._ended_at: float | None = None  # when the process was first seen to have ended

    def describe(self, own_words: Sequence[tuple[str, str]], files: Sequence[Path]) -> tuple[str, dict[str, str]]:
        """Returns the name of this host, and `facts` of it."""
        return platform.node(), facts(own_words, files)

    def reserve(self, names: Sequence[str], host: str, between: tuple[int, int]) -> dict[str, str]:
        """Finds free ports and keeps them for the process; returns {name: "host:port"}.

        Raises:
          OSError: no port from `between[0]` to `between[1]` is free.
        """
        candidates = iter(range(between[0], between[1] + 1))
        try:
            return {name: f"{host}:{self._ports.take(candidates)}" for name in names}
        except OSError:
            raise OSError(f"{platform.node()}: no free port from {between[0]} to {between[1]}") from None

    def start(self, job: Job, functions: bytes) -> None:
        """Calls `_start`; if that fails, `status` raises and says why."""
        self._number, self._failure = job.number, None
        try:
            self._start(job, functions)
        except Exception as error:  # a full disk, no memory for another process
            self._failure, self._waiting = error, None

    def _start(self, job: Job, functions: bytes) -> None:
        """Starts the process, or lets `status` do so; it ends with this one (PR_SET_PDEATHSIG).

        The main thread of this process must call all methods.

        Args:
          functions: what is in the file `commands.Command.data`.
        """
        self._name, log = job.name, self._scratch / "log"
        data, token, table = (self._scratch / name for name in ("job.pkl", "token", "addresses.json"))
        log.touch(mode=0o600)
        for path, content in ((data, functions), (token, job.token.encode())):
            path.touch(mode=0o600)
            path.write_bytes(content)
        addresses.write(table, job.addresses)
        environment = local.node_environment(self._listener.address, self._scratch) | {
            TOKEN_FILE_VARIABLE: str(token), addresses.TABLE_VARIABLE: str(table), BIND_ADDRESS_VARIABLE: "0.0.0.0",
            memory.FILE_VARIABLE: job.memory,
        }  # fmt: skip
        if job.machine != machine():  # another clock than the launcher's
            environment[STARTED_VARIABLE] = str(time.monotonic() - job.age)
        environment |= {DEVICE_VARIABLE: "0"} if job.sees_gpu else {"CUDA_VISIBLE_DEVICES": ""}
        environment |= {} if job.incarnation is None else {INCARNATION_VARIABLE: str(job.incarnation)}
        is_here = os.path.isdir(job.current_folder) and os.access(job.current_folder, os.X_OK)
        folder = job.current_folder if is_here else None
        waiting = _Waiting(commands.argv(data, job.task), os.environ | environment, folder, job.prepares)
        self._waiting, self._process, self._ended_early, self._ended_at = waiting, None, None, None
        imports = local.forkable(job.imports, job.sees_gpu) if job.prepares else ()
        if imports and self._server is None:
            with local.signals_blocked():
                scripts = str(Path(waiting.argv[1]).parent)
                self._server = fork_server.ForkServer(imports, scripts, waiting.environment, folder)
        self._listener.begin_anew(job.name)
        self._start_if_ready()

    def _start_if_ready(self) -> None:
        """Starts the process that waits, if there is one, unless what it needs is still being imported."""
        if not self._waiting or self._server and self._server.is_importing():
            return
        (argv, environment, folder, prepares), self._waiting = self._waiting, None
        self._listener.begin_anew(self._name)  # what was imported for it does not count as its silence
        blocked = local.signals_blocked() if prepares else contextlib.nullcontext()
        with blocked, (self._scratch / "log").open("ab") as output:
            if self._server:
                self._process = self._server.start(argv, environment, output, lambda: False)
            self._process = self._process or subprocess.Popen(
                argv, env=environment, cwd=folder, stdout=output, stderr=output,
                preexec_fn=None if prepares else processes.end_with_parent,
            )  # fmt: skip

    def status(self, log_at: int = 0) -> Status:
        """Returns what is known of the process, and what it wrote from the byte `log_at` on.

        Who asks says what it has: an answer may be lost on its way, and what is in it is then asked for again. Of a
        process that writes faster than it is asked, what is older is left out, or its end would be told late.
        """
        try:
            self._start_if_ready()
        except Exception as error:  # no memory for another process
            self._failure = error
        if self._failure is not None:
            raise RuntimeError(f"the node could not be started: {self._failure}")
        exit_status = self._exit_status()  # before its last words are read
        with (self._scratch / "log").open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            log_at = size - _LOG_BYTES + 1 if size - log_at > _LOG_BYTES_BEHIND else log_at
            file.seek(log_at)
            log = file.read(_LOG_BYTES)
        return Status(
            self._number, exit_status if len(log) < _LOG_BYTES else None,  # it is asked no more once it has ended
            self._process is not None, self._listener.node(self._name), self._listener.has_heard(self._name),
            (self._scratch / "stop").exists(), log, log_at,
        )  # fmt: skip

    def _exit_status(self) -> int | None:
        """Returns the exit status of a process that has ended, once it is known what it said last, or after a second.

        Another thread hears that, and may get no processor for a moment; who has ended is asked no more.
        """
        if self._process is None:
            return self._ended_early
        if (status := self._process.poll()) is None:
            return None
        self._ended_at = self._ended_at or time.monotonic()
        has_said = "status" in self._listener.node(self._name).facts
        return status if has_said or time.monotonic() - self._ended_at > _HEARING_SECONDS else None

    def signal(self, *numbers: int) -> None:
        """Sends signals to the process, if it runs; one that is to end, and does not exist yet, is never started."""
        for number in numbers:
            if self._waiting and number in (signal.SIGTERM, signal.SIGKILL):
                self._waiting, self._ended_early = None, -number
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(number)

    def clear(self) -> None:
        """Kills the process if it still runs, so that another can be started."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def end(self) -> None:
        """Kills the process if it still runs, and removes what was written for it on this host."""
        self._ports.close()
        self.clear()
        if self._server:
            self._server.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _prefix() -> str:
    """Returns how names of folders begin that belong to the processes that are seen here; hosts may share a TMPDIR."""
    where = machine() + os.readlink("/proc/self/ns/pid")
    return f"{PREFIX}{hashlib.sha256(where.encode()).hexdigest()[:8]}-"


def _sweep() -> None:
    """Removes what killed hosts of this user left behind."""
    prefix = _prefix()
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        pid = folder.name.removeprefix(prefix).partition("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdecimal() and not Path(f"/proc/{pid}").exists() and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


def facts(own_words: Sequence[tuple[str, str]], files: Sequence[Path] = ()) -> dict[str, str]:
    """Returns what must be the same on every host: packages, commit, the user's modules, (key, word), and `files`."""
    found = {"python": platform.python_version(), "commit": provenance.commit_and_edits()}
    found[_FILES] = own.file_and_hash("impala").partition(" sha256:")[2] or "unknown"  # a wheel has no commit
    found |= provenance.versions((*PACKAGES, "ray"))
    found |= dict.fromkeys(SIMULATORS, "unknown")  # where a host lacks one, a node that needs it says so
    found |= provenance.installed(SIMULATORS)
    for path in files:
        with contextlib.suppress(OSError):  # it is missing
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    for key, word in own_words:
        if of_module := own.file_and_hash(word).partition(" sha256:")[2]:  # it is not missing
            found[f"{key} {word}"] = of_module
    return found


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any], ignored: Sequence[str] = ()) -> list[str]:
    """Returns a line for each fact that differs between two hosts; one that is "unknown" on either does not."""
    return [
        f"{name} is {theirs.get(name, 'missing')} there and {mine.get(name, 'missing')} here"
        for name in dict.fromkeys([*mine, *theirs])
        if name not in ignored and len({mine.get(name), theirs.get(name)} - {"unknown"}) == 2
    ]  # fmt: skip
