"""Nodes that wait for each other before TensorFlow does."""

import contextlib
import socket
import threading
import time
from concurrent import futures

import pytest

from impala.launching import peers
from impala.launching.peers import meet
from impala.launching.rpc import tokens
from tests.learning.test_groups import free_addresses


def never():
    return False


def test_all_meet_however_late_the_last_one_is():
    addresses = free_addresses(3)
    with futures.ThreadPoolExecutor() as pool:
        early = [pool.submit(meet, index, addresses, seconds=20, should_stop=never) for index in (0, 1)]
        time.sleep(1.0)
        assert not any(future.done() for future in early)
        assert meet(2, addresses, seconds=20, should_stop=never)
        assert all(future.result(timeout=5) for future in early)
    for address in addresses:  # free for the servers to come
        socket.create_server(("", int(address.rpartition(":")[2]))).close()


def test_those_who_are_missing_are_named():
    addresses = free_addresses(4)
    with futures.ThreadPoolExecutor() as pool:
        waiting = [pool.submit(meet, index, addresses, seconds=2, should_stop=never) for index in (0, 2)]
        for future in waiting:
            with pytest.raises(TimeoutError, match=f"no answer from 1 at {addresses[1]}, 3 at {addresses[3]} within 2 s"):
                future.result(timeout=10)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("words", [b"", b"\0\0\0\1", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_stranger_is_nobody(index, words):
    """Even where somebody listens at the other's address."""
    addresses = free_addresses(2)
    ports = [int(address.rpartition(":")[2]) for address in addresses]
    with futures.ThreadPoolExecutor() as pool, socket.create_server(("", ports[1 - index])):
        waiting = pool.submit(meet, index, addresses, seconds=1.5, should_stop=never)
        while True:
            try:
                with socket.create_connection(("localhost", ports[index])) as stranger:
                    stranger.sendall(words)
                break
            except ConnectionRefusedError:  # it does not listen yet
                assert not waiting.done()
        with pytest.raises(TimeoutError, match=f"no answer from {1 - index} at"):
            waiting.result(timeout=10)


def test_strangers_that_say_nothing_hold_up_nobody():
    addresses = free_addresses(2)
    with futures.ThreadPoolExecutor() as pool, contextlib.ExitStack() as stack:
        early = pool.submit(meet, 0, addresses, seconds=60, should_stop=never)
        strangers = []
        while len(strangers) < 20:
            with contextlib.suppress(ConnectionRefusedError):
                strangers.append(stack.enter_context(socket.create_connection(("localhost", int(addresses[0].rpartition(":")[2])))))
        strangers[0].sendall(b"imp")
        began = time.monotonic()
        assert meet(1, addresses, seconds=60, should_stop=never) and early.result(timeout=60)
        assert time.monotonic() - began < 20, "5 s for each of them"


def test_a_greeting_needs_the_runs_token(tmp_path, monkeypatch):
    forged, addresses = peers._greeting(1), free_addresses(2)
    tokens.new_token(tmp_path / "token")
    monkeypatch.setenv(tokens.TOKEN_FILE_VARIABLE, str(tmp_path / "token"))
    ports = [int(address.rpartition(":")[2]) for address in addresses]
    assert (tmp_path / "token").read_bytes() not in peers._greeting(1)
    for greeting, is_heard in ((forged, False), (len(peers._greeting(1)) * b"x", False), (peers._greeting(1), True)):
        with futures.ThreadPoolExecutor() as pool, socket.create_server(("", ports[1])):  # who is greeted
            waiting = pool.submit(meet, 0, addresses, seconds=1.5, should_stop=never)
            while not waiting.done():
                with contextlib.suppress(OSError), socket.create_connection(("localhost", ports[0])) as caller:
                    caller.sendall(greeting)
                    caller.shutdown(socket.SHUT_WR)
                    caller.recv(1)
            assert (waiting.exception(10) is None) == is_heard


def test_it_hears_the_stop_signal():
    stop = threading.Event()
    with futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(meet, 0, free_addresses(2), seconds=60, should_stop=stop.is_set)
        time.sleep(0.3)
        stop.set()
        assert waiting.result(timeout=3) is False
