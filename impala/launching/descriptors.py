"""File descriptors: a process may have thousands, more than `select.select` can ask about."""

import resource
import select
import socket

_MOST = 65_536


def raise_limit() -> None:
    """Lets this process, and those that it starts, have as many as the system allows, up to 65,536.

    A server of central inference has two for each lane, and many systems begin with a limit of 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(_MOST, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def can_read(one: socket.socket, seconds: float) -> bool:
    """Returns whether something can be read, or the other side is gone, within `seconds`."""
    return _is_ready(one, select.POLLIN, seconds)


def can_write(one: socket.socket) -> bool:
    """Returns whether something can be written now."""
    return _is_ready(one, select.POLLOUT, 0.0)


def _is_ready(one: socket.socket, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(one, event)
    return bool(poll.poll(1000.0 * seconds))
