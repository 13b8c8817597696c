"""Windows of steps: what a writer hands on, what the table and this process's memory give back of it."""

import types

import numpy as np
import pytest
import reverb

from impala.acting import exploration
from impala.acting.policies import Decision, FeedForwardPolicy
from impala.acting.windows import TableWindows, WindowWriter
from impala.replay import checks, memory, tables, windows
from impala.types import ArraySpec, Discrete, EnvironmentSpec, Origin, Step, chunk_spec

N, ORIGIN = 2, Origin(7, 0, 4, 1, 0)
STACKED = EnvironmentSpec("frames", ArraySpec((2, 2), np.uint8), Discrete(3), num_stacked=3)


def window_of(length, spec=STACKED):
    return chunk_spec(spec, length, kept={})._replace(previous_action=(), previous_reward=())


def steps(count, ends=((5, True), (8, False))):
    """Frames that say when they were; environment 0 ends at the steps `ends` (terminated or not), 1 never does."""
    first = np.array([True, True])
    for t in range(count):
        last = np.array([t in dict(ends), False])
        over = np.array([dict(ends).get(t, False), False])
        frame = np.full((N, 2, 2), t + 1, np.uint8)
        reward = np.where(first, 0, [t, -t]).astype(np.float32)
        yield Step(frame, reward, 1.0 - over.astype(np.float32), first, last)
        first = np.array([last[0], False])


def write(sink, length, count=14, **kwargs):
    """Returns what was seen at every step: the stack of frames, as an actor keeps it."""
    policy = FeedForwardPolicy(lambda *_: (), STACKED, N, seed=0)
    writer = WindowWriter(STACKED, N, length=length, origin=ORIGIN, sink=sink, **kwargs)
    seen = []
    for t, step in enumerate(steps(count)):
        policy.observe(step)
        if t == 0:
            writer.start(policy.window, step, np.zeros(N, np.int32), 0)
        else:
            writer.append(Decision(np.array([t % 3, 2], np.int32), (), np.full(N, t)), step)
        seen.append((policy.window.copy(), step))
    return seen


def drawn(replay, length):
    """All windows in memory, as a time-major chunk."""
    every = np.arange(len(replay))

    class InOrder:
        def integers(self, count, size):
            return every

    return windows.to_chunk(replay.sample(len(every), InOrder()))


@pytest.mark.parametrize("length", [1, 3])
def test_every_state_with_a_transition_begins_a_window_and_stacks_never_straddle_episodes(length):
    replay = memory.MemoryWindows(1000, N, lengths=windows.lengths(window_of(length)))
    seen = write(replay, length)
    batch = drawn(replay, length)
    begun = {}
    for i in range(len(replay)):
        environment = int(batch.origin[i][Origin._fields.index("environment")]) - ORIGIN.environment
        start = int(batch.observation[2, i, 0, 0]) - 1  # the frame at time 0 says when it was
        begun.setdefault(environment, []).append(start)
        for t in range(length + 1):
            if batch.is_first[1 : t + 1, i].any():
                break  # of another episode, which the loss does not look at
            np.testing.assert_array_equal(batch.observation[t : t + 3, i], seen[start + t][0][:, environment])
        for t in range(length):
            assert batch.r_t[t, i] == seen[start + t + 1][1].reward[environment]
            assert batch.discount_t[t, i] == seen[start + t + 1][1].discount[environment]
            assert batch.a_tm1[t, i] == ((start + t + 1) % 3 if environment == 0 else 2)
    last = 13 - length
    assert begun[1] == list(range(last + 1))
    assert begun[0] == [t for t in range(last + 1) if t not in (5, 8)], "from a last state nothing leads on"


class All:
    """A sink that hands what it takes to several, one after the other."""

    def __init__(self, *sinks):
        self._sinks = sinks

    def write(self, rows):
        for sink in self._sinks:
            sink.write(rows)

    def end_windows(self, is_window, priority):
        for sink in self._sinks:
            sink.end_windows(is_window, priority)


def test_the_table_gives_back_what_memory_does():
    spec = window_of(3)
    table = windows.table(windows.window_spec(spec), 100, min_size=15, samples_per_insert=8, batch_size=4)
    server = reverb.Server([table])
    client = server.localhost_client()
    replay = memory.MemoryWindows(100, N, lengths=windows.lengths(spec))
    in_table = TableWindows(client, tables.REPLAY, N, lengths=windows.lengths(spec), should_stop=lambda: False)

    write(All(in_table, replay), 3)
    in_table._writer.flush(timeout_ms=10_000)
    assert client.server_info()[tables.REPLAY].current_size == len(replay) == replay.num_inserted
    expected = drawn(replay, 3)
    known = {self_describing(expected, i) for i in range(len(replay))}
    batches = windows.batches(server_address=f"localhost:{server.port}", table=tables.REPLAY, batch_size=4)
    for _ in range(5):
        batch = next(batches)
        assert {self_describing(batch, i) for i in range(4)} <= known
        assert batch.is_replayed.numpy().all() and batch.observation.shape == (6, 4, 2, 2)
    in_table.close()
    server.stop()


def test_windows_of_several_steps_are_sent_together_and_none_waits_until_its_steps_are_forgotten():
    """As Ape-X's actors send 50 at a time. Where resets bring no window for long, those that wait go without more."""
    table = windows.table(windows.window_spec(window_of(3)), 100, min_size=1, samples_per_insert=None, batch_size=4)
    server = reverb.Server([table])
    client, sizes = server.localhost_client(), []
    replay = memory.MemoryWindows(100, N, lengths=windows.lengths(window_of(3)))
    in_table = TableWindows(
        client, tables.REPLAY, N, lengths=windows.lengths(window_of(3)), should_stop=lambda: False, max_pending=0, num_together=4
    )

    note = lambda *_: sizes.append((client.server_info()[tables.REPLAY].current_size, len(replay)))  # noqa: E731
    write(All(in_table, replay, types.SimpleNamespace(write=lambda rows: None, end_windows=note)), 3)
    assert {size for size, _ in sizes} == {0, *(made for _, made in sizes[3::4])}, "every fourth step brings all that there are"
    assert len(sizes) == 11 and sizes[7][0] == sizes[7][1] == sizes[-1][0] < sizes[-1][1]
    rows = [dict(observation=np.zeros((2, 2), np.uint8), is_first=np.array(True), a_tm1=np.int32(0), r_t=np.float32(0),
                 discount_t=np.float32(0), weights_version=np.int64(0), origin=np.array(ORIGIN, np.int64))] * N  # fmt: skip
    for _ in range(10):  # as at an actor's start, before anything ends
        in_table.write(rows)
    for _ in range(10):
        in_table.write(rows)
        in_table.end_windows(np.zeros(N, bool), np.ones(N))
    assert client.server_info()[tables.REPLAY].current_size == len(replay)
    expected, drawn_of = drawn(replay, 3), windows.batches(server_address=f"localhost:{server.port}", table=tables.REPLAY, batch_size=4)
    known = {self_describing(expected, i) for i in range(len(replay))}
    for _ in range(20):
        batch = next(drawn_of)
        assert {self_describing(batch, i) for i in range(4)} <= known
    in_table.close()
    server.stop()


def self_describing(batch, i):
    fields = (batch.observation, batch.is_first, batch.a_tm1, batch.r_t, batch.discount_t)
    timed = [np.asarray(field)[:, i].tobytes() for field in fields]
    return (*timed, np.asarray(batch.origin)[i].tobytes(), int(np.asarray(batch.weights_version)[i]))


def test_memory_keeps_the_newest():
    replay = memory.MemoryWindows(5, N, lengths=windows.lengths(window_of(1)))
    write(replay, 1)
    assert len(replay) == 5 and replay.num_inserted == 24
    newest = sorted(int(frame) for frame in drawn(replay, 1).observation[2, :, 0, 0])
    assert newest == [11, 12, 12, 13, 13]


def test_transitions_across_a_reset_are_not_counted():
    counted = []
    write(memory.MemoryWindows(100, N, lengths=windows.lengths(window_of(1))), 1, on_steps=counted.append)
    assert sum(counted) == 2 * 13 - 2


def test_what_is_written_is_sound():
    replay = memory.MemoryWindows(1000, N, lengths=windows.lengths(window_of(3)))
    write(replay, 3)
    source = checks.ExpectedOrigins(run=7, incarnation=1, num_actors=1, num_environments=4 + N, num_tasks=1)
    checked = checks.Checks(windows.window_spec(window_of(3)), STACKED.actions, source, lambda: 100)
    chunk = drawn(replay, 3)
    assert chunk.is_first[1:].any(), "episodes end on the way"
    arrays = replay.sample(len(replay), types.SimpleNamespace(integers=lambda count, size: np.arange(count)))
    assert all(checked(arrays)) and not any(checked.counts_by_reason().values())


def test_a_reward_that_is_not_finite_is_refused():
    replay = memory.MemoryWindows(100, N, lengths=windows.lengths(window_of(1)))
    writer = WindowWriter(STACKED, N, length=1, origin=ORIGIN, sink=replay)
    first, second, *_ = steps(2)
    writer.start(np.zeros((3, N, 2, 2), np.uint8), first, np.zeros(N, np.int32), 0)
    with pytest.raises(ValueError, match="not finite"):
        writer.append(Decision(np.zeros(N, np.int32), ()), second._replace(reward=np.array([np.nan, 0.0], np.float32)))


def test_epsilon_greedy():
    q = np.array([[0.0, 2.0, 1.0]] * 30_000, np.float32)
    for epsilon, share in ((0.0, 1.0), (1.0, 1 / 3), (0.3, 0.7 + 0.1)):
        behaviour = exploration.epsilon_greedy(Discrete(3), lambda: epsilon)  # noqa: B023
        action, kept = behaviour.choose((q,), np.random.default_rng(0))
        assert kept == () and action.dtype == np.int32 and set(action) <= {0, 1, 2}
        assert np.mean(action == 1) == pytest.approx(share, abs=0.01)


def test_epsilon_greedy_keeps_what_first_priorities_need():
    q = np.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]], np.float32)
    behaviour = exploration.epsilon_greedy(Discrete(3), lambda: np.array([0.0, 1.0]), keeps_values=True, keeps_policy=True)
    action, kept = behaviour.choose((q,), np.random.default_rng(0))
    assert list(behaviour.kept) == ["q_tm1", "action_tm1", "logits_tm1"]
    for spec, array in zip(behaviour.kept.values(), kept, strict=True):
        assert array.shape[1:] == spec.shape and array.dtype == spec.dtype
    np.testing.assert_array_equal(kept[0], q)
    np.testing.assert_array_equal(kept[1], action)
    np.testing.assert_allclose(np.exp(kept[2]), [[1e-6, 1, 1e-6], [1 / 3] * 3], rtol=1e-5)


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf])
def test_a_priority_that_would_end_the_table_is_never_sent(wrong):
    table = windows.table(windows.window_spec(window_of(3)), 100, min_size=1, samples_per_insert=8, batch_size=4)
    server = reverb.Server([table])
    in_table = TableWindows(
        server.localhost_client(), tables.REPLAY, N, lengths=windows.lengths(window_of(3)), should_stop=lambda: False
    )
    with pytest.raises(ValueError, match="expected finite numbers above 0"):
        in_table.end_windows(np.ones(N, bool), np.array([1.0, wrong]))
    in_table.close()
    in_table._writer, in_table._num_together = types.SimpleNamespace(history=N * [{}]), 2
    in_table.end_windows(np.array([True, False]), np.array([1.0, wrong]))  # of no window, so that it harms nobody
    assert in_table._ended == [(1.0, {})]
    server.stop()
