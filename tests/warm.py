"""Python processes that have imported TensorFlow already, which is half of what a short run costs.

They are forked from one process of the test session, by the project's own fork server. A run that begins in one gets
its nodes' fork server from it too, forked before the run has begun. Runs that begin with nothing are started by
`test_wheel`, `test_notebooks` and `test_faults`.
"""

import atexit
import contextlib
import functools
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

from impala.launching import commands, fork_server, local, roles

_IMPORTS = roles.LEARNER.imports
_FORK_SECONDS = 60.0


class Popen(subprocess.Popen):
    """As `subprocess.Popen`, of Python's arguments `-m MODULE …` or `-c CODE …`; both outputs must be pipes."""

    def _execute_child(
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
        start_new_session,
    ):  # fmt: skip
        assert p2cread < 0 <= min(c2pwrite, errwrite)
        errors = f"/proc/{os.getpid()}/fd/{errwrite}"  # the server passes one descriptor on
        argv = [sys.executable, __file__, str(int(start_new_session)), errors, os.fspath(cwd or os.getcwd()), *args]
        with open(c2pwrite, "wb", closefd=False) as output:
            self.pid = _server().start(argv, os.environ if env is None else env, output, lambda: False).pid
        self._child_created = True
        self._wait_until_it_has(errwrite)
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _wait_until_it_has(self, errors: int):
        deadline, ours = time.monotonic() + _FORK_SECONDS, os.fstat(errors).st_ino
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                if os.stat(f"/proc/{self.pid}/fd/2").st_ino == ours:
                    return
            time.sleep(0.001)
        raise TimeoutError(f"process {self.pid} has not opened its standard error within {_FORK_SECONDS} s")


def run(arguments, *, timeout: float, cwd=None, env=None) -> subprocess.CompletedProcess:
    """Runs to the end, as `subprocess.run` does with its output captured as text."""
    pipe = subprocess.PIPE
    with Popen(arguments, cwd=cwd, env=env, text=True, stdout=pipe, stderr=pipe) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


@functools.cache
def _server() -> fork_server.ForkServer:
    folder = str(Path(commands.argv(Path(), 0)[1]).parent)
    return fork_server.ForkServer(_IMPORTS, folder, os.environ | local.node_environment("", Path("/tmp")))


# --- in the process that was forked


def main() -> None:
    is_session, errors, folder, kind, what, *arguments = sys.argv[1:]
    if int(is_session):
        os.setsid()
    os.chdir(folder)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if (server := os.fork()) == 0:
        ours.close()
        _write_to(os.devnull, 1, 2)
        signal.pthread_sigmask(signal.SIG_BLOCK, local._BLOCKED)
        sys.argv = ["-c", sys.path[0], str(theirs.detach()), *_IMPORTS]
        return fork_server.run()  # returns only in a node, when it has ended
    theirs.close()
    child = fork_server.Child(server)
    atexit.register(child.kill)

    def take(self, imports, folder, environment):
        assert imports == _IMPORTS
        self._socket, self._process, self._is_ready = ours, child, False
        self._current_folder, self._deadline = None, time.monotonic() + 120.0

    fork_server.ForkServer.__init__ = take
    _write_to(errors, 2)  # now whoever started this process goes on
    sys.path[0] = folder if kind == "-m" else ""
    sys.argv = [kind, *arguments]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))


def _write_to(path: str, *descriptors: int) -> None:
    with open(path, "wb") as file:
        for descriptor in descriptors:
            os.dup2(file.fileno(), descriptor)


if __name__ == "__main__":
    main()
