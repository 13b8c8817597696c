"""Sequences: where they begin and end, what they hold, and what the table and this process's memory give back."""

import numpy as np
import pytest
import reverb

from impala import agents
from impala import config as config_lib
from impala.acting.lanes import Lanes
from impala.acting.policies import Decision
from impala.acting.remote import LaneId
from impala.acting.sequences import SequenceWriter
from impala.acting.windows import TableWindows
from impala.nodes import parts
from impala.replay import memory, tables, windows
from impala.types import ArraySpec, Chunk, Discrete, EnvironmentSpec, Origin, Step, chunk_spec

N, ORIGIN = 2, Origin(7, 0, 4, 1, 0)
STACKED = EnvironmentSpec("frames", ArraySpec((2, 2), np.uint8), Discrete(3), num_stacked=3)
BURN_IN, TRAINED, PERIOD = 3, 4, 2
LENGTH = BURN_IN + TRAINED
SPEC = chunk_spec(STACKED, LENGTH, (2, 1), kept={})


def steps(count, ends):
    """Frames that say when they were; environment 0 ends at the steps `ends`, 1 never does."""
    first = np.array([True, True])
    for t in range(count):
        last = np.array([t in ends, False])
        yield Step(np.full((N, 2, 2), t + 1, np.uint8), np.array([t, -t], np.float32), 1.0 - last.astype(np.float32), first, last)
        first = np.array([last[0], False])


def in_place(steps):
    """Hands out all steps in the same arrays, which are overwritten, as shared memory does."""
    arrays = None
    for step in steps:
        arrays = arrays or [np.empty_like(array) for array in step]
        for array, value in zip(arrays, step):
            array[:] = value
        yield Step(*arrays)


def write(sink, count=30, ends=(9, 12), anew=None, hand_out=iter, **kwargs):
    """Plays `count` steps; an unroll begins every `PERIOD` of them. At the step `anew` a lane forgets what it did."""
    writer = SequenceWriter(STACKED, N, length=LENGTH, burn_in=BURN_IN, origin=ORIGIN, sink=sink, **kwargs)
    begun, window = 0, np.zeros((3, N, 2, 2), np.uint8)
    for t, step in enumerate(hand_out(steps(count, ends))):
        window = np.concatenate([window[1:], step.observation[None]])
        window[:-1, step.is_first] = 0
        if t == anew:
            begun = t
            step = step._replace(is_first=np.ones(N, bool))
        elif t:
            writer.append(Decision(np.array([t % 3, 2], np.int32), (np.full(N, t, np.float32),) * 2, np.full(N, t)), step)
        if (t - begun) % PERIOD == 0:
            state = np.full((N, 2, 1), t, np.float32)
            writer.start(window, step, np.array([t % 3, 2], np.int32) if t else 0, 0, state)
    return writer


def stored(replay):
    every = np.arange(len(replay))

    class InOrder:
        def integers(self, count, size):
            return every

    return windows.to_chunk(replay.sample(len(every), InOrder()))


def make_memory():
    return memory.MemoryWindows(1000, N, lengths=windows.lengths(SPEC))


def test_a_sequence_begins_every_period_and_has_what_was_known_there():
    replay = make_memory()
    write(replay)
    chunk = stored(replay)
    of_second = [i for i, origin in enumerate(chunk.origin) if origin[2] == ORIGIN.environment + 1]
    begins = [int(chunk.observation[2, i, 0, 0]) - 1 for i in of_second]  # behind two older planes
    assert begins == list(range(0, 30 - LENGTH, PERIOD)), "the last that ends within 30 steps begins at 22"
    for i, t in zip(of_second, begins):
        np.testing.assert_array_equal(chunk.observation[2:, i, 0, 0], np.arange(t + 1, t + LENGTH + 2))
        np.testing.assert_array_equal(chunk.r_t[:, i], -np.arange(t + 1, t + LENGTH + 1))
        np.testing.assert_array_equal(chunk.core_state[i], [[t], [t]])
        assert chunk.previous_reward[i] == -t and chunk.previous_action[i] == (2 if t else 0)
        assert chunk.weights_version[i] == t + LENGTH


def test_a_sequence_may_hold_several_episodes_and_its_older_planes_are_of_its_first():
    replay = make_memory()
    write(replay)
    chunk = stored(replay)
    for i, origin in enumerate(chunk.origin):
        if origin[2] != ORIGIN.environment:
            continue
        t = int(chunk.observation[2, i, 0, 0]) - 1
        np.testing.assert_array_equal(chunk.is_first[:, i], [s in (0, 10, 13) for s in range(t, t + LENGTH + 1)])
        older = [s + 1 if s >= max(b for b in (0, 10, 13) if b <= t) else 0 for s in (t - 2, t - 1)]
        np.testing.assert_array_equal(chunk.observation[:2, i, 0, 0], older)
        if t in (0, 10):  # an episode begins: nothing led here
            assert chunk.previous_action[i] == 0


def test_a_sequence_of_which_nothing_can_be_learned_is_left_out():
    """With one trained transition, across a reset."""
    replay = memory.MemoryWindows(1000, N, lengths=windows.lengths(chunk_spec(STACKED, 1, (2, 1), kept={})))
    writer = SequenceWriter(STACKED, N, length=1, burn_in=0, origin=ORIGIN, sink=replay)
    for t, step in enumerate(steps(8, ends=(3,))):
        if t:
            writer.append(Decision(np.zeros(N, np.int32), (), np.zeros(N)), step)
        writer.start(np.zeros((3, N, 2, 2), np.uint8), step, np.zeros(N, np.int32), 0, np.zeros((N, 2, 1), np.float32))
    assert replay.num_inserted == 7 + 6
    assert not stored(replay).is_first[1].any()


def test_what_a_lane_had_begun_before_it_forgot_is_dropped_and_nothing_straddles_the_gap():
    replay = make_memory()
    write(replay, anew=11, ends=())
    chunk = stored(replay)
    begins = chunk.observation[2, :, 0, 0].astype(int) - 1
    assert sorted(set(begins)) == [0, 2, 11, 13, 15, 17, 19, 21]
    for i, t in enumerate(begins):
        np.testing.assert_array_equal(chunk.observation[2:, i, 0, 0], np.arange(t + 1, t + LENGTH + 2))


def test_priorities_come_with_the_decision_in_the_last_state_and_see_the_whole_sequence():
    seen = []

    def prioritise(played):
        seen.append(played)
        return played.kept[0][-1]

    replay = make_memory()
    write(replay, prioritise=prioritise)
    assert len(seen) == len(range(0, 30 - LENGTH - 1, PERIOD)), "the last would need one decision more"
    for number, played in enumerate(seen):
        assert played.r_t.shape == (LENGTH, N) and played.is_first.shape == (LENGTH + 1, N)
        # The decision in the state of step t is written with step t + 1.
        np.testing.assert_array_equal(played.kept[0][:, 1], PERIOD * number + 1 + np.arange(LENGTH + 1))
        assert replay._priorities[2 * number] == PERIOD * number + LENGTH + 1


@pytest.mark.parametrize("has_priorities", [True, False])
def test_steps_that_are_overwritten_once_they_were_handed_over_leave_the_same_sequences(has_priorities):
    seen = [], []
    replays = make_memory(), make_memory()
    for replay, hand_out, played in zip(replays, (iter, in_place), seen):

        def prioritise(what, played=played):
            played.append(what)
            return what.r_t.sum(axis=0) + what.discount_t.sum(axis=0) + what.is_first.sum(axis=0)

        write(replay, hand_out=hand_out, **dict(prioritise=prioritise) if has_priorities else {})
    assert len(seen[0]) == len(seen[1]) == (11 if has_priorities else 0)
    for expected, found in zip(*seen):
        for name in ("r_t", "discount_t", "is_first"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)
    for name, expected, found in zip(Chunk._fields, *map(stored, replays)):
        np.testing.assert_array_equal(found, expected, name)
    assert len(replays[0]) == len(replays[1])
    np.testing.assert_array_equal(*(replay._priorities[: len(replay)] for replay in replays))


@pytest.mark.parametrize("prioritise", [None, lambda played: played.kept[0][-1]])
def test_the_table_gives_back_what_memory_does(prioritise):
    replay = make_memory()
    server = reverb.Server([tables.uniform(windows.window_spec(SPEC), 1000)], port=None)
    sink = TableWindows(
        reverb.Client(f"localhost:{server.port}"), tables.REPLAY, N, lengths=windows.lengths(SPEC), should_stop=lambda: False
    )
    write(replay, prioritise=prioritise)
    write(sink, prioritise=prioritise)
    sink._writer.flush(0)
    expected = stored(replay)
    of_expected = {(int(o[2]), int(v)): i for i, (o, v) in enumerate(zip(expected.origin, expected.weights_version))}
    found = set()
    for _, batch in zip(range(40), windows.batches(f"localhost:{server.port}", tables.REPLAY, batch_size=8)):
        for j, (origin, version) in enumerate(zip(batch.origin.numpy(), batch.weights_version.numpy())):
            i = of_expected[int(origin[2]), int(version)]
            found.add(i)
            for name in ("observation", "is_first", "a_tm1", "r_t", "discount_t"):
                np.testing.assert_array_equal(getattr(batch, name)[:, j], getattr(expected, name)[:, i], name)
            for name in ("core_state", "previous_action", "previous_reward"):
                np.testing.assert_array_equal(getattr(batch, name)[j], getattr(expected, name)[i], name)
    assert found == set(of_expected.values())
    server.stop()


class Central:
    """R2D2 as published, behind `Lanes`, for one environment; a core state counts the decisions before it."""

    def __init__(self, **overrides):
        config = config_lib.build({}, {
            "program": "seed", "agent.name": "r2d2", "environment.name": "catch", "network.torso": "mlp",
            "network.core_size": 1, **overrides,
        })  # fmt: skip
        spec, agent = EnvironmentSpec("numbers", ArraySpec((1,), np.float32), Discrete(3)), agents.of(config)
        behaviour, self.fails_at = agent.make_behaviour(config, spec), None
        self.replay = memory.MemoryWindows(1000, 1, lengths=windows.lengths(agent.make_chunk_spec(config, spec)))

        def outputs(window, is_first, last_action, last_reward, core_state):
            if window[-1, 0, 0] == self.fails_at:
                self.fails_at = None
                raise FloatingPointError("once")
            return np.float32([[0, 1, 0]]), core_state + 1, np.zeros(1, np.int64)

        self.lanes = Lanes(
            lambda lane, n: parts.make_policy(outputs, spec, n, seed=0, behaviour=behaviour),
            lambda lane, n: agent.make_writer(config, spec, n, behaviour=behaviour, origin=ORIGIN, sink=self.replay),
            unroll_length=config.agent.period, spec=spec,
        )  # fmt: skip

    def play(self, numbers, life=1, first_request=0):
        """Sends steps that are observed as `numbers`, as one life of a lane."""
        for request, number in enumerate(numbers, first_request):
            is_first, no = np.array([request == 0]), np.array([False])
            step = Step(np.float32([[number]]), np.float32([number]), np.ones(1, np.float32), is_first, no)
            self.lanes.step(LaneId(0, 0, life), request, step)

    def stored(self):
        """Returns all sequences, and by index the numbers that each observes."""
        chunk = stored(self.replay)
        return chunk, [chunk.observation[:, i, 0].astype(int).tolist() for i in range(len(self.replay))]


@pytest.mark.parametrize("period, begins, num_shared", [(80, [0, 80, 160], 41), (40, [0, 40, 80, 120, 160], 81)])
def test_sequences_of_40_and_80_as_published(period, begins, num_shared):
    """SEED RL's overlap by burn-in and a state, so that each step is trained on once; the paper's, on twice."""
    central = Central(**{} if period == 80 else {"agent.period": period})
    central.play(range(282))  # the last that ends within them begins at 160; its last state waits for a decision
    chunk, observed = central.stored()
    assert observed == [list(range(begin, begin + 121)) for begin in begins]
    assert [len(set(one) & set(other)) for one, other in zip(observed, observed[1:])] == [num_shared] * (len(begins) - 1)
    assert chunk.core_state[:, 0, 0].tolist() == begins and chunk.previous_reward.tolist() == begins
    trained = np.concatenate([chunk.r_t[40:, i] for i in range(len(begins))])  # a reward names its step
    steps, counts = np.unique(trained, return_counts=True)
    assert steps.tolist() == list(range(41, 281)), "those of the first burn-in are never trained on"
    assert counts[40:-40].tolist() == [80 // period] * 160


@pytest.mark.parametrize("how", ["its client starts again", "a decision fails"])
def test_a_new_life_of_a_lane_begins_its_sequences_anew(how):
    """The first life ends within the sequences that began at 80 and 160."""
    central = Central()
    central.play(range(200))
    if how == "a decision fails":
        central.fails_at = 200
        with pytest.raises(FloatingPointError):
            central.play([200], first_request=200)
        central.play(range(1000, 1202), first_request=201)
    else:
        central.play(range(1000, 1202), life=2)
    chunk, observed = central.stored()
    assert observed == [list(range(begin, begin + 121)) for begin in (0, 1000, 1080)]
    assert chunk.is_first[0].tolist() == [True, True, False] and not chunk.is_first[1:].any()
    assert chunk.previous_reward.tolist() == [0, 0, 1080] and chunk.previous_action.tolist() == [0, 0, 1]
    assert chunk.core_state[0, 0, 0] == 0 and central.lanes.num_dropped_unrolls == 1
    if how == "its client starts again":  # else what is stored is old, and reset where an episode begins
        assert chunk.core_state[:, 0, 0].tolist() == [0, 0, 80]
