"""Signs of life: what every node tells the launcher once a second, and what the launcher learns from it.

    node    its loop asks whether to stop ─▶ Pulse: when it last asked, what it does, facts ── a datagram a second ─┐
    launcher                                        Listener: who has been silent, and for how long  ◀──────────────┘

Every loop and every wait of a node asks `Pulse.is_set` at least once a second or so, which shows that it is alive. A
thread of the node's process reports how long ago that was. So a process that is stopped, or whose interpreter is
blocked, sends nothing, and one whose environment hangs reports that its loop has not asked for a while. Times are sent
as ages, so that no two clocks are compared.
"""

import contextlib
import json
import os
import socket
import struct
import threading
import time
from typing import Any, NamedTuple

ADDRESS_VARIABLE = "IMPALA_BEATS"  # holds the address of the launcher's `Listener` in the processes of nodes
_BEAT_SECONDS, _MAX_BYTES = 1.0, 100_000  # of a message; a socket takes twice as much
FROZEN_SECONDS = 5.0  # a process that sent nothing for longer is frozen
_PAUSE_SECONDS = 5.0  # a listener that has not looked for longer was stopped itself
_CREDENTIALS = struct.Struct("3i")


def patience(doing: str, seconds: float) -> float:
    """Returns how long a node may be silent while `doing` something; `seconds` is the usual limit.

    Imports on a busy machine, and a checkpoint on a slow disk, may take longer than anything else.
    """
    return {"starting": max(seconds, 120.0), "saving": 4 * seconds}.get(doing, seconds)


class Pulse:
    """The event that asks a node to stop; asking it, or waiting for it, in the node's own thread is a sign of life.

    Where other threads are watched as well, the node is as silent as the one that asked longest ago.

    Args:
      name: of the node, like "actor/0".
      event: set when it is time to stop.
    """

    def __init__(self, name: str, event: threading.Event):
        self.name, self._event = name, event
        self._asked, self._asked_lock = {threading.get_ident(): time.monotonic()}, threading.Lock()  # by thread
        self._facts, self._doing = {}, "starting"
        self._socket, self._send_lock = None, threading.Lock()
        if os.environ.get(ADDRESS_VARIABLE):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    def is_set(self) -> bool:
        """Returns whether it is time to stop."""
        if (thread := threading.get_ident()) in self._asked:
            self._asked[thread] = time.monotonic()
        return self._event.is_set()

    @contextlib.contextmanager
    def watched(self):
        """Within it, the calling thread is watched as well."""
        with self._asked_lock:
            self._asked[threading.get_ident()] = time.monotonic()
        try:
            yield
        finally:
            with self._asked_lock:
                del self._asked[threading.get_ident()]

    def set(self) -> None:
        """Asks the node to stop."""
        self._event.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until it is time to stop, for `seconds` at most; returns whether it is."""
        deadline = float("inf") if seconds is None else time.monotonic() + seconds
        while not self.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._event.wait(min(left, _BEAT_SECONDS))
        return True

    @property
    def doing(self) -> str:
        """What the node does: "starting", "running", "saving"."""
        return self._doing

    @doing.setter
    def doing(self, what: str) -> None:
        with self._asked_lock:
            self._doing = what
            if (thread := threading.get_ident()) in self._asked:  # else one that hangs looks alive at each save
                self._asked[thread] = time.monotonic()

    @property
    def facts(self) -> dict[str, Any]:
        """What `note` kept."""
        return dict(self._facts)

    def note(self, **facts: Any) -> None:
        """Keeps facts for the launcher, in types that JSON can hold; they go with the next sign of life."""
        self._facts |= facts

    def send(self, patience_seconds: float = 0.0) -> None:
        """Sends a sign of life, if there is a launcher to hear it; waits for room in its socket for so long."""
        if self._socket is None:
            return
        deadline = time.monotonic() + patience_seconds
        with self._send_lock, contextlib.suppress(OSError, KeyError):  # the launcher is gone, or busy
            message = self._message()  # in here: what is sent later is newer
            while True:
                try:
                    self._socket.sendto(message, "\0" + os.environ[ADDRESS_VARIABLE])
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(0.02)

    def _message(self) -> bytes:
        with self._asked_lock:
            asked = min(self._asked.values())
        beat = dict(
            name=self.name, age=time.monotonic() - asked, doing=self._doing, rss_mb=_resident_mb(),
            facts=dict(self._facts),
        )  # fmt: skip
        message = json.dumps(beat, ensure_ascii=False).encode(errors="replace")
        if len(message) > _MAX_BYTES:  # cut short it would be no sign of life at all
            short = {name: value for name, value in self._facts.items() if len(str(value)) < 1000}
            message = json.dumps(beat | dict(facts=short)).encode(errors="replace")
        return message

    def beat(self, each_second=lambda: None) -> None:
        """Starts a thread that sends a sign of life and calls `each_second`, every second from now on."""

        def loop():
            while True:
                self.send()
                each_second()
                time.sleep(_BEAT_SECONDS)

        threading.Thread(target=loop, name="signs of life", daemon=True).start()


class Node(NamedTuple):
    """What is known of a node."""

    silent_seconds: float  # since its loop last asked whether to stop
    is_frozen: bool  # nothing at all was heard of its process for a while
    doing: str
    rss_mb: float
    facts: dict[str, Any]


class _Heard(NamedTuple):
    at: float  # when something was heard last
    active: float  # when its loop last asked
    doing: str
    rss_mb: float
    facts: dict[str, Any]


class Listener:
    """Listens to the nodes of one launch from its creation on, and to processes of the same user only."""

    def __init__(self):
        self.address = f"impala-beats-{os.getpid()}-{os.urandom(8).hex()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind("\0" + self.address)
        self._socket.settimeout(_BEAT_SECONDS)
        self._began, self._heard, self._lock = time.monotonic(), {}, threading.Lock()
        self._started: dict[str, float] = {}  # by node: when its process was last started
        self._looked, self._is_to_close = self._began, False
        threading.Thread(target=self._listen, name="signs of life", daemon=True).start()

    def node(self, name: str) -> Node:
        """Returns what is known of a node; one never heard has been silent since its start."""
        with self._lock:
            now = time.monotonic()
            self._skip_pause(now)
            began = self._started.get(name, self._began)
            heard = self._heard.get(name) or _Heard(began, began, "starting", 0.0, {})
        return Node(now - heard.active, now - heard.at > FROZEN_SECONDS, heard.doing, heard.rss_mb, heard.facts)

    def has_heard(self, name: str) -> bool:
        """Returns whether the node gave a sign of life since it was last started."""
        return name in self._heard

    def begin_anew(self, name: str) -> None:
        """Forgets what was heard of a node, whose process is started now."""
        with self._lock:
            self._heard.pop(name, None)
            self._started[name] = time.monotonic()

    def close(self) -> None:
        """Stops listening, once a second has passed in which nothing came."""
        self._is_to_close = True

    def _listen(self) -> None:
        while True:
            try:
                message, ancillary, *_ = self._socket.recvmsg(_MAX_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
            except TimeoutError:
                if self._is_to_close:
                    return self._socket.close()
                message = None
            with self._lock:
                now = time.monotonic()
                self._skip_pause(now)
                self._looked = now
                if message and _is_of_this_user(ancillary):
                    with contextlib.suppress(ValueError, KeyError, TypeError):
                        said = json.loads(message)
                        name, age = str(said["name"]), max(0.0, float(said["age"]))
                        # If the node was stopped together with us, its age contains the pause: do not count it.
                        heard, began = self._heard.get(name), self._started.get(name, self._began)
                        active = max(now - age, heard.active if heard else began)
                        self._heard[name] = _Heard(
                            now, active, str(said["doing"]), float(said["rss_mb"]), dict(said["facts"])
                        )

    def _skip_pause(self, now: float) -> None:
        """Leaves out time in which this process itself was stopped (Ctrl-Z), and could hear nobody."""
        pause = now - self._looked
        if pause > _PAUSE_SECONDS:
            self._began += pause
            self._started = {name: began + pause for name, began in self._started.items()}
            self._heard = {
                name: heard._replace(at=heard.at + pause, active=heard.active + pause)
                for name, heard in self._heard.items()
            }
            self._looked = now


def _is_of_this_user(ancillary) -> bool:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) == _CREDENTIALS.size:
            return _CREDENTIALS.unpack(data)[1] == os.getuid()
    return False


def _resident_mb() -> float:
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return 0.0
