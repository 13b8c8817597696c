"""R2D2 with central inference, through real processes: it learns what needs memory; and in lockstep, beside DQN."""

import numpy as np
import pytest

from impala import config as config_lib
from impala import lockstep
from tests.programs.running import WHOLE_OR_RESUMED, ended, played_by, refused, rows, run

R2D2 = ["train", "--config", "configs/r2d2_memory_chain.yaml", "--evaluator.period-seconds", "1", "--learner.batch-size", "16"]
EVERYONE = {(0, environment) for environment in range(16)}


@pytest.fixture(scope="module", params=WHOLE_OR_RESUMED)
def runs(request, tmp_path_factory):
    """A run that goes to its end, or two of which Ctrl-C ended the first; that one's last row; the last one, completed."""
    folder = tmp_path_factory.mktemp("runs") / "r2d2"
    return folder, *ended(request.param, folder, *R2D2)


def test_it_learns_what_must_be_remembered_and_ends_by_its_evaluations(runs):
    folder, interrupted, result = runs
    last = rows(folder)[-1]
    assert float(last["evaluation_mean"]) >= 0.95 and int(last["updates"]) > int(interrupted["updates"])
    assert last["skipped_updates"] == "0" and last["unsound_chunks"] == "0" and last["unsound_priorities"] == "0"


def test_how_often_a_step_is_trained_on_is_held_and_steps_are_counted(runs):
    folder, interrupted, _ = runs
    last = [row for row in rows(folder) if row["samples_per_insert"] and row["priority_seconds"]][-1]
    trained = 16 * 20 * (int(last["updates"]) - int(interrupted["updates"]))
    inserted = trained / float(last["samples_per_insert"])
    assert 8.0 * inserted == pytest.approx(trained, abs=20 * (128 + 8 * 16)), "the limiter's margin, and batches ahead"
    assert int(last["frames"]) - int(interrupted["frames"]) == int(last["played_steps"])
    # A window stands for 10 steps, of which an episode has 11, one of them across the reset and not counted as played.
    # Each of 16 environments has 10 to 20 that are in no window yet, and some on their way.
    assert int(last["replay_size"]) == pytest.approx(int(last["played_steps"]) * 11 / 10 - 16 * 25, abs=16 * 20)
    assert 0 < float(last["priority_seconds"]) < 0.5 and 1e-6 <= float(last["priority_p50"]) <= float(last["priority_max"])
    assert float(last["exploration_epsilon"]) == pytest.approx(np.mean(0.4 ** (1 + 7 * np.arange(16) / 15)))
    assert float(last["inference_batch_mean"]) > 1 and not last["lag_mean"]
    # Not of the last row alone: the second run may be over after a few updates.
    assert max(float(row["replay_lag_mean"]) for row in rows(folder) if row["replay_lag_mean"]) > 5


@pytest.mark.soak
def test_what_is_replayed_was_played_by_actors_and_none_of_it_by_who_evaluates(tmp_path):
    assert played_by(tmp_path / "run", EVERYONE, *R2D2) == EVERYONE


@pytest.mark.soak
def test_it_is_evaluated_and_exported(runs, tmp_path):
    import tensorflow as tf

    folder, *_ = runs
    result = run("evaluate", folder, "--episodes", 32)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout.split()[0]) > 0.5, result.stdout  # at random 0; a few updates after a perfect evaluation
    result = run("export", folder, "--output", tmp_path / "model")
    assert result.returncode == 0, result.stderr
    assert hasattr(tf.saved_model.load(str(tmp_path / "model")), "act")


@pytest.mark.soak
@pytest.mark.parametrize("arguments", [
    ["--num-learners", 2], ["--inference.transport", "rpc"], ["--loss.correction", "retrace"],
])  # fmt: skip
def test_two_learners_rpc_and_a_correction_learn_it_too(arguments, tmp_path):
    result = run(*R2D2, "--run", tmp_path / "run", *arguments)
    assert result.returncode == 0, result.stderr
    assert float(rows(tmp_path / "run")[-1]["evaluation_mean"]) >= 0.95


def test_what_is_not_set_is_as_published_by_seed_rl():
    """Rewards are not clipped, since values are rescaled."""
    config = config_lib.build({}, {"program": "seed", "agent.name": "r2d2", "environment.name": "catch"})
    assert (config.loss.reward_clipping, config.agent.value_rescaling, config.loss.discount) == ("none", True, 0.997)
    assert (config.agent.burn_in, config.learner.unroll_length, config.agent.period, config.agent.n_step) == (40, 80, 80, 5)
    assert (config.replay.priority_exponent, config.replay.importance_exponent, config.agent.priority_max_share) == (0.9, 0.6, 0.9)
    assert (config.agent.epsilon_base, config.agent.epsilon_exponent, config.agent.evaluation_epsilon) == (0.4, 7.0, 0.001)
    assert (config.learner.optimizer, config.learner.learning_rate, config.learner.epsilon) == ("adam", 1e-4, 1e-3)
    assert config.replay.samples_per_insert == 0.75 and config.agent.target_period == 2_500 and config.agent.dueling


SMALL = {"replay.min_size": 320, "agent.target_period": 7, "total_frames": 1500, "learner.batch_size": 8}


def make_lockstep(name="r2d2_memory_chain", **overrides):
    return lockstep.of(config_lib.load(f"configs/{name}.yaml", SMALL | overrides))


def final(training):
    count = sum(1 for _ in training.updates())
    training.close()
    return count, [variable.numpy() for variable in training.network.trainable_variables]


def test_of_length_one_without_a_core_it_is_double_dqn():
    """The same draws; weights up to rounding, since one product has the rows of both states, not one for each."""
    same = {
        "actor.num_environments": 1, "actor.num_lanes": 1, "learner.batch_size": 32, "learner.epsilon": 1e-5,
        "network.hidden_sizes": [64, 64], "loss.reduction": "mean", "learner.learning_rate_schedule": "constant",
        "loss.discount": 0.99, "loss.reward_clipping": "abs_one", "agent.dueling": True, "total_frames": 900,
        "learner.learning_rate": 1e-3, "replay.samples_per_insert": 8.0, "learner.optimizer": "adam",
    }  # fmt: skip
    dqn = make_lockstep("dqn_catch", **same | {
        "agent.double": True, "agent.error": "squared", "agent.epsilon_start": 0.4, "agent.epsilon_end": 0.4,
        "agent.n_step": 1,
    })  # fmt: skip
    r2d2 = make_lockstep("r2d2_catch", **same | {
        "agent.burn_in": 0, "agent.period": 1, "agent.n_step": 1, "learner.unroll_length": 1, "network.core": "none",
        "agent.value_rescaling": False, "replay.priority_exponent": 0.0,
    })  # fmt: skip
    count = 0
    for one, other in zip(dqn.updates(), r2d2.updates()):
        np.testing.assert_array_equal(one.batch.observation, other.batch.observation)
        np.testing.assert_array_equal(one.batch.a_tm1, other.batch.a_tm1)
        count += 1
    assert count == dqn.learner.num_updates == r2d2.learner.num_updates > 50
    for one, other in zip(dqn.network.trainable_variables, r2d2.network.trainable_variables, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("differences", [[], pytest.param([
    {"replay.priority_exponent": 0.0}, {"agent.burn_in": 4},
], marks=pytest.mark.soak)])  # fmt: skip
def test_the_same_seed_the_same_weights_and_priorities_and_burn_in_make_a_difference(differences):
    count, one = final(make_lockstep(total_frames=820))
    assert count > 10
    for overrides in differences or [{}]:
        _, other = final(make_lockstep(**{"total_frames": 820} | overrides))
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True)) == (not overrides), overrides


@pytest.mark.soak
def test_it_learns_catch_too(tmp_path):
    result = run("train", "r2d2_catch", "--run", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert float(rows(tmp_path / "run")[-1]["evaluation_mean"]) >= 0.95


@pytest.mark.parametrize("keys", [
    pytest.param({}, marks=pytest.mark.soak), {"loss.correction": "retrace", "agent.policy_epsilon": 0.2},
])  # fmt: skip
def test_first_priorities_are_the_learners_with_the_same_weights(keys):
    """Before the first update there is one network, and a sequence's core state is not too old."""
    training, before = make_lockstep(**keys), {}
    replay, sample = training.replay, training.replay.sample

    def spied(*arguments):
        drawn = sample(*arguments)
        before.setdefault("priorities", replay._priorities[drawn["key"]].copy())
        before.setdefault("keys", drawn["key"])
        return drawn

    replay.sample = spied
    next(training.updates())
    np.testing.assert_allclose(replay._priorities[before["keys"]], before["priorities"], rtol=1e-3, atol=1e-5)
    assert len(np.unique(before["priorities"])) > 4
    training.close()


def test_a_sequence_has_the_version_that_played_its_last_step():
    """As in the program; not that of its first step, a period of ten steps of sixteen environments before."""
    training, versions, updates = make_lockstep(total_frames=1_600), [], []
    write = training.replay.write

    def spied(rows, first=0):
        versions.append(int(rows[-1]["weights_version"]))
        updates.append(training.learner.num_updates)  # done when the next step is decided
        write(rows, first)

    training.replay.write = spied
    assert sum(1 for _ in training.updates()) > 10
    training.close()
    assert versions[1:] == updates[:-1] and len(set(versions)) > 5


@pytest.mark.parametrize("correction", ["n_step", pytest.param("retrace", marks=pytest.mark.soak)])
def test_samples_per_insert_are_exact(correction):
    training = make_lockstep(**{"loss.correction": correction})
    count, _ = final(training)
    # 16 environments begin a sequence every 10 steps; each of its 20 trained steps counts.
    num_due = 8 * 10 / 20 * (training.replay.num_inserted - 32)
    assert count == int(num_due // 8) + 1


@pytest.mark.soak
def test_it_needs_its_core():
    """The same agent without one has no way to know the bit."""
    scores = {}
    for core in ("lstm", "none"):
        training = make_lockstep(**{"network.core": core, "total_frames": 40_000, "learner.batch_size": 32})
        episodes = [episode.score for update in training.updates() for episode in update.episodes]
        scores[core] = np.mean(episodes[-400:])
        training.close()
    assert scores["lstm"] > 0.7 and abs(scores["none"]) < 0.25, scores


@pytest.mark.parametrize("arguments, expected", [
    (["--environment.name", "Pendulum-v1"], "agent.name: 'r2d2' values every action"),
    (["--agent.n-step", "21"], "agent.n_step=21 > learner.unroll_length=20: no sequence has so many rewards; expected less"),
    (["--agent.period", "21"], "agent.period=21 > learner.unroll_length=20: some steps would never be learned; expected less"),
    (["--agent.burn-in", "-1"], "agent.burn_in: got -1"),
    (["--replay.priority-exponent", "1.1"], "replay.priority_exponent: got 1.1; input should be less than or equal to 1"),
    (["--replay.importance-exponent", "1.1"], "replay.importance_exponent: got 1.1; input should be less than or equal to 1"),
    (["--agent.burn-in", "99_981"],
     "agent.burn_in=99981: with learner.unroll_length=20 a sequence has more steps than replay.size=100000; expected a shorter one"),
    (["--replay.importance-exponent", "-1"], "replay.importance_exponent: got -1"),
    (["--learner.batch-size", "201"], "learner.batch_size=201 sequences, one for every 10 steps, > replay.min_size=2000"),
    (["--replay.size", "1_000_000_000"],
     "replay.size=1000000000: transitions of 0.001 MB may take"),
    (["--loss.correction", "vtrace"], "loss.correction=vtrace: not with agent.name=r2d2"),
    (["--replay.queue-size", "7"], "replay.queue_size=7: not with agent.name=r2d2"),
    (["--program", "apex"], "agent.name='r2d2': not with program=apex; expected q_learning or dpg"),
    (["--num-learners", "2", "--replay.checkpoint-minutes", "1"],
     "replay.checkpoint_minutes=1: with actor.num_lanes=2 and learner.num_learners=2 an actor would wait for a table"),
    (["--num-learners", "2", "--learner.unroll-length", "2", "--agent.n-step", "1", "--agent.period", "2"],
     "learner.unroll_length=2: one with a reset can be without a transition, and is left out; so several learners'"),
    (["--num-learners", "3"], "learner.num_learners=3 does not divide learner.batch_size=16"),
    (["--inference.max-environments", "4"], "inference.max_environments=4: a lane asks for 8"),
])  # fmt: skip
def test_what_does_not_fit_together_is_one_line_before_anything_starts(arguments, expected, tmp_path, capsys):
    (line,) = refused(capsys, *R2D2, "--run", tmp_path / "run", *arguments)
    assert expected in line
    assert not (tmp_path / "run").exists()


def test_replay_s_keys_are_refused_beside_v_trace(tmp_path, capsys):
    (line,) = refused(capsys, "train", "seed_catch", "--run", tmp_path / "run", "--replay.min-size", 7)
    assert "replay.min_size=7: not with program=seed and agent.name=actor_critic; expected 50000" in line


def test_what_was_interrupted_while_it_played_goes_on(monkeypatch):
    """With the replay that it has, and new episodes."""
    training = make_lockstep(total_frames=1_600)
    updates = training.updates()
    first = [next(updates) for _ in range(3)]

    def interrupted(action):
        raise KeyboardInterrupt

    monkeypatch.setattr(training._environment, "send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(updates)
    count = len(training.replay)
    rest = list(training.updates())
    assert training.frames >= 1_600 and rest[0].index > first[-1].index and len(training.replay) > count > 0
    assert [update.index for update in rest] == list(range(rest[0].index, rest[-1].index + 1))
    training.close()
