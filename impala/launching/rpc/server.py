"""RPC server: offers Python callables by name, to callers who hold the run's token.

    server = Server(port=20000)
    server.Bind("add", lambda a, b: a + b)
    server.Start()

Handlers run in threads, several at once.
"""

import os
import threading
from collections.abc import Callable
from typing import Any

import grpc
import portpicker

from impala.launching.rpc import codec, tls, tokens
from impala.launching.rpc.batching import BatchedHandler
from impala.launching.rpc.pool import DaemonPool
from impala.launching.rpc.service import Service

BIND_ADDRESS_VARIABLE = "IMPALA_RPC_BIND_ADDRESS"
STOP_GRACE_SECONDS = 5.0

_HOSTS_OF_LOCALHOST = ("127.0.0.1", "localhost", "0.0.0.0", "::", "[::]")


class Server:
    """Serves what is bound to it, between `Start` and `Stop`; binding may change at any time."""

    def __init__(
        self,
        name: str | None = None,
        port: int | None = None,
        thread_pool_size: int = 16,
        address: str | None = None,
    ):
        """Describe a server; nothing is opened before `Start`.

        Args:
          name: ignored, as in courier.
          port: TCP port; a free one by default.
          thread_pool_size: maximum handlers at once, others wait; more than the batch size of a batched handler.
          address: interface to listen on; by default IMPALA_RPC_BIND_ADDRESS, else 127.0.0.1: this host.
        """
        self._port = portpicker.pick_unused_port() if port is None else port
        self._host = address or os.environ.get(BIND_ADDRESS_VARIABLE) or "127.0.0.1"
        self._thread_pool_size = thread_pool_size
        self._handlers: dict[str, Callable[..., Any]] = {}
        self._lock = threading.Lock()
        self._server: grpc.Server | None = None
        self._is_healthy = True

    @property
    def port(self) -> int:
        """The TCP port."""
        return self._port

    @property
    def address(self) -> str:
        """What a client on this machine calls, as "host:port"."""
        return f"localhost:{self._port}" if self._host in _HOSTS_OF_LOCALHOST else self._endpoint()

    @property
    def has_started(self) -> bool:
        """Whether `Start` has succeeded; it stays true."""
        return self._server is not None

    def Bind(self, method_name: str, py_func: Callable[..., Any]) -> None:
        """Offer a callable under a name; "*" serves every name that is not bound."""
        self.BindHandler(method_name, py_func)

    def BindHandler(self, method_name: str, handler: Callable[..., Any]) -> None:
        """Offer a handler (see batching.py) under a name, in place of what was there.

        Raises:
          ValueError: an empty name, or a batched handler that could hold every thread of the pool.
          TypeError: the handler is not callable.
        """
        if not method_name:
            raise ValueError("a method needs a name")
        if not callable(handler):
            raise TypeError(f"the handler of {method_name} is not callable: {handler!r}")
        if isinstance(handler, BatchedHandler) and handler.batch_size >= self._thread_pool_size:
            raise ValueError(
                f"{method_name} gathers {handler.batch_size} calls, each holding a thread; the server has "
                f"{self._thread_pool_size}: pass thread_pool_size={handler.batch_size + 8} or so"
            )
        with self._lock:
            self._handlers[method_name] = handler

    def Unbind(self, method_name: str) -> None:
        """Stop offering that name."""
        with self._lock:
            self._handlers.pop(method_name, None)

    def Start(self) -> None:
        """Open the port and serve.

        Raises:
          ValueError: the server was started before.
          RuntimeError: the port cannot be had, or the token file or one of TLS's cannot be read.
        """
        if self._server is not None:
            raise ValueError("Server already started")
        service = Service(self._lookup, self._names, tokens.read_token())
        pool = DaemonPool(self._thread_pool_size, name=f"rpc-{self._port}")
        server = grpc.server(pool, handlers=[service], options=_server_options())
        credentials = tls.server_credentials() if tls.is_on() else None
        try:
            self._port = (
                server.add_secure_port(self._endpoint(), credentials) if credentials
                else server.add_insecure_port(self._endpoint())
            )  # fmt: skip
        except RuntimeError as error:
            raise RuntimeError(
                f"Failed to bind {self._endpoint()}: port {self._port} is in use (see `ss -ltnp`), or "
                f"{self._host} is no address of this machine. gRPC says: {error}"
            ) from error
        server.start()
        self._server = server

    def Stop(self) -> None:
        """Take no more calls, and let those in flight go on for at most 5 seconds; returns at once.

        Raises:
          ValueError: the server is not started.
        """
        if self._server is None:
            raise ValueError("Server not started yet")
        self._server.stop(grace=STOP_GRACE_SECONDS)

    def Join(self) -> None:
        """Wait until the server has stopped.

        Raises:
          ValueError: the server is not started.
        """
        if self._server is None:
            raise ValueError("Server not started")
        self._server.wait_for_termination()

    def SetIsHealthy(self, is_healthy: bool) -> None:
        """Note whether the server wants calls; without a load balancer nobody asks.

        Raises:
          ValueError: the server is not started.
        """
        if self._server is None:
            raise ValueError("Cannot set health status; server not started.")
        self._is_healthy = is_healthy

    def _endpoint(self) -> str:
        is_bare_ipv6 = ":" in self._host and not self._host.startswith("[")
        return f"[{self._host}]:{self._port}" if is_bare_ipv6 else f"{self._host}:{self._port}"

    def _lookup(self, method_name: str) -> Callable[..., Any] | None:
        with self._lock:
            return self._handlers.get(method_name, self._handlers.get("*"))

    def _names(self) -> list[str]:
        with self._lock:
            return sorted(self._handlers)


def _server_options() -> list[tuple[str, int]]:
    return [
        # With gRPC's default, two servers silently share a port and its calls.
        ("grpc.so_reuseport", 0),
        # The codec has its own limit for what is sent; a message that comes is refused before it is in memory.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", codec.max_bytes()),
        # gRPC's decompression has no limit; the codec's has.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # Clients send keepalives every 20 s.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]
