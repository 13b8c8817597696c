"""Calls through a real socket: values, errors, futures, deadlines, servers that come late or never."""

import copy
import datetime
import gc
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
import weakref
from concurrent import futures

import grpc
import numpy as np
import portpicker
import pytest

from impala.launching.rpc import codec
from impala.launching.rpc.client import Client, StatusCode, StatusNotOk, list_methods
from impala.launching.rpc.connection import CALL_PATH
from impala.launching.rpc.server import Server
from tests.faults.figures import keep

DTYPES = ["?", "i1", "<i2", "<i8", "u1", "<u8", "<f2", "<f4", "<f8", "<c8", ">i4", ">f8", "S3", "<U3", ">U3"]


@pytest.fixture
def free_address():
    return f"localhost:{portpicker.pick_unused_port()}"


def raw_call(server, message, **options):
    """Send bytes of our own making."""
    with grpc.insecure_channel(f"127.0.0.1:{server.port}", **options) as channel:
        return channel.unary_unary(CALL_PATH)(message, timeout=20)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (0, 2), (2, 3)], ids=str)
def test_arrays_arrive(client, dtype, shape):
    array = np.ones(shape, dtype)
    result = client.echo(array)
    assert type(result) is type(array[()]) and result.shape == shape  # numpy's scalars have native byte order
    assert result.dtype == array[()].dtype and (result == array).all()


def test_a_hundred_megabytes_arrive(client):
    array = np.arange(12_500_000, dtype=np.int64)
    assert np.array_equal(client.echo(array), array)


def test_arguments_arrive_as_they_were_passed(client):
    args, kwargs = client.call(1, [2], (3,), b"4", a=None, b={"c": True})
    assert args == (1, [2], (3,), b"4") and kwargs == {"a": None, "b": {"c": True}}


def test_names_that_the_client_uses_itself_are_free_for_arguments(client):
    kwargs = {"self": 1, "method": 2, "args": 3, "timeout": 4}
    assert client.call(**kwargs) == ((), kwargs)
    assert client.futures.call(**kwargs).result(20) == ((), kwargs)


def test_calling_the_client_itself(server, client):
    server.Bind("__call__", lambda *args: ["called", *args])
    assert client(1) == ["called", 1]
    assert client.futures(2).result(20) == ["called", 2]


def test_compressed_calls(server):
    client = Client(server.address, compress=True, call_timeout=20)
    array = np.arange(10_000)
    assert np.array_equal(client.echo(array), array)


@pytest.mark.parametrize("value", [{1}, [object()], np.array([None])], ids=["set", "object", "object array"])
def test_unsupported_arguments_are_refused_before_anything_is_sent(free_address, value):
    client = Client(free_address)  # nobody is there, and there is no deadline: sending would wait for ever
    start = time.perf_counter()
    with pytest.raises(TypeError, match=r"args\[1\]"):
        client.put(0, value)
    with pytest.raises(TypeError, match=r"kwargs\['value'\]"):
        client.futures.put(value=value)
    assert time.perf_counter() - start < 1


def test_a_message_over_the_limit_is_refused_on_either_side(server, client, monkeypatch):
    with pytest.raises(StatusNotOk) as caught:
        server.Bind("big", lambda: np.zeros(600 * 2**20, np.uint8))
        client.big()
    assert caught.value.code is StatusCode.INTERNAL and "more than" in caught.value.message
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(server, bytes(600 * 2**20), options=[("grpc.max_send_message_length", -1)])
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"junk",
        b"\x01N",
        codec.encode(("echo", (), {})),
        codec.encode(["echo"]),
        b"\x01b\xff\xff\xff\x3fx",
    ],
    ids=["empty", "junk", "None", "tuple", "list", "1 GB"],
)
def test_malformed_requests_get_an_error(server, client, message):
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(server, message)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert client.echo(1) == 1  # and the server lives on


def test_compression_by_grpc_is_refused(server):
    # It has no limit on what it unpacks.
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(server, bytes(10**6), compression=grpc.Compression.Gzip)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


class CustomError(Exception):
    pass


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError("no")


STATUS_TABLE = [
    (ValueError, "INVALID_ARGUMENT"),
    (UnicodeError, "INVALID_ARGUMENT"),
    (TypeError, "INVALID_ARGUMENT"),
    (StopIteration, "OUT_OF_RANGE"),
    (MemoryError, "RESOURCE_EXHAUSTED"),
    (NotImplementedError, "UNIMPLEMENTED"),
    (KeyboardInterrupt, "ABORTED"),
    (SystemError, "INTERNAL"),
    (SyntaxError, "INTERNAL"),
    (LookupError, "NOT_FOUND"),
    (KeyError, "NOT_FOUND"),
    (IndexError, "NOT_FOUND"),
    (RuntimeError, "UNKNOWN"),
    (OSError, "UNKNOWN"),
    (ConnectionError, "UNKNOWN"),
    (SystemExit, "UNKNOWN"),
    (CustomError, "UNKNOWN"),
    (UnprintableError, "UNKNOWN"),
]


@pytest.mark.parametrize("exception, code", STATUS_TABLE, ids=[e.__name__ for e, _ in STATUS_TABLE])
def test_exceptions_become_statuses(server, client, exception, code):
    def fail():
        raise exception("the cause")

    server.Bind("fail", fail)
    for call in (client.fail, lambda: client.futures.fail().result(20)):
        with pytest.raises(StatusNotOk) as caught:
            call()
        assert caught.value.code is StatusCode[code]
        assert caught.value.message.startswith("Python exception was raised on the server:\n")
        assert exception.__name__ in str(caught.value) and "in fail" in str(caught.value)
        assert "the cause" in str(caught.value) or exception is UnprintableError


def test_a_status_of_a_nested_call_is_not_taken_for_the_transports(server, client):
    # As UNAVAILABLE it would be repeated for ever.
    def fail():
        raise StatusNotOk("the server behind this one is away", StatusCode.UNAVAILABLE)

    server.Bind("fail", fail)
    with pytest.raises(StatusNotOk, match="behind this one") as caught:
        client.fail()
    assert caught.value.code is StatusCode.UNKNOWN


@pytest.mark.parametrize("text", ["x" * 10**6, "é\n" * 10**5, "\U0001f600" * 10**5], ids=["ascii", "é", "emoji"])
def test_long_errors_are_cut_in_the_middle(server, client, text):
    def fail():
        raise ValueError(text + " the end")

    server.Bind("fail", fail)
    with pytest.raises(StatusNotOk) as caught:
        client.fail()
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    assert len(caught.value.message.encode()) <= 8192
    assert caught.value.message.startswith("Python exception") and caught.value.message.endswith("the end")


def test_wrong_arguments_of_the_caller(client):
    with pytest.raises(StatusNotOk, match="missing 1 required positional argument") as caught:
        client.echo()
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


def test_a_result_that_cannot_be_sent(server, client):
    server.Bind("lock", lambda: [threading.Lock()])
    with pytest.raises(StatusNotOk, match=r"the reply of lock.*type _thread.lock.*\[0\]") as caught:
        client.lock()
    assert caught.value.code is StatusCode.INTERNAL


def test_status_survives_pickle():
    status = pickle.loads(pickle.dumps(StatusNotOk("why", StatusCode.ABORTED)))
    assert (status.code, status.message, str(status)) == (StatusCode.ABORTED, "why", "why")


def test_futures(server, client):
    pending = [client.futures.echo(i) for i in range(50)]
    assert [future.result(20) for future in pending] == list(range(50))


def test_a_future_can_be_cancelled_and_so_is_its_call(server, client):
    started, release, running = threading.Event(), threading.Event(), []

    def wait():
        started.set()
        release.wait(20)
        return running

    server.Bind("wait", wait)
    future = client.futures.wait()
    assert started.wait(20) and not future.running()
    assert future.cancel() and future.cancelled()
    with pytest.raises(futures.CancelledError):
        future.result(1)
    release.set()  # the late result is swallowed
    assert client.echo(1) == 1


def test_a_cancelled_call_is_never_made():
    server, calls = Server(), []
    server.Bind("call", calls.append)
    client = Client(server.address, call_timeout=20)
    future = client.futures.call("cancelled")
    time.sleep(0.3)
    assert future.cancel()
    server.Start()
    client.call("kept")
    time.sleep(1)
    assert calls == ["kept"]
    server.Stop()


@pytest.mark.parametrize("timeout", [0.5, 1, datetime.timedelta(milliseconds=500)], ids=str)
def test_a_deadline_ends_the_wait_for_an_absent_server(free_address, timeout):
    client = Client(free_address, call_timeout=timeout)
    for call in (client.get, lambda: client.futures.get().result(20)):
        start = time.perf_counter()
        with pytest.raises(StatusNotOk, match=f"Deadline Exceeded.*get at {free_address}") as caught:
            call()
        assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
        assert 0.4 < time.perf_counter() - start < 4


def test_a_deadline_ends_a_long_call(server):
    server.Bind("sleep", time.sleep)
    with pytest.raises(StatusNotOk) as caught:
        Client(server.address, call_timeout=0.3).sleep(3)
    assert caught.value.code is StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("is_future", [False, True], ids=["blocking", "future"])
def test_a_deadline_ends_the_wait_for_a_peer_that_is_frozen(is_future):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        client = Client(f"localhost:{mute.getsockname()[1]}", call_timeout=0.5)
        with pytest.raises(StatusNotOk) as caught:
            client.futures.get().result(20) if is_future else client.get()
        assert caught.value.code is StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("is_future", [False, True], ids=["blocking", "future"])
def test_a_call_is_repeated_until_the_deadline_when_the_server_dies_under_it(is_future):
    server, calls = Server(), []
    release = threading.Event()

    def wait():
        calls.append(1)
        return release.wait(10)

    server.Bind("wait", wait)
    server.Start()
    client = Client(server.address, call_timeout=15)
    future = client.futures.wait() if is_future else _in_thread(client.wait)
    _wait_until(lambda: calls)
    server.Stop()
    server.Join()  # cuts the call off after its grace
    second = Server(port=server.port)
    second.Bind("wait", lambda: "from the second")
    second.Start()
    assert future.result(20) == "from the second"
    release.set()
    second.Stop()


def test_without_waiting_an_absent_server_is_reported_at_once(free_address):
    client = Client(free_address, wait_for_ready=False)
    for call in (client.get, lambda: client.futures.get().result(20)):
        start = time.perf_counter()
        with pytest.raises(StatusNotOk, match="failed to connect to all addresses") as caught:
            call()
        assert caught.value.code is StatusCode.UNAVAILABLE
        assert time.perf_counter() - start < 5


@pytest.mark.parametrize("is_future", [False, True], ids=["blocking", "future"])
def test_a_server_that_comes_late_is_reached(is_future):
    server = Server()
    server.Bind("get", lambda: 7)
    client = Client(server.address, call_timeout=20)
    future = client.futures.get() if is_future else _in_thread(client.get)
    time.sleep(0.5)
    assert not future.done()
    server.Start()
    assert future.result(20) == 7
    server.Stop()


def test_a_stop_event_ends_every_wait(free_address, server):
    stop = threading.Event()
    absent = Client(free_address, stop_event=stop)
    present = Client(server.address, stop_event=stop)
    assert present.echo(1) == 1
    future = _in_thread(absent.get)
    time.sleep(0.3)
    stop.set()
    with pytest.raises(StatusNotOk) as caught:
        future.result(2)
    assert caught.value.code is StatusCode.CANCELLED
    with pytest.raises(StatusNotOk):
        present.echo(1)


def test_a_negative_timeout_is_refused(free_address):
    with pytest.raises(ValueError, match="call_timeout"):
        Client(free_address, call_timeout=-1)


def test_pickling_makes_an_equal_client(server):
    client = Client(server.address, True, datetime.timedelta(seconds=20), False)
    client.echo(1)  # an open channel must not travel
    for clone in (pickle.loads(pickle.dumps(client)), copy.copy(client), copy.deepcopy(client)):
        assert clone.__reduce__() == client.__reduce__()
        assert clone.address == server.address and clone.echo(2) == 2


def test_methods_are_cached_and_private_names_are_no_methods(client):
    assert client.echo is client.echo
    for name in ("__array__", "__len__", "__iter__", "__attrs_attrs__", "_repr_html_", "_ipython_display_"):
        assert not hasattr(client, name) and not hasattr(client.futures, name)


def test_a_method_outlives_its_client(server):
    assert Client(server.address, call_timeout=20).echo(1) == 1
    echo = Client(server.address, call_timeout=20).echo
    future = Client(server.address, call_timeout=20).futures.echo(3)
    assert echo(2) == 2 and future.result(20) == 3


BLOCKED = """
import signal, sys, threading, os, time
from impala.launching.rpc.client import Client
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
client = Client(sys.argv[1])
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
{call}
"""


@pytest.mark.parametrize("call", ["client.get()", "client.futures.get().result()"])
def test_a_blocked_call_lets_signal_handlers_run(free_address, call):
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", BLOCKED.format(call=call), free_address], timeout=20)
    assert done.returncode == 7 and time.perf_counter() - start < 6


def test_clients_that_are_dropped_leave_nothing_open(server):
    def num_open():
        gc.unfreeze()  # see conftest.py
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    assert Client(server.address, call_timeout=20).echo(0) == 0
    before = num_open()
    for i in range(30):
        client = Client(server.address, call_timeout=20)
        assert client.echo(i) == client.futures.echo(i).result(20) == i
    del client
    assert num_open() <= before + 3


@pytest.mark.soak
def test_a_million_calls_and_large_ones_in_bounded_memory(client):
    def rss_mb():
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20

    array = np.zeros(50 * 2**20, np.uint8)
    for _ in range(5):
        client.echo(array)
    before = rss_mb()
    for i in range(1_000_000):
        assert client.echo(i) == i
    for _ in range(20):
        client.echo(array)
    more = rss_mb() - before
    keep("a million calls and twenty of 50 MB: memory", more, "MB more", at_most=150)  # a message or two on its way


def test_list_methods(server, client):
    server.Bind("*", print)
    assert sorted(list_methods(client)) == ["*", "call", "echo"]


def _in_thread(call):
    future = futures.Future()

    def run():
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_result_goes_with_its_future_without_the_garbage_collector(client):
    """An actor fetches megabytes three times a second: in a cycle they would pile up until a collection."""
    gc.collect()
    gc.disable()
    try:
        future = client.futures.echo(np.ones(1000))
        watched = weakref.ref(future.result(20))
        del future
        deadline = time.monotonic() + 5
        while watched() is not None and time.monotonic() < deadline:
            time.sleep(0.01)  # gRPC's thread lets go a moment later
        assert watched() is None
    finally:
        gc.enable()
