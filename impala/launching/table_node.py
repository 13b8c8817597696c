"""A Launchpad node that serves Reverb tables.

`lp.ReverbNode` does the same, but importing it brings TensorFlow (420 MB, several seconds) into the launcher.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import launchpad as lp
from launchpad.nodes import base

from impala.launching import processes, roles
from impala.launching.keeping import Keeper

_NUM_UNANSWERED = 30  # looks, of 5 to 10 s each, before a server that does not answer is taken for dead
_LOOK_SECONDS, _NUM_LOOKS = 5.0, 6  # a table whose worker stands still for so many looks in a row is dead


class TableHandle(base.Handle):
    """Becomes a `reverb.Client` in the node that it is handed to."""

    def __init__(self, address: lp.Address):
        self._address = address

    def dereference(self):
        import reverb

        return reverb.Client(self._address.resolve())


class TableNode(lp.PyNode):
    """Serves what `make_tables` returns until the program stops.

    Args:
      index: of this server.
      keeper: keeps a copy on disk, which is read at the start and written at its period and at the end; None: no copy.
      outlives_learners: what it holds is as good for a learner that starts again, from an older checkpoint.
    """

    def __init__(
        self, make_tables: Callable[[], Sequence], index: int = 0, *, keeper: Keeper | None = None,
        outlives_learners: bool = False,
    ):  # fmt: skip
        super().__init__(self.run)
        self._make_tables, self._index, self._keeper = make_tables, index, keeper
        self._outlives_learners = outlives_learners
        self._address = lp.Address("reverb")
        self.allocate_address(self._address)

    def create_handle(self) -> TableHandle:
        return self._track_handle(TableHandle(self._address))

    def run(self) -> None:
        stop = processes.prepare(roles.TABLE, self._index)
        stop.note(outlives_learners=self._outlives_learners)
        import reverb

        port = lp.get_port_from_address(self._address.resolve())
        processes.check_port_is_free(port)  # two Reverb servers on one port both start and share the connections
        workers = Workers()
        if self._keeper is None:
            server = reverb.Server(self._make_tables(), port=port)
            processes.begin(stop)
            self._watch(server, workers, stop, float("inf"))
        else:
            stop.doing = "saving"  # reading what was saved may take as long
            server, words = self._keeper.serve(self._make_tables, port)
            stop.note(says=words)
            processes.begin(stop)
            self._keep(server, workers, stop)
        server.stop()
        processes.finish()

    def _watch(self, server, workers: "Workers", stop, seconds: float) -> bool:
        """Waits for `seconds`, or until it is time to stop; returns whether it is. Ends the node if a table is dead."""
        client, deadline, num_unanswered = server.localhost_client(), time.monotonic() + seconds, 0
        while (left := deadline - time.monotonic()) > 0:
            if stop.wait(min(left, _LOOK_SECONDS)):
                return True
            try:
                tables = client.server_info(timeout=int(_LOOK_SECONDS))
            except Exception as error:  # the machine is busy, or the process was stopped meanwhile
                logging.warning("the table server did not answer its own process: %s", error)
                num_unanswered += 1
                if num_unanswered >= _NUM_UNANSWERED:
                    self._end(stop, f"the table server did not answer its own process {num_unanswered} times in a row")
                continue
            num_unanswered = 0
            if name := workers.dead(tables):
                self._end(stop, f"nothing goes into or out of the table {name!r} any more (docs/reliability.md)")
        return False

    def _end(self, stop, words: str) -> None:
        stop.note(says=[words])
        processes.finish(processes.EXIT_TRY_AGAIN, words)

    def _keep(self, server, workers: "Workers", stop) -> None:
        """Copies the tables to disk at the keeper's period and at the end; tells the launcher if that fails."""
        is_last = False
        while not is_last:
            is_last = self._watch(server, workers, stop, self._keeper.seconds)
            stop.doing = "saving"
            error = self._keeper.save(server)
            stop.doing = "running"
            stop.note(copy_error=error)


class Workers:
    """Finds tables whose worker, the thread that inserts and samples, has ended.

    One priority below 0, written to Reverb's port, ends the worker of a prioritised table. All later calls wait for
    ever, while `server_info` answers: it counts time in which the worker runs and does nothing that it counts.
    """

    def __init__(self):
        self._last: dict[str, tuple] = {}
        self._unchanged: dict[str, int] = {}

    def dead(self, tables: Mapping[str, Any]) -> str | None:
        """Returns the name of a dead table, if there is one; `tables` is what `server_info` returned just now."""
        for name, info in tables.items():
            spent, limiter = info.table_worker_time, info.rate_limiter_info
            done = (
                spent.sampling_ms, spent.inserting_ms, spent.sleeping_ms, spent.waiting_for_sampling_ms,
                spent.waiting_for_inserts_ms, limiter.insert_stats.completed, limiter.sample_stats.completed,
            )  # fmt: skip
            self._unchanged[name] = self._unchanged.get(name, 0) + 1 if self._last.get(name) == done else 0
            self._last[name] = done
        return next((name for name, count in self._unchanged.items() if count >= _NUM_LOOKS), None)
