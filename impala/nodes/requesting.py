"""How a node asks another one: through shared memory on one host, over RPC between two."""

import functools
from collections.abc import Callable


def request_to(
    client, method: str, name: tuple[int, ...], fields: Callable[[], tuple[list, list]], *, transport: str,
    should_stop: Callable[[], bool],
) -> Callable:  # fmt: skip
    """Returns the configured way to call a node's `method`.

    Args:
      client: RPC client of the node, whose RPC `address` returns a shared-memory address.
      name: of the caller, the RPC's first argument.
      fields: () → (shape, dtype) of each array that is sent, and of each that comes back.
      transport: "rpc" or "shared_memory"; over RPC, too, if the node is on another host.
      should_stop: asked while waiting for the address; True raises `acting.remote.Stopped`.
    """
    from impala.acting import remote
    from impala.launching import shared_memory

    over_rpc = functools.partial(remote.over_rpc(getattr(client.futures, method)), tuple(name))
    if transport == "rpc":
        return over_rpc
    address = remote.result_of(remote.over_rpc(client.futures.address)(), should_stop)
    if not shared_memory.is_reachable(address):
        return over_rpc
    arguments, results = fields()
    return shared_memory.Caller(address, name, arguments=arguments, results=results)
