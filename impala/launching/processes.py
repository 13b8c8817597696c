"""What every node of a program sets up first: its name, its signals, its devices, its end with the launcher."""

import _thread
import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from impala.launching import beats, descriptors
from impala.launching.roles import Role

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
NODE_VARIABLE = "IMPALA_NODE_PROCESS"  # holds the launcher's process id in the processes of nodes
STARTED_VARIABLE = "IMPALA_STARTED"  # holds the launch's `time.monotonic()`, converted to the clock of this host
DEVICE_VARIABLE = "IMPALA_DEVICE"  # holds the index of a learner's GPU among those that its process sees
INCARNATION_VARIABLE = "IMPALA_INCARNATION"  # holds the incarnation of a node that was started again
GRACE_SECONDS = 30.0  # for a clean end after SIGTERM; then the process ends itself
_GRACE_ALONE_SECONDS = 3.0  # the same of an actor or evaluator, whose environment may hang: it has nothing to save
_EXIT_SECONDS, _MAX_WORDS = 5.0, 2_000  # for the interpreter to exit; characters of a node's last words
_TELLING_SECONDS = 2.0
EXIT_FAILED, EXIT_USAGE, EXIT_TRY_AGAIN, EXIT_INTERRUPTED = 1, 2, 75, 130

_told: list[threading.Thread] = []
_pulse: beats.Pulse | None = None  # of the node that runs in this process
_of_thread = threading.local()  # `.pulse`: of the node that runs in this thread
_of_fork = threading.local()  # `.mask`: the signals that were blocked before


class UsageError(RuntimeError):
    """What the user asked for cannot be done here."""


def end_with_parent() -> None:
    """Lets the kernel end this process when the thread that started it ends; called in a child before its program."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def incarnation(of_launch: int) -> int:
    """Returns the incarnation of this process's node: its launch's, or a newer one if it was started again."""
    return int(os.environ.get(INCARNATION_VARIABLE, of_launch))


def launched_at(started: float) -> float:
    """Returns `time.monotonic()` of the launch by this host's clock; `started` is the same by the launcher's clock."""
    return float(os.environ.get(STARTED_VARIABLE, started))


def refuse(message: str, status: int = EXIT_USAGE) -> None:
    """Ends the node's process with `status`, and the run with it and `message`; in a thread, raises UsageError.

    With status 75 the run may start its nodes again; not in threads, where it ends with status 2.
    """
    if os.environ.get(NODE_VARIABLE):
        finish(status, message)
    raise UsageError(message)


def say(message: str) -> None:
    """Prints a line into the node's log; a full disk costs the line, not the node."""
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)


def tell(message: str) -> None:
    """Prints a line to whoever launched a run; a standard error that takes nothing holds the end up for two seconds."""
    thread = threading.Thread(target=say, args=(message,), daemon=True, name="words")
    try:
        thread.start()
    except RuntimeError:  # the system refuses another
        return say(message)
    thread.join(_TELLING_SECONDS)
    _told.append(thread)


def is_stuck() -> bool:
    """Returns whether something that was told waits still to be written: an exit in order would wait for it."""
    return any(thread.is_alive() for thread in _told)


class _Output:
    """Standard output or error of a node, where a full disk costs what is printed, and not the node."""

    def __init__(self, file):
        self._file = file

    def __getattr__(self, name: str):
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()


def prepare(role: Role, index: int = 0, niceness: int = 0) -> beats.Pulse:
    """Prepares the process of a node; returns the event that asks it to stop and reports to the launcher that it lives.

    SIGINT and SIGHUP are ignored: a terminal sends them to every process, and the launcher decides who ends when.
    Until `begin`, SIGTERM ends the process at once: there is nothing to save yet, and the calls in which a starting
    node waits let no Python signal handler run. An uncaught exception also ends it at once, without waiting for
    Reverb's threads, which delay the interpreter's own exit by a minute. The process is named after its role. When its
    launcher ends, a node that has the weights ends as after SIGTERM, any other at once, even while an environment
    blocks the interpreter. In a thread (tests, `local_mt`) nothing is done to the process.

    Args:
      niceness: how far the process steps back for others of its machine: 0 to 19, added to what it has.
    """
    import launchpad as lp

    global _pulse
    pulse = _of_thread.pulse = beats.Pulse(f"{role.name}/{index}", lp.stop_event())
    if threading.current_thread() is not threading.main_thread() or not os.environ.get(NODE_VARIABLE):
        pulse.beat()
        return pulse
    _pulse = pulse
    descriptors.raise_limit()
    _step_back(niceness)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, pulse.name.encode()[:15], 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM if role.is_head else signal.SIGKILL, 0, 0, 0)
    launcher = int(os.environ[NODE_VARIABLE])
    if os.getppid() != launcher:
        finish(EXIT_TRY_AGAIN)  # the launcher died before PR_SET_PDEATHSIG was set
    sys.stdout, sys.stderr = _Output(sys.stdout), _Output(sys.stderr)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    sys.excepthook = _end_with
    # A node ends through `finish`; else something in it has called sys.exit, an environment perhaps.
    atexit.register(finish, EXIT_FAILED)
    atexit.register(faulthandler.dump_traceback_later, _EXIT_SECONDS, exit=True)  # called first: others may hang
    os.register_at_fork(before=_hold_sigterm, after_in_parent=_release_sigterm, after_in_child=_be_no_node)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGHUP])  # `local` blocked them
    end_on_sigterm()
    seconds = _GRACE_ALONE_SECONDS if role.returns_alone else GRACE_SECONDS
    pulse.beat(each_second=_Grace(pulse, launcher, seconds, (40 if role.stores else 4) * GRACE_SECONDS))
    return pulse


def _hold_sigterm() -> None:
    """Called before a fork: a SIGTERM that comes before `_be_no_node` would be taken for the node's."""
    _of_fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _release_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _of_fork.mask)


def _be_no_node() -> None:
    """Called in a process that an environment forks: it ends when it is told to, and never in the node's name.

    Ctrl-C, which reaches it too, stays ignored: the node still steps it while the run ends.
    """
    global _pulse
    if _pulse is None:  # a fork of a fork, whose handlers are its own
        return _release_sigterm()
    _pulse = None
    _of_thread.__dict__.clear()
    atexit.unregister(finish)
    atexit.unregister(faulthandler.dump_traceback_later)
    sys.excepthook = sys.__excepthook__
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release_sigterm()


def _step_back(niceness: int) -> None:
    """Adds to the niceness of all threads that there are; later ones inherit it."""
    level = os.nice(0) + niceness
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, int(thread), min(19, level))


def launch_context() -> Callable[[], None]:
    """Returns a function for another thread of this node; after it Launchpad's own calls (`lp.stop()`) work there."""
    from launchpad import context

    try:
        found = context.get_context()
    except AssertionError:  # no node: a test, or lockstep
        return lambda: None
    return lambda: context.set_context(found)


def end_on_sigterm() -> None:
    """Lets SIGTERM end the process at once, even after something took it over (a `tf.distribute` strategy does)."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def begin(pulse: beats.Pulse) -> None:
    """Marks the beginning of the node's loop: from now on SIGTERM asks it to stop, through `pulse`.

    If the process still runs `GRACE_SECONDS` later, an actor's 3 s later, and saves nothing, it ends itself with
    status 75.
    """
    pulse.doing = "running"
    if pulse is _pulse:
        # In a thread: the main thread may hold the lock of what is set, and a handler runs in the middle of it.
        signal.signal(signal.SIGTERM, lambda *_: _thread.start_new_thread(pulse.set, ()))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


class _Grace:
    """Called every second, from a thread: ends a process that was asked to stop long ago or lost its launcher.

    If the main thread is in a call that lets no signal handler of Python's run, nothing else would end it.

    Args:
      seconds: its grace period.
      saving_seconds: for so long a process may save beyond its grace period. A replay table may hold gigabytes.
    """

    def __init__(self, pulse: beats.Pulse, launcher: int, seconds: float, saving_seconds: float):
        self._pulse, self._launcher, self._seconds, self._since = pulse, launcher, seconds, None
        self._saved_seconds, self._most_seconds = 0.0, saving_seconds

    def __call__(self) -> None:
        if os.getppid() != self._launcher:
            self._pulse.set()
        if not self._pulse.is_set():
            return
        if self._since is None or self._pulse.doing == "saving" and self._saved_seconds < self._most_seconds:
            self._saved_seconds += 1.0  # called every second; the grace period begins anew when all is saved
            self._since = time.monotonic()
        if time.monotonic() - self._since > self._seconds:
            say(f"the node did not stop within {self._seconds:.0f} s; ending it")
            faulthandler.dump_traceback(all_threads=True)
            os._exit(EXIT_TRY_AGAIN)


def _end_with(kind, error, trace) -> None:
    """The `sys.excepthook`: prints the traceback and ends the process."""
    with contextlib.suppress(OSError):
        traceback.print_exception(kind, error, trace)
    finish(EXIT_FAILED)


def hold(path: Path, stop: beats.Pulse) -> None:
    """Locks the file `path` until this process ends; first waits for a node of an earlier launch that still holds it.

    The launcher's lock of a run is gone with the launcher; a node that outlives it, because it still writes, holds
    this one. A process that an environment forks does not hold it: it may outlive the node.
    """
    if not os.environ.get(NODE_VARIABLE):
        return
    descriptor, deadline = os.open(path, os.O_RDWR | os.O_CREAT, 0o644), time.monotonic() + GRACE_SECONDS + 5.0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # never closed here
            return os.register_at_fork(after_in_child=_closing_once(descriptor))
        except BlockingIOError:
            if stop.wait(0.2):
                finish()
            if time.monotonic() > deadline:
                refuse(
                    f"{path}: held by a node of an earlier launch; expected it to end with its launcher: wait, or end "
                    "the process that fuser names", EXIT_TRY_AGAIN,
                )  # fmt: skip


def _closing_once(descriptor: int) -> Callable[[], None]:
    """Returns a function that closes a descriptor once: a fork of the fork may have something else by that number."""
    left = [descriptor]

    def close():
        while left:
            os.close(left.pop())

    return close


def check_port_is_free(port: int) -> None:
    """Refuses the run if something listens on `port` of this machine, even if it is willing to share the port."""
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the launcher's `ports.Holder` may hold it
            probe.bind(("", port))
        except OSError as error:
            refuse(f"port {port}: {error.strerror}{_owner_of(port)}; expected a free port", EXIT_TRY_AGAIN)


def _owner_of(port: int) -> str:
    """Returns the words that name the process that listens on `port`, as far as this user may know."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        listening = (one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN)
        if owner := next((one.pid for one in listening if one.laddr.port == port and one.pid), None):
            return f" by process {owner} ({psutil.Process(owner).name()})"
    return ""


def finish(status: int = 0, words: str = "") -> None:
    """Ends the process of a node at once, without waiting for threads of Reverb and gRPC in calls that never return.

    `words`, if any, go into its log and to the launcher, which shows them to the user instead of the end of the log.
    """
    if words:
        say(words)
    pulse = _pulse or getattr(_of_thread, "pulse", None)
    if pulse is not None:
        pulse.note(last_words=words[:_MAX_WORDS], status=status)
        pulse.send(patience_seconds=5.0)  # who ends without saying its status has failed: see `supervising`
    if os.environ.get(NODE_VARIABLE):
        flush()
        os._exit(status)


def flush() -> None:
    """Writes what was logged and printed, before `os._exit`, which would not; a full disk loses it."""
    with contextlib.suppress(OSError):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()


def first_line(error: BaseException) -> str:
    """Returns an error's first line, cut; its type if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def hide_gpus() -> None:
    """Keeps TensorFlow in this process off every GPU."""
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")


def learner_device(index: int = 0) -> str:
    """Returns the device of a learner: the GPU with its index, whose memory is taken as needed, else the CPU.

    The process sees no other GPU.
    """
    import tensorflow as tf

    index = int(os.environ.get(DEVICE_VARIABLE, index))
    gpus = tf.config.list_physical_devices("GPU")[index : index + 1]
    try:
        tf.config.set_visible_devices(gpus, "GPU")
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:  # nodes that share a process as threads: the first one decided
        logging.info("TensorFlow is already running in this process; its devices stay as they are")
    return "/GPU:0" if gpus else "/CPU:0"


@contextlib.contextmanager
def time_limit(seconds: int, message: str):
    """Ends the process with SIGALRM if the block takes longer, even if it is in C++ that lets no Python run.

    `message` is printed beforehand: SIGALRM kills without a word.
    """
    say(f"within {seconds} s, or else: {message}")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def set_tensorflow_threads(num_threads: int, num_parallel: int = 1) -> None:
    """Limits TensorFlow's threads in this process; must come before its first operation.

    Args:
      num_threads: of one operation.
      num_parallel: how many operations run at once. With small ones this helps where more threads do not.
    """
    import tensorflow as tf

    try:
        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(num_parallel)
    except RuntimeError:  # nodes that share a process as threads: the first one decided
        logging.info("TensorFlow is already running in this process; its threads stay as they are")
