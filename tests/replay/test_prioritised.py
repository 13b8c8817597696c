"""Priorities in a real table: how often windows are drawn, what is written back, what a full table drops."""

import threading
import time

import numpy as np
import pytest
import reverb

from impala.acting.policies import Decision
from impala.acting.windows import TableWindows, WindowWriter
from impala.replay import prioritised, tables, windows
from impala.replay.priorities import probabilities
from impala.types import ArraySpec, Discrete, EnvironmentSpec, Origin, Step, chunk_spec

SPEC = EnvironmentSpec("numbers", ArraySpec((1,), np.float32), Discrete(3))
CHUNK = chunk_spec(SPEC, 1, kept={})._replace(previous_action=(), previous_reward=())


def fill(client, of_windows, *, first=0, discounts=None):
    """Writes windows of one transition with these priorities, whose first observation is `first`, `first` + 1, …"""
    sink = TableWindows(
        client, tables.REPLAY, 1, lengths=windows.lengths(CHUNK), should_stop=lambda: False, max_pending=0
    )
    left = iter(of_windows)
    writer = WindowWriter(
        SPEC, 1, length=1, origin=Origin(0, 0, 0, 0, 0), sink=sink, prioritise=lambda window: np.array([next(left)])
    )
    for t in range(len(of_windows) + 2):
        no, discount = np.zeros(1, bool), np.ones(1, np.float32)
        if discounts is not None and 0 < t <= len(discounts):
            discount[0] = discounts[t - 1]
        step = Step(np.array([[first + t]], np.float32), np.zeros(1, np.float32), discount, no, no)
        if t == 0:
            writer.start(step.observation[None], step, np.zeros(1, np.int32), 0)
        else:
            writer.append(Decision(np.zeros(1, np.int32), ()), step)


@pytest.fixture
def served():
    """Makes a table of windows of one transition, and fills it."""
    servers = []

    def make(of_windows, *, size=1000, exponent=0.6, discounts=None):
        table = windows.table(
            windows.window_spec(CHUNK), size, min_size=1, samples_per_insert=None, batch_size=4,
            priority_exponent=exponent,
        )  # fmt: skip
        server = reverb.Server([table])
        servers.append(server)
        client = server.localhost_client()
        fill(client, of_windows, discounts=discounts)
        return server, client

    yield make
    for server in servers:
        server.stop()


def draws(server, count, batch_size=1_000):
    """Returns what was drawn: first observations, keys, probabilities."""
    drawn = windows.drawn(f"localhost:{server.port}", tables.REPLAY, batch_size=batch_size)
    batches = [next(drawn) for _ in range(count // batch_size)]
    return tuple(
        np.concatenate([f(batch) for batch in batches])
        for f in (lambda b: b["observation"][:, 0, 0].astype(int), lambda b: b["key"], lambda b: b["probability"])
    )


def test_windows_are_drawn_in_proportion_to_their_priority_to_the_power_of_alpha(served):
    of_windows = np.linspace(0.1, 3.0, 20)
    server, _ = served(of_windows)
    seen, _, probability = draws(server, 100_000)
    expected = 100_000 * probabilities(of_windows, 0.6)
    counts = np.bincount(seen, minlength=20)
    chi_squared = np.sum((counts - expected) ** 2 / expected)
    assert chi_squared < 43.8, "19 degrees of freedom, one in a thousand"
    np.testing.assert_allclose(probability, probabilities(of_windows, 0.6)[seen], rtol=1e-5)


def test_a_full_table_takes_what_comes_and_drops_the_oldest(served):
    server, client = served(np.full(50, 2.0), size=20)
    assert client.server_info()[tables.REPLAY].current_size == 20
    seen, _, _ = draws(server, 2_000)
    assert sorted(set(seen)) == list(range(30, 50))


def test_priorities_that_are_written_back_change_what_is_drawn(served):
    server, client = served(np.ones(10))
    seen, keys, _ = draws(server, 1_000)
    key_of = dict(zip(seen.tolist(), keys.tolist()))
    writer = prioritised.PriorityWriter(client)
    gone = 2**60 + 1  # of a window that the table dropped: ignored
    drawn_at = time.monotonic() - 100.0
    writer.put(np.array([key_of[3], key_of[4], key_of[5], gone], np.uint64), np.array([100.0, np.nan, -1.0, 5.0]), drawn_at)
    writer.put(np.array([key_of[6], key_of[7]], np.uint64), np.array([np.inf, 0.0]), drawn_at)

    def is_written():
        return draws(server, 10, 10)[2].max() > 0.5

    deadline = time.monotonic() + 30
    while not is_written():
        assert time.monotonic() < deadline
    seen, _, probability = draws(server, 10_000)
    expected = probabilities([1, 1, 1, 100, 1, 1, 1, 1, 1, 1], 0.6)
    np.testing.assert_allclose(probability, expected[seen], rtol=1e-5)
    assert client.server_info()[tables.REPLAY].current_size == 10
    columns = writer.columns()
    assert writer.num_unsound == 4 and 0 < columns["priority_seconds"] < 10
    assert 100.0 < columns["priority_round_trip_seconds"] < 110.0
    assert set(writer.columns().values()) == {None}, "of a period without any"


def test_priorities_of_windows_that_were_drawn_and_then_dropped_are_ignored(served):
    server, client = served(np.ones(20), size=20)
    seen, keys, _ = draws(server, 1_000)
    key_of = dict(zip(seen.tolist(), keys.tolist()))
    fill(client, np.ones(10), first=100)  # in place of the oldest ten
    writer = prioritised.PriorityWriter(client)
    writer.put(np.array([key_of[i] for i in range(20)], np.uint64), np.full(20, 50.0), time.monotonic())
    deadline = time.monotonic() + 30
    while draws(server, 10, 10)[2].max() < 0.06:  # 1/20 before
        assert time.monotonic() < deadline
    seen, _, probability = draws(server, 10_000)
    is_old = np.array([True] * 10 + [False] * 10)
    expected = dict(zip([*range(10, 20), *range(100, 110)], probabilities(np.where(is_old, 50.0, 1.0), 0.6)))
    np.testing.assert_allclose(probability, [expected[first] for first in seen.tolist()], rtol=1e-5)
    assert {*seen.tolist()} == expected.keys() and client.server_info()[tables.REPLAY].current_size == 20


def test_writing_back_holds_nobody_up_and_what_waits_goes_in_large_requests(served):
    """While the table answers slowly the learner goes on; of a window's priorities the newest is sent."""
    _, client = served(np.ones(10))
    may_go, sent = threading.Event(), []

    class Slow:
        def mutate_priorities(self, table, updates):
            sent.append(dict(updates))
            may_go.wait(60)
            client.mutate_priorities(table, updates=updates)

    writer = prioritised.PriorityWriter(Slow())
    began = time.monotonic()
    for number, keys in enumerate((range(1), range(6_000), range(3))):  # of no window: Reverb ignores them
        writer.put(np.array(keys, np.uint64), np.full(len(keys), 1.0 + number), began)
        while not sent:
            time.sleep(0.01)
    assert len(sent) == 1, "all were put while the first request was on its way"
    may_go.set()
    deadline = time.monotonic() + 60
    while sum(map(len, sent)) < 6_001:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [len(one) for one in sent] == [1, 5_000, 1_000]
    assert [sent[1][key] for key in (0, 2, 3)] == [3.0, 3.0, 2.0]


def test_reverb_does_not_tell_which_priorities_came_too_late(served):
    """If a version of it does, they can be counted: see docs/architectures/apex.md."""
    server, client = served(np.ones(20), size=10)
    before = client.server_info()[tables.REPLAY]
    assert client.mutate_priorities(tables.REPLAY, updates={2**60 + 1: 5.0}) is None
    after = client.server_info()[tables.REPLAY]
    assert vars(after) | {"table_worker_time": None} == vars(before) | {"table_worker_time": None}
    assert reverb.SampleInfo._fields == ("key", "probability", "table_size", "priority", "times_sampled")
    keys = {int(first): int(key) for first, key in zip(*draws(server, 1_000)[:2])}
    assert [keys[first] for first in sorted(keys)] != sorted(keys.values()), "keys are not in the order of insertion"


def test_why_a_full_table_drops_its_oldest_and_not_what_matters_least():
    """Ape-X DPG's remover, p^−0.4, drops low priorities more often, but keeps those of 0 for as long as there are others."""
    def left(priorities, size=200):
        table = reverb.Table(
            "t", reverb.selectors.Fifo(), reverb.selectors.Prioritized(-0.4), size, reverb.rate_limiters.MinSize(1),
            max_times_sampled=1,
        )  # fmt: skip
        server = reverb.Server([table])
        client = server.localhost_client()
        for priority in priorities:
            client.insert([np.float32(priority)], {"t": priority})
        found = [float(sample[0].data[0]) for sample in client.sample("t", min(size, len(priorities)))]
        server.stop()
        return found

    found = left([1.0] * 100 + [32.0] * 100 + [1e9] * 80)  # of the first two four to one, since 32^−0.4 = ¼
    assert found.count(1.0) == pytest.approx(40, abs=20) and found.count(32.0) == pytest.approx(80, abs=20)
    assert found.count(1e9) == pytest.approx(80, abs=1)
    found = left([0.0] * 5 + [1.0] * 40, size=10)
    assert found.count(0.0) == found.count(1.0) == 5


def test_an_unsound_window_of_a_huge_priority_is_taken_out_of_the_table(served):
    """Drawn again and again it would keep every other window from the learner."""
    from impala.replay.checks import Checks, ExpectedOrigins

    server, client = served([*np.ones(10), 1e30], discounts=[*np.ones(10), 0.5])
    assert set(draws(server, 10, 10)[0]) == {10}, "nothing else is drawn"
    checks = Checks(windows.window_spec(CHUNK), SPEC.actions, ExpectedOrigins(0, 0, 1, 1, 1), lambda: 0)
    source = windows.Windows(
        client, windows.Share(size=1000, min_size=1, batch_size=8), checks=checks, num_prefetched=1, device="/cpu:0"
    )
    seen = {int(first) for _ in range(20) for first in source.get(timeout_seconds=60).observation.numpy()[0, :, 0]}
    assert seen == set(range(10)) and client.server_info()[tables.REPLAY].current_size == 10
    assert 8 <= source.counts()["unsound:discount"] <= 64, "those that were on their way before"


def test_a_table_that_an_infinite_priority_has_spoiled_is_emptied_and_fills_again(served):
    """Their sum is not finite, and is no number once the window is gone: one window would be drawn for ever."""
    from impala.replay.checks import Checks, ExpectedOrigins

    server, client = served(np.ones(10))
    key = int(draws(server, 1, 1)[1][0])
    checks = Checks(windows.window_spec(CHUNK), SPEC.actions, ExpectedOrigins(0, 0, 1, 1, 1), lambda: 0)
    source = prioritised.PrioritisedWindows(
        client, windows.Share(size=1000, min_size=1, batch_size=8), checks=checks, num_prefetched=1, device="/cpu:0",
        importance_exponent=0.4,
    )  # fmt: skip
    assert source.get(timeout_seconds=60) is not None
    client.mutate_priorities(tables.REPLAY, updates={key: np.inf})
    deadline = time.monotonic() + 60
    while client.server_info()[tables.REPLAY].current_size:
        assert time.monotonic() < deadline
        source.get(timeout_seconds=0.1)
    fill(client, np.linspace(1.0, 2.0, 10), first=100)
    weights, seen = set(), set()
    while time.monotonic() < deadline and len(seen) < 10:
        if batch := source.get(timeout_seconds=1):
            newest = [each for each in batch.observation.numpy()[0, :, 0].astype(int).tolist() if each >= 100]
            seen |= {*newest}
            weights |= {*batch.importance.numpy().tolist()} if newest else set()
    assert seen == {*range(100, 110)} and np.isfinite(list(weights)).all() and len(weights) > 1
    assert source.num_inserted() == 10 + 10, "frames are counted by it, and never fall"
    assert source.counts()["unsound:priority"] == 1 and client.server_info()[tables.REPLAY].current_size == 10


def test_a_spoiled_table_that_does_not_say_its_counts_is_not_emptied_yet(served, monkeypatch):
    """Emptied, it would begin to count anew, and the frames of the run would fall."""
    from impala.replay.checks import Checks, ExpectedOrigins

    _, client = served(np.ones(10))
    checks = Checks(windows.window_spec(CHUNK), SPEC.actions, ExpectedOrigins(0, 0, 1, 1, 1), lambda: 0)
    source = windows.Windows(
        client, windows.Share(size=1000, min_size=1, batch_size=8), checks=checks, num_prefetched=1, device="/cpu:0"
    )
    with monkeypatch.context() as busy:
        busy.setattr(windows.table_info, "info_of", lambda *arguments: None)
        source._empty()
    assert client.server_info()[tables.REPLAY].current_size == source.num_inserted() == 10
    source._empty()
    assert client.server_info()[tables.REPLAY].current_size == 0 and source.num_inserted() == 10


def test_a_source_hands_out_weights_and_takes_priorities_for_the_batch_it_handed_out(served):
    from impala.replay.checks import Checks, ExpectedOrigins

    of_windows = np.linspace(1.0, 4.0, 16)
    _, client = served(of_windows)
    checks = Checks(windows.window_spec(CHUNK), SPEC.actions, ExpectedOrigins(0, 0, 1, 1, 1), lambda: 0)
    source = prioritised.PrioritisedWindows(
        client, windows.Share(size=1000, min_size=1, batch_size=8), checks=checks, num_prefetched=2, device="/cpu:0",
        importance_exponent=0.4,
    )  # fmt: skip
    batch = source.get(timeout_seconds=60)
    first = batch.observation.numpy()[0, :, 0].astype(int)
    expected = (16 * probabilities(of_windows, 0.6)[first]) ** -0.4
    np.testing.assert_allclose(batch.importance, expected, rtol=1e-5)
    source.get(timeout_seconds=60)
    source.update_priorities(np.full(8, 50.0))
    columns = source.columns()
    assert columns["priority_max"] == 50.0 and source.num_inserted() == 16
    assert 0 < columns["learner_priority_fraction"] < 0.5
    assert source.columns()["learner_priority_fraction"] == 0.0, "of a period without any"
    assert source.counts()["unsound_priorities"] == 0
    for _ in range(1_500):  # as in a learner whose columns nobody asks for
        source.update_priorities(np.full(8, np.nan))
    assert len(source._priorities) <= 1_000 and source.counts()["unsound_priorities"] == 8 * 1_500
    assert "priority_max" not in source.columns(), "of a period without a finite one"
    source.update_priorities(np.array(7 * [2.0] + [np.nan]))
    assert source.columns()["priority_max"] == 2.0, "of those that are finite"


@pytest.mark.parametrize("size, num_dropped", [(20, 5), (22, 3), (1_000, 0)])
def test_how_many_priorities_come_too_late_is_what_a_full_table_dropped_since_the_draw(served, size, num_dropped):
    from impala.replay.checks import Checks, ExpectedOrigins

    server, client = served(np.ones(20), size=size)
    checks = Checks(windows.window_spec(CHUNK), SPEC.actions, ExpectedOrigins(0, 0, 1, 1, 1), lambda: 0)
    source = prioritised.PrioritisedWindows(
        client, windows.Share(size=size, min_size=1, batch_size=8), checks=checks, num_prefetched=1, device="/cpu:0",
        importance_exponent=0.4,
    )  # fmt: skip

    def update():
        source.update_priorities(np.ones(8))
        while not source._writer._seconds:  # until they are in the table
            assert time.monotonic() - began < 60
            time.sleep(0.01)
        return source.columns()

    assert source.columns()["gone_priority_fraction"] is None, "nothing to compare with, and no priority"
    began = time.monotonic()
    source.get(timeout_seconds=60)
    fill(client, np.ones(5), first=100)
    time.sleep(1.0)
    columns, ended = update(), time.monotonic()
    assert columns["priority_round_trip_seconds"] >= 1.0
    # Of those that were dropped within a period, they count that may have been since the draw.
    expected = num_dropped / size * columns["priority_round_trip_seconds"] / (ended - began)
    assert columns["gone_priority_fraction"] == pytest.approx(expected, rel=0.05)
    source._dropped = (10**6, ended)  # of a table that has begun anew since
    assert update()["gone_priority_fraction"] == 0.0
    server.stop()
    assert source.columns()["gone_priority_fraction"] is None, "of a table that does not answer"
