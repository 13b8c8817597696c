"""GA3C through real processes: it ends in order, resumes and learns; agents without a model; what it refuses."""

import os
import threading
import time
from concurrent import futures

import numpy as np
import pytest

from impala import config as config_lib
from impala.acting.remote import Refused
from impala.nodes import checking, trainer_node
from impala.nodes.run import Run
from impala.types import chunk_spec, zeros
from tests.programs.running import WHOLE_OR_RESUMED, ended, rows

GA3C = ["train", "--config", "configs/ga3c_catch.yaml", "--ga3c.adjustment-seconds", "0.25"]
RPC = ["--inference.transport", "rpc"]


@pytest.fixture(scope="module", params=WHOLE_OR_RESUMED)
def runs(request, tmp_path_factory):
    """A run that goes to its end at once, or over RPC until Ctrl-C first; the first one's last row; the last one, completed."""
    folder = tmp_path_factory.mktemp("runs") / "ga3c"
    return folder, *ended(request.param, folder, *GA3C, first=RPC)


def test_it_learns_catch_and_ends_by_itself(runs):
    folder, interrupted, result = runs
    last = rows(folder)[-1]
    assert float(last["return_mean"]) >= 0.9
    assert int(last["updates"]) > int(interrupted["updates"])
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
    untold = 2 * max(float(row["frames_per_second"] or 0) for row in rows(folder))  # agents tell once a second
    assert int(last["frames"]) - untold <= 9 * int(last["episodes"]) < 1.4 * int(last["frames"]), "an episode is nine steps"
    assert int(episodes[-1]["weights_version"]) > int(last["updates"]) / 2
    assert {(episode["actor"], episode["environment"]) for episode in episodes} >= {(a, e) for a in "01" for e in map(str, range(32))}


def test_its_correction_is_epsilons_unless_another_is_named():
    def correction(**overrides):
        keys = {"program": "ga3c", "environment.name": "catch", "network.torso": "mlp"} | overrides
        return config_lib.build({}, keys).loss.correction

    assert correction() == correction(**{"loss.entropy_cost": 0.1}) == "epsilon_add"
    assert correction(**{"loss.correction": "vtrace"}) == correction(program="impala") == correction(program="seed") == "vtrace"


def test_an_agent_with_other_spaces_is_refused_alone(tmp_path, monkeypatch):
    """What it asks reaches no batch of others, and what it hands in no trainer."""
    import impala.launching  # noqa: F401, isort: skip
    import launchpad as lp

    monkeypatch.setattr(lp, "stop_event", threading.Event)
    config = config_lib.load("configs/ga3c_catch.yaml")
    spec = checking.check(config)
    node = trainer_node.TrainerNode(config, spec, Run(tmp_path, os.getpid(), time.monotonic(), 0))
    window, is_first = np.zeros((1, 16, *spec.observation.shape), spec.observation.dtype), np.ones((1, 16), bool)
    assert node.predict((0,), 0, window, is_first)[0].shape == (16, 3)
    for inputs, words in (
        ((window[..., :4], is_first), r"agent 1: window is .*\[1, 16, 10, 4\]; expected .*\[1, 16, 10, 5\], as catch"),
        ((window, is_first.astype(np.uint8)), r"is_first is uint8\[1, 16\]; expected bool\[1, 16\]"),
        ((window,), "agent 1: 1 arrays; expected 2 of catch: window, is_first"),
    ):
        with pytest.raises(Refused, match=words):
            node.predict((1,), 0, *inputs)
    chunk = zeros(chunk_spec(spec, config.learner.unroll_length, version_per_step=True))
    node.train([tuple(chunk)])
    for field, value, words in (
        ("r_t", chunk.r_t[1:], "r_t is float32"), ("r_t", chunk.r_t + np.nan, "r_t holds a value that is not finite"),
    ):  # fmt: skip
        with pytest.raises(Refused, match=words):
            node.train([tuple(chunk._replace(**{field: value}))])
    assert node._queue.fill() == 1 / config.queue_size
    # A full training queue holds back who hands in, and nobody's predictions.
    later = [tuple(chunk._replace(origin=np.array([0, 0, 0, 0, seq, 0]))) for seq in range(1, config.queue_size + 1)]
    with futures.ThreadPoolExecutor(1) as pool:
        node.train(later[:-1])
        held_back = pool.submit(node.train, later[-1:])
        for _ in range(20):
            assert node.predict((0,), 0, window, is_first)[0].shape == (16, 3)
        assert node._queue.fill() == 1.0 and not held_back.done()
        next(iter(node._queue.chunks()))
        held_back.result(10)


@pytest.mark.parametrize(
    "overrides, words",
    [
        ({"learner.num_learners": 4, "actor.num_actors": 3},
         "learner.num_learners=4: more than the 3 agents that program=ga3c shares out among them; expected a larger actor.num_actors"),
        ({"replay.fraction": 0.5}, "replay.fraction=0.5: not with program=ga3c; expected 0.0"),
        ({"learner.max_lag": 100}, "learner.max_lag=100: not with program=ga3c; expected null"),
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
