"""What a hostile or broken writer may put into a table, and that what is sound passes."""

import numpy as np
import pytest

from impala.replay.checks import REASONS, Checks, ExpectedOrigins
from impala.replay.windows import window_spec
from impala.types import ArraySpec, Continuous, Discrete, EnvironmentSpec, MultiDiscrete, Origin, chunk_spec, zeros

SOURCE = ExpectedOrigins(run=5, incarnation=2, num_actors=2, num_environments=4, num_tasks=2)
ORIGIN = Origin(run=5, actor=1, environment=3, incarnation=2, seq=7, task=1)


def stacked(*chunks):
    """Fields [B, …], as they come from a table."""
    names = [name for name, value in chunks[0]._asdict().items() if not isinstance(value, tuple)]
    return {name: np.stack([np.asarray(getattr(chunk, name)) for chunk in chunks]) for name in names}


def passes(checks, chunk):
    (is_sound,) = checks(stacked(chunk))
    return is_sound


def make(actions=None, num_updates=10):
    actions = actions or Discrete(3)
    spec = chunk_spec(EnvironmentSpec("x", ArraySpec((2,), np.float32), actions), 4, (2, 3))
    chunk = zeros(spec)._replace(origin=np.array(ORIGIN, np.int64), weights_version=np.int64(10))
    return Checks(spec, actions, SOURCE, lambda: num_updates), chunk


def with_value(chunk, name, value, at=0):
    array = np.array(getattr(chunk, name))
    array.reshape(-1)[at] = value
    return chunk._replace(**{name: array})


@pytest.mark.parametrize("actions", [Discrete(3), MultiDiscrete((2, 3)), Continuous(2)])
def test_sound_chunks_pass(actions):
    checks, chunk = make(actions)
    largest = {Discrete: 2, MultiDiscrete: [1, 2], Continuous: 1e3}[type(actions)]
    chunk = chunk._replace(
        a_tm1=np.full_like(chunk.a_tm1, largest), discount_t=np.ones_like(chunk.discount_t), r_t=chunk.r_t - 1e6
    )
    assert passes(checks, chunk) and passes(checks, chunk), "one that comes twice is another's affair"
    assert set(checks.counts_by_reason().values()) == {0} and tuple(checks.counts_by_reason()) == REASONS


def test_a_table_that_outlives_launches_may_hold_what_an_earlier_one_wrote():
    """Its weights may be of an update that the resumed learner has not made yet."""
    spec = chunk_spec(EnvironmentSpec("x", ArraySpec((2,), np.float32), Discrete(3)), 4, (2, 3))
    checks = Checks(spec, Discrete(3), SOURCE._replace(outlives_launches=True), lambda: 10)

    def is_sound(incarnation, version, seq=ORIGIN.seq):
        origin = np.array(ORIGIN._replace(incarnation=incarnation, seq=seq), np.int64)
        return passes(checks, zeros(spec)._replace(origin=origin, weights_version=np.int64(version)))

    assert is_sound(2, 10) and not is_sound(2, 11)
    assert is_sound(1, 11) and is_sound(0, 10) and not is_sound(1, -1)
    assert not is_sound(2**20, 10) and not is_sound(-1, 10)
    assert not is_sound(2, 10, seq=5_000_000) and not is_sound(1, 10, seq=2**62 + 1)
    checks = Checks(spec, Discrete(3), SOURCE._replace(outlives_launches=True), lambda: 10)
    assert is_sound(1, 11, seq=5_000_000), "the first that this learner sees of an environment that played for long"


def test_an_actor_that_was_started_again_counts_anew_and_may_not_leap_either():
    checks, chunk = make()

    def is_sound(**changes):
        return passes(checks, chunk._replace(origin=np.array(ORIGIN._replace(**changes), np.int64)))

    assert is_sound(seq=90_000) and is_sound(seq=180_000) and not is_sound(seq=300_000)
    assert is_sound(incarnation=3, seq=0) and not is_sound(incarnation=3, seq=180_000)
    assert is_sound(seq=180_001), "what it wrote before it died"
    assert len(checks._newest) == 1, "however many lives a hostile writer claims"


@pytest.mark.parametrize("name, value, reason", [
    ("a_tm1", 3, "action"), ("a_tm1", -1, "action"), ("a_tm1", 2**31 - 1, "action"), ("previous_action", 3, "action"),
    ("observation", np.nan, "number"), ("r_t", np.inf, "number"), ("logits_tm1", -np.inf, "number"),
    ("core_state", np.nan, "number"), ("previous_reward", np.nan, "number"), ("v_behaviour_tm1", 1e30, "number"),
    ("discount_t", 0.5, "discount"), ("discount_t", -1.0, "discount"), ("discount_t", np.nan, "number"),
    ("weights_version", 11, "version"), ("weights_version", -1, "version"), ("weights_version", 2**62, "version"),
])  # fmt: skip
def test_a_value_that_no_actor_writes_is_dropped(name, value, reason, caplog):
    checks, chunk = make()
    at = getattr(chunk, name).size - 1
    assert not passes(checks, with_value(chunk, name, value, at))
    assert {r: n for r, n in checks.counts_by_reason().items() if n} == {reason: 1}
    assert f"({reason}, number 1): " in caplog.text
    assert passes(checks, chunk)


def test_a_transition_across_a_reset_has_no_reward_and_ends_nothing():
    checks, chunk = make()
    first, going_on = with_value(chunk, "is_first", True, 2), np.ones_like(chunk.discount_t)
    assert not passes(checks, first), "its discount is 0"
    assert passes(checks, first._replace(discount_t=going_on))
    assert passes(checks, with_value(first._replace(discount_t=going_on), "r_t", 1.0, 0)), "the one before has a reward"
    assert not passes(checks, with_value(first._replace(discount_t=going_on), "r_t", 1.0, 1))
    assert passes(checks, with_value(chunk, "is_first", True, 0)), "a chunk may begin with an episode"
    assert checks(stacked(chunk, first, chunk)) == [True, False, True]
    assert {r: n for r, n in checks.counts_by_reason().items() if n} == {"episode": 3}


def test_of_windows_on_stacked_frames_only_the_newest_states_count():
    """`is_first` of a window covers the older planes of its first stack too, to which it has no transitions."""
    environment = EnvironmentSpec("x", ArraySpec((2,), np.uint8), Discrete(3), num_stacked=3)
    spec = window_spec(chunk_spec(environment, 4, kept={}))
    checks = Checks(spec, Discrete(3), SOURCE, lambda: 10)
    window = zeros(spec)._replace(origin=np.array(ORIGIN, np.int64), discount_t=np.ones(4, np.float32))
    assert window.is_first.shape == (4 + 3,) and passes(checks, window)
    for at in range(7):
        reset = with_value(window, "is_first", True, at)
        assert passes(checks, reset)
        for number in range(4):  # the transition to the state at number + 3
            assert passes(checks, with_value(reset, "r_t", 1.0, number)) == (at != number + 3)
    assert checks.counts_by_reason()["episode"] == 4


@pytest.mark.parametrize("changes, reason", [
    (dict(run=6), "origin"), (dict(actor=2), "origin"), (dict(actor=-1), "origin"), (dict(environment=4), "origin"),
    (dict(incarnation=2**20), "origin"), (dict(incarnation=1), "origin"), (dict(seq=-1), "origin"),
    (dict(seq=2**40), "origin"), (dict(task=2), "task"), (dict(task=-1), "task"),
])  # fmt: skip
def test_an_origin_that_is_not_of_this_launch_is_dropped(changes, reason):
    checks, chunk = make()
    assert not passes(checks, chunk._replace(origin=np.array(ORIGIN._replace(**changes), np.int64)))
    assert checks.counts_by_reason()[reason] == 1
    assert passes(checks, chunk), "a leap of seq that was refused leaves no trace"


@pytest.mark.parametrize("name", ["observation", "a_tm1", "is_first", "origin", "weights_version"])
def test_another_shape_or_dtype_is_dropped(name):
    checks, chunk = make()
    array = np.asarray(getattr(chunk, name))
    assert not passes(checks, chunk._replace(**{name: np.concatenate([array.reshape(-1)] * 2)}))
    assert not passes(checks, chunk._replace(**{name: array.astype(np.float64)}))
    assert checks.counts_by_reason()["shape"] == 2


def test_of_a_batch_only_what_is_unsound_is_dropped():
    checks, chunk = make()
    bad = [with_value(chunk, "a_tm1", 3), with_value(chunk, "r_t", np.nan), with_value(chunk, "weights_version", 11)]
    assert checks(stacked(chunk, bad[0], chunk, bad[1], bad[2])) == [True, False, True, False, False]
    assert checks(stacked(chunk, bad[2], chunk)) == [True, False, True], "nothing wrong but a version"
    assert {r: n for r, n in checks.counts_by_reason().items() if n} == {"action": 1, "number": 1, "version": 2}


def test_a_chunk_that_is_refused_for_its_version_moves_no_bound():
    checks, chunk = make()
    far = chunk._replace(origin=np.array(ORIGIN._replace(seq=90_000), np.int64))
    further = chunk._replace(origin=np.array(ORIGIN._replace(seq=180_000), np.int64))
    assert not passes(checks, far._replace(weights_version=np.int64(11)))
    assert not passes(checks, further)
    assert passes(checks, far) and passes(checks, further)


def test_each_dimension_of_an_action_has_its_own_range():
    checks, chunk = make(MultiDiscrete((2, 3)))
    assert passes(checks, chunk._replace(a_tm1=np.tile(np.array([1, 2], np.int32), (4, 1))))
    assert not passes(checks, chunk._replace(a_tm1=np.tile(np.array([2, 1], np.int32), (4, 1))))


def test_the_log_is_not_flooded(caplog):
    checks, chunk = make()
    for _ in range(1000):
        passes(checks, with_value(chunk, "a_tm1", 3))
    assert len(caplog.records) == 4
