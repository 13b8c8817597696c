"""GA3C through real processes: it ends in order, resumes and learns; agents without a model; what it refuses."""

import pytest

from impala import config as config_lib
from impala.programs import ga3c
from tests.programs.running import interrupted_and_resumed, rows

GA3C = ["train", "--config", "configs/ga3c_catch.yaml", "--ga3c.adjustment-seconds", "2"]
RPC = ["--inference.transport", "rpc"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run over RPC that Ctrl-C ended, its last row, and the same folder's next run, which goes to the end."""
    folder = tmp_path_factory.mktemp("runs") / "ga3c"
    return folder, *interrupted_and_resumed(folder, *GA3C, first=RPC)


def test_it_resumes_learns_catch_and_ends_by_itself(runs):
    folder, interrupted, result = runs
    assert result.returncode == 0 and "resuming" in result.stdout, result.stderr
    last = rows(folder)[-1]
    assert float(last["return_mean"]) >= 0.9
    assert int(last["updates"]) > int(interrupted["updates"]) > 0
    assert (last["duplicate_chunks"], last["missing_chunks"], last["skipped_updates"]) == ("0", "0", "0")
    assert all(0 <= float(row["lag_mean"]) < 20 for row in rows(folder) if row["lag_mean"])


def test_agents_have_no_model(runs):
    folder, _, _ = runs
    assert float(rows(folder)[-1]["rss_actors_mb"]) / 2 < 300, "importing TensorFlow alone takes 420 MB"


def test_the_controller_changes_the_numbers_within_their_bounds(runs):
    folder, _, _ = runs
    numbers = {name: {int(row[name]) for row in rows(folder)} for name in ("num_agents", "num_predictors", "num_trainers")}
    assert min(map(min, numbers.values())) >= 1 and max(numbers["num_agents"]) <= 2
    assert any(len(seen) > 1 for seen in numbers.values())
    assert all(float(row["inference_batch_mean"] or 16) >= 16 for row in rows(folder)), "a lane's 16 are never divided"


def test_episodes_know_the_version_that_ended_them(runs):
    from impala.monitoring.logs import read_csv

    folder, _, _ = runs
    episodes, last = read_csv(folder / "episodes.csv"), rows(folder)[-1]
    assert 0.7 < int(last["episodes"]) / (int(last["frames"]) / 9) < 1.4, "an episode of Catch is nine steps"
    assert int(episodes[-1]["weights_version"]) > int(last["updates"]) / 2
    assert {(episode["actor"], episode["environment"]) for episode in episodes} >= {(a, e) for a in "01" for e in map(str, range(32))}


def test_an_agent_whose_turn_it_is_not_waits_for_it():
    gate = ga3c._Gate(2)
    assert gate.may_pass(1, 0.0) and not gate.may_pass(2, 0.05)
    gate.size = 3
    assert gate.may_pass(2, 0.0)


@pytest.mark.parametrize(
    "overrides, words",
    [
        ({"learner.num_learners": 2}, "learner.num_learners=2: not with program=ga3c; expected 1"),
        ({"replay.fraction": 0.5}, "replay.fraction=0.5: not with program=ga3c; expected 0.0"),
        ({"learner.max_lag": 100}, "learner.max_lag=100: not with program=ga3c; expected none"),
        ({"record_chunks": 3}, "record_chunks=3: not with program=ga3c; expected 0"),
        ({"inference.max_environments": 8}, "inference.max_environments=8: a lane asks for 16 environments at once"),
        ({"ga3c.num_trainers": 0}, "ga3c.num_trainers: got 0; input should be greater than or equal to 1"),
        ({"ga3c.num_predictions": 0}, "ga3c.num_predictions: got 0; input should be greater than or equal to 1"),
        ({"ga3c.adjustment_seconds": -1.0}, "ga3c.adjustment_seconds: got -1.0; input should be greater than or equal to 0"),
    ],
)
def test_what_ga3c_cannot_do_is_refused(overrides, words):
    with pytest.raises(config_lib.ConfigError) as caught:
        config_lib.load("configs/ga3c_catch.yaml", overrides)
    assert words in str(caught.value)
