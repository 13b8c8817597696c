"""The sink against a real Reverb queue: order, back-pressure, and its two ways out."""

import threading
import time

import numpy as np
import pytest
import reverb

from impala.acting import chunks
from impala.replay import tables
from impala.types import ArraySpec, Discrete, EnvironmentSpec, Origin, chunk_spec, zeros

SPEC = chunk_spec(EnvironmentSpec("x", ArraySpec((3,), np.float32), actions=Discrete(2)), 4)
SIZE = 4


def chunk(number):
    """A chunk that can be told from every other by its numbers."""
    return zeros(SPEC)._replace(
        origin=np.array(Origin(1, 2, 3, 4, number), np.int64),
        r_t=np.full(4, number, np.float32),
        observation=np.full((5, 3), number, np.float32),
        weights_version=np.int64(number),
    )


@pytest.fixture
def client():
    server = reverb.Server([tables.queue(SPEC, SIZE)], port=None)
    yield reverb.Client(f"localhost:{server.port}")
    server.stop()


@pytest.fixture
def make_sink(client):
    stop, sinks = threading.Event(), []

    def make(**kwargs):
        sinks.append(chunks.TableSink(client, [tables.QUEUE], should_stop=stop.is_set, **kwargs))
        return sinks[-1]

    make.stop = stop
    yield make
    stop.set()
    for sink in sinks:
        sink.close()


def size(client):
    return client.server_info(timeout=10)[tables.QUEUE].current_size


def wait_for_size(client, wanted):
    deadline = time.monotonic() + 20
    while size(client) < wanted:
        assert time.monotonic() < deadline, f"{size(client)} chunks came, {wanted} were expected"
        time.sleep(0.02)


def take(client, count):
    """Takes `count` chunks; called only when they are there or on their way, since it has no time limit."""
    samples = client.sample(tables.QUEUE, count, emit_timesteps=False, unpack_as_table_signature=True)
    return [sample.data for sample in samples]


def start(function, *args):
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def test_chunks_arrive_whole(client, make_sink):
    make_sink()([chunk(7)])
    (received,) = take(client, 1)
    for name, expected in chunk(7)._asdict().items():
        if not isinstance(expected, tuple):
            np.testing.assert_array_equal(received[name], expected)
            assert received[name].dtype == SPEC._asdict()[name].dtype, name


def test_chunks_arrive_in_order_and_each_once(client, make_sink):
    sink, numbers = make_sink(max_pending=2), []
    writing = start(lambda: [sink([chunk(n), chunk(n + 1), chunk(n + 2)]) for n in range(0, 30, 3)])
    while len(numbers) < 30:
        numbers += [int(c["origin"][4]) for c in take(client, 3)]
    writing.join(20)
    assert not writing.is_alive()
    assert numbers == list(range(30))
    assert size(client) == 0


def test_a_full_queue_blocks_until_something_is_taken(client, make_sink):
    sink = make_sink()
    sink([chunk(n) for n in range(SIZE)])  # as many as it holds: returns
    assert size(client) == SIZE
    sink.blocked_fraction()
    writing = start(sink, [chunk(SIZE), chunk(SIZE + 1)])
    writing.join(1.2)
    assert writing.is_alive() and size(client) == SIZE
    assert [int(c["origin"][4]) for c in take(client, 1)] == [0]
    writing.join(0.7)
    assert writing.is_alive(), "one of two found room"
    assert [int(c["origin"][4]) for c in take(client, 1)] == [1]
    writing.join(20)
    assert not writing.is_alive()
    assert sink.blocked_fraction() > 0.5
    assert sink.blocked_fraction() == 0.0  # since the last call
    assert [int(c["origin"][4]) for c in take(client, 4)] == [2, 3, 4, 5]


def test_a_table_that_is_full_holds_back_no_chunk_of_another(client, make_sink):
    """Learners need as many chunks from each: a wait between two tables would let them drift apart at every death."""
    other_server = reverb.Server([tables.queue(SPEC, SIZE)], port=None)
    other = reverb.Client(f"localhost:{other_server.port}")
    full, free = make_sink(), chunks.TableSink(other, [tables.QUEUE], should_stop=make_sink.stop.is_set)
    full([chunk(n) for n in range(SIZE)])
    turns = chunks.RoundRobinSink([full, free])
    writing = start(turns, [chunk(10), chunk(11)])
    wait_for_size(other, 1)
    writing.join(0.7)
    assert writing.is_alive(), "there is no room for the first"
    (received,) = take(other, 1)
    assert received["r_t"][0] == 11.0 and received["origin"][4] == 0, "each table has its own numbers"
    assert [int(c["r_t"][0]) for c in take(client, SIZE + 1)] == [0, 1, 2, 3, 10]
    writing.join(20)
    assert not writing.is_alive() and turns.blocked_fraction() > 0.3
    free.close()
    other_server.stop()


def test_a_stop_releases_who_waits_for_a_full_queue(client, make_sink):
    sink = make_sink()
    sink([chunk(n) for n in range(SIZE)])
    writing = start(sink, [chunk(SIZE)])
    writing.join(0.7)
    assert writing.is_alive()
    make_sink.stop.set()
    writing.join(3)
    assert not writing.is_alive()
    assert size(client) == SIZE


def test_max_pending_lets_that_many_be_on_their_way(client, make_sink):
    sink = make_sink(max_pending=3)
    writing = start(sink, [chunk(n) for n in range(SIZE + 3)])
    writing.join(20)
    assert not writing.is_alive(), "four found room and three may wait"
    writing = start(sink, [chunk(SIZE + 3)])
    writing.join(0.7)
    assert writing.is_alive(), "the fourth may not"
    assert [int(c["origin"][4]) for c in take(client, SIZE + 4)] == list(range(SIZE + 4))
    writing.join(20)
    assert not writing.is_alive()


def test_two_sinks_on_one_table_keep_their_own_order(client, make_sink):
    sinks = [make_sink(), make_sink()]
    writing = [
        start(lambda first=first, sink=sink: [sink([chunk(first + n)]) for n in range(8)])
        for first, sink in zip((0, 100), sinks)
    ]
    numbers = [int(c["origin"][4]) for c in take(client, 16)]
    for thread in writing:
        thread.join(20)
        assert not thread.is_alive()
    assert [n for n in numbers if n < 100] == list(range(8))
    assert [n for n in numbers if n >= 100] == list(range(100, 108))


@pytest.mark.parametrize("position", [0, 2])
def test_nothing_of_a_call_with_a_bad_chunk_is_written(client, make_sink, position):
    sink = make_sink()
    unroll = [chunk(n) for n in range(3)]
    unroll[position] = unroll[position]._replace(r_t=np.array([0, np.nan, 0, 0], np.float32))
    with pytest.raises(ValueError, match="r_t holds a value that is not finite"):
        sink(unroll)
    sink([chunk(9)])  # and the sink goes on
    wait_for_size(client, 1)
    assert [int(c["origin"][4]) for c in take(client, 1)] == [9]
    assert size(client) == 0


def test_a_chunk_of_another_shape_is_refused(client, make_sink):
    with pytest.raises(ValueError):
        make_sink()([chunk(0)._replace(r_t=np.zeros(5, np.float32))])
    assert size(client) == 0
