"""How much memory this machine, or the container that a process is in, has."""

import contextlib
from pathlib import Path

import psutil

_LIMITS = (  # of a container (cgroups of version 2 and 1), with what it uses already
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


def total_memory() -> int:
    """Returns the bytes that all processes here may take together."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _limits())])


def available_memory() -> int:
    """Returns the bytes that are left. Files in a container's cache count as used."""
    return min([psutil.virtual_memory().available, *(max(0, limit - used) for limit, used in _limits())])


def _limits() -> list[tuple[int, int]]:
    found = []
    for of_limit, of_use in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max" if there is no limit
            found.append((int(of_limit.read_text()), int(of_use.read_text())))
    return found
