"""Ports that wait for their nodes."""

import socket

import pytest

from impala.launching import ports
from impala.launching.rpc.client import Client
from impala.launching.rpc.server import Server


@pytest.fixture
def holder():
    holder = ports.Holder()
    yield holder
    holder.close()


def test_a_held_port_is_its_nodes_alone_before_it_starts_and_between_two_starts(holder):
    port = holder.take()
    for _ in range(2):  # the node is started again
        with socket.socket() as other, pytest.raises(OSError):
            other.bind(("127.0.0.1", port))
        node = Server(port=port)
        node.Bind("answer", lambda: 42)
        node.Start()
        assert Client(ports.Local(port).build()).answer() == 42
        second = Server(port=port)
        with pytest.raises(RuntimeError, match=f"port {port} is in use"):
            second.Start()
        node.Stop()
        node.Join()
    assert holder.take() != port


def test_the_first_free_one_of_a_range_is_taken_and_none_given_twice(holder):
    first = holder.take()
    holder.close()
    assert holder.take([first]) == first
    with pytest.raises(OSError, match="no port is free"):
        holder.take([first])
