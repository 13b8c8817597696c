"""Mutual TLS: real certificates, and who is let in with which."""

import grpc
import pytest

from impala.launching.rpc.client import Client
from impala.launching.rpc.connection import CALL_PATH
from impala.launching.rpc.server import Server
from impala.launching.rpc.status import StatusCode, StatusNotOk
from tests.faults.certificates import make


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Ray's variables of two authorities that do not know each other."""
    return {name: make(tmp_path_factory.mktemp(name)) for name in ("ours", "theirs")}


@pytest.fixture
def use(certificates, monkeypatch):
    def use_those_of(name):
        for variable, value in certificates[name].items():
            monkeypatch.setenv(variable, value)

    return use_those_of


@pytest.fixture
def secured(use):
    use("ours")
    server = Server()
    server.Bind("echo", lambda value: value)
    server.Start()
    yield server
    server.Stop()
    server.Join()


def test_both_sides_show_a_certificate(secured):
    client = Client(secured.address, call_timeout=20)
    assert client.echo([1, "two"]) == [1, "two"]
    assert client.futures.echo(3).result(20) == 3


def test_who_shows_none_or_a_strangers_is_not_let_in(secured, use, certificates, monkeypatch):
    with grpc.insecure_channel(f"127.0.0.1:{secured.port}") as channel:
        with pytest.raises(grpc.RpcError):
            channel.unary_unary(CALL_PATH)(b"\x01N", timeout=5)
    use("theirs")
    for name in ("theirs", "ours"):  # the second trusts the server, and still has nothing to show
        client = Client(secured.address, call_timeout=3, wait_for_ready=False)
        if name == "ours":
            monkeypatch.setenv("RAY_TLS_CA_CERT", certificates["ours"]["RAY_TLS_CA_CERT"])
        with pytest.raises(StatusNotOk) as caught:
            client.echo(1)
        assert caught.value.code in (StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED)


@pytest.mark.parametrize("missing", ["RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT", "RAY_TLS_CA_CERT"])
def test_a_file_that_is_missing_is_said_and_nothing_is_opened(use, monkeypatch, missing):
    use("ours")
    monkeypatch.setenv(missing, "/nowhere/file.pem")
    with pytest.raises(RuntimeError, match=f"{missing}=/nowhere/file.pem cannot be read"):
        Server().Start()
    monkeypatch.delenv(missing)
    with pytest.raises(RuntimeError, match=f"{missing} is not; expected the path of a PEM file"):
        Client("localhost:1", call_timeout=1).get()
