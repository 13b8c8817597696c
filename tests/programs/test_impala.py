"""The program through real processes, with real signals."""

import contextlib
import csv
import json
import os
import shutil
import signal
import threading
import time

import numpy as np
import psutil
import pytest

from impala import cli
from impala.learning import checkpoints, soundness
from impala.monitoring.logs import read_csv
from impala.monitoring.metrics import LOSS_COLUMNS
from tests.faults.figures import within
from tests.programs.running import (
    CATCH,
    END_SECONDS,
    ENDLESS,
    ONE_LIFE,
    START_SECONDS,
    WATCHED,
    end_of,
    ends_in_order,
    node,
    press_ctrl_c,
    refused,
    rows,
    run,
    start,
    start_cold,
    survivors,
    wait_for,
    wait_until_it_trains,
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of Catch that ended by itself."""
    folder, scratch = tmp_path_factory.mktemp("runs") / "catch", tmp_path_factory.mktemp("scratch")
    options = ["--run", folder, "--checkpoint-period-seconds", "0.5", "--record-chunks", "5"]
    result = run(*CATCH, *options, TMPDIR=str(scratch))
    assert not list(scratch.iterdir()), "all it writes lies in its folder"
    return folder, result


def test_learns_catch_and_ends_by_itself(finished):
    folder, result = finished
    assert result.returncode == 0, result.stderr
    assert float(rows(folder)[-1]["return_mean"]) >= 0.9


@pytest.mark.soak
@pytest.mark.parametrize("config", ["catch", "pong"])
def test_the_first_update_comes_within_25_seconds(tmp_path, config):
    with within(25, f"{config} on this machine: the first update is done"):
        process = start_cold("train", config, "--run", tmp_path, *ENDLESS)
        wait_until_it_trains(tmp_path)
    ends_in_order(process)


def test_run_folder_holds_what_it_promises(finished):
    folder, _ = finished
    for name in ("config.yaml", "versions.txt", "command.txt", "metrics.csv", "episodes.csv", "tensorboard",
                 "checkpoints", "logs/learner-0.log", "logs/actor-0.log", "logs/table-0.log"):  # fmt: skip
        assert (folder / name).exists(), name
    assert "--config configs/catch.yaml" in (folder / "command.txt").read_text()
    assert len(list((folder / "chunks").glob("*.npz"))) == 5
    assert len(checkpoints.Checkpoints(folder / "checkpoints").paths()) <= 3
    last = rows(folder)[-1]
    state = checkpoints.read_state(folder / "checkpoints")
    assert state["frames"] == int(last["frames"]) and state["updates"] == int(last["updates"])
    assert float(last["rss_mb"]) > 500 and float(last["lag_mean"]) >= 1
    frames = [int(row["frames"]) for row in rows(folder)]
    assert frames == sorted(frames)
    # 8 chunks of 20 steps; a Catch episode is nine steps and one masked: nine tenths of 160 count
    assert int(last["frames"]) == pytest.approx(int(last["updates"]) * 160 * 0.9, rel=0.02)


def test_the_lab_reads_the_chunks_that_it_kept(finished):
    """Its first chunks, acted by a policy that hardly ever catches, before its last, which does."""
    from impala import corrections
    from impala.lab import offline

    folder, _ = finished
    of = {row.scheme: row for row in offline.run_study(folder, num_chunks=64)}
    assert set(corrections.SCHEMES) <= set(of) and {row.lag for row in of.values()} == {int(rows(folder)[-1]["updates"])}
    assert of["none"].bias < -0.5, "the return of who acted"
    assert of["vtrace"].error < of["none"].error, "a ratio takes the failures' weight"
    assert of["none"].effective_sample_size < 0.8


def test_tensorboard_has_the_same_numbers(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _ = finished
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    from tensorflow import make_ndarray

    assert {*LOSS_COLUMNS, "lag"} <= set(events.Tags()["tensors"]), "a scheme's telemetry, and the lag's histogram"
    assert make_ndarray(events.Tensors("lag")[-1].tensor_proto).shape[1] == 3, "left, right, count"
    telemetry = [name for name in LOSS_COLUMNS if not rows(folder)[-1][name]]
    assert not telemetry, "nor is one of them empty in metrics.csv"
    written = [(int(e.step), float(make_ndarray(e.tensor_proto))) for e in events.Tensors("return_mean")]
    in_csv = [(int(r["frames"]), float(r["return_mean"])) for r in rows(folder) if r["return_mean"]]
    assert written == [pytest.approx(pair, rel=1e-4) for pair in in_csv]


def test_trains_on_replayed_chunks_too_and_writes_a_profile(tmp_path):
    """Half of each batch from the uniform table that the same writer fills; CLEAR's terms ask which half."""
    folder = tmp_path / "catch"
    result = run(
        *CATCH, "--run", folder, "--replay.fraction", 0.5, "--replay.size", 500, "--loss.correction", "clear",
        "--total-frames", 50_000, "--target-return", 2, "--profile",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    (trace,) = (folder / "profile").rglob("*.xplane.pb")
    assert trace.stat().st_size > 10_000
    kept = rows(folder)
    last = kept[-1]
    # of the 8 chunks of a batch 4 are fresh, and those alone are counted: nine tenths of 80 steps
    assert int(last["frames"]) == pytest.approx(int(last["updates"]) * 80 * 0.9, rel=0.03)
    # Chunks are drawn from the newest 500, which are 125 updates' worth: once the table is full they are 62 updates
    # older on average than fresh ones, while it fills half the updates so far, so 57 over the 695 updates of the run, less
    # the updates that a fresh one waits in the queue. The mean is of the whole run, since how many updates a row covers is
    # the machine's speed.
    updates = np.diff([0, *(int(row["updates"]) for row in kept)])
    older = [float(row["replay_lag_mean"] or 0) - float(row["lag_mean"] or 0) for row in kept]
    assert 35 < np.average(older, weights=updates) < 65
    assert int(last["duplicate_chunks"]) == int(last["missing_chunks"]) == 0
    assert float(last["return_mean"]) > 0


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["uniform_once", "drop_oldest"])
def test_the_other_tables_of_fresh_chunks_train_too(tmp_path, kind):
    folder = tmp_path / "catch"
    result = run(*CATCH, "--run", folder, "--replay.queue-kind", kind, "--total-frames", 30_000, "--target-return", 2)
    assert result.returncode == 0, result.stderr
    last = rows(folder)[-1]
    assert int(last["frames"]) == pytest.approx(int(last["updates"]) * 160 * 0.9, rel=0.02)
    assert int(last["duplicate_chunks"]) == 0 and float(last["return_mean"]) > -0.8
    # The oldest goes where there is no room; of the others none may get lost, but for those still in the table.
    assert int(last["missing_chunks"]) <= (32 if kind == "uniform_once" else 10_000)


@pytest.mark.soak
def test_continuous_actions_cross_processes_and_are_exported(tmp_path):
    folder = tmp_path / "pendulum"
    command = [
        "train", "--environment.name", "Pendulum-v1", "--network.torso", "mlp", "--loss.reward-clipping", "none",
        "--loss.popart", "true", "--learner.batch-size", 8, "--log-period-seconds", 1, "--run", folder,
    ]  # fmt: skip
    result = run(*command, "--total-frames", 20_000)  # the episodes of the last second are not reported
    assert result.returncode == 0, result.stderr
    last = rows(folder)[-1]
    assert int(last["skipped_updates"]) == int(last["missing_chunks"]) == 0
    assert 0 <= float(last["kl_mu_pi"]) < 0.5 and np.isfinite(float(last["entropy"]))
    scores = [float(episode["score"]) for episode in read_csv(folder / "episodes.csv")]
    assert len(scores) >= 32 and -1_900 < np.mean(scores) < -500
    assert run("export", folder).returncode == 0 and (folder / "export" / "saved_model.pb").exists()


@pytest.mark.soak
def test_a_recurrent_network_learns_resumes_and_is_evaluated(tmp_path):
    """Its state travels with the chunks: where the weights stand still, the learner finds the actor's probabilities.

    Unrolls of 16 begin within an episode of 10 observations; a learner that took a state of zeros had a divergence of
    0.007. While it learns, a single update's is anything up to 0.1.
    """
    folder = tmp_path / "catch"
    options = ["--run", folder, "--network.core", "lstm", "--network.core-size", 32, "--learner.max-lag", 9]
    options += ["--learner.unroll-length", 16]
    assert run(*CATCH, *options, "--total-frames", 300_000, "--target-return", 0.6).returncode == 0
    learned = rows(folder)
    assert int(learned[-1]["frames"]) < 300_000 and max(float(row["kl_mu_pi"] or 0) for row in learned) > 1e-3
    still = ["--learner.learning-rate", 1e-12, "--target-return", 2]
    result = run(*CATCH, *options, *still, "--total-frames", int(learned[-1]["frames"]) + 15_000)
    assert result.returncode == 0 and "resuming" in result.stdout, result.stderr
    resumed = [row for row in rows(folder)[len(learned) :] if row["kl_mu_pi"]]
    assert max(float(row["lag_max"]) for row in resumed) >= 5
    assert max(float(row["kl_mu_pi"]) for row in resumed) < 1e-6
    assert float(resumed[-1]["return_mean"]) > 0, "goes on with what was learned; at random it is -0.6"
    result = run("evaluate", folder, "--episodes", 1)
    assert result.returncode == 0 and "0 (one sampled episode), weights of update" in result.stdout, result.stderr
    result = run(*CATCH, "--run", folder, "--network.core", "none")
    assert result.returncode == 2 and "network.core" in result.stderr


@pytest.mark.soak
def test_the_evaluator_keeps_the_best_and_the_lag_stays_under_its_bound(tmp_path):
    """32 environments and batches of 8 imply 8 updates of lag; a queue of one batch is what 9 leave."""
    folder = tmp_path / "catch"
    options = ["--run", folder, "--evaluator.num-episodes", 32, "--evaluator.period-seconds", 0.3]
    options += ["--total-frames", 400_000, "--target-return", 0.95]
    assert run(*CATCH, *options, "--learner.max-lag", 9).returncode == 0
    lags = [float(row["lag_max"]) for row in rows(folder) if row["lag_max"]]
    assert max(lags) <= 9 and int(rows(folder)[-1]["dropped_chunks"]) >= 0
    with (folder / "evaluations.csv").open() as file:
        evaluations = list(csv.DictReader(file))
    assert len(evaluations) >= 2 and {row["episodes"] for row in evaluations} == {"32"}
    assert len({row["updates"] for row in evaluations}) == len(evaluations), "newer weights each time"
    means = [float(row["mean"]) for row in evaluations]
    best = checkpoints.read_state(folder / "best")
    assert best["fitness"] == max(means) > means[0]
    result = run("evaluate", folder, "--episodes", 200, "--best")
    assert result.returncode == 0, result.stderr
    again = read_csv(folder / "evaluations.csv")[-1]
    assert int(again["updates"]) == best["updates"] == int(evaluations[means.index(max(means))]["updates"])
    # Five standard errors of 32 episodes and of 200; the best of several was chosen by its luck, too. A success and a
    # failure more, since of episodes that are all caught none would be left.
    share = (200 * (float(again["mean"]) + 1) / 2 + 32 * (max(means) + 1) / 2 + 1) / (200 + 32 + 2)
    error = 2 * (share * (1 - share) * (1 / 32 + 1 / 200)) ** 0.5
    assert float(again["mean"]) == pytest.approx(max(means), abs=5 * error)
    assert run(*CATCH, "--run", folder, "--learner.max-lag", 3, "--restart").returncode == 2


def test_evaluate_and_plot(finished, capsys):
    folder, _ = finished
    (line,) = refused(capsys, "evaluate", folder, "--best")
    assert line == f"{folder}: holds no best weights; expected a run with evaluator.num_episodes above 0"
    assert cli.main(["evaluate", str(folder), "--episodes", "20", "--greedy"]) == 0
    assert float(capsys.readouterr().out.split(" ±")[0]) >= 0.8
    assert (folder / "evaluations.csv").exists()
    assert cli.main(["plot", str(folder)]) == 0
    assert (folder / "curves.png").stat().st_size > 10_000
    capsys.readouterr()
    assert cli.main(["runs", str(folder.parent)]) == 0
    assert capsys.readouterr().out.split()[:3] == [folder.name, "done", "frames"]


def test_resumes_where_it_ended_and_refuses_another_architecture(finished, tmp_path, capsys):
    source, _ = finished
    folder = tmp_path / "catch"
    shutil.copytree(source, folder, symlinks=True)
    before = checkpoints.read_state(folder / "checkpoints")
    lines = refused(capsys, *CATCH, "--run", folder, "--learner.batch-size", 4, "--network.hidden-sizes", "[32]")
    assert any("learner.batch_size: was 8, is 4; cannot change on resume" in line for line in lines)
    result = run(*CATCH, "--run", folder, "--total-frames", before["frames"] - 100)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].startswith(f"{folder} is done: {before['frames']:,} frames of ")
    assert checkpoints.read_state(folder / "checkpoints") == before
    result = run(*CATCH, "--run", folder)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"{folder} is done: its target, a return of 0.95, was reached; --target-return N" in result.stdout.splitlines()[-1]
    assert checkpoints.read_state(folder / "checkpoints") == before
    budget = before["frames"] + 20_000
    result = run(*CATCH, "--run", folder, "--total-frames", budget, "--target-return", 2)
    assert result.returncode == 0, result.stderr
    after = checkpoints.read_state(folder / "checkpoints")
    assert budget <= after["frames"] < budget + 500
    assert after["updates"] > before["updates"] and after["wall_seconds"] > before["wall_seconds"]
    updates = [int(row["updates"]) for row in rows(folder)]
    assert updates == sorted(updates) and updates[0] < before["updates"] < updates[-1]
    assert float(rows(folder)[-1]["return_mean"]) >= 0.8  # it went on with the weights it had


@pytest.mark.soak
def test_falls_back_to_an_older_checkpoint_and_never_starts_afresh_in_silence(finished, tmp_path):
    source, _ = finished
    folder = tmp_path / "catch"
    shutil.copytree(source, folder, symlinks=True)
    paths = sorted((folder / "checkpoints").iterdir())
    assert len(paths) >= 2
    data = paths[-1] / "tensors.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-100])
    frames = json.loads((paths[-2] / "state.json").read_text())["frames"]
    result = run(*CATCH, "--run", folder, "--total-frames", frames + 200, "--target-return", 2)
    assert result.returncode == 0, result.stderr
    assert "is damaged" in (folder / "logs/learner-0.log").read_text()
    said = f"checkpoint {paths[-1].name} is damaged (tensors.data-00000-of-00001 does not match its SHA-256); resumed from"
    assert f"{said} checkpoint {paths[-2].name}: update" in result.stdout
    for path in sorted((folder / "checkpoints").iterdir()):
        if path.suffix == "":
            (path / "state.json").write_text("{")
    result = run(*CATCH, "--run", folder, "--total-frames", 10**9)
    assert result.returncode == 1
    assert "no sound checkpoint" in result.stderr


def test_ctrl_c_ends_cleanly_with_a_checkpoint(tmp_path):
    """Its actors step back for the learner, with all their threads, as `actor.niceness` says."""
    process = start(*CATCH, "--run", tmp_path / "run", *WATCHED, "--actor.niceness", 7)
    wait_until_it_trains(tmp_path / "run")
    learner, actor = ({os.getpriority(os.PRIO_PROCESS, thread.id) for thread in node(process, name).threads()} for name in ("learner/0", "actor/0"))
    assert learner == {os.nice(0)} and actor == {min(19, os.nice(0) + 7)}
    second = run(*CATCH, "--run", tmp_path / "run")  # the folder is in use
    assert second.returncode == 2 and "in use by process" in second.stderr
    with within(15, "Ctrl-C while it trains: the run has ended with a checkpoint"):
        press_ctrl_c(process)
        errors = end_of(process)
    assert process.returncode == 0, errors
    state = checkpoints.read_state(tmp_path / "run/checkpoints")
    assert state["frames"] == int(rows(tmp_path / "run")[-1]["frames"])
    assert survivors(process) == []
    assert run("runs", tmp_path).stdout.split()[:3] == ["run", "stopped", "frames"]


def test_ctrl_c_while_its_nodes_import_leaves_nothing_running(tmp_path):
    process = start(*CATCH, "--run", tmp_path / "run", *WATCHED)
    wait_for(lambda: (tmp_path / "run/logs/actor-0.log").exists(), START_SECONDS, "the nodes are started")
    with within(15, "Ctrl-C while nodes import: the run has ended"):
        press_ctrl_c(process)
        output, errors = process.communicate(timeout=END_SECONDS)
    assert (process.returncode, errors) == (130, "")
    assert output.splitlines()[-1] == "interrupted before the first update: there is nothing new to save"
    assert survivors(process) == []


def test_a_killed_launcher_takes_its_nodes_along_however_young_they_are(tmp_path):
    process = start(*CATCH, *WATCHED, "--run", tmp_path / "run")
    wait_for(lambda: len(psutil.Process(process.pid).children()) >= 3, START_SECONDS, "three nodes")
    with within(15, "the launcher is killed while nodes start: no process is left"):
        process.kill()
        process.wait()
        wait_for(lambda: not survivors(process), END_SECONDS, "the end of the nodes")


@pytest.mark.soak
def test_a_pipe_that_is_closed_costs_no_checkpoint(tmp_path):
    process = start(*CATCH, *WATCHED, "--run", tmp_path / "run")
    wait_until_it_trains(tmp_path / "run")
    process.stdout.close()
    process.wait(END_SECONDS)
    last = rows(tmp_path / "run")[-1]
    assert checkpoints.read_state(tmp_path / "run" / "checkpoints")["updates"] >= int(last["updates"]) > 0
    assert not survivors(process)


def test_second_ctrl_c_ends_at_once(tmp_path):
    process = start(*CATCH, "--run", tmp_path / "run", *WATCHED)
    wait_until_it_trains(tmp_path / "run")
    learner = node(process, "learner/0")

    def keep_frozen():  # a node that cannot stop: the launcher wakes it once
        with contextlib.suppress(psutil.NoSuchProcess):
            while True:
                learner.send_signal(signal.SIGSTOP)
                time.sleep(0.01)

    threading.Thread(target=keep_frozen, daemon=True).start()
    press_ctrl_c(process)
    time.sleep(2)
    press_ctrl_c(process)
    started = time.monotonic()
    end_of(process)
    assert process.returncode == 130 and time.monotonic() - started < 20, "a node may take 35 s to stop"
    assert survivors(process) == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak) for name in ("actor/0", "learner/0", "table/0")]
)
def test_a_node_that_dies_ends_the_program_where_nothing_may_return(tmp_path, name):
    process = start(*CATCH, "--run", tmp_path / "run", *WATCHED, *ONE_LIFE)
    wait_until_it_trains(tmp_path / "run")
    node(process, name).kill()
    errors = end_of(process)
    assert process.returncode == 1
    assert f"{name} ended with signal 9" in errors
    assert survivors(process) == []


@pytest.mark.soak
def test_the_death_of_the_launcher_leaves_nothing_running(tmp_path):
    process = start(*CATCH, "--run", tmp_path / "run", *WATCHED)
    wait_until_it_trains(tmp_path / "run")
    with within(15, "the launcher is killed while it trains: no process is left"):
        os.kill(process.pid, signal.SIGKILL)
        end_of(process)
        wait_for(lambda: not survivors(process), END_SECONDS, "the nodes end themselves")


def test_a_checkpoint_of_another_network_is_refused_and_kept(finished, tmp_path):
    """The configuration is the same, as after a change of the code, but the parameters are others."""
    source, _ = finished
    folder = tmp_path / "catch"
    shutil.copytree(source, folder, symlinks=True)
    (newest,) = sorted((folder / "checkpoints").iterdir())[-1:]
    state = json.loads((newest / "state.json").read_text())
    state["network"][0] = [1, 2]
    (newest / "state.json").write_text(soundness.sealed(state))
    result = run(*CATCH, "--run", folder, "--total-frames", 10**9, "--target-return", "null")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "is of another network: parameter 0: saved [1, 2], now [64, 3]" in line and "--restart" in line
    assert newest.exists()
