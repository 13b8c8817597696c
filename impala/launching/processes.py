"""What every node of a program does first: its name, its signals, its devices, its end with the launcher."""

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
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
NODE_VARIABLE = "IMPALA_NODE_PROCESS"  # holds the launcher's process id in the processes of nodes
GRACE_SECONDS = 30.0  # for a clean end after SIGTERM; then the process ends itself
EXIT_FAILED, EXIT_USAGE, EXIT_TRY_AGAIN, EXIT_INTERRUPTED = 1, 2, 75, 130


class UsageError(RuntimeError):
    """What the user asked for cannot be done here."""


def refuse(message: str) -> None:
    """Ends the node's process with status 2, which ends the run with that status and `message`; in a thread, raises."""
    if os.environ.get(NODE_VARIABLE):
        print(message, file=sys.stderr, flush=True)
        finish(EXIT_USAGE)
    raise UsageError(message)


def prepare(role: str, index: int = 0) -> threading.Event:
    """Prepares the process of a node and returns the event that asks it to stop.

    SIGINT and SIGHUP are ignored: a terminal sends them to every process, and the launcher decides who ends when.
    SIGTERM sets the event; if the process still runs `GRACE_SECONDS` later, it ends itself with status 75. The process
    is named after its role and ends when its launcher dies. In a thread (tests, `local_mt`) only the event is returned.
    """
    import launchpad as lp

    stop = lp.stop_event()
    if threading.current_thread() is not threading.main_thread() or not os.environ.get(NODE_VARIABLE):
        return stop
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, f"{role}/{index}".encode()[:15], 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(os.environ[NODE_VARIABLE]):
        finish(EXIT_TRY_AGAIN)  # the launcher died before it could be noticed
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    restore_signals(stop)
    return stop


def restore_signals(stop: threading.Event) -> None:
    """Installs the handlers (again: creating a `tf.distribute` strategy takes SIGTERM away)."""

    def on_sigterm(*_):
        if not stop.is_set():
            stop.set()
            threading.Thread(target=_end_after_grace, daemon=True).start()

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, on_sigterm)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])  # `local` blocked them


def hold(path: Path, stop: threading.Event) -> None:
    """Takes the lock file `path` until this process ends, if need be after waiting for one of an earlier launch to end.

    The launcher's lock of a run goes with the launcher; a node that outlives it, because it still writes, has this one.
    """
    if not os.environ.get(NODE_VARIABLE):
        return
    descriptor, deadline = os.open(path, os.O_RDWR | os.O_CREAT, 0o644), time.monotonic() + GRACE_SECONDS + 5.0
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # never closed
        except BlockingIOError:
            if stop.wait(0.2):
                finish()
            if time.monotonic() > deadline:
                refuse(f"{path}: held by a node of an earlier launch; expected it to end with its launcher")


def check_port_is_free(port: int) -> None:
    """Refuses the run when something listens on `port` of this machine, whichever way it shares ports."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError as error:
            refuse(f"port {port}: {error.strerror}; expected a free port, start the run again")


def _end_after_grace() -> None:
    time.sleep(GRACE_SECONDS)
    print(f"the node did not stop within {GRACE_SECONDS:.0f} s; ending it", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(EXIT_TRY_AGAIN)


def finish(status: int = 0) -> None:
    """Ends the process of a node at once, past threads of Reverb and gRPC that sit in calls that never return."""
    if os.environ.get(NODE_VARIABLE):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def hide_gpus() -> None:
    """Keeps TensorFlow in this process off every GPU."""
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")


def learner_device(index: int = 0) -> str:
    """Returns the device of a learner: the GPU of its index, its memory taken as it is needed, else the CPU.

    The process sees no other GPU.
    """
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")[index : index + 1]
    try:
        tf.config.set_visible_devices(gpus, "GPU")
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:  # as below
        logging.info("TensorFlow is already running in this process; its devices stay as they are")
    return "/GPU:0" if gpus else "/CPU:0"


@contextlib.contextmanager
def time_limit(seconds: int, message: str):
    """Ends the process with SIGALRM where the block takes longer, even where it sits in C++ and lets no Python run.

    What its log says last is that `message` came true: nothing can be said any more when it does.
    """
    print(f"within {seconds} s, or else: {message}", file=sys.stderr, flush=True)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def set_tensorflow_threads(num_threads: int) -> None:
    """Limits TensorFlow's threads in this process; must come before its first operation."""
    import tensorflow as tf

    try:
        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:  # nodes that share a process as threads: the first one decided
        logging.info("TensorFlow is already running in this process; its threads stay as they are")
