"""A Launchpad node whose object others can call, but only by the methods that its class names.

`lp.CourierNode` serves every public method of its object: anybody with the run's token could call `run` or `step` and
train a second time.
"""

import launchpad as lp

from impala.launching.rpc.server import Server


class RpcNode(lp.CourierNode):
    """An `lp.CourierNode` that serves the methods named in `RPCS`, a tuple in the class that is the constructor."""

    def __init__(self, constructor, *args, **kwargs):
        names = getattr(constructor, "RPCS", ())
        unknown = [name for name in names if name.startswith("_") or not callable(getattr(constructor, name, None))]
        if not names or unknown:
            said = f"names {', '.join(unknown)}" if unknown else "names none"
            raise TypeError(f"{constructor!r}: RPCS {said}; expected public methods of the class")
        super().__init__(constructor, *args, **kwargs)

    @property
    def instance(self):
        """The object, once it is made: for threads of this process, which may step it by hand."""
        return self._instance

    def run(self) -> None:
        """Makes the object and serves it while its `run` runs or, if that is disabled, until the program stops."""
        instance = self._construct_instance()
        server = Server(port=lp.get_port_from_address(self.courier_address.resolve()), **self._courier_kwargs)
        for name in instance.RPCS:
            server.Bind(name, getattr(instance, name))
        server.Start()
        try:
            if self._should_run:
                instance.run()
            else:
                lp.wait_for_stop()
        finally:
            server.Stop()
            server.Join()
