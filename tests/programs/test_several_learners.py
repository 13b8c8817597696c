"""Two learners of one program, through real processes."""

import contextlib
import signal
import time

import numpy as np
import psutil
import pytest

from impala.learning import checkpoints
from impala.monitoring.logs import read_csv
from tests.faults.figures import within
from tests.programs.running import (
    CATCH,
    END_SECONDS,
    ENDLESS,
    ONE_LIFE,
    START_SECONDS,
    WHOLE_OR_RESUMED,
    end_of,
    ended,
    interrupted_and_resumed,
    node,
    press_ctrl_c,
    rows,
    start,
    survivors,
    wait_for,
    wait_until_it_trains,
)  # fmt: skip

TWO = ["--num-learners", "2"]


@pytest.mark.parametrize("how", WHOLE_OR_RESUMED)
def test_they_learn_catch(tmp_path, how):
    """Together, also if Ctrl-C ended both with a checkpoint first: the second resumed with the first one's weights."""
    folder = tmp_path / "catch"
    first, _ = ended(how, folder, *CATCH, *TWO, "--target-return", 0.6)
    last = rows(folder)[-1]
    assert int(last["updates"]) > int(first["updates"]) and float(last["return_mean"]) >= 0.6
    # Totals of both: batches of 8 chunks of 20 steps, nine tenths of them some
    assert int(last["frames"]) == pytest.approx(int(last["updates"]) * 8 * 20 * 0.9, rel=0.03)
    assert sum(int(pair.split(":")[1]) for pair in last["lag_histogram"].split()) % 8 == 0
    assert int(last["duplicate_chunks"]) == int(last["missing_chunks"]) == int(last["skipped_updates"]) == 0
    assert np.mean([float(row["kl_mu_pi"]) for row in rows(folder)[-3:]]) < 0.1  # the second learner's ratios too
    assert "Traceback" not in (folder / "logs/learner/1").read_text()


@pytest.mark.soak
@pytest.mark.parametrize("program, num_chunks, num_steps", [("seed", 8, 20), ("ga3c", 32, 5)])
def test_learners_that_also_decide_learn_catch_together(tmp_path, program, num_chunks, num_steps):
    """Each for its share of the environments; all of them count, and at the end both hold the same weights."""
    folder = tmp_path / "catch"
    command = ["train", "--config", f"configs/{program}_catch.yaml", *TWO, "--actor.num-actors", 2]
    first, result = interrupted_and_resumed(folder, *command, "--target-return", 0.6)
    assert result.returncode == 0 and "resuming" in result.stdout, result.stdout[-2000:] + result.stderr[-2000:]
    last = rows(folder)[-1]
    assert int(last["updates"]) > int(first["updates"]) and float(last["return_mean"]) >= 0.6
    played = int(last["updates"]) * num_chunks * num_steps * 0.9
    assert int(last["frames"]) == pytest.approx(played, rel=0.03)
    assert sum(int(pair.split(":")[1]) for pair in last["lag_histogram"].split()) % num_chunks == 0
    assert int(last["skipped_updates"]) == 0
    players = {(episode["actor"], episode["environment"]) for episode in read_csv(folder / "episodes.csv")}
    assert players == {(actor, environment) for actor in "01" for environment in map(str, range(32))}
    # Each episode of nine steps is told once, by whichever learner it was played for; those of the last second may not be.
    assert 0.7 < int(last["episodes"]) / (int(last["frames"]) / 9) < 1.5
    assert "Traceback" not in (folder / "logs/learner/1").read_text()


@pytest.mark.soak
def test_members_of_a_population_may_have_several_learners(tmp_path):
    """What the first learner of a member copies and draws, its others take over: at the end they hold the same weights."""
    folder = tmp_path / "run"
    command = [
        *CATCH, *TWO, "--run", folder, "--population.size", 2, "--population.burn-in-frames", 5_000,
        "--population.period-episodes", 200, "--population.threshold", 0.0, "--population.probability", 1.0,
        "--checkpoint-period-seconds", 1, "--target-return", 2, "--total-frames", 2_000_000_000,
    ]  # fmt: skip
    process = start(*command)

    def have_evolved():
        of_each = [read_csv(folder / f"member_{index}" / "population.csv") for index in range(2)]
        return all(of_each) and sum(int(row["is_copied"]) for row in sum(of_each, [])) >= 2

    wait_for(have_evolved, START_SECONDS, "two copies, and both to have evolved")
    press_ctrl_c(process)
    said, errors = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 0, errors
    assert "MB of disk" in said and "  1: " in said, said  # the dashboard asks the first learner of each member
    for index in range(4):
        assert "Traceback" not in (folder / f"logs/learner/{index}").read_text()
    for index in range(2):
        *_, evolved = read_csv(folder / f"member_{index}" / "population.csv")
        late = [row for row in rows(folder / f"member_{index}") if int(row["frames"]) > int(evolved["frames"])]
        for row in late:
            assert float(row["entropy_cost"]) == pytest.approx(0.01 * float(evolved["entropy_cost"]), rel=1e-4)
    assert not survivors(process)


@pytest.mark.soak
def test_a_learner_that_never_comes_is_named_within_two_minutes(tmp_path):
    process = start(*CATCH, *TWO, "--run", tmp_path / "run", *ENDLESS, *ONE_LIFE)

    deadline, second = time.monotonic() + START_SECONDS, None
    while second is None and time.monotonic() < deadline:  # without a pause: once it has its name it soon meets the first
        with contextlib.suppress(StopIteration, psutil.NoSuchProcess):
            second = node(process, "learner/1")
            second.suspend()
    with within(120, "a learner of two never comes: the run has ended"):
        errors = end_of(process)
    assert process.returncode == 75 and "the learners did not meet: no answer from 1 at " in errors, errors
    assert not survivors(process)


@pytest.mark.soak
def test_a_learner_that_dies_ends_the_group(tmp_path):
    process = start(*CATCH, *TWO, "--run", tmp_path / "run", *ENDLESS, *ONE_LIFE)
    wait_until_it_trains(tmp_path / "run")
    node(process, "learner/0").kill()
    errors = end_of(process)
    assert process.returncode == 75 and "learner/0 ended with signal 9" in errors, errors
    assert survivors(process) == []


@pytest.mark.soak
def test_a_learner_that_freezes_ends_the_group(tmp_path):
    """Until then a quarter of their batches is replayed, shared out too, and what is too old both of them drop."""
    options = ["--replay.fraction", 0.25, "--replay.size", 500, "--loss.reduction", "mean", "--learner.max-lag", 30]
    options += ["--actor.num-actors", 2, "--actor.num-environments", 16]
    process = start(*CATCH, *TWO, "--run", tmp_path / "run", *ENDLESS, *ONE_LIFE, *options)
    wait_until_it_trains(tmp_path / "run", 60)
    last = rows(tmp_path / "run")[-1]
    assert int(last["frames"]) == pytest.approx(int(last["updates"]) * 6 * 20 * 0.9, rel=0.05)
    assert float(last["replay_lag_mean"]) > float(last["lag_mean"])
    actor = node(process, "actor/1")
    actor.send_signal(signal.SIGSTOP)  # it comes back with weights of long ago
    time.sleep(2.0)
    actor.send_signal(signal.SIGCONT)
    wait_for(lambda: int(rows(tmp_path / "run")[-1]["dropped_chunks"]) > 0, 30, "dropped chunks")
    wait_for(lambda: int(rows(tmp_path / "run")[-1]["updates"]) > 60 + int(last["updates"]), 60, "60 updates more")
    assert max(float(row["lag_max"]) for row in rows(tmp_path / "run") if row["lag_max"]) <= 30
    assert int(rows(tmp_path / "run")[-1]["dropped_chunks"]) % 6 == 0, "the fresh ones of both shares"
    with within(60, "a learner of two is frozen, without restarts: the run has ended"):
        node(process, "learner/1").send_signal(signal.SIGSTOP)
        errors = end_of(process)
    assert process.returncode == 75 and "another learner ended or froze, so that all end" in errors, errors
    last = rows(tmp_path / "run")[-1]  # the first one kept what they had learned
    assert checkpoints.read_state(tmp_path / "run/checkpoints")["updates"] == int(last["updates"])
    assert survivors(process) == []
