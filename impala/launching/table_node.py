"""A Launchpad node that serves Reverb tables.

`lp.ReverbNode` does the same, but importing it brings TensorFlow (420 MB, several seconds) into the launcher.
"""

from collections.abc import Callable, Sequence

import launchpad as lp
from launchpad.nodes import base

from impala.launching import processes, roles
from impala.launching.keeping import Keeper


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
    """

    def __init__(self, make_tables: Callable[[], Sequence], index: int = 0, *, keeper: Keeper | None = None):
        super().__init__(self.run)
        self._make_tables, self._index, self._keeper = make_tables, index, keeper
        self._address = lp.Address("reverb")
        self.allocate_address(self._address)

    def create_handle(self) -> TableHandle:
        return self._track_handle(TableHandle(self._address))

    def run(self) -> None:
        stop = processes.prepare(roles.TABLE, self._index)
        import reverb

        port = lp.get_port_from_address(self._address.resolve())
        processes.check_port_is_free(port)  # two Reverb servers on one port both start and share the connections
        if self._keeper is None:
            server = reverb.Server(self._make_tables(), port=port)
            processes.begin(stop)
            stop.wait()
        else:
            server, words = self._keeper.serve(self._make_tables, port)
            stop.note(says=words)
            processes.begin(stop)
            self._keep(server, stop)
        server.stop()
        processes.finish()

    def _keep(self, server, stop) -> None:
        """Copies the tables to disk at the keeper's period and at the end; tells the launcher if that fails."""
        is_last = False
        while not is_last:
            is_last = stop.wait(self._keeper.seconds)
            stop.doing = "saving"
            error = self._keeper.save(server)
            stop.doing = "running"
            stop.note(copy_error=error)
