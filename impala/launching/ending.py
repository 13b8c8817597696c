"""Ends the nodes of a program in order, wherever their processes are."""

import signal
import time
from collections.abc import Callable, Collection
from typing import Protocol

from impala.launching import beats
from impala.launching.processes import GRACE_SECONDS
from impala.launching.roles import Roles

HANGING_SECONDS = 4.0  # to end a node that has nothing to save; twice that for a frozen learner
_GIVING_UP_SECONDS = 5.0  # after SIGKILL


class Unreachable(RuntimeError):
    """What the nodes are reached by is gone; what is left of them ends by itself."""


class Endable(Protocol):
    """What is needed of nodes to end them."""

    roles: Roles

    def left(self) -> list[str]: ...
    def node(self, name: str) -> beats.Node: ...
    def has_heard(self, name: str) -> bool: ...
    def signal(self, name: str, *numbers: int) -> None: ...
    def kill(self, name: str | None = None) -> None: ...


def in_turns(nodes: Endable, should_kill: Callable[[], bool], spared: Collection[str] = ()) -> None:
    """Ends nodes but those `spared` with SIGTERM, in turns; kills those that take too long, or all on `should_kill`."""
    for turn in nodes.roles.turns():
        members = [name for name in nodes.left() if nodes.roles.of(name).turn == turn and name not in spared]
        seconds = {name: _seconds_to_end(nodes, name) for name in members}
        deadlines = {name: time.monotonic() + seconds[name] for name in members}
        for name in members:
            nodes.signal(name, signal.SIGTERM, signal.SIGCONT)  # a stopped process could not handle SIGTERM
            # Still importing, with signals blocked: it has nothing to save.
            if nodes.roles.of(name).tells and not nodes.has_heard(name):
                nodes.signal(name, signal.SIGKILL)
        given_up: set[str] = set()
        while members := [name for name in nodes.left() if name in deadlines and name not in given_up]:
            if should_kill():
                return nodes.kill()
            if any(_is_saving(nodes.node(name)) for name in members):  # a slow disk; peers wait for the one that writes
                deadlines = {name: time.monotonic() + seconds[name] for name in members}
            for name in members:  # only these roles: the learner, which comes later, still has a checkpoint to write
                late = time.monotonic() - deadlines[name]
                if late > _GIVING_UP_SECONDS:  # its host does not answer, or the kernel keeps it
                    given_up.add(name)
                    nodes.kill(name)
                elif late > 0:
                    nodes.signal(name, signal.SIGKILL)
            time.sleep(0.05)


def _seconds_to_end(nodes: Endable, name: str) -> float:
    if not nodes.roles.of(name).is_head:
        return HANGING_SECONDS
    return 2 * HANGING_SECONDS if nodes.node(name).is_frozen else GRACE_SECONDS  # an update may take its time


def _is_saving(node: beats.Node) -> bool:
    return node.doing == "saving" and not node.is_frozen
