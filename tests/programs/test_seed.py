"""SEED RL through real processes: it learns, resumes, and hears signals; what central inference refuses."""

import pytest

from impala import config as config_lib
from tests.programs.running import interrupted_and_resumed, rows

SEED = ["train", "--config", "configs/seed_catch.yaml"]
RPC = ["--inference.transport", "rpc"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run over RPC that Ctrl-C ended, its last row, and the same folder's next run, which goes to the end."""
    folder = tmp_path_factory.mktemp("runs") / "seed"
    return folder, *interrupted_and_resumed(folder, *SEED, "--record-chunks", 5, first=RPC)


def test_it_resumes_learns_catch_and_ends_by_itself(finished):
    folder, interrupted, result = finished
    assert result.returncode == 0 and "resuming" in result.stdout, result.stderr
    last = rows(folder)[-1]
    assert float(last["return_mean"]) >= 0.9
    assert int(last["updates"]) > int(interrupted["updates"]) > 0
    assert (last["duplicate_chunks"], last["missing_chunks"], last["skipped_updates"]) == ("0", "0", "0")
    assert all(0 <= float(row["lag_mean"]) < 20 for row in rows(folder) if row["lag_mean"])


def test_actors_do_without_tensorflow(finished):
    folder, _, _ = finished
    assert float(rows(folder)[-1]["rss_actors_mb"]) < 300, "importing TensorFlow alone takes 420 MB"


def test_chunks_know_the_version_of_every_step(finished):
    import numpy as np

    folder, _, _ = finished
    chunks = [np.load(path) for path in sorted((folder / "chunks").glob("*.npz"))]
    assert len(chunks) == 5 and all(chunk["weights_version"].shape == (20,) for chunk in chunks)
    assert all((np.diff(chunk["weights_version"]) >= 0).all() for chunk in chunks)


def test_episodes_are_told_once_with_the_version_that_ended_them(finished):
    from impala.monitoring.logs import read_csv

    folder, _, _ = finished
    episodes, last = read_csv(folder / "episodes.csv"), rows(folder)[-1]
    assert len(episodes) >= int(last["episodes"]) > 100
    assert 0.7 < int(last["episodes"]) / (int(last["frames"]) / 9) < 1.4, "an episode of Catch is nine steps"
    versions = [int(episode["weights_version"]) for episode in episodes]
    assert versions[-1] > int(last["updates"]) / 2 and {episode["environment"] for episode in episodes} == set(map(str, range(32)))


@pytest.mark.parametrize(
    "overrides, words",
    [
        ({"learner.num_learners": 2}, "learner.num_learners=2: not with program=seed; expected 1"),
        ({"replay.fraction": 0.5}, "replay.fraction=0.5: not with program=seed; expected 0.0"),
        ({"population.size": 2}, "population.size=2: not with program=seed; expected 1"),
        ({"inference.max_environments": 8}, "inference.max_environments=8: a lane asks for 16 environments at once"),
        ({"inference.max_environments": 0}, "inference.max_environments: got 0; input should be greater than or equal to 1"),
        ({"inference.timeout_seconds": 0.0}, "inference.timeout_seconds: got 0.0; input should be greater than 0"),
    ],
)
def test_what_central_inference_cannot_do_is_refused(overrides, words):
    with pytest.raises(config_lib.ConfigError) as caught:
        config_lib.load("configs/seed_catch.yaml", overrides)
    assert words in str(caught.value)
