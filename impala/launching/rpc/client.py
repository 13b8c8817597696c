"""Client of an RPC server: any attribute is a remote method.

    client = Client("localhost:20000", call_timeout=30)
    weights = client.get_weights(since=3)
    future = client.futures.get_weights(since=3)

Failures on the way or on the server are raised as StatusNotOk.
"""

import datetime
import functools
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

from impala.launching.rpc.connection import Connection
from impala.launching.rpc.status import StatusCode, StatusNotOk

__all__ = ["Client", "StatusCode", "StatusNotOk", "list_methods"]


class Client:
    """Calls the methods of a server as if they were its own.

    With `wait_for_ready`, a call whose server is away is repeated until its deadline, and its method may run
    twice: methods must be idempotent or carry a request id.
    """

    def __init__(
        self,
        server_address: str,
        compress: bool = False,
        call_timeout: float | datetime.timedelta | None = None,
        wait_for_ready: bool = True,
        chunk_tensors: bool = False,
        *,
        stop_event: threading.Event | None = None,
    ):
        """Describe a server; nothing is opened before the first call.

        Args:
          server_address: "host:port".
          compress: deflate requests and replies.
          call_timeout: seconds that a call may take, waiting and repeating included; None and 0 are no limit.
          wait_for_ready: wait for a server that is away; otherwise such calls fail at once with UNAVAILABLE.
          chunk_tensors: ignored, as in courier.
          stop_event: once set, waiting calls raise StatusNotOk with CANCELLED. Not pickled.

        Raises:
          ValueError: a negative timeout.
        """
        self._init_args = (server_address, compress, call_timeout, wait_for_ready)
        self._connection = Connection(
            str(server_address),
            timeout_seconds=_seconds(call_timeout),
            wait_for_ready=wait_for_ready,
            compress=compress,
            stop_event=stop_event,
        )
        self._futures = _AsyncClient(self._connection)

    def __reduce__(self):
        return type(self), self._init_args

    def __repr__(self) -> str:
        return f"Client({self.address!r})"

    @property
    def address(self) -> str:
        """The address as it was given."""
        return self._connection.address

    @property
    def futures(self) -> "_AsyncClient":
        """The same methods, each returning a concurrent.futures.Future."""
        return self._futures

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._connection.call("__call__", *args, **kwargs)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        _refuse_private(self, method)
        call = functools.partial(self._connection.call, method)
        setattr(self, method, call)
        return call


class _AsyncClient:
    """`Client.futures`."""

    def __init__(self, connection: Connection):
        self._connection = connection

    def __call__(self, /, *args: Any, **kwargs: Any) -> futures.Future:
        return self._connection.start("__call__", *args, **kwargs)

    def __getattr__(self, method: str) -> Callable[..., futures.Future]:
        _refuse_private(self, method)
        return functools.partial(self._connection.start, method)


def list_methods(client: Client) -> list[str]:
    """List the methods that a server offers.

    Raises:
      StatusNotOk: there is no answer within 10 seconds, or it is an error.
    """
    return client._connection.list_methods()


def _refuse_private(owner: Any, name: str) -> None:
    # copy, pickle, dm-tree, IPython probe objects for such names, and would mistake an RPC for the answer.
    if name.startswith("_"):
        raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")


def _seconds(timeout: float | datetime.timedelta | None) -> float | None:
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
    if seconds is not None and seconds < 0:
        raise ValueError(f"call_timeout is {timeout}; it must not be negative")
    return seconds or None
