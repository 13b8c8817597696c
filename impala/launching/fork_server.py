"""Processes that share what they would each import: forked from one that has imported it.

TensorFlow costs a process seconds of CPU and hundreds of megabytes before it computes anything. Here one process
imports it once and computes nothing, so that it can be forked; its children have the modules at once and, until they
write there, the same memory. gRPC, Reverb and TensorFlow start their threads in the children.

A child's parent is its starter, not the server: the server forks twice, the process in between ends at once, and the
starter, a *subreaper* meanwhile, becomes the parent. So the starter can wait for it, and it ends with the starter, like
any other child.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

from impala.launching import descriptors

_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_NAME, _MAX_BYTES = b"fork_server", 1_000_000
_READY_SECONDS, _ANSWER_SECONDS = 120.0, 60.0  # to import; to fork
# A script's folder is first on Python's path, as if Python had been given the script. The stand-in for courier, if it
# is on the path, loads the starter's copy of this package, not one that is installed or lies in the current folder.
_PROGRAM = """
import sys
sys.path[0] = sys.argv[1]
try:
    import courier
except ImportError:
    pass
from impala.launching import fork_server
fork_server.run()
"""


class Child:
    """A process that was forked; as much of `subprocess.Popen` as is needed."""

    def __init__(self, pid: int):
        self.pid, self.returncode = pid, None

    def poll(self) -> int | None:
        """Returns the exit status, or minus the signal that ended the process; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        """Returns the exit status. Raises `subprocess.TimeoutExpired` after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """Starts Python scripts in processes that have `imports` already.

    The constructor starts the server, which inherits the blocked signals and ends when the thread that started it ends.

    Args:
      imports: names of modules.
      folder: of the scripts.
      environment: of the server; a child cannot change what libraries read from it once, on import.
      current_folder: of the server and its children; None, or once it is gone: this process's.
    """

    def __init__(
        self, imports: Sequence[str], folder: str, environment: Mapping[str, str], current_folder: str | None = None
    ):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [sys.executable, "-c", _PROGRAM, folder, str(theirs.fileno()), *imports]
            nowhere = subprocess.DEVNULL  # an import that fails here fails again, in the log of the child that needs it
            self._process = subprocess.Popen(
                argv, env=environment, cwd=current_folder, pass_fds=[theirs.fileno()], stdout=nowhere, stderr=nowhere
            )  # fmt: skip
        self._current_folder = current_folder
        self._is_ready, self._deadline = False, time.monotonic() + _READY_SECONDS
        atexit.register(self.close)

    def is_importing(self) -> bool:
        """Returns whether `start` would have to wait for the modules."""
        if self._is_ready or self._socket.fileno() < 0 or time.monotonic() > self._deadline:
            return False
        return not descriptors.can_read(self._socket, 0)

    def start(
        self, argv: Sequence[str], environment: Mapping[str, str], output, should_stop: Callable[[], bool]
    ) -> Child | None:  # fmt: skip
        """Starts a script; None if the server is gone or was given up.

        It is given up, for good, if it does not answer in time or `should_stop` comes true meanwhile.

        Args:
          argv: the interpreter, the script, and its arguments; the interpreter is the server's own.
          output: a file that standard output and standard error go to.
        """
        if self._socket.fileno() < 0:
            return None
        request = dict(argv=argv[1:], environment=dict(environment), folder=self._folder_now())
        with contextlib.suppress(OSError):
            self._is_ready = self._is_ready or bool(self._answer(self._deadline - time.monotonic(), should_stop))
            if self._is_ready:
                with _subreaper():
                    socket.send_fds(self._socket, [json.dumps(request).encode()], [output.fileno()])
                    # A fork takes less than a second; for so long it is waited for whoever wants an end.
                    if answer := self._answer(1.0) or self._answer(_ANSWER_SECONDS, should_stop):
                        return Child(int(answer))
                    self._end_late()
        self.close()
        return None

    def _folder_now(self) -> str:
        """Returns the folder to start in; one that was removed meanwhile is no reason not to start."""
        if self._current_folder and os.path.isdir(self._current_folder):
            return self._current_folder
        return folder_to_start_in()

    def _answer(self, seconds: float, should_stop: Callable[[], bool] = lambda: False) -> bytes:
        """Returns what the server says next; nothing if that takes too long, or it is gone."""
        deadline = time.monotonic() + seconds
        while not descriptors.can_read(self._socket, 0.1):
            if should_stop() or time.monotonic() > deadline:
                return b""
        return self._socket.recv(_MAX_BYTES)

    def _end_late(self) -> None:
        """Ends the server, and a child that it told of too late, which nobody else would ever end."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            child = Child(int(self._answer(1.0)))
            child.kill()
            child.wait(_ANSWER_SECONDS)

    def close(self) -> None:
        """Ends the server; its children go on."""
        atexit.unregister(self.close)
        self._socket.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def folder_to_start_in() -> str:
    """Returns the current folder; "/" if it was removed meanwhile, which is no reason not to start a node."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return "/"


@contextlib.contextmanager
def _subreaper():
    """Makes descendants whose parent ends within the block children of this process (prctl(2))."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


# --- in the server


def run() -> None:
    """Runs the server; returns only in a child, when its script has ended."""
    from impala.launching import processes

    processes.end_with_parent()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
    _, _, descriptor, *imports = sys.argv
    starter = socket.socket(fileno=int(descriptor))
    gc.disable()  # it takes a sixth of the time of TensorFlow's import, and finds little
    for name in imports:
        with contextlib.suppress(Exception):  # whoever needs it will fail, and say so in its own log
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or else the collector would write into what is shared
    gc.enable()
    starter.send(b"ready")
    while True:
        request, outputs, _, _ = socket.recv_fds(starter, _MAX_BYTES, 1)
        if not request:
            os._exit(0)
        if (child := _fork()) is None:
            starter.close()
            return _become(**json.loads(request), output=outputs[0])
        starter.send(str(child).encode())
        os.close(outputs[0])


def _fork() -> int | None:
    """Forks a process whose parent becomes the server's own; returns its id, or None in that process."""
    reader, writer = os.pipe()
    if between := os.fork():
        os.close(writer)
        os.waitpid(between, 0)
        with open(reader, "rb") as pipe:
            return int(pipe.read())
    between = os.getpid()
    if child := os.fork():
        os.write(writer, str(child).encode())
        os._exit(0)
    os.close(reader)
    os.close(writer)
    while os.getppid() == between:
        time.sleep(0.001)
    return None


def _become(argv: list[str], environment: dict[str, str], folder: str, output: int) -> None:
    """Runs a script in this process, in `folder`, as if it had been started for it."""
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # where temporary files go was looked up by the server, perhaps for an earlier launch
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python's own random numbers are seeded anew in every child
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")
