"""Runs a program in threads of this process, for debugging."""

import faulthandler
import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

from impala.launching import beats, rpc, stopping
from impala.launching.ending import HANGING_SECONDS
from impala.launching.processes import GRACE_SECONDS
from impala.launching.roles import Roles


class Threads:
    """The nodes of a program as threads of this process; like `Processes`, but none can be killed or started again."""

    can_start_again, keeps_addresses, wants_end = False, False, False  # see `supervising.Nodes`

    def __init__(self, manager, roles: Roles, listener: beats.Listener):
        self._manager, self.roles, self._listener = manager, roles, listener
        self._futures = {
            f"{label}/{index}": worker.future
            for label, workers in manager._active_workers.items()
            for index, worker in enumerate(workers)
        }

    def names(self) -> list[str]:
        """Returns the names of all nodes."""
        return list(self._futures)

    def places(self) -> str:
        """Returns nothing: all nodes run in this process."""
        return ""

    def words(self) -> list[str]:
        """Returns nothing: all nodes run in this process."""
        return []

    def nodes(self) -> dict[str, beats.Node]:
        """Returns what is known of every node that has not returned."""
        return {name: self.node(name) for name in self.left()}

    def node(self, name: str) -> beats.Node:
        """Returns what was last known of a node."""
        return self._listener.node(name)

    def dump_stacks(self, names: Collection[str]) -> None:
        """Writes the stacks of all threads to standard error."""
        faulthandler.dump_traceback(all_threads=True)

    def ended(self) -> dict[str, int]:
        """Returns the status of every node that returned; raises what a node raised."""
        done = {name: future for name, future in self._futures.items() if future.done()}
        for future in done.values():
            if not isinstance(future.exception(), stopping.Stopped):
                future.result()
        return {name: self.node(name).facts.get("status", 0) for name in done}

    def stop(self, should_kill: Callable[[], bool] = lambda: False) -> None:
        """Asks all nodes to stop and waits for them; for those with the weights longer than for others."""
        self._manager.stop_event().set()
        began = time.monotonic()
        while (left := self.left()) and not should_kill():  # if one failed: the learner still saves
            patience = GRACE_SECONDS if self.roles.heads(left) else HANGING_SECONDS
            if time.monotonic() - began > patience:
                return
            time.sleep(0.05)
        time.sleep(0.2)  # for the facts that they sent last

    def left(self) -> list[str]:
        """Returns the names of the nodes that have not returned: only the end of the process ends them."""
        return [name for name, future in self._futures.items() if not future.done()]

    def start_due(self, new_incarnation: Callable[[str], int]) -> None:
        """Does nothing: no thread is started again."""

    def log(self, name: str) -> None:
        """Returns None: threads write to the standard error of the process."""

    def kill(self, name: str | None = None) -> None:
        """Does nothing: a thread ends with its process."""


def launch(program, folder: Path, roles: Roles) -> Threads:
    """Launches `program` in threads of this process, for debugging; slower, since they share the interpreter."""
    import launchpad as lp

    rpc.use_new_token(folder / "token")
    _keep_signals()
    listener = beats.Listener()
    os.environ[beats.ADDRESS_VARIABLE] = listener.address
    manager = lp.launch(program, "local_mt")
    return Threads(manager, roles, listener)


def _keep_signals() -> None:
    """Makes Launchpad believe that its handlers are installed: the real ones end all nodes and the launcher at once."""
    from launchpad.launch import worker_manager

    numbers = [signal.SIGTERM, signal.SIGQUIT, signal.SIGINT, signal.SIGALRM, signal.SIGUSR1]
    worker_manager._SIGNAL_HANDLERS = {number: set() for number in numbers}
