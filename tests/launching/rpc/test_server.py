"""Starting, stopping, binding; ports that are taken; tokens; threads."""

import os
import socket
import stat
import subprocess
import sys
import threading
import time

import grpc
import portpicker
import pytest

from impala.launching import rpc
from impala.launching.rpc.client import Client, StatusCode, StatusNotOk, list_methods
from impala.launching.rpc.connection import CALL_PATH
from impala.launching.rpc.pool import DaemonPool
from impala.launching.rpc.server import Server


def test_methods_can_be_bound_rebound_and_unbound_at_any_time(server, client):
    with pytest.raises(StatusNotOk, match="method late not found") as caught:
        client.late()
    assert caught.value.code is StatusCode.NOT_FOUND
    server.Bind("late", lambda: 1)
    assert client.late() == 1
    server.Bind("late", lambda: 2)
    assert client.late() == 2
    server.Unbind("late")
    server.Unbind("late")
    with pytest.raises(StatusNotOk, match="method late not found"):
        client.late()


def test_the_star_serves_what_is_not_bound(server, client):
    server.Bind("*", lambda *args: ("star", *args))
    assert client.whatever(1) == ("star", 1)
    assert client.echo(1) == 1


def test_a_handler_that_is_falsy_is_a_handler(server, client):
    class Falsy(list):
        def __call__(self):
            return "served"

    server.Bind("falsy", Falsy())
    assert client.falsy() == "served"


def test_what_cannot_be_bound():
    server = Server()
    with pytest.raises(ValueError, match="name"):
        server.Bind("", print)
    with pytest.raises(TypeError, match="not callable"):
        server.Bind("x", 3)


def test_the_order_of_start_stop_and_join():
    server = Server()
    assert not server.has_started
    for call, message in (
        (server.Stop, "Server not started yet"),
        (server.Join, "Server not started"),
        (lambda: server.SetIsHealthy(True), "not started"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    server.Start()
    assert server.has_started
    with pytest.raises(ValueError, match="Server already started"):
        server.Start()
    server.SetIsHealthy(False)
    server.Stop()
    server.Stop()
    server.Join()
    assert server.has_started
    with pytest.raises(ValueError, match="Server already started"):
        server.Start()


def test_stop_lets_calls_in_flight_finish(monkeypatch):
    monkeypatch.setattr("impala.launching.rpc.server.STOP_GRACE_SECONDS", 5.0)
    server = Server()
    started = threading.Event()

    def slow():
        started.set()
        time.sleep(0.5)
        return "finished"

    server.Bind("slow", slow)
    server.Start()
    future = Client(server.address, call_timeout=20).futures.slow()
    assert started.wait(20)
    server.Stop()
    assert future.result(20) == "finished"
    server.Join()


def test_a_handler_may_stop_its_server(server, client):
    server.Bind("stop", lambda: server.Stop() or "stopped")
    assert client.stop() == "stopped"
    server.Join()


def test_join_does_not_wait_for_a_stuck_handler():
    server, release = Server(), threading.Event()
    server.Bind("stuck", release.wait)
    server.Start()
    Client(server.address, call_timeout=1).futures.stuck()
    time.sleep(0.2)
    start = time.perf_counter()
    server.Stop()
    server.Join()
    assert time.perf_counter() - start < 5
    release.set()


STUCK = """
import threading
from impala.launching.rpc.client import Client
from impala.launching.rpc.server import Server
server, started = Server(), threading.Event()
server.Bind("stuck", lambda: started.set() or threading.Event().wait())
server.Start()
future = Client(server.address, call_timeout=60).futures.stuck()
assert started.wait(20)
"""


def test_a_stuck_handler_does_not_keep_its_process_alive():
    subprocess.run([sys.executable, "-c", STUCK], check=True, timeout=30)


def test_two_servers_on_one_port_are_refused(server):
    second = Server(port=server.port)
    with pytest.raises(RuntimeError, match=f"Failed to bind.*{server.port}.*in use"):
        second.Start()
    assert not second.has_started


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_with_another_listener_is_refused(host):
    with socket.create_server((host, 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(RuntimeError, match=str(port)):
            Server(port=port).Start()


def test_a_port_is_free_again_after_stop():
    port = portpicker.pick_unused_port()
    for _ in range(3):
        server = Server(port=port)
        server.Bind("get", lambda: 1)
        server.Start()
        assert Client(server.address, call_timeout=20).get() == 1
        server.Stop()
        server.Join()


def test_the_port_is_picked_when_none_is_given():
    server = Server()
    assert 0 < server.port < 65536 and server.address == f"localhost:{server.port}"


def test_by_default_other_hosts_cannot_reach_the_server(server):
    listening = {
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        if os.path.exists(table)
        for line in open(table).read().splitlines()[1:]
        if line.split()[3] == "0A"
    }
    of_this_port = [address for address in listening if int(address.rpartition(":")[2], 16) == server.port]
    assert all("0100007F:" in address for address in of_this_port)  # 127.0.0.1, or ::ffff:127.0.0.1
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", server.port), timeout=2).close()


@pytest.mark.parametrize("from_environment", [False, True])
def test_the_interface_can_be_chosen(monkeypatch, from_environment):
    if from_environment:
        monkeypatch.setenv("IMPALA_RPC_BIND_ADDRESS", "127.0.0.2")
    server = Server() if from_environment else Server(address="127.0.0.2")
    server.Bind("get", lambda: 1)
    server.Start()
    assert server.address == f"127.0.0.2:{server.port}"
    assert Client(server.address, call_timeout=20).get() == 1
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=2).close()
    server.Stop()


def test_the_pool_bounds_the_handlers_at_once():
    server, running, most = Server(thread_pool_size=3), [], []

    def work():
        running.append(1)
        most.append(len(running))
        time.sleep(0.05)
        running.pop()

    server.Bind("work", work)
    server.Start()
    client = Client(server.address, call_timeout=20)
    for future in [client.futures.work() for _ in range(12)]:
        future.result(20)
    assert max(most) == 3
    server.Stop()


def test_pool_threads_are_daemons_and_end_with_the_pool():
    pool = DaemonPool(4, name="pool-of-this-test")
    assert [pool.submit(pow, 2, i).result(5) for i in range(10)] == [2**i for i in range(10)]
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result(5)

    def threads():
        return [t for t in threading.enumerate() if t.name.startswith("pool-of-this-test")]

    assert threads() and all(thread.daemon for thread in threads())
    del pool
    deadline = time.monotonic() + 5
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not threads()


def test_a_token_is_fresh_private_and_never_overwrites(tmp_path):
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        rpc.new_token(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert len(bytes.fromhex(path.read_text())) == 32
    assert paths[0].read_text() != paths[1].read_text()
    (tmp_path / "trap").symlink_to(tmp_path / "target")
    for taken in (paths[0], tmp_path / "trap"):
        with pytest.raises(FileExistsError):
            rpc.new_token(taken)


@pytest.fixture
def token_file(tmp_path, monkeypatch):
    path = tmp_path / "token"
    rpc.new_token(path)
    monkeypatch.setenv("IMPALA_RPC_TOKEN_FILE", str(path))
    return path


def test_who_holds_the_token_may_call(token_file, server, client):
    assert client.echo(1) == 1
    assert client.futures.echo(2).result(20) == 2
    assert "echo" in list_methods(client)


@pytest.mark.parametrize("kind", ["none", "wrong", "prefix", "not ASCII"])
def test_who_does_not_hold_it_may_not(token_file, server, tmp_path, monkeypatch, kind):
    token = token_file.read_text()
    given = {"none": None, "wrong": token[::-1], "prefix": token[:-1], "not ASCII": b"\xff\xfe"}[kind]
    metadata = [] if given is None else [("impala-token", given)]
    called = threading.Event()
    server.Bind("*", called.set)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        for path in (CALL_PATH, CALL_PATH.replace("Call", "ListMethods"), "/courier.CourierService/Other"):
            with pytest.raises(Exception) as caught:
                channel.unary_unary(path)(b"\x01N", metadata=metadata, timeout=20)
            if kind != "not ASCII":  # which grpcio does not even send
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
                assert token not in str(caught.value)
    assert not called.is_set()


@pytest.mark.parametrize("is_future", [False, True], ids=["blocking", "future"])
def test_a_client_without_token_is_told_so_and_does_not_repeat(token_file, server, monkeypatch, is_future):
    monkeypatch.delenv("IMPALA_RPC_TOKEN_FILE")
    client = Client(server.address, call_timeout=20)
    start = time.perf_counter()
    with pytest.raises(StatusNotOk, match="IMPALA_RPC_TOKEN_FILE") as caught:
        client.futures.echo(1).result(20) if is_future else client.echo(1)
    assert caught.value.code is StatusCode.UNAUTHENTICATED
    assert time.perf_counter() - start < 2


def test_a_stranger_is_refused_before_the_message_is_read(token_file, server):
    def message_that_never_comes():
        end.wait(20)
        yield b""

    end = threading.Event()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.stream_unary(CALL_PATH)(message_that_never_comes(), timeout=5)
        end.set()
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("content", [None, "", "short", "x" * 40 + "\n\0" + "x" * 40])
def test_a_token_file_without_token_is_an_error_and_not_an_open_door(tmp_path, monkeypatch, content):
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("IMPALA_RPC_TOKEN_FILE", str(path))
    server = Server()
    with pytest.raises(RuntimeError, match=f"IMPALA_RPC_TOKEN_FILE={path}"):
        server.Start()
    with pytest.raises(RuntimeError, match=f"IMPALA_RPC_TOKEN_FILE={path}"):
        Client(server.address, call_timeout=1).get()
