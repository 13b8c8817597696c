"""Signs of life between a node and its launcher, through a real socket."""

import json
import os
import socket
import threading
import time

import pytest

from impala.launching import beats


@pytest.fixture
def listener(monkeypatch):
    listener = beats.Listener()
    monkeypatch.setenv(beats.ADDRESS_VARIABLE, listener.address)
    yield listener
    listener.close()


def wait_for(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_asking_whether_to_stop_is_a_sign_of_life_and_nothing_else_is(listener):
    pulse = beats.Pulse("actor/3", threading.Event())
    pulse.note(frames=12)
    time.sleep(0.5)
    pulse.send()
    wait_for(lambda: listener.has_heard("actor/3"))
    node = listener.node("actor/3")
    assert 0.5 <= node.silent_seconds < 5.0 and not node.is_frozen
    assert node.facts == {"frames": 12} and node.doing == "starting" and node.rss_mb > 10
    thread = threading.Thread(target=pulse.is_set)  # another thread's question says nothing of the node's loop
    thread.start()
    thread.join()
    pulse.send()
    time.sleep(0.2)
    assert listener.node("actor/3").silent_seconds >= 0.65, "it began 0.7 s ago"
    assert not pulse.is_set()
    pulse.send()
    wait_for(lambda: listener.node("actor/3").silent_seconds < 0.4)


def test_a_node_is_as_silent_as_the_thread_that_is_watched_and_hangs(listener):
    """As where one thread learns and another steps environments."""
    pulse, hangs, goes_on = beats.Pulse("learner/0", threading.Event()), threading.Event(), threading.Event()

    def play():
        with pulse.watched():
            pulse.is_set()
            hangs.set()
            goes_on.wait(10.0)

    thread = threading.Thread(target=play)
    thread.start()
    hangs.wait(5.0)
    time.sleep(0.4)
    assert not pulse.is_set(), "the node's own thread is well"
    pulse.doing, pulse.doing = "saving", "running"  # as at each checkpoint
    pulse.send()
    wait_for(lambda: listener.has_heard("learner/0"))
    assert listener.node("learner/0").silent_seconds >= 0.4
    goes_on.set()
    thread.join()
    assert not pulse.is_set()
    pulse.send()
    wait_for(lambda: listener.node("learner/0").silent_seconds < 0.4)


def test_waiting_is_a_sign_of_life_and_ends_when_asked_to_stop(listener):
    stop = threading.Event()
    pulse = beats.Pulse("table/0", stop)
    started = time.monotonic()
    assert not pulse.wait(0.2) and 0.2 <= time.monotonic() - started < 2.0
    threading.Timer(0.3, stop.set).start()
    assert pulse.wait() and pulse.is_set()


def test_one_never_heard_has_been_silent_since_the_launch(listener):
    time.sleep(0.3)
    node = listener.node("learner/0")
    assert node.silent_seconds >= 0.3 and not listener.has_heard("learner/0")


def test_the_time_in_which_the_launcher_itself_was_stopped_does_not_count(listener, monkeypatch):
    pulse = beats.Pulse("actor/0", threading.Event())
    pulse.send()
    wait_for(lambda: listener.has_heard("actor/0"))
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 100.0)  # Ctrl-Z for 100 seconds
    assert listener.node("actor/0").silent_seconds < 10.0


def test_a_node_that_was_stopped_with_the_launcher_is_not_older_for_it(listener, monkeypatch):
    """Its first sign of life after Ctrl-Z says an age that holds the pause."""
    pulse = beats.Pulse("actor/0", threading.Event())
    pulse.send()
    wait_for(lambda: listener.has_heard("actor/0"))
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 100.0)
    pulse.note(later=True)
    pulse.send()
    deadline = now() + 5.0
    while not listener.node("actor/0").facts:
        assert now() < deadline
        time.sleep(0.02)
    assert listener.node("actor/0").silent_seconds < 10.0


@pytest.mark.parametrize("message", [b"", b"\xff", b"[]", b'{"name": 1}', json.dumps(dict(name="a", age="x")).encode()])
def test_nonsense_is_not_heard(listener, message):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(message, "\0" + listener.address)
        beats.Pulse("actor/1", threading.Event()).send()
        wait_for(lambda: listener.has_heard("actor/1"))
        assert set(listener._heard) == {"actor/1"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_is_not_heard(listener, monkeypatch):
    arrived, is_of_this_user = [], beats._is_of_this_user

    def decide(ancillary):
        arrived.append(is_of_this_user(ancillary))
        return arrived[-1]

    monkeypatch.setattr(beats, "_is_of_this_user", decide)
    pid = os.fork()
    if pid == 0:
        os.setuid(65534)
        beats.Pulse("actor/9", threading.Event()).send()
        os._exit(0)
    os.waitpid(pid, 0)
    wait_for(lambda: arrived)
    beats.Pulse("actor/1", threading.Event()).send()
    wait_for(lambda: listener.has_heard("actor/1"))
    assert arrived == [False, True] and not listener.has_heard("actor/9")


def test_a_listener_that_is_closed_hears_what_is_under_way_and_keeps_no_thread_or_descriptor(monkeypatch):
    listener = beats.Listener()
    monkeypatch.setenv(beats.ADDRESS_VARIABLE, listener.address)
    pulse = beats.Pulse("learner/0", threading.Event())
    pulse.note(saved_updates=7)
    listener.close()
    pulse.send()  # as a node does while it ends
    wait_for(lambda: listener.node("learner/0").facts == {"saved_updates": 7})
    wait_for(lambda: listener._socket.fileno() == -1)
    assert listener.node("learner/0").facts == {"saved_updates": 7}


def test_last_words_wait_for_room_in_a_socket_that_is_full_and_are_the_last(monkeypatch):
    """As where many nodes end at once, each of which also sends a sign of life every second."""
    address = f"impala-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as slow:
        slow.bind("\0" + address)
        monkeypatch.setenv(beats.ADDRESS_VARIABLE, address)
        pulse, heard = beats.Pulse("actor/0", threading.Event()), []
        for _ in range(1_000):
            pulse.send()  # until it is full, and on
        pulse.note(last_words="no room")
        last = threading.Thread(target=pulse.send, args=(20.0,))
        last.start()
        time.sleep(0.2)
        others = [threading.Thread(target=pulse.send) for _ in range(3)]
        for other in others:
            other.start()
        slow.settimeout(2.0)
        while "last_words" not in (heard[-1]["facts"] if heard else {}):
            heard.append(json.loads(slow.recv(16_000)))
        last.join(20)
        for other in others:
            other.join(20)
        slow.setblocking(False)
        assert len(heard) > 3 and all("last_words" in json.loads(slow.recv(16_000))["facts"] for _ in others)
