"""Ape-X through real processes: it learns, is ended and resumed, writes priorities back; and in lockstep, beside DQN."""

import contextlib
import re

import numpy as np
import pytest

from impala import agents, cli, lockstep, training
from impala import config as config_lib
from impala.agents import q_learning
from impala.nodes import checking, estimates
from tests.programs.running import (
    ROOT,
    WHOLE_OR_RESUMED,
    ended,
    evaluated_and_exported,
    played_by,
    refused,
    rows,
    run,
)

APEX = ["train", "--config", "configs/apex_catch.yaml", "--evaluator.period-seconds", "1"]
EVERYONE = {(actor, environment) for actor in range(2) for environment in range(8)}


@pytest.fixture(scope="module", params=WHOLE_OR_RESUMED)
def runs(request, tmp_path_factory):
    """A run that goes to its end, or two of which Ctrl-C ended the first; that one's last row; the last one, completed."""
    folder = tmp_path_factory.mktemp("runs") / "apex"
    return folder, *ended(request.param, folder, *APEX)


def test_it_learns_catch_and_ends_by_its_evaluations(runs):
    folder, interrupted, result = runs
    last = rows(folder)[-1]
    assert float(last["evaluation_mean"]) >= 0.95 and int(last["updates"]) > int(interrupted["updates"])
    assert last["skipped_updates"] == "0" and last["unsound_chunks"] == "0" and last["unsound_priorities"] == "0"


def test_frames_are_those_of_the_windows_that_entered_the_table(runs):
    folder, interrupted, _ = runs
    last = rows(folder)[-1]
    assert int(last["frames"]) - int(interrupted["frames"]) == int(last["inserted_windows"])
    assert int(last["inserted_windows"]) >= 1_000, "the first update waits for as many"


def test_samples_per_insert_are_held_and_priorities_come_back_at_once(runs):
    folder, _, _ = runs
    last = [row for row in rows(folder) if row["samples_per_insert"] and row["priority_seconds"]][-1]
    assert float(last["samples_per_insert"]) == pytest.approx(4.0, rel=0.1)
    assert 0 < float(last["priority_seconds"]) < 0.5 and 0 < float(last["learner_priority_fraction"]) < 0.2
    assert 1e-6 <= float(last["priority_p50"]) <= float(last["priority_p95"]) <= float(last["priority_max"]) < 10
    assert float(last["replay_lag_mean"]) > 50 and not last["lag_mean"]
    ladder = 0.4 ** (1 + 7 * np.arange(16) / 15)
    assert float(last["exploration_epsilon"]) == pytest.approx(np.mean(ladder))
    rungs = [float(last[f"exploration_epsilon_{place}"]) for place in ("first", "middle", "last")]
    assert rungs == pytest.approx([ladder[0], ladder[8], ladder[15]]) and last["replay_capacity"] == "100000"


@pytest.mark.soak
def test_what_is_replayed_was_played_by_actors_and_none_of_it_by_who_evaluates(tmp_path):
    assert played_by(tmp_path / "run", EVERYONE, *APEX) == EVERYONE


@pytest.mark.soak
def test_it_is_evaluated_and_exported(runs, tmp_path):
    evaluated_and_exported(runs[0], tmp_path / "model", {"q"})


@pytest.mark.soak
def test_two_learners_share_tables_and_batches_and_stay_equal(tmp_path):
    result = run(*APEX, "--run", tmp_path / "run", "--num-learners", 2)  # a difference at the end would be a failure
    assert result.returncode == 0, result.stderr
    assert float(rows(tmp_path / "run")[-1]["evaluation_mean"]) >= 0.95


@pytest.mark.soak
def test_two_learners_of_a_deterministic_policy_stay_equal(tmp_path):
    keys = ["--num-learners", 2, "--total-frames", 3_000, "--replay.min-size", 400, "--evaluator.num-episodes", 0]
    result = run("train", "apex_dpg_pendulum", "--run", tmp_path / "run", *keys, "--target-return", "null")
    assert result.returncode == 0, result.stderr  # a difference at the end would be a failure
    last = rows(tmp_path / "run")[-1]
    assert int(last["updates"]) > 100 and last["skipped_updates"] == "0" and np.isfinite(float(last["td_error"]))


SMALL = {
    "replay.min_size": 100, "agent.target_period": 7, "total_frames": 600, "actor.num_environments": 4,
    "learner.batch_size": 32, "replay.samples_per_insert": 4.0,
}  # fmt: skip


def make_lockstep(**overrides):
    return lockstep.of(config_lib.load("configs/apex_catch.yaml", SMALL | {"actor.num_actors": 1} | overrides))


def weights(network):
    return [variable.numpy() for variable in network.trainable_variables]


def final(training):
    count = sum(1 for _ in training.updates())
    training.close()
    return count, weights(training.network)


def test_with_one_environment_and_uniform_priorities_it_is_dqn_with_n_steps_bit_for_bit():
    as_dqn = {
        "agent.double": True, "agent.dueling": True, "agent.n_step": 3, "agent.error": "squared",
        "agent.epsilon_start": 0.4, "agent.epsilon_end": 0.4, "actor.num_environments": 1,
    }  # fmt: skip
    dqn = lockstep.of(config_lib.load("configs/dqn_catch.yaml", SMALL | as_dqn))
    apex = make_lockstep(**{"replay.priority_exponent": 0.0, "actor.num_environments": 1})
    num_updates, expected = final(dqn)
    assert num_updates > 50
    count, found = final(apex)
    assert count == num_updates and all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.fixture(scope="module")
def in_lockstep():
    """How much was inserted by each update, and the last weights."""
    training = make_lockstep()
    inserted = [training.replay.num_inserted for _ in training.updates()]
    training.close()
    return inserted, weights(training.network)


def test_priorities_make_a_difference_and_the_same_seed_the_same_weights(in_lockstep):
    inserted, one = in_lockstep
    count, same = final(make_lockstep())
    _, uniform = final(make_lockstep(**{"replay.priority_exponent": 0.0}))
    assert count == len(inserted) > 50
    assert all(np.array_equal(a, b) for a, b in zip(one, same))
    assert not all(np.array_equal(a, b) for a, b in zip(one, uniform))


DPG = {
    "replay.min_size": 150, "total_frames": 300, "actor.num_actors": 1, "actor.num_environments": 4,
    "learner.batch_size": 32, "agent.n_step": 3,
}  # fmt: skip


RETRACE = {"loss.correction": "retrace", "agent.policy_epsilon": 0.2, "loss.lambda": 0.9}


@pytest.mark.parametrize("agent, keys", [
    ("q_learning", {}), ("dpg", {}), ("q_learning", RETRACE),
    pytest.param("q_learning", RETRACE | {"agent.double": False}, marks=pytest.mark.soak),
])  # fmt: skip
def test_the_actors_first_priority_is_the_learners_with_the_same_weights(agent, keys):
    """And no target network of another age: before the first update there is only one network."""
    if agent == "dpg":
        training = lockstep.of(config_lib.load("configs/apex_dpg_pendulum.yaml", DPG))
    else:
        training = make_lockstep(**keys)
    before = {}
    replay = training.replay
    sample = replay.sample

    def spied(*arguments):
        drawn = sample(*arguments)
        before.setdefault("priorities", replay._priorities[drawn["key"]].copy())
        before.setdefault("keys", drawn["key"])
        return drawn

    replay.sample = spied
    next(training.updates())
    np.testing.assert_allclose(replay._priorities[before["keys"]], before["priorities"], rtol=1e-4, atol=1e-5)
    assert len(np.unique(before["priorities"])) > 10
    training.close()


def test_an_update_that_is_not_finite_changes_no_priority():
    training = make_lockstep()
    updates = training.updates()
    next(updates)
    for variable in training.network.target_variables:
        variable.assign(variable * np.nan)
    before = training.replay._priorities[: training.replay.num_inserted].copy()
    next(updates)
    assert training.learner.num_skipped == 1 and np.isfinite(training.replay._priorities).all()
    np.testing.assert_array_equal(training.replay._priorities[: len(before)], before)
    training.close()


@pytest.mark.soak
def test_a_deterministic_policy_is_evaluated_and_exported(tmp_path, capsys):
    import tensorflow as tf

    short = ["--total-frames", 400, "--replay.min-size", 200, "--evaluator.num-episodes", 0, "--target-return", "null"]
    result = run("train", "--config", "configs/apex_dpg_pendulum.yaml", "--run", tmp_path / "run", *short)
    assert result.returncode == 0, result.stderr
    assert cli.main(["evaluate", str(tmp_path / "run"), "--episodes", "4"]) == 0
    printed = capsys.readouterr().out
    assert "of the mean of 4 greedy episodes" in printed, "nothing is sampled"
    assert -2_000 < float(printed.split()[0]) < 0, "as far as Pendulum's scores reach"
    assert cli.main(["export", str(tmp_path / "run"), "--output", str(tmp_path / "model")]) == 0
    model = tf.saved_model.load(str(tmp_path / "model"))
    answer = model.act(tf.ones([1, 2, 3]), tf.ones([1, 2], tf.bool))
    assert answer["action"].shape == (2, 1) and answer["value"].shape == (2,)
    assert (tf.abs(answer["action"]) <= 1.0).numpy().all()


@pytest.fixture(scope="module")
def dpg_in_lockstep():
    training = lockstep.of(config_lib.load("configs/apex_dpg_pendulum.yaml", DPG | SMALL))
    inserted = [training.replay.num_inserted for _ in training.updates()]
    training.close()
    return inserted, weights(training.network)


def test_dpg_in_lockstep_is_the_same_for_the_same_seed(dpg_in_lockstep):
    inserted, one = dpg_in_lockstep
    count, same = final(lockstep.of(config_lib.load("configs/apex_dpg_pendulum.yaml", DPG | SMALL)))
    assert count == len(inserted) > 20 and all(np.array_equal(a, b) for a, b in zip(one, same))


def test_dpg_wants_continuous_actions_and_numbers(tmp_path, capsys):
    dpg = ["train", "--config", "configs/apex_dpg_pendulum.yaml", "--run", tmp_path / "run"]
    (line,) = refused(capsys, *dpg, "--environment.name", "catch")
    assert line.startswith("agent.name: 'dpg' moves along the gradient of an action's value, and catch has")
    assert not (tmp_path / "run").exists(), "before anything starts"


def test_dpg_refuses_pictures_and_parts():
    from impala import environments
    from impala.agents import dpg
    from impala.types import ArraySpec

    config = config_lib.load("configs/apex_dpg_pendulum.yaml")
    spec = environments.make("Pendulum-v1", num_environments=1).spec
    dpg.check(config, spec)
    with pytest.raises(config_lib.ConfigError, match=r"'dpg' takes observations that are numbers, and .* has frames of shape \(96, 96, 3\)"):
        dpg.check(config, spec._replace(observation=ArraySpec((96, 96, 3), np.uint8)))
    with pytest.raises(config_lib.ConfigError, match=r"'dpg' takes one array, and .* of several parts \(angle \(3,\)\)"):
        dpg.check(config, spec._replace(parts=(("angle", ArraySpec((3,), np.float32)),)))


def test_what_is_not_set_is_as_published():
    """Horgan et al. 2018, section 4.1 and appendix C: weights every 400 frames, items in batches of 50."""
    config = config_lib.build({"environment": {"name": "catch"}}, {"program": "apex"})
    agent, actor, replay = config.agent, config.actor, config.replay
    assert (agent.double, agent.dueling, agent.n_step, agent.error, agent.target_period) == (True, True, 3, "squared", 2_500)
    assert (agent.epsilon_base, agent.epsilon_exponent) == (0.4, 7.0)
    assert (actor.weight_frames, actor.send_size, actor.max_pending, actor.max_episode_frames) == (400, 50, 50, 50_000)
    several = [actor.model_copy(update=dict(num_environments=n, num_lanes=1)).num_steps_together for n in (1, 16, 25, 64)]
    assert several == [50, 3, 2, 1] and actor.num_steps_together == actor.num_steps_pending == 3, "those of whole steps of a lane"
    assert (replay.size, replay.min_size, replay.samples_per_insert) == (2_000_000, 50_000, None)
    assert (replay.priority_exponent, replay.importance_exponent) == (0.6, 0.4)


def test_lockstep_begins_at_min_size_and_keeps_its_samples_per_insert(in_lockstep, dpg_in_lockstep):
    """Four environments insert four windows at a time; updates follow once a batch of 32 draws is due."""
    for inserted, _ in (in_lockstep, dpg_in_lockstep):
        for count, by_then in enumerate(inserted, 1):
            assert by_then >= 100 and count * 32 == pytest.approx((by_then - 100) * 4, abs=4 * 4 + 32)
        assert count > 30


def test_the_documented_recipe_of_ape_x_dpg_is_the_paper_s(tmp_path):
    page = (ROOT / "docs/architectures/apex.md").read_text()
    (recipe,) = re.findall(r"```yaml\n(program: apex\n.*?)```", page, flags=re.S)
    path = tmp_path / "recipe.yaml"
    path.write_text("environment: {name: Pendulum-v1}\n" + recipe)
    config = config_lib.load(path)
    assert (config.replay.size, config.learner.batch_size, config.learner.learning_rate) == (1_000_000, 256, 1e-4)
    assert config.agent == config_lib.build({"environment": {"name": "Pendulum-v1"}, "program": "apex", "agent": {"name": "dpg"}}).agent
    assert (config.agent.n_step, config.loss.discount, config.replay.samples_per_insert) == (5, 0.99, None)
    assert not config_lib.without_effect(config)


def test_dpg_s_targets_are_of_n_steps_alone(tmp_path, capsys):
    dpg = ["train", "--config", "configs/apex_dpg_pendulum.yaml", "--run", tmp_path / "run"]
    (line,) = refused(capsys, *dpg, "--loss.correction", "retrace", "--total-frames", 1)  # no run, whatever happens
    assert line == "loss.correction=retrace: not with agent.name=dpg; expected n_step"
    assert not (tmp_path / "run").exists()


def test_a_replay_larger_than_memory_is_told_its_size_and_the_largest_that_fits(tmp_path, capsys, monkeypatch):
    """A step is 200 bytes of observation, 13 of other columns and 56 of version and origin, with 900 of Reverb's own."""
    monkeypatch.setattr(estimates, "budget_mb", lambda: 6_400.0)
    (line,) = refused(capsys, *APEX, "--run", tmp_path / "run", "--replay.size", 10**9)
    assert line == (
        "replay.size=1000000000: transitions of 0.001 MB may take 1,169,000 MB of 6,400, 80 % of this machine's memory; "
        "expected at most 5474764"
    )
    assert not (tmp_path / "run").exists()
    (line,) = refused(capsys, *APEX, "--run", tmp_path / "run", "--replay.size", 5_400_000)
    assert line.startswith("replay.size=5400000: what tables hold may take 6,313 MB, and the run ") and "of 6,400" in line
    fits = int(line.rpartition("expected at most about ")[2])
    assert 2_000_000 < fits < 4_900_000, "processes, batches and weights take their part, too"
    config = config_lib.load("configs/apex_catch.yaml", {"replay.size": fits})
    spec = checking.check(config)
    estimates.check(config, spec, {"replay.size": training._table_mb(config, spec, 6_400.0)["replay"]})
    for size, is_refused in ((5_474_765, True), (5_474_764, False)):
        config = config_lib.load("configs/apex_catch.yaml", {"replay.size": size})
        with pytest.raises(config_lib.ConfigError) if is_refused else contextlib.nullcontext():
            training._table_mb(config, checking.check(config), 6_400.0)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_dpg_learns_pendulum(seed, tmp_path):
    result = run("train", "--config", "configs/apex_dpg_pendulum.yaml", "--run", tmp_path / "run", "--seed", seed, timeout=900)
    assert result.returncode == 0, result.stderr
    assert float(rows(tmp_path / "run")[-1]["evaluation_mean"]) >= -160


def test_every_environment_of_all_actors_has_a_rung_of_its_own():
    config = config_lib.load("configs/apex_catch.yaml", {"actor.num_actors": 3, "actor.num_environments": 2})
    np.testing.assert_allclose(q_learning.make_ladder(config), 0.4 ** (1 + 7 * np.arange(6) / 5))


def test_the_ends_and_the_middle_of_the_ladder_are_shown_where_they_differ():
    def columns_of(name, **keys):
        (columns,) = agents.exploration_columns(config_lib.load(f"configs/{name}.yaml", keys))
        return columns()

    few = {"actor.num_actors": 3, "actor.num_environments": 1}
    shown = columns_of("apex_catch", **few)
    assert shown.pop("exploration_epsilon_actors") == "0.4 0.0162 0.000655"
    two_each = columns_of("apex_catch", **few | {"actor.num_environments": 2, "actor.num_actors": 2})
    assert two_each["exploration_epsilon_actors"] == f"{(0.4 + 0.4 ** (10 / 3)) / 2:.3g} {(0.4 ** (17 / 3) + 0.4**8) / 2:.3g}"
    assert shown == pytest.approx({
        "exploration_epsilon": (0.4 + 0.4**4.5 + 0.4**8) / 3, "exploration_epsilon_first": 0.4,
        "exploration_epsilon_middle": 0.4**4.5, "exploration_epsilon_last": 0.4**8,
    })  # fmt: skip
    assert columns_of("apex_catch", **few | {"actor.num_actors": 1}) == {"exploration_epsilon": 0.4}
    assert columns_of("apex_dpg_pendulum") == {"exploration_noise": 0.6}, "the same everywhere"
    assert agents.exploration_columns(config_lib.load("configs/dqn_catch.yaml")) == []


@pytest.mark.parametrize("arguments, expected", [
    (["--environment.name", "Pendulum-v1"], "agent.name: 'q_learning' values every action"),
    (["--replay.priority-exponent", "-1"], "replay.priority_exponent: got -1"),
    (["--replay.min-size", "200_000"], "replay.min_size=200000 > replay.size=100000"),
    (["--replay.size", "1_000_000_000"],
     "replay.size=1000000000: transitions of 0.001 MB may take"),
    (["--cluster", "127.0.0.1:9", "--num-learners", "2", "--replay.checkpoint-minutes", "1"],
     "replay.checkpoint_minutes=1: with --cluster, the tables of learner.num_learners=2 may stand on other hosts"),
    (["--learner.batch-size", "2_000"], "learner.batch_size=2000 > replay.min_size=1000"),
    (["--num-learners", "3"], "learner.num_learners=3 does not divide learner.batch_size=64"),
    (["--num-learners", "4"], "more than the 2 lanes of all actors"),
    (["--num-learners", "2", "--actor.num-lanes", "2"], "actor.num_lanes=2: with replay.samples_per_insert=4 and learner.num_learners=2"),
    (["--agent.epsilon-start", "0.5"], "agent.epsilon_start=0.5: not with program=apex"),
    (["--agent", "{name: dpg}"], "network.torso=mlp: not with agent.name=dpg"),
    (["--agent", "{name: dpg, n_step: 0}"], "agent.n_step: got 0"),
])  # fmt: skip
def test_what_does_not_fit_together_is_one_line_before_anything_starts(arguments, expected, tmp_path, capsys):
    (line,) = refused(capsys, *APEX, "--run", tmp_path / "run", *arguments)
    assert expected in line
    assert not (tmp_path / "run").exists()
