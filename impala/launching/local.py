"""Runs a program in processes of this machine: starts them, starts them again, and ends them in order.

Launchpad says which processes a program has (`commands`). Starting, watching and ending them is done here: Launchpad
restarts nothing, notices a death only in some of its modes, and then ends everything at once, even a learner that has
yet to save.
"""

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from impala.launching import beats, commands, ending, fork_server, ports, rpc, stopping
from impala.launching.processes import INCARNATION_VARIABLE, NODE_VARIABLE, STARTED_VARIABLE
from impala.launching.roles import Roles

_REAP_SECONDS = 5.0
_SOCKET_FOLDER_BYTES = 70  # of the path of a folder in which sockets are made
_GPU_DRIVER = Path("/dev/nvidiactl")
_BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # in a child, until `processes.prepare` decides what they do


class Processes:
    """The processes of a launched program, by name (`actor/0`, `learner/0`, …), and what is heard of them.

    Args:
      starts: a command for each.
      logs: the folder that their output goes to.
      environment: variables for all; only roles that say so see GPUs.
      holder: of the nodes' ports, which it holds as long as this object exists.
      should_stop: asked while modules that nodes share are imported.
    """

    can_start_again, keeps_addresses = True, True  # see `supervising.Nodes`

    def __init__(
        self, starts: Sequence[commands.Command], roles: Roles, logs: Path, listener: beats.Listener,
        environment: Mapping[str, str], holder: ports.Holder, should_stop: Callable[[], bool],
    ):  # fmt: skip
        self.roles, self._logs, self._listener, self._environment = roles, logs, listener, environment
        self._ports, self._should_stop = holder, should_stop
        self._commands = {command.name: command for command in starts}
        self._due: dict[str, float] = {}  # when those that ended are started again
        self._since: dict[str, float] = {}  # see `start_again`
        self._began: dict[str, float] = {}
        self._by_name: dict[str, subprocess.Popen | fork_server.Child] = {}
        self._held: list[subprocess.Popen | fork_server.Child] = []  # killed, but the kernel keeps them; see `_kill`
        try:
            for name in self._commands:
                self._start(name)
        except BaseException:
            self.kill()
            raise

    def _start(self, name: str, **own: str) -> None:
        command, log, role = self._commands[name], self.log(name), self.roles.of(name)
        own |= {} if role.sees_gpu else {"CUDA_VISIBLE_DEVICES": ""}
        argv, environment = commands.argv(command.data, command.task), {**os.environ, **self._environment, **own}
        self._listener.begin_anew(name)
        before = [self._by_name[name]] if name in self._by_name else []
        self._held = [process for process in [*self._held, *before] if process.poll() is None]
        with signals_blocked(), log.open("a") as output:
            process = None
            if imports := forkable(role.imports, role.sees_gpu):
                process = _server(imports, argv, environment).start(argv, environment, output, self._should_stop)
            folder = fork_server.folder_to_start_in()
            self._by_name[name] = process or subprocess.Popen(
                argv, env=environment, stdout=output, stderr=output, cwd=folder
            )
        self._began[name] = time.monotonic()

    def log(self, name: str) -> Path:
        return self._logs / name

    def names(self) -> list[str]:
        """Returns the names of all nodes."""
        return list(self._commands)

    @property
    def wants_end(self) -> bool:
        """Whether a node has called `lp.stop()`."""
        return os.path.exists(self._environment[stopping.VARIABLE])

    def places(self) -> str:
        """Returns nothing: all nodes run on this machine."""
        return ""

    def words(self) -> list[str]:
        """Returns nothing: all nodes run on this machine."""
        return []

    def nodes(self) -> dict[str, beats.Node]:
        """Returns what is known of every node whose process has not ended, but for those that are to start again."""
        return {name: self.node(name) for name in self.left() if name not in self._due}

    def node(self, name: str) -> beats.Node:
        """Returns what was last known of a node."""
        return self._listener.node(name)

    def lived_seconds(self, name: str) -> float:
        """Returns how many seconds ago a node was last started."""
        return time.monotonic() - self._began[name]

    def ended(self) -> dict[str, int]:
        """Returns the exit status of every process that has ended and is not to be started again."""
        statuses = {name: process.poll() for name, process in self._by_name.items() if name not in self._due}
        return {name: status for name, status in statuses.items() if status is not None}

    def start_again(self, name: str, seconds: float, since: float | None = None) -> None:
        """Lets `start_due` start a node that has ended, `seconds` from now or later.

        Args:
          since: what it takes for the `time.monotonic()` of its launch; None: the launch's own.
        """
        self._due.pop(name, None)  # to the end of the order, in which nodes start: `supervising` asks for heads first
        self._due[name] = time.monotonic() + seconds
        if since is not None:
            self._since[name] = since

    def start_due(self, new_incarnation: Callable[[str], int]) -> None:
        """Starts the nodes that are due; each gets an incarnation of its own."""
        for name in [name for name, due in self._due.items() if time.monotonic() >= due]:
            own = {INCARNATION_VARIABLE: str(new_incarnation(name))}
            own |= {STARTED_VARIABLE: str(self._since[name])} if name in self._since else {}
            self._start(name, **own)
            del self._due[name]

    def dump_stacks(self, names: Collection[str]) -> None:
        """Makes nodes write the stacks of all their threads into their logs, if they have got far enough for that."""
        for name in (heard := [name for name in names if self.has_heard(name)]):
            self.signal(name, signal.SIGCONT, signal.SIGUSR2)
        if heard:
            time.sleep(1.0)

    def stop(self, should_kill: Callable[[], bool] = lambda: False, spared: Collection[str] = ()) -> None:
        """Ends the processes in order but those `spared`, or all at once on `should_kill`."""
        ending.in_turns(self, should_kill, spared)

    def has_heard(self, name: str) -> bool:
        """Returns whether a node gave any sign of life since it was started."""
        return self._listener.has_heard(name)

    def signal(self, name: str, *numbers: int) -> None:
        """Sends signals to a node's process, if it runs."""
        for number in numbers:
            if self._by_name[name].poll() is None:
                self._by_name[name].send_signal(number)

    def left(self) -> list[str]:
        """Returns the names of the nodes whose processes have not ended."""
        return [name for name, process in self._by_name.items() if process.poll() is None]

    def kill(self, name: str | None = None) -> None:
        """Ends every process, or that of one node, at once."""
        if name is None:
            self._listener.close()
        _kill([*self._by_name.values(), *self._held] if name is None else [self._by_name[name]])


_servers: dict[Sequence[str], fork_server.ForkServer] = {}  # by what they have imported


def _server(imports: Sequence[str], argv: Sequence[str], environment: Mapping[str, str]) -> fork_server.ForkServer:
    """Returns the server for `imports`, which may have ended; it blocks the signals that were blocked at its start."""
    if imports not in _servers:
        _servers[imports] = fork_server.ForkServer(imports, str(Path(argv[1]).parent), environment)
    return _servers[imports]


def forkable(imports: Sequence[str], sees_gpu: bool) -> Sequence[str]:
    """Returns the modules of a node that it may have from a fork server on this host: CUDA does not support forks."""
    return () if sees_gpu and _GPU_DRIVER.exists() else imports


def _kill(processes: Iterable[subprocess.Popen | fork_server.Child]) -> None:
    processes = list(processes)
    for process in processes:
        if process.poll() is None:
            process.kill()
    deadline = time.monotonic() + _REAP_SECONDS
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel keeps one that waits for a disk or a driver
            process.wait(max(0.0, deadline - time.monotonic()))


@contextlib.contextmanager
def signals_blocked():
    """Blocks the signals `_BLOCKED`, so that processes started meanwhile begin with them blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)


def keep_previous_logs(folder: Path) -> None:
    """Sets the logs of an earlier launch aside; those that were set aside before are gone."""
    for log in (folder / "logs").glob("*/*"):
        if log.is_file() and log.suffix != ".previous":
            log.replace(log.with_suffix(".previous"))


def link_logs(logs: Path, names: Iterable[str]) -> None:
    """Makes an empty log for each node, and a link to it whose name says what it is: actor-0.log."""
    for name in names:
        (logs / name).parent.mkdir(exist_ok=True)
        (logs / name).touch()
        link = logs / (name.replace("/", "-") + ".log")
        with contextlib.suppress(OSError):  # a file system without links
            link.unlink(missing_ok=True)
            link.symlink_to(name)


def make_scratch(logs: Path) -> Path:
    """Makes a folder for pickled nodes and what nodes leave behind, Reverb's too, which nobody else removes.

    Earlier ones are removed as far as possible: what an environment left there may be another user's, or open still.
    """
    for earlier in logs.glob("scratch*"):
        shutil.rmtree(earlier, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix="scratch-", dir=logs))


def short_path_to(scratch: Path) -> Path:
    """Returns `scratch` or, if a socket's name below it would be too long for the system, a short link to it.

    Python's multiprocessing makes sockets there, 32 characters longer, of the 107 that there may be. The link is
    removed when this process ends, or by a later launch once it leads nowhere.
    """
    if len(os.fsencode(scratch)) <= _SOCKET_FOLDER_BYTES:
        return scratch
    for earlier in Path(tempfile.gettempdir()).glob("impala-tmp-*"):
        with contextlib.suppress(OSError):  # another user's, which nobody else may look into
            if (link := earlier / "scratch").is_symlink() and not link.exists():
                shutil.rmtree(earlier, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix="impala-tmp-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "scratch").symlink_to(scratch.resolve())
    return folder / "scratch"


def launch(program, folder: Path, roles: Roles, should_stop: Callable[[], bool] = lambda: False) -> Processes:
    """Launches `program` in processes whose output goes to `folder/logs`; see `Processes`."""
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    rpc.use_new_token(folder / "token")
    scratch, holder = make_scratch(logs), ports.Holder()
    starts = commands.of(program, scratch, stopper=stopping.stop, bind=lambda *_: ports.Local(holder.take()))
    link_logs(logs, [command.name for command in starts])
    listener = beats.Listener()
    environment = node_environment(listener.address, scratch) | {"TMPDIR": str(short_path_to(scratch))}
    return Processes(starts, roles, logs, listener, environment, holder, should_stop)


def node_environment(beats_address: str, scratch: Path) -> dict[str, str]:
    """Returns variables for the processes of nodes that this process starts."""
    return {
        NODE_VARIABLE: str(os.getpid()), beats.ADDRESS_VARIABLE: beats_address, "TZ": "UTC", "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(scratch), stopping.VARIABLE: str(scratch / "stop"),
        "PYTHONIOENCODING": os.environ.get("PYTHONIOENCODING", ":replace"),  # what a locale cannot say ends no node
        "grpc_proxy": "",  # as `cli.main`
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3"),  # else each log begins with CUDA warnings
        "TF_ENABLE_ONEDNN_OPTS": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1"),  # as `cli.main` does on its own host
    }  # fmt: skip
