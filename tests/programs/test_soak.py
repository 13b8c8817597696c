"""What takes minutes to hours: `make soak`, on an otherwise idle machine."""

import json
import statistics
import subprocess

import numpy as np
import pytest

from tests.programs import running

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]  # three benches of a quarter of an hour are allowed


def test_memory_of_a_pong_run_is_bounded_and_flat(tmp_path):
    """Within 3.5 GB on two cores; after the first ten minutes less than 50 MB an hour."""
    process = running.start("train", "--config", "configs/pong.yaml", "--run", tmp_path / "run")
    try:
        process.wait(timeout=40 * 60)
    except subprocess.TimeoutExpired:
        running.press_ctrl_c(process)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    rows = [row for row in running.rows(tmp_path / "run")[:-1] if row["rss_mb"]]
    assert max(float(row["rss_mb"]) for row in rows) < 3500
    late = [(float(row["wall_seconds"]), float(row["rss_mb"])) for row in rows if float(row["wall_seconds"]) > 600]
    seconds, megabytes = np.array(late).T
    assert np.polyfit(seconds, megabytes, 1)[0] * 3600 < 50


def test_speed_against_the_machines_bound(tmp_path):
    """Medians of three benches: a shared machine is noisy."""
    results = measured(tmp_path)
    assert statistics.median(result["fraction_of_bound"] for result in results) >= 0.8
    assert statistics.median(result["table_over_train"] for result in results) >= 10
    for word in results[0]["scheme_fractions_of_learner"]:
        assert statistics.median(result["scheme_fractions_of_learner"][word] for result in results) < 0.02, word


def measured(tmp_path, *arguments) -> list[dict]:
    """Three benches."""
    results = []
    for i in range(3):
        done = running.run("bench", *arguments, "--json", tmp_path / f"{i}.json", timeout=900)
        assert done.returncode == 0, done.stderr
        results.append(json.loads((tmp_path / f"{i}.json").read_text()))
    return results


def test_speed_of_serving(tmp_path):
    """Requests of 16 environments, single frames."""
    served = [result["serving"] for result in measured(tmp_path, "--config", "configs/seed_pong.yaml")]
    assert statistics.median(one["shared_memory"] / one["direct"] for one in served) >= 0.8
    assert statistics.median(one["rpc"] / one["direct"] for one in served) >= 0.6


@pytest.mark.parametrize("program, least", [("seed", 0.75), ("ga3c", 0.6)])
def test_speed_of_central_inference_against_impala(tmp_path, program, least):
    results = measured(tmp_path, "--config", f"configs/{program}_pong.yaml", "--against", "configs/pong.yaml")
    assert statistics.median(result["ratio"] for result in results) >= least


def test_speed_with_a_core(tmp_path):
    recurrent = measured(tmp_path, "--config", "configs/pong.yaml", "--network.core", "lstm")
    assert statistics.median(result["fraction_of_bound"] for result in recurrent) >= 0.65


@pytest.mark.parametrize("batch_size", [4, 32])
def test_speed_of_two_learners(tmp_path, batch_size):
    two = measured(tmp_path, "--config", "configs/pong.yaml", "--num-learners", 2, "--learner.batch-size", batch_size)
    assert statistics.median(result["learners"] / result["learner"] for result in two) >= 0.85
