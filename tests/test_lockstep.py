"""Actors, queue and learner in one process: determinism, exact lag, exact counts, and learning."""

import functools
import itertools
import time
import typing
from pathlib import Path

import numpy as np
import pytest

from impala import config as config_lib
from impala import lockstep
from impala.agents import actor_critic
from impala.agents.actor_critic import make_network
from impala.learning.parameters import assign_weights
from impala.nodes import parts, playing
from impala.types import Episode
from tests.acting import scripted

CONFIGS = Path(__file__).parents[1] / "configs"


def small(name="catch", **overrides):
    """A configuration of few and small updates."""
    defaults = {"environment.name": name, "network.torso": "mlp", "learner.unroll_length": 6, "learner.batch_size": 4}
    return config_lib.build({}, defaults | {key.replace("__", "."): value for key, value in overrides.items()})


def take(run, count):
    return [update for _, update in zip(range(count), run.updates())]


def weights_after(config, count, **kwargs):
    run = lockstep.Lockstep(config, **kwargs)
    take(run, count)
    return b"".join(array.tobytes() for array in run.learner.weights().arrays)


ATARI = dict(
    network__torso="shallow", learner__batch_size=2, learner__unroll_length=5, environment__protocol="machado2018"
)
CASES = {
    "catch": {},
    "CartPole-v1": dict(learner__optimizer="rmsprop", loss__reduction="mean"),
    "atari:breakout": ATARI,
}
NAMES = ["catch", *(pytest.param(name, marks=pytest.mark.soak) for name in ("CartPole-v1", "atari:breakout"))]


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_weights_bit_for_bit(name):
    count = 4 if name.startswith("atari") else 8
    one, same, other = (weights_after(small(name, seed=seed, **CASES[name]), count) for seed in (3, 3, 4))
    assert one == same
    assert one != other


LAGS = [0, 3]
QUICK = small(learner__learning_rate=1e-2)


@functools.cache
def quick(lag):
    """Thirty updates of `QUICK`, and the weights before each and after the last; several tests look at them."""
    run = lockstep.Lockstep(QUICK, lag=lag)
    history = [run.learner.weights()]
    updates = [update for _, update in zip(range(30), run.updates()) if history.append(run.learner.weights()) is None]
    return run, updates, history


def test_the_lag_changes_the_weights():
    after = {lag: b"".join(array.tobytes() for array in quick(lag)[2][10].arrays) for lag in LAGS}
    assert after[3] == weights_after(QUICK, 10, lag=3) != after[0]


@pytest.mark.parametrize("lag", LAGS)
def test_the_lag_is_exact(lag):
    _, updates, _ = quick(lag)
    assert [update.index for update in updates] == list(range(1, 31))
    for update in updates:
        assert (update.batch.weights_version.numpy() == max(0, update.index - 1 - lag)).all()


@pytest.mark.parametrize("lag", LAGS)
def test_the_weights_that_acted_are_those_of_the_version_in_the_chunk(lag):
    """Not merely a number: the behaviour logits are what that version computes."""
    run, updates, history = quick(lag)
    acted = make_network(QUICK, run.spec)
    for update in updates[:8]:
        assign_weights(acted.trainable_variables, history[max(0, update.index - 1 - lag)])
        logits = acted(update.batch.observation, update.batch.is_first).logits[:-1]
        np.testing.assert_allclose(logits, update.batch.logits_tm1, atol=1e-6)
    assert any((one != other).any() for one, other in zip(history[0].arrays, history[8].arrays))


@pytest.mark.parametrize("name", NAMES)
def test_without_lag_every_update_is_on_policy(name):
    config = small(name, **CASES[name] | dict(learner__learning_rate=1e-2))
    updates = quick(0)[1] if config == QUICK else take(lockstep.Lockstep(config), 4 if name.startswith("atari") else 30)
    for update in updates:
        assert update.metrics["log_rho_max"] < 5e-5, update.index  # rounding: chunks are not batched as steps are


def test_with_lag_it_is_off_policy_after_the_first_updates():
    ratios = [update.metrics["log_rho_max"] for update in quick(3)[1][:10]]
    assert ratios[0] < 1e-5 < 1e-3 < min(ratios[1:])


def resets_by_hand(num_steps):
    """How often the four scripts reset within so many steps."""
    resets = 0
    for lengths in ([3], [5], [2, 7], [40]):
        step, episode = 0, 0
        while (step := step + lengths[episode % len(lengths)] + 1) <= num_steps:
            resets, episode = resets + 1, episode + 1
    return resets


@functools.cache
def scripted_updates():
    """Fifteen updates of four environments, each with another rhythm, and the frames told after each: four a step."""
    scripts = [[(3, "terminated")], [(5, "truncated")], [(2, "both"), (7, "terminated")], [(40, "terminated")]]
    environment = scripted.Scripted(scripts, shape=(2, 2), num_stacked=1, frames_per_step=4)
    run = lockstep.Lockstep(small(), environments=[environment])
    return [(update, run.frames) for _, update in zip(range(15), run.updates())]


def test_frames_are_those_of_real_transitions():
    for update, told in scripted_updates():
        num_steps = 6 * update.index
        assert update.frames == told == 4 * (4 * num_steps - resets_by_hand(num_steps))
        masked = int(np.sum(update.batch.is_first[1:]))
        assert update.metrics["num_transitions"] == 24 - masked


def test_every_episode_is_told_once():
    updates = [update for update, _ in scripted_updates()]
    episodes = [episode for update in updates for episode in update.episodes]
    assert all(isinstance(episode, Episode) for episode in episodes)
    expected = []
    for n, lengths in enumerate(([3], [5], [2, 7], [40])):
        step, number = 0, 0
        while (step := step + lengths[number % len(lengths)]) <= 6 * 15:
            length = lengths[number % len(lengths)]
            score = sum(scripted.reward(n, number, t + 1) for t in range(length))
            expected.append((score, length, 0, n, (step - 1) // 6, 0))  # the version that acted is the unroll's number
            step, number = step + 1, number + 1
    assert sorted(episodes) == sorted(expected)
    # … and with the update that its last step was played for.
    for update in updates:
        assert all(episode.weights_version == update.index - 1 for episode in update.episodes)


def test_it_ends_with_the_first_update_that_reaches_the_budget():
    run = lockstep.Lockstep(small(total_frames=100))
    frames = [update.frames for update in run.updates()]
    assert frames[-2] < 100 <= frames[-1] == run.frames
    assert list(run.updates()) == []


def test_it_goes_on_where_it_ended():
    run = lockstep.Lockstep(small(learner__learning_rate_schedule="constant"))
    first, second = list(run.updates(100)), list(run.updates(220))
    assert second[0].index == first[-1].index + 1
    together = lockstep.Lockstep(small(learner__learning_rate_schedule="constant"))
    list(together.updates(220))
    for one, other in zip(run.learner.weights().arrays, together.learner.weights().arrays):
        np.testing.assert_array_equal(one, other)


def test_the_learning_rate_falls_with_the_frames():
    """At the end of a linear schedule nothing moves any more."""
    run = lockstep.Lockstep(small(total_frames=3_000, learner__learning_rate=1e-2))
    sizes, before = [], run.learner.weights().arrays
    for _ in run.updates():
        after = run.learner.weights().arrays
        sizes.append(max(np.abs(a - b).max() for a, b in zip(before, after)))
        before = after
    assert max(sizes[-2:]) < 0.1 * max(sizes[:2]) and min(sizes) > 0


def test_schedules_end_with_the_run_or_at_a_horizon_of_their_own():
    ends = {}
    for horizon in (None, 30_000):
        config = small(total_frames=3_000, learner__learning_rate_frames=horizon)
        ends[horizon] = actor_critic.make_schedules(config)(3_000)["learning_rate"]
    assert ends == pytest.approx({None: 0.0, 30_000: 0.9 * config.learner.learning_rate})


def test_the_entropy_cost_falls_with_the_frames_too():
    """And the loss takes what the schedule says: its parts add up with that cost, not with the configured one."""
    config = small(total_frames=3_000, loss__entropy_cost=0.2, loss__entropy_cost_schedule="linear")
    scheduled = actor_critic.make_schedules(config)
    costs = [scheduled(frames)["entropy_cost"] for frames in (0, 750, 3_000, 4_000)]
    assert costs == pytest.approx([0.2, 0.15, 0.0, 0.0])
    before = 0
    for update in lockstep.Lockstep(config).updates():
        m = update.metrics
        bonus = 0.2 * (1 - before / 3_000) * m["entropy_bonus"]
        expected = m["policy_loss"] + config.loss.baseline_cost * m["value_loss"] - bonus
        assert m["loss"] == pytest.approx(m["num_transitions"] * expected, rel=1e-3, abs=1e-3)
        before = update.frames


def test_evaluations_have_seeds_of_their_own():
    """No environment of an evaluation is one of training, whatever actor, lane or launch."""
    trained, evaluated = set(), set()
    for seed in range(20):
        config = small(seed=seed)
        for incarnation, actor, lane in itertools.product(range(3), range(4), range(2)):
            first = parts.lane_seed(config, incarnation, actor, lane)
            trained |= {*range(first, first + 32)}
        for counts in ((), (0,), (7,), (7, 1)):
            first = playing.evaluation_seed(config, *counts)
            evaluated |= {*range(first, first + 16)}
    assert len(evaluated) == 20 * 4 * 16, "each evaluation has its own"
    assert not trained & evaluated


def test_all_updates_are_one_trace():
    run, _, _ = quick(0)
    assert run.learner.num_traces == 1


def test_refuses_a_negative_lag():
    with pytest.raises(ValueError, match="lag=-1; expected a number of updates, 0 or more"):
        lockstep.Lockstep(small(), lag=-1)


def test_refuses_environments_with_which_the_lag_would_not_be_exact():
    config = small()
    for num in (config.num_fresh // 2, 2 * config.num_fresh):
        with pytest.raises(ValueError, match=f"environments: {num} copies; expected {config.num_fresh}, a batch's fresh chunks"):
            lockstep.Lockstep(config, environments=[parts.make_environment(config, num)])


def scored(*groups):
    """Updates that only tell episodes of the given scores."""
    for scores in groups:
        yield lockstep.Update(1, 1, None, {}, [Episode(score, 1, 0, 0, 0) for score in scores])


def test_mean_return_is_that_of_the_last_episodes():
    assert lockstep.mean_return(scored([1.0] * 50, [2.0] * 50, [3.0] * 50)) == 2.5
    assert np.isnan(lockstep.mean_return(scored([], [])))
    assert lockstep.mean_return(scored([5.0])) == 5.0


def test_mean_return_stops_at_its_target_but_not_before_the_window_is_full():
    updates = scored([9.0] * 60, [9.0] * 60, [0.0] * 100)
    assert lockstep.mean_return(updates, target=9.0) == 9.0
    assert len(list(updates)) == 1


def learn(name, target, **kwargs):
    started = time.monotonic()
    run = lockstep.Lockstep(config_lib.load(CONFIGS / f"{name}.yaml"), **kwargs)
    score = lockstep.mean_return(run.updates(), target=target)
    print(f"{name} {kwargs}: {score:.2f} after {run.frames:,} frames in {time.monotonic() - started:.0f} s")
    return score


@pytest.mark.parametrize("lag", [pytest.param(0, marks=pytest.mark.soak), 3])
def test_it_learns_catch(lag):
    assert learn("catch", 0.9, lag=lag) >= 0.9


@pytest.mark.soak
def test_it_learns_cartpole():
    """configs/cartpole.yaml with its own seed: about 20 s on two idle cores, where it may take 120."""
    assert learn("cartpole", 400.0) >= 400.0


# --- replay


def with_replay(**overrides):
    defaults = dict(learner__batch_size=8, replay__fraction=0.75, replay__size=5)
    return small(**defaults | overrides)


def test_the_replayed_part_is_exact_and_drawn_from_the_newest_chunks():
    """A quarter of 8 is fresh: 2 environments; of the newest 5 chunks 6 are drawn, this update's included."""
    ages = []
    for update in take(lockstep.Lockstep(with_replay(), lag=2), 40):
        is_replayed, seq = update.batch.is_replayed.numpy(), update.batch.origin.numpy()[:, 4]
        assert is_replayed.tolist() == [False] * 2 + [True] * 6
        assert seq[:2].tolist() == [update.index - 1] * 2
        ages += (update.index - 1 - seq[2:]).tolist()
        versions = update.batch.weights_version.numpy()
        np.testing.assert_array_equal(versions, np.maximum(0, seq - 2))  # replay does not touch what acted
    assert set(ages) == {0, 1, 2}, "5 chunks of 2 environments: three updates back at most"
    assert 0.1 < np.mean(np.equal(ages, 2)) < 0.3  # one of the five is two updates old


def test_replay_brings_no_frames():
    run = lockstep.Lockstep(with_replay())
    for update in take(run, 5):
        fresh = update.batch.is_first.numpy()[1:, :2]
        assert update.metrics["num_transitions"] == 12 - fresh.sum()
        assert update.metrics["replayed_fraction"] == 0.75
    assert run.frames == update.frames


def test_replay_is_deterministic_and_changes_the_weights():
    one, same, other = (weights_after(with_replay(seed=seed), 10) for seed in (1, 1, 2))
    assert one == same != other
    assert weights_after(with_replay(seed=1, replay__size=1), 10) != one


# --- every scheme trains


ONE_OF_A_KIND = ["ppo_clip", "impact", "clear", "laser"]  # a clip, a target, an aim to clone, a mixture; the rest are ratios
WORDS = [
    word if word in ONE_OF_A_KIND else pytest.param(word, marks=pytest.mark.soak)
    for word in typing.get_args(config_lib.Correction)
]


@pytest.mark.parametrize("word", WORDS)
def test_every_scheme_trains_with_lag_and_replay(word):
    updates = take(lockstep.Lockstep(with_replay(loss__correction=word, loss__lambda=0.95), lag=1), 6)
    for update in updates:
        assert all(np.isfinite(value) for value in update.metrics.values()), update.metrics
    assert updates[-1].metrics["grad_norm"] > 0


@pytest.mark.parametrize("word", ["vtrace", "weighted_is", "clear", *(
    pytest.param(word, marks=pytest.mark.soak) for word in (
        "one_step_is", "per_decision_is", "full_is", "td_lambda", "vtrace_unweighted_pg", "leaky_vtrace", "laser",
    )
)])  # fmt: skip
def test_on_policy_the_schemes_are_one_algorithm(word):
    """The same weights after five updates as without correction; ratios are 1 up to the last bits."""
    arrays = lockstep_weights(word)
    for one, other in zip(arrays, lockstep_weights("none")):
        np.testing.assert_allclose(one, other, atol=2e-5)


@functools.cache
def lockstep_weights(word):
    run = lockstep.Lockstep(small(loss__correction=word, learner__optimizer="rmsprop", learner__epsilon=0.1))
    take(run, 5)
    return run.learner.weights().arrays


def test_impact_renews_its_target_after_every_period():
    run = lockstep.Lockstep(small(loss__correction="impact", loss__target_period=3))
    target = run.network._target.trainable_variables
    for _, update in zip(range(7), run.updates()):
        same = all(np.array_equal(a, b) for a, b in zip(target, run.network.trainable_variables))
        assert same == (update.index % 3 == 0)
    assert len(run.learner.weights().arrays) == len(target)  # actors get the policy alone
