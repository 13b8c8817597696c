"""DQN through real processes: it learns, is ended and resumed, keeps its samples per insert; and in lockstep."""

import threading
import time

import numpy as np
import pytest
import reverb

from impala import config as config_lib
from impala import lockstep
from impala.acting.policies import Decision
from impala.acting.windows import TableWindows, WindowWriter
from impala.agents import q_learning
from impala.learning import checkpoints
from impala.nodes import replaying
from impala.nodes.playing import play
from impala.replay.tables import REPLAY
from impala.replay.windows import drawn, lengths
from impala.types import ArraySpec, Discrete, EnvironmentSpec, Origin, Step
from tests.programs.running import (
    END_SECONDS,
    START_SECONDS,
    evaluated_and_exported,
    interrupted_and_resumed,
    press_ctrl_c,
    refused,
    rows,
    run,
    start,
    wait_for,
)

DQN = ["train", "--config", "configs/dqn_catch.yaml", "--evaluator.period-seconds", "1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that Ctrl-C ended, its last row, and the same folder's next run, which goes to the end."""
    folder = tmp_path_factory.mktemp("runs") / "dqn"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOSED", str(folder.with_name("closed")))
        return folder, *interrupted_and_resumed(folder, *DQN, "--environment.name", "tests.programs.closes:Catch")


def test_its_environments_are_closed_by_ctrl_c_and_at_the_end(runs):
    closed = runs[0].with_name("closed").read_text().splitlines()
    assert sum("learner" in line for line in closed) == 2, closed


def test_it_resumes_learns_catch_and_ends_by_its_evaluations(runs):
    folder, interrupted, result = runs
    assert result.returncode == 0 and "resuming" in result.stdout, result.stderr
    assert ", evaluation " in result.stdout.splitlines()[-1], "why it ended"
    last = rows(folder)[-1]
    assert float(last["evaluation_mean"]) >= 0.95 and float(last["exploration_epsilon"]) > 0.04, "only those who are not evaluated explore"
    assert int(last["updates"]) > int(interrupted["updates"]) > 0
    assert last["skipped_updates"] == "0" and last["unsound_chunks"] == "0"


def test_a_resumed_run_says_that_it_refills_its_replay_and_does_before_it_learns(runs):
    folder, interrupted, result = runs
    assert "with 0 transitions in the replay table: the first update waits until the policy has played 1,000" in result.stdout
    resumed = [row for row in rows(folder) if float(row["wall_seconds"]) > float(interrupted["wall_seconds"])]
    first = next(row for row in resumed if int(row["updates"]) > int(interrupted["updates"]))
    assert int(first["frames"]) >= int(interrupted["frames"]) + 950, "what it plays meanwhile counts"
    assert int(first["replay_size"]) >= 1_000


@pytest.mark.soak
def test_a_replay_that_is_kept_is_there_when_the_run_is_resumed(tmp_path):
    kept = [*DQN, "--run", tmp_path / "run", "--replay.checkpoint-minutes", 60, "--target-return", "null"]
    first = run(*kept, "--total-frames", 1_200)
    assert first.returncode == 0 and "twice that of disk" in first.stdout, first.stderr
    size = int(rows(tmp_path / "run")[-1]["replay_size"])
    again = run(*kept, "--total-frames", 1_400)
    assert again.returncode == 0, again.stderr
    said = next(line for line in again.stdout.splitlines() if "in the replay table" in line)
    assert "the first update waits" not in said
    assert size <= int(said.split("with ")[1].split()[0].replace(",", "")) <= size + 8 * 50
    assert int(rows(tmp_path / "run")[-1]["unsound_chunks"]) == 0


@pytest.mark.soak
def test_frames_that_were_played_before_the_first_update_are_kept(tmp_path):
    process = start(*DQN, "--run", tmp_path / "run", "--replay.min-size", 90_000)
    wait_for(lambda: (written := rows(tmp_path / "run")) and int(written[-1]["frames"]) >= 700, START_SECONDS, "frames")
    press_ctrl_c(process)
    said, errors = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 0, errors
    state, last = checkpoints.read_state(tmp_path / "run/checkpoints"), rows(tmp_path / "run")[-1]
    assert state["updates"] == int(last["updates"]) == 0 and state["frames"] == int(last["frames"]) >= 700
    assert f"{state['frames']:,} frames, 0 updates" in said, "what is printed, written and saved is the same"
    assert int(last["played_steps"]) == int(last["frames"])


def test_samples_are_four_an_insert_but_for_a_few_batches(runs):
    folder, _, _ = runs
    last = rows(folder)[-1]
    num_inserted = int(last["replay_size"]) - 1_000  # since the replay was as large as the first update wants it
    num_drawn = float(last["samples_per_insert"]) * num_inserted
    assert num_inserted > 1_000 and num_drawn == pytest.approx(4 * num_inserted, abs=9 * 32), "2 % after 3,600 inserts"


def test_the_table_of_dqn_gives_eight_samples_an_insert_within_two_percent():
    """Both sides run as fast as the table lets them, and count for themselves what they put in and take out."""
    spec = EnvironmentSpec("small", ArraySpec((2,), np.float32), Discrete(2))
    config = config_lib.load("configs/dqn_catch.yaml", {"replay.samples_per_insert": 8, "replay.size": 4_000})
    n, min_size, batch_size = 8, config.replay.min_size, config.learner.batch_size
    server = reverb.Server(replaying.make_tables(config, spec), port=None)
    columns = lengths(q_learning.make_chunk_spec(config, spec))
    num_inserted, num_drawn, is_over = 0, 0, threading.Event()
    sink = TableWindows(server.localhost_client(), REPLAY, n, lengths=columns, should_stop=is_over.is_set)

    class Counted:
        write = sink.write

        def end_windows(self, is_window, priority):
            nonlocal num_inserted
            sink.end_windows(is_window, priority)
            num_inserted += int(np.sum(is_window))

    def draw():
        nonlocal num_drawn
        for arrays in drawn(f"localhost:{server.port}", REPLAY, batch_size=batch_size):
            num_drawn += len(arrays["key"])
            if is_over.is_set():
                return

    ones, never = np.ones(n, np.float32), np.zeros(n, bool)
    step = Step(np.ones((n, 2), np.float32), ones, ones, never, never)
    writer = WindowWriter(spec, n, length=config.agent.n_step, origin=Origin(0, 0, 0, 0, 0), sink=Counted())
    writer.start(step.observation[None], step, np.zeros(n, np.int32), 0)
    reader = threading.Thread(target=draw, daemon=True)
    reader.start()
    while num_inserted < min_size + 6_000:
        writer.append(Decision(np.zeros(n, np.int32), ()), step)
    sink._writer.flush(timeout_ms=60_000)
    drawn_by_then, expected = num_drawn, 8 * (num_inserted - min_size)
    assert drawn_by_then == pytest.approx(expected, rel=0.02), "the writer waits for the reader"
    wait_for(lambda: num_drawn >= expected, 60, f"{expected} draws")
    time.sleep(0.5)  # nothing is put in, so the reader must stop
    assert num_drawn == pytest.approx(expected, rel=0.02), "the reader waits for the writer"
    is_over.set()
    while reader.is_alive():  # Reverb's call returns for nothing but another batch
        writer.append(Decision(np.zeros(n, np.int32), ()), step)
        time.sleep(0.01)
    sink.close()
    server.stop()


def test_rows_tell_of_exploration_replay_and_errors_and_not_of_a_policy(runs):
    folder, _, _ = runs
    last = rows(folder)[-1]
    assert 0.05 <= float(last["exploration_epsilon"]) < 1.0 and float(last["td_error"]) > 0
    assert float(last["replay_lag_mean"]) > 50, "the age of what is sampled"
    assert not last["lag_mean"] and not last["entropy"] and not last["kl_mu_pi"]
    assert float(last["actor_environment_fraction"]) > 0 and float(last["learner_wait_fraction"]) < 1


def test_it_is_evaluated_and_exported(runs, tmp_path):
    evaluated_and_exported(runs[0], tmp_path / "model", {"q"})


def make_lockstep(**overrides):
    numbers = {
        "replay.min_size": 100, "agent.target_period": 7, "total_frames": 600, "actor.num_environments": 4,
        "agent.n_step": 1, "agent.dueling": False,
    }  # fmt: skip
    return lockstep.of(config_lib.load("configs/dqn_catch.yaml", numbers | overrides))


def weights(network):
    return [variable.numpy() for variable in network.trainable_variables]


def test_it_learns_cartpole_in_ten_thousand_frames():
    """The shipped configuration with half the updates and a faster end of exploration; not yet to its 475.

    Five seeds came to 214 and more, this one from 22.
    """
    config = config_lib.load("configs/dqn_cartpole.yaml", {
        "replay.samples_per_insert": 4, "replay.min_size": 500, "agent.epsilon_frames": 6_000, "total_frames": 10_000,
        "learner.learning_rate_schedule": "constant", "seed": 1,
    })  # fmt: skip
    training = lockstep.of(config)
    before = np.mean(play(training.network, config, num_episodes=16, greedy=False, seed=2**30))
    for update in training.updates():
        pass
    training.close()
    after = np.mean(play(training.network, config, num_episodes=16, greedy=False, seed=2**30))
    assert before < 60 and after > 150


@pytest.fixture(scope="module")
def in_lockstep():
    """The first weights, and after each update: its index, the weights, the target's, and how much was inserted."""
    training = make_lockstep()
    first, after = weights(training.network), []
    for update in training.updates():
        target = weights(training.network._target)
        after.append((update.index, weights(training.network), target, training.replay.num_inserted))
    training.close()
    return first, after


def test_the_target_network_is_an_older_copy_bit_for_bit(in_lockstep):
    first, after = in_lockstep
    past = {0: first} | {index: online for index, online, *_ in after}
    for index, _, target, _ in after:
        assert all(np.array_equal(a, b) for a, b in zip(target, past[index - index % 7], strict=True))
    assert list(past) == list(range(64))


def test_the_same_seed_gives_the_same_weights(in_lockstep):
    def final(**overrides):
        training = make_lockstep(**overrides)
        for _ in training.updates():
            pass
        training.close()
        return weights(training.network)

    one, same, other = in_lockstep[1][-1][1], final(), final(seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(one, same))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other))


def test_lockstep_begins_at_min_size_and_keeps_its_samples_per_insert(in_lockstep):
    for index, _, _, inserted in in_lockstep[1]:
        assert inserted >= 100
        assert index * 32 == pytest.approx((inserted - 100) * 4, abs=4 * 4 + 32)


OTHERS = [("retrace", {}), ("q_lambda", {}), ("is", {}), ("tree_backup", {"agent.policy_epsilon": 0.2})]


@pytest.mark.parametrize("others", [OTHERS[:1], pytest.param(OTHERS[1:], marks=pytest.mark.soak)])
def test_every_q_based_correction_is_a_word_and_peng_with_lambda_1_is_n_steps(others):
    def final(correction, **overrides):
        training = make_lockstep(**{"loss.correction": correction, "agent.n_step": 3, "total_frames": 400} | overrides)
        for update in training.updates():
            assert np.isfinite(update.metrics["loss"])
        training.close()
        return weights(training.network)

    n_step = final("n_step")
    for one, other in zip(n_step, final("peng_q_lambda", **{"loss.lambda": 1.0})):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    for name, overrides in others:
        assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(final(name, **overrides), n_step)), name


@pytest.mark.parametrize("frames, expected", [
    (0, 1.0), (1000, 1.0), (26_000, 0.525), (51_000, 0.05), (300_000, 0.05),
])  # fmt: skip
def test_exploration_falls_from_the_first_update_on(frames, expected):
    config = config_lib.load("configs/dqn_catch.yaml", {"agent.epsilon_frames": 50_000})
    spec = EnvironmentSpec("catch", ArraySpec((10, 5), np.float32), Discrete(3))
    assert q_learning.make_exploration(config, spec)(frames) == pytest.approx(expected)


@pytest.mark.parametrize("arguments, expected", [
    (["--environment.name", "Pendulum-v1", "--network.torso", "mlp"], "agent.name: 'q_learning' values every action"),
    (["--replay.size", "1_000_000_000"],
     "replay.size=1000000000: transitions of 0.001 MB may take"),
    (["--replay.min-size", "200_000"], "replay.min_size=200000 > replay.size=100000"),
    (["--total-frames", "999"],
     "total_frames=999: the first update waits until 1000 were played, for replay.min_size=1000; expected more frames"),
    (["--agent.name", "actor_critic"], "agent.name='actor_critic': not with program=dqn; expected q_learning"),
    (["--loss.correction", "vtrace"], "loss.correction=vtrace: not with agent.name=q_learning"),
])  # fmt: skip
def test_what_does_not_fit_together_is_one_line_before_anything_starts(arguments, expected, tmp_path, capsys):
    (line,) = refused(capsys, *DQN, "--run", tmp_path / "run", *arguments)
    assert expected in line
    assert not (tmp_path / "run").exists()
