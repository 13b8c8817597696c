"""From an actor's steps through a real table to the target of a loss, with every number by hand."""

import threading
import time

import numpy as np
import pytest
import reverb
import tensorflow as tf

from impala.acting.policies import Decision
from impala.acting.windows import TableWindows, WindowWriter
from impala.losses import q_learning
from impala.networks import q_values
from impala.replay import tables, windows
from impala.types import ArraySpec, Discrete, EnvironmentSpec, Origin, Step, chunk_spec
from tests.programs.running import wait_for

SPEC = EnvironmentSpec("numbers", ArraySpec((1,), np.float32), Discrete(2))
CHUNK = chunk_spec(SPEC, 3, kept={})._replace(previous_action=(), previous_reward=())

#  state    0  1  2  3  4  │  5  6  7  8  │  9 10 11 12      is what is observed in it
#  reward      1  2  4  8  │     1  2  4  │    16 32 64      of the step to it
#               terminates ┘     is cut off ┘
REWARDS = {1: 1, 2: 2, 3: 4, 4: 8, 6: 1, 7: 2, 8: 4, 10: 16, 11: 32, 12: 64}
FIRST, LAST, TERMINAL = (0, 5, 9), (4, 8), (4,)

#  γ = ½: from its first state a window has G, and Γ of the state that bootstraps; tails of an episode are shorter.
EXPECTED = {
    0: (1 + 2 / 2 + 4 / 4, 1 / 8, 3),
    1: (2 + 4 / 2 + 8 / 4, 0, 4),
    2: (4 + 8 / 2, 0, 4),
    3: (8, 0, 4),
    5: (1 + 2 / 2 + 4 / 4, 1 / 8, 8),
    6: (2 + 4 / 2, 1 / 4, 8),
    7: (4, 1 / 2, 8),
    9: (16 + 32 / 2 + 64 / 4, 1 / 8, 12),
}


class Values(tf.Module):
    """Q(x, ·) = (a, b + c x)."""

    def __init__(self, a, b, c):
        super().__init__()
        self._numbers = a, b, c

    def __call__(self, observation, is_first):
        a, b, c = self._numbers
        x = observation[..., 0]
        return q_values.Outputs(tf.stack([a + 0.0 * x, b + c * x], axis=-1))


def play(sink):
    """Writes the 13 steps as an actor does, which always takes the first action."""
    writer = WindowWriter(SPEC, 1, length=3, origin=Origin(0, 0, 0, 0, 0), sink=sink)
    for state in range(13):
        step = Step(
            np.float32([[state]]), np.float32([REWARDS.get(state, 0)]), np.float32([state not in TERMINAL]),
            np.array([state in FIRST]), np.array([state in LAST]),
        )  # fmt: skip
        if state == 0:
            writer.start(step.observation[None], step, np.zeros(1, np.int32), 0)
        else:
            writer.append(Decision(np.zeros(1, np.int32), ()), step)


def test_three_steps_with_a_termination_a_cut_and_tails_of_two_and_one():
    table = windows.table(
        windows.window_spec(CHUNK), 100, min_size=1, samples_per_insert=None, batch_size=256, priority_exponent=0.6
    )
    server = reverb.Server([table])
    sink = TableWindows(
        server.localhost_client(), tables.REPLAY, 1, lengths=windows.lengths(CHUNK), should_stop=lambda: False, max_pending=0
    )
    play(sink)
    arrays = next(windows.drawn(f"localhost:{server.port}", tables.REPLAY, batch_size=256))
    batch = windows.to_tensors(arrays, importance_exponent=0.4)
    firsts = batch.observation.numpy()[0, :, 0].astype(int)
    assert set(firsts) == set(EXPECTED), "a window for each state but the last of an episode"
    # Online the second action is better, and the target network's value of it is x; that of the first is 100.
    network = q_values.WithTarget(Values(0.0, 1.0, 0.0), Values(100.0, 0.0, 1.0), num_stacked=1)
    outputs = network.on_windows(batch.observation, batch.is_first)
    found = q_learning.n_step(batch.r_t, 0.5 * batch.discount_t, outputs.num_valid)
    expected = np.array([EXPECTED[first] for first in firsts]).T
    np.testing.assert_array_equal(np.stack(found), expected[:2])
    loss = q_learning.q_learning(double=True, discount=0.5, reward_clipping="none", error=q_learning.squared)
    _, metrics = loss(outputs, batch)
    total, weight, last = expected
    np.testing.assert_array_equal(metrics["priority"], total + weight * last)  # Q(x, a) of the action taken is 0
    sink.close()
    server.stop()


def test_after_an_unsound_window_batches_are_of_the_newest_draw_again(monkeypatch):
    """The rest of the draw that takes its place is dropped: kept, it would make every later batch one draw older."""
    draws = iter(range(1, 100))
    arrays = lambda n: dict(origin=np.full((4, 6), n), key=np.arange(4))  # noqa: E731
    monkeypatch.setattr(windows.fetching, "fetcher", lambda *arguments, **more: lambda: arrays(next(draws)))
    verdicts, removed = iter([[True] * 4, [True, False, True, True]]), []
    drawn = windows.drawn("", "", batch_size=4, checks=lambda arrays: next(verdicts, [True] * 4), remove=removed.extend)
    batches = [next(drawn)["origin"][:, 0].tolist() for _ in range(4)]
    assert batches == [[1] * 4, [2, 2, 2, 3], [4] * 4, [5] * 4] and removed == [1]


@pytest.mark.parametrize("fault, num_faults", [("unreadable", windows._MOST_UNREAD), (np.nan, 1), (0.0, 1), (np.inf, 1)])
def test_a_spoiled_table_is_emptied_once_and_what_was_drawn_before_is_dropped(monkeypatch, fault, num_faults):
    """A batch that is half of before and half of after would have it emptied again, full of sound windows."""
    emptied, fetchers, counted = [], [], []

    def fetcher(*arguments, **more):
        fetchers.append(len(fetchers))
        number, left = fetchers[-1], iter(range(100))

        def fetch():
            draw = next(left)
            probability = np.full(4, 0.25)
            if number == 0 and draw == 2 and fault != "unreadable":
                probability[1] = fault
            if number == 0 and draw >= 2 and fault == "unreadable":
                raise tf.errors.InvalidArgumentError(None, None, "no window")
            return dict(origin=np.full((4, 6), 10 * number + draw), key=np.arange(4), probability=probability)

        return fetch

    class Checks:
        def __call__(self, arrays):
            return [True, False, True, True] if arrays["origin"][0, 0] == 1 else [True] * 4

        def count(self, reason, words):
            counted.append(reason)

    monkeypatch.setattr(windows.fetching, "fetcher", fetcher)
    drawn = windows.drawn("", "", batch_size=4, checks=Checks(), empty=lambda: emptied.append(fetchers[-1]))
    assert [next(drawn)["origin"][:, 0].tolist() for _ in range(3)] == [[0] * 4, [10] * 4, [11] * 4]
    assert emptied == [0] and fetchers == [0, 1] and len(counted) == num_faults


@pytest.mark.parametrize("samples_per_insert", [2.0, None])
def test_a_source_knows_when_its_rate_limiter_holds_up_whoever_writes(samples_per_insert):
    """In a group of learners the one whose actors wait then draws without its peers: `learner_group.Relief`."""
    table = windows.table(
        windows.window_spec(CHUNK), 1_000, min_size=4, samples_per_insert=samples_per_insert, batch_size=4
    )
    server, is_over = reverb.Server([table]), threading.Event()
    client = server.localhost_client()
    source, other = (
        windows.Windows(
            client, windows.Share(1_000, 4, 4), checks=None, num_prefetched=1, device="/CPU:0", is_fed_with_others=found
        ) for found in (True, False)
    )  # fmt: skip

    def write():
        sink = TableWindows(
            client, tables.REPLAY, 1, lengths=windows.lengths(CHUNK), should_stop=is_over.is_set, max_pending=0
        )
        for _ in range(60):
            play(sink)  # eight windows
        sink.close()

    assert not source.is_full()
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    if samples_per_insert is None:
        writer.join(60)
        assert source.num_inserted() == 480 and not source.is_full(), "nobody is held up"
    else:
        wait_for(source.is_full, 30, "that the writer is held up")
        assert not other.is_full(), "nobody else waits for this writer"
        before, rows = source.num_inserted(), windows.drawn(f"localhost:{server.port}", tables.REPLAY, batch_size=4)
        time.sleep(0.5)
        assert source.num_inserted() == before == 4 + 32 / 2, "it is ahead by eight batches, no further"
        for _ in range(3):
            next(rows)
        wait_for(lambda: source.num_inserted() > before, 30, "that it goes on")
        is_over.set()
        writer.join(30)
    server.stop()
