"""Calls through shared memory: every dtype, errors, dead and frozen peers, many callers, nothing left behind."""

import multiprocessing
import os
import select
import signal
import socket
import threading
import time

import numpy as np
import psutil
import pytest

from impala.launching import shared_memory
from impala.launching.shared_memory import Caller, CallFailed, Server, ServerAway, new_address

FIELDS = [((3, 2), "u1"), ((), "f4"), ((0, 4), "i8"), ((5,), "?")]


def arrays(seed=0):
    random = np.random.default_rng(seed)
    return [random.integers(0, 255, shape).astype(dtype) for shape, dtype in FIELDS]


def call(caller, number, *arguments, seconds=10.0):
    pending, deadline = caller(number, *arguments), time.monotonic() + seconds
    while not pending.wait(0.5):
        assert time.monotonic() < deadline, "no answer"
    return pending.result()


@pytest.fixture
def address():
    return new_address()


@pytest.fixture
def echo(address):
    """A server that returns what it is sent, and the name and number of the call."""
    server = Server(address, lambda name, number, sent: [*sent, np.array([*name, number], np.int64)])
    yield address
    server.close()


def caller_of_echo(address, name=(4, 2), **kwargs):
    return Caller(address, name, arguments=FIELDS, results=[*FIELDS, ((len(name) + 1,), "i8")], **kwargs)


def test_everything_comes_back_as_it_was_sent(echo):
    caller = caller_of_echo(echo)
    for number in (0, 1, -7, 2**62):
        *back, told = call(caller, number, *arrays(abs(number) % 1000))
        for one, other in zip(back, arrays(abs(number) % 1000), strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype and one.shape == other.shape
        assert told.tolist() == [4, 2, number]
    caller.close()


def test_results_are_the_callers_own(echo):
    caller = caller_of_echo(echo)
    first = call(caller, 0, *arrays(1))
    call(caller, 1, *arrays(2))
    np.testing.assert_array_equal(first[0], arrays(1)[0])


def test_what_the_function_raises_reaches_the_caller_and_the_next_call_is_answered(address):
    def function(name, number, sent):
        if number == 1:
            raise FloatingPointError("at one")
        return [np.zeros(2)] if number == 2 else [np.zeros(1)]

    server = Server(address, function)
    caller = Caller(address, [0], arguments=[], results=[((1,), "f8")])
    assert call(caller, 0)[0] == 0
    with pytest.raises(CallFailed, match="FloatingPointError: at one"):
        call(caller, 1)
    with pytest.raises(CallFailed, match=r"array 0 is float64\[2\]; expected float64\[1\]"):
        call(caller, 2)
    assert call(caller, 3)[0] == 0
    server.close()


def test_arguments_of_another_kind_are_refused_before_they_are_sent(echo):
    caller = caller_of_echo(echo)
    with pytest.raises(ValueError, match=r"array 1 is float64\[\]; expected float32\[\]"):
        caller(0, arrays()[0], np.float64(1), *arrays()[2:])
    with pytest.raises(ValueError, match="3 arrays; expected 4"):
        caller(0, *arrays()[:3])
    call(caller, 1, *arrays())


def test_many_callers_get_their_own_answers(echo):
    failed = []

    def work(index):
        try:
            caller = caller_of_echo(echo, (index, 0))
            for number in range(50):
                *back, told = call(caller, number, *arrays(index * 1000 + number))
                assert told.tolist() == [index, 0, number]
                np.testing.assert_array_equal(back[0], arrays(index * 1000 + number)[0])
            caller.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed


def test_no_server_is_waited_for_with_patience(address):
    caller = caller_of_echo(address, patience_seconds=0.5)
    started = time.monotonic()
    with pytest.raises(ServerAway, match=f"no server at {address} for 0.5 s"):
        call(caller, 0, *arrays())
    assert 0.4 < time.monotonic() - started < 3.0


def test_two_servers_of_one_address_are_refused(echo):
    with pytest.raises(OSError):
        Server(echo, lambda *_: [])


def _serve(address, ready):
    Server(address, lambda name, number, sent: [np.array([number, os.getpid()], np.int64)])
    ready.set()
    time.sleep(120)


def start_server(address):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_serve, args=(address, ready), daemon=True)
    process.start()
    assert ready.wait(60)
    return process


def test_a_server_that_is_killed_and_started_again_is_told_once_more(address):
    server = start_server(address)
    caller = Caller(address, [0], arguments=[], results=[((2,), "i8")])
    assert call(caller, 1)[0].tolist() == [1, server.pid]
    os.kill(server.pid, signal.SIGSTOP)
    frozen = psutil.Process(server.pid)
    while frozen.status() != psutil.STATUS_STOPPED:  # a signal takes its time to reach every thread
        time.sleep(0.01)
    pending = caller(2)
    assert not pending.wait(0.3), "it is frozen"
    server.kill()
    server.join()
    assert not pending.wait(0.3)
    again = start_server(address)
    deadline = time.monotonic() + 10
    while not pending.wait(0.2):
        assert time.monotonic() < deadline
    assert pending.result()[0].tolist() == [2, again.pid]
    again.kill()


def test_callers_that_go_leave_nothing_behind(echo):
    def used():
        return psutil.Process().num_fds(), psutil.Process().num_threads()

    call(keep := caller_of_echo(echo), 0, *arrays())
    before = used()
    for _ in range(20):
        caller = caller_of_echo(echo)
        call(caller, 0, *arrays())
        caller.close()
    deadline = time.monotonic() + 10
    while used() > before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert used() <= before
    keep.close()


def test_fields_without_numbers_are_refused(echo):
    with pytest.raises(ValueError, match="expected numbers"):
        Caller(echo, [0], arguments=[((2,), "S4")], results=[])


@pytest.mark.parametrize("hello", [b"{}", b"[1, 2]", b"\xff\xfe", b'{"name": [0], "arguments": [[[99999], "f8"]], "results": []}'])
def test_a_caller_that_talks_nonsense_is_refused_and_the_server_goes_on(echo, hello):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect("\0" + echo)
        handle = os.memfd_create("test")
        os.ftruncate(handle, 100)
        socket.send_fds(connection, [hello], [handle])
        os.close(handle)
        connection.settimeout(10)
        failed, length = shared_memory._ANSWER.unpack(connection.recv(shared_memory._ANSWER.size))
        assert failed and length and connection.recv(1000)
        assert connection.recv(1) == b"", "the server hung up"
    call(caller_of_echo(echo), 0, *arrays())


# --- strangers, and callers that say nothing ---


def connect_silently(address, count):
    connections = []
    for _ in range(count):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(30)
        connection.connect("\0" + address)
        connections.append(connection)
    return connections


def are_hung_up_on(connections):
    """Returns whether the other side ended each of them, at once or in time."""
    for connection in connections:
        try:
            if connection.recv(1) != b"":
                return False
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
    return True


def as_another_user(function):
    """Runs `function` in a child that is nobody; returns its process id, and what waits for it and says how it ended."""
    process = os.fork()
    if process == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os._exit(0 if function() else 1)
        except BaseException:
            os._exit(2)
    return process, lambda: os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user, too")
def test_a_server_of_another_user_is_told_nothing():
    """Anybody may take the name of a server that is gone."""
    address, (listening, listens) = new_address(), os.pipe()

    def impostor():
        server = socket.socket(socket.AF_UNIX)
        server.bind("\0" + address)
        server.listen()
        os.write(listens, b".")
        server.settimeout(20)
        connection, _ = server.accept()
        connection.settimeout(5)
        return connection.recv(100) == b""

    _, wait = as_another_user(impostor)
    assert select.select([listening], [], [], 20)[0]
    caller = Caller(address, [1], arguments=[((2,), "f4")], results=[((2,), "f4")], patience_seconds=0.5)
    with pytest.raises(ServerAway):
        pending = caller(0, np.ones(2, np.float32))
        while not pending.wait(0.1):
            pass
    caller.close()
    assert wait() == 0, "it got something"
    os.close(listening), os.close(listens)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user, too")
def test_another_user_gets_neither_a_thread_nor_an_answer(echo, caplog):
    before, (go_on, say) = psutil.Process().num_threads(), os.pipe()

    def stranger():
        strangers = connect_silently(echo, 400)
        ended = are_hung_up_on(strangers)
        os.write(say, b".")
        time.sleep(1)  # all of them open on this side
        return ended

    process, wait = as_another_user(stranger)
    caller = caller_of_echo(echo)
    most = 0
    while not select.select([go_on], [], [], 0.01)[0]:
        most = max(most, psutil.Process().num_threads())
        call(caller, 1, *arrays())
        assert os.waitpid(process, os.WNOHANG)[0] == 0, "the child ended early"
    most = max(most, psutil.Process().num_threads())
    assert wait() == 0 and most <= before + 1, (before, most)  # the caller's
    (record,) = caplog.records
    assert f"refused process {process} of user 65534" in record.message
    caller.close()
    for end in (go_on, say):
        os.close(end)


def test_a_caller_that_says_nothing_is_hung_up_on_and_one_that_has_spoken_is_not(address, monkeypatch):
    monkeypatch.setattr(shared_memory, "_HELLO_SECONDS", 0.5)
    server = Server(address, lambda name, number, sent: sent)
    caller = Caller(address, [0], arguments=FIELDS, results=FIELDS)
    call(caller, 0, *arrays())
    connection = caller._socket
    started, silent = time.monotonic(), connect_silently(address, 3)
    assert are_hung_up_on(silent) and 0.3 < time.monotonic() - started < 10
    time.sleep(0.7)
    call(caller, 1, *arrays())
    assert caller._socket is connection
    server.close()


def num_threads():
    return sum(thread.name == "shared memory" for thread in threading.enumerate())


def test_callers_that_say_nothing_hold_a_bounded_number_of_threads_and_others_come_in_turn(address, monkeypatch):
    monkeypatch.setattr(shared_memory, "_HELLO_SECONDS", 0.5)
    monkeypatch.setattr(shared_memory, "_MOST_SHAKING_HANDS", 4)
    before = num_threads()  # of servers of other tests, which may take their time to end
    server = Server(address, lambda name, number, sent: sent)
    silent, most = connect_silently(address, 20), 0
    caller = Caller(address, [0], arguments=FIELDS, results=FIELDS)
    pending, deadline = caller(0, *arrays()), time.monotonic() + 30
    while not pending.wait(0.05):
        most = max(most, num_threads() - before)
        assert time.monotonic() < deadline, "never let in"
    assert 3 <= most <= 5
    assert are_hung_up_on(silent)
    call(caller, 1, *arrays())
    server.close()
