"""Stacking, duplicates and the feeder, which is fed by a real Reverb queue and by hand."""

import itertools
import threading
import time

import numpy as np
import pytest
import reverb
import tensorflow as tf

from impala.acting import chunks
from impala.replay import datasets, tables
from impala.types import ArraySpec, Chunk, Discrete, EnvironmentSpec, Origin, chunk_spec, map_fields, zeros
from tests.replay.test_tables import WRITTEN, write

T, B = 4, 3
SPEC = chunk_spec(EnvironmentSpec("x", ArraySpec((2,), np.float32), actions=Discrete(2)), T)


def chunk(seq, environment=0, incarnation=0):
    return zeros(SPEC)._replace(
        origin=np.array(Origin(1, 2, environment, incarnation, seq), np.int64),
        r_t=np.arange(T).astype(np.float32) + np.float32(100 * seq),
        observation=np.arange(2 * (T + 1)).reshape(T + 1, 2).astype(np.float32) + np.float32(1000 * seq),
        weights_version=np.int64(seq),
    )


def tensors(a_chunk):
    return map_fields(tf.constant, a_chunk)


# --- stack ---


@pytest.mark.parametrize("kind", ["arrays", "tensors"])
def test_stack_puts_the_batch_after_time(kind):
    chunks = [chunk(n) for n in range(B)]
    batch = datasets.stack(chunks if kind == "arrays" else [tensors(c) for c in chunks])
    assert isinstance(batch, Chunk) and batch.core_state == ()
    for name in WRITTEN:
        spec, field = getattr(SPEC, name), getattr(batch, name)
        has_time = name not in ("previous_action", "previous_reward", "weights_version", "origin")
        expected = (spec.shape[0], B, *spec.shape[1:]) if has_time else (B, *spec.shape)
        assert tuple(field.shape) == expected, name
        assert field.dtype == spec.dtype, name
        for n in range(B):
            np.testing.assert_array_equal(field[:, n] if has_time else field[n], getattr(chunks[n], name))


def test_stack_keeps_a_recurrent_state_without_time():
    states = [np.full((2, 5), n, np.float32) for n in range(B)]
    batch = datasets.stack([chunk(n)._replace(core_state=state) for n, state in enumerate(states)])
    np.testing.assert_array_equal(batch.core_state, np.stack(states))


# --- duplicates and gaps ---


def feed(origins):
    deduplicator = datasets.Deduplicator()
    fresh = [deduplicator.is_new(Origin(*origin)) for origin in origins]
    return fresh, deduplicator.num_duplicates, deduplicator.num_gaps


def seqs(*numbers):
    return [(0, 0, 0, 0, n) for n in numbers]


def test_an_unbroken_stream():
    assert feed(seqs(0, 1, 2, 3)) == ([True] * 4, 0, 0)


def test_a_stream_begins_at_zero_in_whatever_order_it_comes():
    """A table that is sampled uniformly gives the second chunk of an environment before the first, as it likes."""
    assert feed(seqs(1, 0, 2)) == ([True] * 3, 0, 0)
    assert feed(seqs(2, 3)) == ([True] * 2, 0, 2)


def test_duplicates_are_dropped():
    assert feed(seqs(0, 0, 1, 2, 1, 2, 3)) == ([True, False, True, True, False, False, True], 3, 0)


def test_gaps_are_counted_by_what_is_missing():
    assert feed(seqs(0, 1, 5, 6, 8)) == ([True] * 5, 0, 3 + 1)


def test_what_comes_late_closes_its_gap_and_is_new_once():
    assert feed(seqs(0, 3, 1, 4, 1, 2)) == ([True, True, True, True, False, True], 1, 0)


def test_the_memory_of_gaps_is_bounded():
    """A table that drops what it cannot hold makes gaps for ever."""
    deduplicator = datasets.Deduplicator()
    for n in range(0, 10_000, 2):
        assert deduplicator.is_new(Origin(0, 0, 0, 0, n))
    assert deduplicator.num_gaps == 4999
    assert sum(map(len, deduplicator._gaps.values())) == datasets.Deduplicator._MAX_GAPS
    assert deduplicator.is_new(Origin(0, 0, 0, 0, 9997)) and not deduplicator.is_new(Origin(0, 0, 0, 0, 1))


@pytest.mark.parametrize("column, name", list(enumerate(Origin._fields[:3])))
def test_every_source_is_followed_alone(column, name):
    other = [tuple(1 if i == column else 0 for i in range(4)) + (n,) for n in (0, 1)]
    mixed = [*seqs(0), other[0], *seqs(1), other[1], *seqs(1)]
    assert feed(mixed) == ([True] * 4 + [False], 1, 0)


def test_a_source_that_was_started_again_begins_anew_and_what_is_left_of_its_earlier_life_is_new():
    first, again = (lambda seq: (0, 0, 0, 1, seq)), (lambda seq: (0, 0, 0, 2, seq))
    fed = [first(0), first(2), again(0), again(0), first(3), again(3), again(2)]
    assert feed(fed) == ([True, True, True, False, True, True, True], 1, 1 + 1), "a gap that its death left stays one"


# --- the feeder, fed by hand ---


def feeder_of(chunks, **kwargs):
    return datasets.Feeder(lambda: iter(chunks), **dict(batch_size=B) | kwargs)


def endless(first=0):
    for n in itertools.count(first):
        yield tensors(chunk(n))


def drain(feeder, count):
    batches = [feeder.get(timeout_seconds=20) for _ in range(count)]
    assert all(batch is not None for batch in batches)
    return batches


def ended(thread, seconds=5):
    thread.join(seconds)
    return not thread.is_alive()


def test_batches_follow_the_stream():
    feeder = feeder_of(endless())
    for u, batch in enumerate(drain(feeder, 5)):
        assert batch.weights_version.numpy().tolist() == [B * u, B * u + 1, B * u + 2]
        assert batch.r_t.shape == (T, B)
    feeder.stop()
    assert ended(feeder._thread)


def test_no_batch_in_time_is_none():
    release = threading.Event()

    def late():
        release.wait(20)
        yield from endless()

    feeder = datasets.Feeder(late, batch_size=B)
    started = time.monotonic()
    assert feeder.get(timeout_seconds=0.2) is None
    assert 0.15 < time.monotonic() - started < 5
    release.set()
    drain(feeder, 1)
    feeder.stop()
    assert ended(feeder._thread)


def test_a_batch_is_never_partial():
    feeder = feeder_of([tensors(chunk(n)) for n in range(B + 2)])
    drain(feeder, 1)
    assert ended(feeder._thread)
    with pytest.raises(RuntimeError, match="stream ended"):
        feeder.get(timeout_seconds=0.1)


def test_an_error_in_the_stream_reaches_the_training_thread_after_the_batches_before_it():
    def broken():
        yield from (tensors(chunk(n)) for n in range(B))
        raise OSError("the link is gone")

    feeder = datasets.Feeder(broken, batch_size=B)
    assert ended(feeder._thread)
    drain(feeder, 1)
    for _ in range(2):  # and again, whoever asks
        with pytest.raises(OSError, match="the link is gone"):
            feeder.get(timeout_seconds=0.1)


def test_an_error_while_the_stream_is_made_reaches_the_training_thread():
    def make():
        raise ConnectionError("no table")

    feeder = datasets.Feeder(make, batch_size=B)
    assert ended(feeder._thread)
    with pytest.raises(ConnectionError, match="no table"):
        feeder.get(timeout_seconds=0.1)


@pytest.mark.parametrize("num_prefetched", [1, 3])
def test_no_more_than_the_bound_is_fetched_ahead(num_prefetched):
    """`num_prefetched` batches wait, one more is in the feeder's hand; each is an update of policy lag."""
    taken = []

    def counted():
        for n in itertools.count():
            taken.append(n)
            yield tensors(chunk(n))

    feeder = datasets.Feeder(counted, batch_size=B, num_prefetched=num_prefetched)
    for count in (num_prefetched + 1, num_prefetched + 2):
        deadline = time.monotonic() + 30
        while len(taken) < B * count and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.5)
        assert len(taken) == B * count
        drain(feeder, 1)
    feeder.stop()
    assert ended(feeder._thread), "a feeder that waits for room must see the stop"


def test_duplicates_are_in_no_batch_and_gaps_are_counted():
    stream = [chunk(n, environment=e) for n in (0, 1, 1, 0, 4, 5, 6, 7) for e in (0, 1)]
    feeder = feeder_of([tensors(c) for c in stream], batch_size=12)
    (batch,) = drain(feeder, 1)
    assert batch.origin.numpy()[:, 4].tolist() == [0, 0, 1, 1, 4, 4, 5, 5, 6, 6, 7, 7]
    assert (feeder.deduplicator.num_duplicates, feeder.deduplicator.num_gaps) == (4, 4)


def test_a_restarted_actor_begins_anew():
    stream = [chunk(0), chunk(1), chunk(0, incarnation=1), chunk(1, incarnation=1)]
    (batch,) = drain(feeder_of([tensors(c) for c in stream], batch_size=4), 1)
    assert batch.origin.numpy()[:, 3:5].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_every_chunk_that_is_trained_on_is_recorded_once():
    recorded = []
    feeder = feeder_of(
        [tensors(chunk(n)) for n in (0, 1, 1, 2)], record=lambda c: recorded.append(int(c.weights_version))
    )
    drain(feeder, 1)
    assert recorded == [0, 1, 2]


def test_chunks_that_would_be_too_old_are_dropped_and_counted():
    """Chunk n was acted by version n; 12 updates are done, so that the first batch is trained on as the 14th at most."""
    feeder = feeder_of([tensors(chunk(n)) for n in range(20)], num_updates=lambda: 12, max_lag=5)
    (first,) = drain(feeder, 1)
    assert first.weights_version.numpy().tolist() == [8, 9, 10]
    assert feeder.num_dropped == 8
    assert feeder.deduplicator.num_gaps == 0


def test_replayed_chunks_may_be_of_any_age():
    feeder = feeder_of(
        endless(100), make_replayed=endless, num_replayed=1, num_updates=lambda: 100, max_lag=3, num_prefetched=1
    )
    (batch,) = drain(feeder, 1)
    assert batch.weights_version.numpy().tolist()[-1] == 0 and feeder.num_dropped == 0
    feeder.stop()


# --- the feeder, fed by Reverb ---


class Queue:
    """A server with one queue; closes in the order that keeps Reverb from waiting for ever (STACK.md, 1.7)."""

    def __init__(self):
        self._server = reverb.Server([tables.queue(SPEC, 64), tables.uniform(SPEC, 8)], port=None)
        self.address = f"localhost:{self._server.port}"
        self.client = reverb.Client(self.address)

    def feeder(self, **kwargs):
        self._feeder = datasets.Feeder(
            lambda: datasets.chunks(self.address, tables.QUEUE, max_in_flight=B), **dict(batch_size=B) | kwargs
        )
        return self._feeder

    def replaying_feeder(self, num_replayed):
        return self.feeder(
            make_replayed=lambda: datasets.chunks(self.address, tables.REPLAY, max_in_flight=num_replayed),
            num_replayed=num_replayed,
        )

    def stop_feeder(self):
        self._feeder.stop()
        # As many as it fetches at once wake the feeder, which then sees the stop and leaves Reverb's calls.
        write(self.client, [chunk(10_000 + n) for n in range(B)])

    def close(self):
        assert ended(self._feeder._thread, 20)
        self._server.stop()


@pytest.fixture(scope="module")
def queues():
    """Closed together: each takes three seconds to let go, most of them asleep."""
    queues = []
    yield queues
    for queue in queues:
        queue.stop_feeder()
    for queue in queues:
        queue.close()


@pytest.fixture
def queue(queues):
    queues.append(Queue())
    return queues[-1]


def test_from_the_table_to_batches(queue):
    feeder = queue.feeder()
    write(queue.client, [chunk(n) for n in range(4 * B)])
    for u, batch in enumerate(drain(feeder, 4)):
        for n in range(B):
            expected = chunk(B * u + n)
            assert batch.origin[n].numpy().tolist() == expected.origin.tolist()
            np.testing.assert_array_equal(batch.r_t[:, n], expected.r_t)
            np.testing.assert_array_equal(batch.observation[:, n], expected.observation)
        for name in WRITTEN:
            assert getattr(batch, name).dtype == getattr(SPEC, name).dtype, name
    assert feeder.get(timeout_seconds=0.3) is None
    assert (feeder.deduplicator.num_duplicates, feeder.deduplicator.num_gaps) == (0, 0)


def test_chunks_of_an_agent_that_keeps_nothing_of_its_decisions_are_read_too():
    spec = chunk_spec(EnvironmentSpec("x", ArraySpec((2,), np.float32), actions=Discrete(2)), T, kept={})
    server = reverb.Server([tables.queue(spec, 8)], port=None)
    writer = reverb.Client(f"localhost:{server.port}").trajectory_writer(num_keep_alive_refs=1)
    written = {name: value for name, value in zeros(spec)._asdict().items() if not isinstance(value, tuple)}
    writer.append(written)
    writer.create_item(tables.QUEUE, 1.0, {name: column[-1] for name, column in writer.history.items()})
    writer.flush(timeout_ms=10_000)
    read = next(datasets.chunks(f"localhost:{server.port}", tables.QUEUE, max_in_flight=1))
    assert read.logits_tm1 == () and read.v_behaviour_tm1 == () and "logits_tm1" not in written
    np.testing.assert_array_equal(read.observation, written["observation"])
    server.stop()


def test_chunks_stay_in_the_table_until_they_are_needed():
    """What left the table waits unseen and bounds no writer; TensorFlow's own prefetch grew to 130 chunks here."""
    server = reverb.Server([tables.queue(SPEC, 1000)], port=None)
    client = reverb.Client(f"localhost:{server.port}")
    stream = datasets.chunks(f"localhost:{server.port}", tables.QUEUE, max_in_flight=B)
    num_left, numbers = [], itertools.count()
    for _ in range(4):  # a prefetch grows where it is found full, then empty
        write(client, [chunk(next(numbers)) for _ in range(50 * B)])
        next(stream)
        time.sleep(0.3)
        num_left.append(50 * B - client.server_info()[tables.QUEUE].current_size)
        for _ in range(50 * B - 1):
            next(stream)
    assert max(num_left) <= 2 * B, num_left
    server.stop()


def test_batches_wait_until_they_are_full(queue):
    feeder = queue.feeder()
    write(queue.client, [chunk(n) for n in range(B - 1)])
    assert feeder.get(timeout_seconds=0.7) is None
    write(queue.client, [chunk(B - 1)])
    drain(feeder, 1)


def test_chunks_delivered_twice_are_trained_on_once(queue):
    feeder = queue.feeder(batch_size=4)
    write(queue.client, [chunk(n) for n in (0, 1, 1, 2, 2, 3)])
    (batch,) = drain(feeder, 1)
    assert batch.weights_version.numpy().tolist() == [0, 1, 2, 3]
    assert feeder.deduplicator.num_duplicates == 2


def test_a_learner_step_takes_what_the_feeder_gives_without_tracing_twice(queue):
    """Batches from the table have one and the same static shape."""
    traces = []

    @tf.function(autograph=False)
    def step(batch):
        traces.append(batch.r_t.shape)
        return tf.reduce_sum(batch.r_t)

    feeder = queue.feeder()
    write(queue.client, [chunk(n) for n in range(3 * B)])
    for batch in drain(feeder, 3):
        step(batch)
    assert traces == [(T, B)]


def test_a_part_of_each_batch_is_drawn_from_replay_and_said_to_be(queue):
    """One writer, two tables; replay may repeat itself, and what it repeats is no duplicate."""
    sink = chunks.TableSink(queue.client, [tables.QUEUE, tables.REPLAY], should_stop=lambda: False)
    feeder = queue.replaying_feeder(num_replayed=2)
    sink([chunk(n) for n in range(20)])
    for u, batch in enumerate(drain(feeder, 10)):
        assert batch.is_replayed.numpy().tolist() == [False, True, True]
        versions = batch.weights_version.numpy().tolist()
        assert versions[0] == u, "the fresh part keeps its order"
        np.testing.assert_array_equal(batch.r_t[:, 1], chunk(versions[1]).r_t)
    assert (feeder.deduplicator.num_duplicates, feeder.deduplicator.num_gaps) == (0, 0)
    sink.close()


def test_replay_holds_the_newest_and_gives_them_out_alike():
    server = reverb.Server([tables.uniform(SPEC, 8)], port=None)
    client = reverb.Client(f"localhost:{server.port}")
    sink = chunks.TableSink(client, [tables.REPLAY], should_stop=lambda: False)
    sink([chunk(n) for n in range(20)])
    samples = client.sample(tables.REPLAY, 4000, emit_timesteps=False, unpack_as_table_signature=True)
    counts = np.bincount([int(sample.data["weights_version"]) for sample in samples], minlength=20)
    sink.close()
    server.stop()
    assert not counts[:12].any(), "size 8: the newest eight"
    assert np.sum((counts[12:] - 500) ** 2 / 500) < 29.9  # χ², 7 degrees of freedom: exceeded once in 10,000


def test_without_replay_every_chunk_is_said_to_be_fresh(queue):
    feeder = queue.feeder()
    write(queue.client, [chunk(n) for n in range(B)])
    assert not drain(feeder, 1)[0].is_replayed.numpy().any()
