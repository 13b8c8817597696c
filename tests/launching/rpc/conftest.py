"""A server with a few methods, and a client of it."""

import pytest

from impala.launching.rpc import server as rpc_server
from impala.launching.rpc.client import Client
from impala.launching.rpc.server import Server


@pytest.fixture(autouse=True)
def _no_settings_of_the_outside(monkeypatch):
    for name in ("IMPALA_RPC_TOKEN_FILE", "IMPALA_RPC_BIND_ADDRESS", "IMPALA_RPC_MAX_BYTES", "RAY_USE_TLS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(rpc_server, "STOP_GRACE_SECONDS", 0.2)


@pytest.fixture
def server():
    server = Server()
    server.Bind("echo", lambda value: value)
    server.Bind("call", lambda *args, **kwargs: (args, kwargs))
    server.Start()
    yield server
    server.Stop()
    server.Join()


@pytest.fixture
def client(server):
    return Client(server.address, call_timeout=20)
