"""Memory of a run's processes, by role: measured on its machine, or heard from a cluster's nodes."""

import collections
import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import psutil

from impala.launching.roles import LIKE_LEARNERS

FILE_VARIABLE = "IMPALA_MEMORY"  # names the file in which the launcher of a cluster's nodes keeps what they take


def resident_mb(launcher_pid: int) -> dict[str, float]:
    """Returns resident megabytes of the launcher and its nodes, summed by role, and their `total`; {} if not known.

    On one machine nodes are the launcher's descendants, whose roles are their processes' names (`processes.prepare`):
    learner, actor, table and so on. On a cluster they are what the launcher has heard of its nodes.
    """
    memory: dict[str, float] = collections.defaultdict(float)
    measured = _read(Path(os.environ[FILE_VARIABLE])) if os.environ.get(FILE_VARIABLE) else _descendants(launcher_pid)
    for name, megabytes in measured:
        role = name.partition("/")[0]
        memory["learner" if role in LIKE_LEARNERS else role] += megabytes
        memory["total"] += megabytes
    return dict(memory)


def keep(path: Path, nodes_mb: Mapping[str, float]) -> None:
    """Writes what the nodes of a cluster take, {name: megabytes}, and this process, for `resident_mb`."""
    new = path.with_suffix(".new")
    with contextlib.suppress(OSError):  # a full disk costs these figures
        new.write_text(json.dumps({"launcher": _megabytes(psutil.Process()), **nodes_mb}))
        new.replace(path)


def _read(path: Path) -> list[tuple[str, float]]:
    try:
        return list(json.loads(path.read_text()).items())
    except (OSError, ValueError):  # not there yet, or not on this host
        return []


def _descendants(launcher_pid: int) -> list[tuple[str, float]]:
    try:
        launcher = psutil.Process(launcher_pid)
        processes = [(launcher, "launcher"), *((child, None) for child in launcher.children(recursive=True))]
    except psutil.Error:
        processes = [(psutil.Process(), "launcher")]
    found = []
    for process, name in processes:
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            found.append((name or process.name(), _megabytes(process)))
    return found


def _megabytes(process: psutil.Process) -> float:
    return process.memory_info().rss / 1e6
