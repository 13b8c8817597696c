"""The parameter server: what it accepts, in which order, and that shards, repetitions and barriers change no number."""

import functools
import threading
import time
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf

from impala.learning import optimizers
from impala.learning.server import ParameterServer, Push, Rules, State, Verdict, partition, restore, slots_of

SHAPES = [(4, 3), (3,), (3, 2), (2,)]
RATE, EPSILON = 0.01, 1e-3


def parameters(seed=0):
    random = np.random.default_rng(seed)
    return [random.normal(size=shape).astype(np.float32) for shape in SHAPES]


def make(arrays=None, name="rmsprop", should_stop=lambda: False, merge=lambda state, increments: state, **rules):
    state = State(0, 0, parameters() if arrays is None else arrays, [])
    make_optimizer = functools.partial(optimizers.make, name, epsilon=EPSILON)
    return ParameterServer(state, make_optimizer, lambda frames: dict(learning_rate=RATE, epsilon=EPSILON), rules=Rules(**rules), merge=merge, should_stop=should_stop)


def push(server, number, *, worker=0, version=None, gradients=None, life=0, **more):
    gradients = parameters(100 + number) if gradients is None else gradients
    version = server.version if version is None else version
    return server.push(Push(worker, life, number, version, gradients, 20, **more))


def test_it_applies_what_rmsprop_says():
    """By hand: s ← 0.99 s + 0.01 g², w ← w − lr g / √(s + ε), s_0 = 1 (learning/rmsprop.py)."""
    server, expected, slots = make(), parameters(), [np.ones(shape) for shape in SHAPES]
    for number in range(3):
        assert push(server, number) is Verdict.ACCEPTED
        for index, gradient in enumerate(parameters(100 + number)):
            slots[index] = 0.99 * slots[index] + 0.01 * gradient.astype(float) ** 2
            expected[index] = expected[index] - RATE * gradient / np.sqrt(slots[index] + EPSILON)
    version, frames, arrays, _ = server.read()
    assert (version, frames) == (3, 60)
    for one, other in zip(arrays, expected):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_what_is_read_is_of_the_version_said_and_cannot_be_written_to():
    """All who read one version share its copies."""
    server, other = make(), State(7, 140, parameters(5), [], np.zeros(0))
    first = server.read()[2]
    assert all(one is again for one, again in zip(first, server.read()[2]))
    with pytest.raises(ValueError, match="read-only"):
        first[0][...] = 0.0
    push(server, 0)
    second = server.read()[2]
    assert all((one != another).any() for one, another in zip(first, second))
    np.testing.assert_array_equal(first[0], parameters()[0])
    server.replace(other)
    for one, expected in zip(server.read()[2], parameters(5)):
        np.testing.assert_array_equal(one, expected)


@pytest.mark.parametrize("name", ["rmsprop", "centered_rmsprop", "adam", "adagrad"])
@pytest.mark.parametrize("num_shards", [2, 4])
def test_shards_are_one_server_bit_for_bit(name, num_shards):
    whole, parts = make(name=name), partition([int(np.prod(shape)) for shape in SHAPES], num_shards)
    shards = [make([parameters()[i] for i in part], name=name) for part in parts]
    for number in range(20):
        push(whole, number)
        for part, shard in zip(parts, shards):
            push(shard, number, gradients=[parameters(100 + number)[i] for i in part])
    arrays = whole.read()[2]
    for part, shard in zip(parts, shards):
        for index, array in zip(part, shard.read()[2]):
            np.testing.assert_array_equal(array, arrays[index])
    assert np.abs(arrays[0] - parameters()[0]).max() > 0.01, "it moved"


def test_a_partition_holds_every_tensor_once_and_is_even():
    parts = partition([100, 1, 60, 50, 3], 2)
    assert sorted(sum(parts, [])) == [0, 1, 2, 3, 4]
    assert sorted(sum([100, 1, 60, 50, 3][i] for i in part) for part in parts) == [104, 110]


@pytest.mark.parametrize("staleness, verdict", [(2, Verdict.ACCEPTED), (3, Verdict.STALE)])
def test_a_gradient_may_be_as_stale_as_it_is_said_and_no_more(staleness, verdict):
    server = make(max_staleness=2)
    for number in range(5):
        push(server, number)
    before = server.read()[2]
    assert push(server, 9, worker=1, version=5 - staleness) is verdict
    assert server.version == 5 + (verdict is Verdict.ACCEPTED)
    changed = any((one != other).any() for one, other in zip(before, server.read()[2]))
    assert changed == (verdict is Verdict.ACCEPTED)


def test_a_repetition_is_not_applied_twice_and_workers_and_lives_are_told_apart():
    server = make()
    assert push(server, 1) is Verdict.ACCEPTED
    before = server.read()
    assert push(server, 1) is Verdict.REPEATED  # its answer was lost
    assert push(server, 0) is Verdict.REPEATED
    assert server.read()[0] == before[0] and all((a == b).all() for a, b in zip(server.read()[2], before[2]))
    assert push(server, 1, worker=1) is Verdict.ACCEPTED
    assert push(server, 1, life=1) is Verdict.ACCEPTED
    assert push(server, 7, life=0) is Verdict.REPEATED, "an earlier life's"
    assert server.version == 3
    assert [server.counts[v] for v in Verdict] == [3, 0, 3, 0, 0, 0]


def test_every_gradient_is_counted_once_by_what_became_of_it_and_the_version_by_those_accepted():
    """A gradient may be one update stale, and there are five updates."""
    server, told = make(max_staleness=1), []
    server.is_done = lambda: server.version >= 5
    script = [
        # worker, life, number, updates that it is stale, what is wrong with it → what becomes of it
        (0, 0, 1, 0, {}, "ACCEPTED"), (0, 0, 1, 1, {}, "REPEATED"), (1, 0, 1, 1, {}, "ACCEPTED"), (2, 0, 1, 2, {}, "STALE"),
        (2, 0, 2, 0, {"is_finite": False}, "NONFINITE"), (2, 0, 3, 0, {"is_outlier": True}, "OUTLIER"),
        (2, 0, 4, 2, {"is_finite": False}, "NONFINITE"), (2, 0, 5, 2, {"is_outlier": True}, "OUTLIER"),
        (0, 0, 1, 2, {"is_finite": False}, "REPEATED"), (2, 0, 6, 0, {}, "ACCEPTED"), (2, 0, 5, 0, {}, "REPEATED"),
        (1, 0, 2, 0, {"increments": np.array([np.nan])}, "NONFINITE"), (0, 0, 2, 3, {}, "STALE"), (1, 0, 3, -1, {}, "STALE"), (0, 1, 1, 0, {}, "ACCEPTED"),
        (0, 0, 3, 0, {}, "REPEATED"), (1, 0, 4, 1, {}, "ACCEPTED"), (2, 0, 7, 0, {}, "ENDED"), (2, 0, 8, 9, {"is_outlier": True}, "ENDED"),
    ]  # fmt: skip
    for worker, life, number, stale, more, expected in script:
        before = server.read()
        one = Push(worker, life, number, server.version - stale, parameters(number), 20, **more)
        assert server.push(one, told.append).name == expected, (worker, life, number)
        after = server.read()
        is_applied = expected == "ACCEPTED"
        assert (after[0] - before[0], after[1] - before[1]) == (is_applied, 20 * is_applied)
        assert [bool((a != b).any()) for a, b in zip(after[2], before[2])] == 4 * [is_applied]
    counts = {verdict.name: count for verdict, count in server.counts.items()}
    assert counts == dict(ACCEPTED=5, STALE=3, REPEATED=4, NONFINITE=3, ENDED=2, OUTLIER=2)
    assert sum(counts.values()) == len(script) and server.version == counts["ACCEPTED"] == sum(server.staleness.values())
    assert server.staleness == {0: 3, 1: 2} and told == [1, 2, 3, 4, 5] and server.frames == 100


@pytest.mark.parametrize("num_frames", [20, 0])
def test_a_refused_gradient_whose_answer_was_lost_is_counted_once_and_a_filler_never(num_frames):
    """One of no frames as well: of several gradients between two steps, only the first brings frames."""
    server = make()
    of_kind = (dict(is_finite=False), Verdict.NONFINITE), (dict(is_outlier=True), Verdict.OUTLIER), (dict(version=5), Verdict.STALE)
    for number, (more, verdict) in enumerate(of_kind):
        one = Push(0, 0, number, more.pop("version", 0), parameters(number), num_frames, **more)
        assert [server.push(one) for _ in range(3)] == [verdict] * 3
        assert server.counts[verdict] == 1
    assert server.push(Push(0, 0, 9, 0, parameters(), 0, is_finite=False, is_filler=True)) is Verdict.NONFINITE
    assert server.counts[Verdict.NONFINITE] == 1 and server.version == 0


@pytest.mark.parametrize("how", ["gradient", "loss"])
def test_what_is_not_finite_changes_nothing(how):
    server, gradients = make(name="adam"), parameters(5)
    if how == "gradient":
        gradients[2][0, 1] = np.nan
    push(server, 0)
    before = server.copy()
    assert push(server, 1, gradients=gradients, is_finite=how == "gradient") is Verdict.NONFINITE
    after = server.copy()
    assert before[:2] == after[:2]
    for one, other in zip(tf.nest.flatten(before[2:]), tf.nest.flatten(after[2:])):
        np.testing.assert_array_equal(one, other)
    assert push(server, 1) is Verdict.ACCEPTED, "the number was not used up"


@pytest.mark.parametrize("is_mean", [False, True])
def test_a_barrier_makes_one_update_of_all_gradients(is_mean):
    server, alone = make(num_awaited=3, is_mean=is_mean), make()
    with futures.ThreadPoolExecutor(3) as pool:
        for round_ in range(4):
            verdicts = [pool.submit(push, server, round_, worker=w, version=round_, gradients=parameters(10 * round_ + w)) for w in (2, 0, 1)]
            assert [one.result(20) for one in verdicts] == [Verdict.ACCEPTED] * 3
            sums = [a + b + c for a, b, c in zip(*(parameters(10 * round_ + w) for w in range(3)))]
            push(alone, round_, gradients=[total / np.float32(3) for total in sums] if is_mean else sums)
    assert server.read()[:2] == (4, 240)
    for one, other in zip(server.read()[2], alone.read()[2]):
        np.testing.assert_array_equal(one, other)


def test_a_late_gradient_of_an_old_round_is_refused_and_a_stopped_one_does_not_wait():
    stopping = threading.Event()
    server = make(num_awaited=2, should_stop=stopping.is_set)
    with futures.ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(push, server, 0, worker=w, version=0) for w in (0, 1)]:
            assert one.result(20) is Verdict.ACCEPTED
        assert push(server, 1, worker=0, version=0) is Verdict.STALE
        waiting = pool.submit(push, server, 2, worker=0, version=1)
        assert not futures.wait([waiting], 0.5).done
        stopping.set()
        assert waiting.result(20) is Verdict.ENDED
    assert server.version == 1 and not server._round


def test_whoever_sees_an_update_sees_all_its_gradients_counted():
    server, counted = make(num_awaited=2), []
    with futures.ThreadPoolExecutor(1) as pool:
        first = Push(0, 0, 0, 0, parameters(1), 20)
        waiting = pool.submit(server.push, first, counted.append)
        assert not futures.wait([waiting], 0.3).done
        with server.held():  # whoever waits cannot wake up
            assert server.push(first._replace(worker=1), counted.append) is Verdict.ACCEPTED
            assert server.frames == 40 and counted == [1, 1]
            server.replace(server.copy())
        assert waiting.result(20) is Verdict.ACCEPTED, "it was applied before all was replaced"
    assert counted == [1, 1] and server.counts[Verdict.ACCEPTED] == 2


def test_at_a_barrier_one_that_is_not_finite_holds_its_place_and_the_update_is_of_the_others():
    server, alone = make(num_awaited=3, is_mean=True), make()
    with futures.ThreadPoolExecutor(2) as pool:
        bad = pool.submit(push, server, 0, worker=0, version=0, is_finite=False)
        good = pool.submit(push, server, 0, worker=1, version=0, gradients=parameters(1))
        assert not futures.wait([bad, good], 0.3).done
        assert push(server, 0, worker=2, version=0, increments=np.array([np.inf])) is Verdict.NONFINITE
        assert bad.result(20) is Verdict.NONFINITE and good.result(20) is Verdict.ACCEPTED
        assert push(server, 1, worker=0, version=0, is_finite=False) is Verdict.NONFINITE, "of an old round, it waits for none"
        all_bad = [pool.submit(push, server, 2, worker=w, version=1, is_finite=False) for w in (0, 1)]
        assert push(server, 2, worker=2, version=1, is_finite=False) is Verdict.NONFINITE
        assert [one.result(20) for one in all_bad] == [Verdict.NONFINITE] * 2
    assert server.read()[:2] == (2, 20), "a round without a sound one changes nothing and counts"
    push(alone, 0, gradients=parameters(1))
    for one, other in zip(server.read()[2], alone.read()[2]):
        np.testing.assert_array_equal(one, other)


def test_with_late_workers_an_update_is_of_exactly_so_many_fewer_and_the_late_are_refused():
    server, alone = make(num_awaited=3 - 1, is_mean=True), make()
    with futures.ThreadPoolExecutor(2) as pool:
        for round_ in range(3):
            late = round_ % 3
            in_time = [w for w in range(3) if w != late]
            pushed = [pool.submit(push, server, round_, worker=w, version=round_, gradients=parameters(w)) for w in in_time]
            assert [one.result(20) for one in pushed] == [Verdict.ACCEPTED] * 2
            assert push(server, round_, worker=late, version=round_, gradients=parameters(99)) is Verdict.STALE
            push(alone, round_, gradients=[(a + b) / np.float32(2) for a, b in zip(*(parameters(w) for w in in_time))])
    assert server.version == 3 and server.counts[Verdict.STALE] == 3
    for one, other in zip(server.read()[2], alone.read()[2]):
        np.testing.assert_array_equal(one, other)


def test_what_workers_share_is_merged_once_an_update_with_the_sum_of_what_was_accepted():
    server = make(num_awaited=2, merge=lambda state, increments: np.append(state, increments))
    with futures.ThreadPoolExecutor(2) as pool:
        for round_ in range(2):
            pushed = [pool.submit(push, server, round_, worker=w, version=round_, increments=np.array([10.0**w])) for w in (0, 1)]
            assert [one.result(20) for one in pushed] == [Verdict.ACCEPTED] * 2
    assert push(server, 2, worker=0, version=0, increments=np.array([1e6])) is Verdict.STALE
    assert server.read()[3].tolist() == server.copy().statistics.tolist() == [11.0, 11.0]


def test_a_worker_that_comes_back_within_a_round_counts_once():
    server = make(num_awaited=2)
    with futures.ThreadPoolExecutor(3) as pool:
        lost = pool.submit(push, server, 3, worker=0, version=0, gradients=parameters(1))
        assert not futures.wait([lost], 0.3).done
        again = pool.submit(push, server, 0, worker=0, version=0, life=1, gradients=parameters(2))
        assert lost.result(20) is Verdict.REPEATED
        assert push(server, 4, worker=0, version=0, gradients=parameters(4)) is Verdict.REPEATED, "late, of the life before"
        other = pool.submit(push, server, 0, worker=1, version=0, gradients=parameters(3))
        assert again.result(20) is other.result(20) is Verdict.ACCEPTED
    alone = make()
    push(alone, 0, gradients=[a + b for a, b in zip(parameters(2), parameters(3))])
    for one, other in zip(server.read()[2], alone.read()[2]):
        np.testing.assert_array_equal(one, other)


def test_a_gradient_that_comes_again_while_it_waits_is_counted_once():
    """Its connection broke, and its worker asked again."""
    server = make(num_awaited=2)
    with futures.ThreadPoolExecutor(3) as pool:
        first = pool.submit(push, server, 3, worker=0, version=0, gradients=parameters(1))
        while not server._round:
            time.sleep(0.001)
        waits = server._round[0][0]
        again = pool.submit(push, server, 3, worker=0, version=0, gradients=parameters(1))
        while server._round[0][0] is waits:
            time.sleep(0.001)
        push(server, 0, worker=1, version=0, gradients=parameters(3))
        first.result(20), again.result(20)
    assert server.version == 1 and server.counts[Verdict.ACCEPTED] == 2


def test_after_the_end_nothing_is_applied():
    server = make()
    server.is_done = lambda: server.version >= 2
    assert [push(server, number) for number in range(4)] == [Verdict.ACCEPTED] * 2 + [Verdict.ENDED] * 2
    assert server.version == 2


@pytest.mark.parametrize("name", ["rmsprop", "centered_rmsprop", "adam", "adagrad"])
def test_a_copy_goes_on_where_the_server_stood(name):
    server = make(name=name)
    for number in range(5):
        push(server, number)
    state = server.copy()
    variables = [tf.Variable(np.zeros(shape, np.float32)) for shape in SHAPES]
    optimizer = optimizers.make(name, variables, epsilon=EPSILON)
    restore(state, variables, [optimizer])
    for one, other in zip(tf.nest.flatten(slots_of(variables, [optimizer])), tf.nest.flatten(state.slots)):
        np.testing.assert_array_equal(one, other)
    later = ParameterServer(
        state, functools.partial(optimizers.make, name, epsilon=EPSILON),
        lambda frames: dict(learning_rate=RATE, epsilon=EPSILON),
    )  # fmt: skip
    for number in range(5, 8):
        push(server, number)
        push(later, number)
    assert later.read()[:2] == server.read()[:2] == (8, 160)
    for one, other in zip(later.read()[2], server.read()[2]):
        np.testing.assert_array_equal(one, other)


def test_from_many_threads_every_gradient_is_applied_once():
    server, num_threads, num_pushes = make(), 8, 40
    seen = []

    def work(worker):
        for number in range(num_pushes):
            one = Push(worker, 0, number, server.version, [np.zeros(shape, np.float32) for shape in SHAPES], 1)
            assert server.push(one, seen.append) is Verdict.ACCEPTED

    with futures.ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(work, range(num_threads)))
    assert server.read()[:2] == (num_threads * num_pushes,) * 2
    assert seen == list(range(1, num_threads * num_pushes + 1)), "told in order, before the next"


def test_what_it_takes_over_from_another_is_the_others_and_counts_as_an_update():
    fit, server = make(name="adam", target_period=2), make(name="adam", target_period=2)
    for number in range(5):
        push(fit, number)
    for number in range(2):
        push(server, number, gradients=parameters(7))
    assert server.target_number == 1
    theirs = fit.copy()
    server.replace(theirs)
    mine = server.copy()
    assert (mine.version, mine.frames, server.target_number) == (3, 40, 2)
    assert mine.iterations == theirs.iterations == [5], "so old are the slots"
    for one, other in ((mine.parameters, theirs.parameters), (mine.target, theirs.target), *zip(mine.slots, theirs.slots)):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    assert push(server, 9, version=2) is Verdict.STALE, "a gradient of the parameters before"
    assert push(server, 10, version=3) is Verdict.ACCEPTED and server.target_number == 3


def test_shards_that_are_not_at_the_same_update_agree_again_on_the_number_of_their_target():
    shards = [make(target_period=5), make(target_period=5)]
    for shard, num_pushes in zip(shards, (4, 3)):
        for number in range(num_pushes):
            push(shard, number)
        shard.replace(shard.copy())  # one is lifted to a multiple of the period, the other is not
        while shard.version < 6:
            push(shard, 10 + shard.version)
    assert shards[0].target_number == shards[1].target_number == 2


def test_a_gradient_that_waits_at_a_barrier_is_stale_once_another_is_taken_over():
    fit, server = make(), make(num_awaited=2)
    push(fit, 0)
    with futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(push, server, 0, worker=0, version=0)
        assert not futures.wait([waiting], 0.3).done
        server.replace(fit.copy())
        assert waiting.result(20) is Verdict.STALE
        assert not server._round and server.pause() == [(0, 0, 0)], "a shard that it reaches later knows that it was here"
        server.resume()
    with futures.ThreadPoolExecutor(2) as pool:
        assert [one.result(20) for one in [pool.submit(push, server, 1, worker=w) for w in (0, 1)]] == [Verdict.ACCEPTED] * 2
    assert server.version == 2


def test_with_an_optimizer_for_each_worker_averages_are_of_its_own_gradients():
    """By hand: worker 0 has g = 1 and then 3, worker 1 has g = 2 between them, on one number w (A3C, section 4)."""
    def weights(num_optimizers):
        server, path = make([np.zeros(1, np.float32)], num_optimizers=num_optimizers), []
        for number, (worker, gradient) in enumerate([(0, 1.0), (1, 2.0), (0, 3.0)]):
            push(server, number, worker=worker, gradients=[np.array([gradient], np.float32)])
            path.append(server.read()[2][0][0])
        return path

    def step(gradient, average):
        return RATE * gradient / np.sqrt(average + EPSILON)

    own_0, own_1 = 0.99 + 0.01 * 1, 0.99 + 0.01 * 4
    own = np.cumsum([-step(1, own_0), -step(2, own_1), -step(3, 0.99 * own_0 + 0.01 * 9)])
    np.testing.assert_allclose(weights(2), own, rtol=1e-5)
    common = 0.99 * own_0 + 0.01 * 4
    shared = np.cumsum([-step(1, own_0), -step(2, common), -step(3, 0.99 * common + 0.01 * 9)])
    np.testing.assert_allclose(weights(1), shared, rtol=1e-5)
    assert abs(own[2] - shared[2]) > 1e-4


def test_a_copy_with_an_optimizer_for_each_worker_goes_on_where_the_server_stood():
    server = make(name="adam", num_optimizers=2)
    for number in range(5):
        push(server, number, worker=number % 2)
    state = server.copy()
    assert state.iterations == [3, 2] and [len(slots) for slots in state.slots] == [4] * len(SHAPES)
    later = ParameterServer(
        state, functools.partial(optimizers.make, "adam", epsilon=EPSILON),
        lambda frames: dict(learning_rate=RATE, epsilon=EPSILON), rules=Rules(num_optimizers=2),
    )  # fmt: skip
    for number in range(5, 9):
        push(server, number, worker=number % 2)
        push(later, number, worker=number % 2)
    for one, other in zip(later.read()[2], server.read()[2]):
        np.testing.assert_array_equal(one, other)


def test_paused_it_lets_in_what_another_shard_has_received_and_nothing_newer():
    """Shard a has worker 0's gradients 0 and 1, shard b worker 0's 0 and worker 1's 0."""
    a, b = make(), make()
    for shard in (a, b):
        push(shard, 0, worker=0)
    push(a, 1, worker=0)
    push(b, 0, worker=1)
    assert sorted(a.pause()) == [(0, 0, 1)] and sorted(b.pause()) == [(0, 0, 0), (1, 0, 0)]
    newest = [(0, 0, 1), (1, 0, 0)]
    with futures.ThreadPoolExecutor(4) as pool:
        late = [pool.submit(push, a, 2, worker=0), pool.submit(push, b, 2, worker=0)]  # newer: they wait
        missing = [pool.submit(a.catch_up, newest, 20), pool.submit(b.catch_up, newest, 20)]
        assert not any(futures.wait(late + missing, 0.3).done)
        assert push(a, 0, worker=1) is push(b, 1, worker=0) is Verdict.ACCEPTED
        assert [one.result(20) for one in missing] == [True, True]
        assert a.version == b.version == 3 and not any(futures.wait(late, 0.3).done)
        for one, other in zip(a.read()[2], b.read()[2]):  # the same gradients, in another order
            np.testing.assert_allclose(one, other, atol=1e-3)
        a.resume(), b.resume()
        assert [one.result(20) for one in late] == [Verdict.ACCEPTED] * 2


def test_paused_it_waits_for_what_was_lost_no_longer_than_it_is_told():
    server = make()
    push(server, 0)
    server.pause()
    assert not server.catch_up([(0, 0, 1)], 0.1)
    assert server.catch_up([(0, 0, 0)], 0.1)
    server.resume()
    assert push(server, 1, version=0, worker=3) is Verdict.ACCEPTED


def test_a_round_at_a_barrier_that_another_shard_has_ended_is_ended_in_a_pause():
    a, b = make(num_awaited=2), make(num_awaited=2)
    with futures.ThreadPoolExecutor(4) as pool:
        first = pool.submit(push, a, 0, worker=0, version=0)
        assert push(a, 0, worker=1, version=0) is first.result(20) is Verdict.ACCEPTED
        waiting = pool.submit(push, b, 0, worker=0, version=0)
        assert not futures.wait([waiting], 0.3).done
        assert (newest := a.pause()) == [(0, 0, 0), (1, 0, 0)] and b.pause() == []
        caught_up = pool.submit(b.catch_up, newest, 20)
        assert push(b, 0, worker=1, version=0) is waiting.result(20) is Verdict.ACCEPTED
        assert caught_up.result(20) and b.version == a.version == 1
