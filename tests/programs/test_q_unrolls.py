"""Action values from IMPALA's unrolls: through real processes, and in lockstep with a lag and replay."""

import numpy as np
import pytest

from impala import agents, lockstep
from impala import config as config_lib
from impala.agents import q_unrolls
from impala.config.sections import CORRECTIONS_OF
from tests.programs.running import refused, rows, run

CATCH = "configs/q_unrolls_catch.yaml"


@pytest.mark.soak
def test_retrace_learns_catch_from_a_queue(tmp_path):
    result = run("train", "--config", CATCH, "--run", tmp_path / "run", "--evaluator.period-seconds", 2)
    assert result.returncode == 0, result.stderr
    last = rows(tmp_path / "run")[-1]
    assert float(last["evaluation_mean"]) >= 0.95 and float(last["return_mean"]) < 0.95, "training episodes explore"
    assert 0 < float(last["lag_mean"]) < 20 and last["unsound_chunks"] == "0" and last["skipped_updates"] == "0"
    assert float(last["exploration_epsilon"]) == pytest.approx(np.mean(0.4 ** (1 + 7 * np.arange(32) / 31)))
    assert float(last["kl_mu_pi"]) > 0.1 and 0 < float(last["effective_sample_size"]) <= 1


@pytest.mark.soak
def test_n_step_targets_train_from_a_queue_too(tmp_path):
    result = run("train", "--config", CATCH, "--run", tmp_path / "run", "--loss.correction", "n_step")
    assert result.returncode == 0, result.stderr


@pytest.mark.soak
def test_two_learners_and_replay_learn_it_too(tmp_path):
    options = ["--num-learners", 2, "--replay.fraction", 0.5, "--network.core", "lstm", "--network.core-size", 32]
    result = run("train", "--config", CATCH, "--run", tmp_path / "run", *options)
    assert result.returncode == 0, result.stderr


SMALL = {"total_frames": 4_500, "agent.target_period": 3, "learner.batch_size": 16}


def final(lag=0, **overrides):
    """Returns the updates and the last weights, of the same run without playing it again."""
    key = repr((lag, sorted(overrides.items())))
    if key not in kept:
        kept[key] = played(lag, overrides)
    return kept[key]


kept: dict = {}


def played(lag, overrides):
    training = lockstep.Lockstep(config_lib.load(CATCH, SMALL | overrides), lag=lag)
    updates = list(training.updates())
    training.close()
    return updates, [variable.numpy() for variable in training.network.trainable_variables]


def test_same_seed_same_weights_and_lag_replay_and_schemes_make_a_difference():
    updates, one = final()
    assert len(updates) > 15 and all(np.isfinite(update.metrics["loss"]) for update in updates)
    _, same = played(0, {})
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    _, lagging = final(2)
    and_replay = (2, {"loss.correction": "retrace", "replay.fraction": 0.5})
    for lag, overrides in [(2, {}), and_replay, (0, {"loss.correction": "peng_q_lambda"}), (0, {"agent.policy_epsilon": 0.2})]:
        _, other = final(lag, **overrides)
        before = lagging if overrides and lag else one
        assert not all(np.array_equal(a, b) for a, b in zip(before, other, strict=True)), (lag, overrides)


@pytest.mark.parametrize("word", [
    word if word in ("retrace", "q_lambda") else pytest.param(word, marks=pytest.mark.soak) for word in CORRECTIONS_OF["q_unrolls"]
])  # fmt: skip
def test_every_scheme_trains_with_lag_and_replay(word):
    updates, _ = final(2, **{"loss.correction": word, "replay.fraction": 0.5})
    assert all(np.isfinite(update.metrics["loss"]) for update in updates)
    versions = {int(update.batch.weights_version[~update.batch.is_replayed.numpy()].numpy().min()) for update in updates[4:]}
    assert versions == set(range(2, len(updates) - 2)), "the lag is exact"


def test_every_environment_has_its_rung_and_keeps_the_policy_it_played():
    """By the chunks alone: the probability of the best action is 1 − ε + ε / A."""
    updates, _ = final()
    config = config_lib.load(CATCH, SMALL)
    ladder = agents.of(config).make_ladder(config, 16)
    probabilities = np.exp(updates[0].batch.logits_tm1.numpy())
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1.0, rtol=1e-4)
    best = probabilities.max(axis=-1)
    np.testing.assert_allclose(best, np.broadcast_to(1 - ladder + ladder / 3, best.shape), rtol=1e-4)


def test_each_task_is_explored_by_a_whole_ladder(monkeypatch):
    """Lanes play the tasks in turn; in lockstep each task has one lane. Else the first task would explore for all."""
    tasks = {"environment.name": ["catch", "memory_chain"], "target_return": None}
    few = {"actor.num_actors": 2, "actor.num_lanes": 2, "actor.num_environments": 4}
    config = config_lib.load(CATCH, tasks | few)
    monkeypatch.setattr(q_unrolls, "make_behaviour", lambda config, spec, explore: explore())
    found = {0: [], 1: []}
    for lane in range(4):
        found[config.task_of(lane // 2, lane % 2)] += agents.behaviour_of_lane(config, None, 2 * lane, 2).tolist()
    whole = 0.4 ** (1 + 7 * np.arange(4) / 3)
    assert found[0] == found[1] == pytest.approx(whole)
    for task in range(2):
        np.testing.assert_allclose(agents.behaviour_of_lane(config, None, 4 * task, 4, 8), whole)
    (columns,) = agents.exploration_columns(config)
    assert columns()["exploration_epsilon"] == pytest.approx(whole.mean())
    assert columns()["exploration_epsilon_actors"] == f"{whole[:2].mean():.3g} {whole[2:].mean():.3g}"


@pytest.mark.parametrize("arguments, expected", [
    (["--loss.correction", "vtrace"], "loss.correction=vtrace: not with agent.name=q_unrolls; expected n_step"),
    (["--loss.entropy-cost", "0.1"], "loss.entropy_cost=0.1: not with agent.name=q_unrolls; expected no such key"),
    (["--population.size", "2"], "population.size=2: not with agent.name=q_unrolls; expected no such key"),
    (["--program", "ga3c"], "agent.name='q_unrolls': not with program=ga3c; expected actor_critic"),
    (["--environment.name", "Pendulum-v1"], "agent.name: 'q_unrolls' values every action"),
    (["--evaluator.num-episodes", "0"], "target_return=0.95: episodes of an agent that explores say little"),
    (["--agent.policy-epsilon", "1.5"], "agent.policy_epsilon: got 1.5"),
    (["--loss.lambda", "1.5"], "loss.lambda: got 1.5"),
])  # fmt: skip
def test_what_does_not_fit_together_is_one_line_before_anything_starts(arguments, expected, tmp_path, capsys):
    (line,) = refused(capsys, "train", "--config", CATCH, "--run", tmp_path / "run", *arguments)
    assert expected in line
    assert not (tmp_path / "run").exists()
