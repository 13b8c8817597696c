"""SEED RL through real processes: it learns, resumes, and hears signals; what central inference refuses."""

import os
import threading
import time

import numpy as np
import pytest

from impala import config as config_lib
from impala.acting.remote import LaneId, new_life
from impala.agents import actor_critic
from impala.learning.parameters import assign_weights
from impala.nodes import central_node, checking, parts
from impala.nodes.run import Run
from tests.programs.running import WHOLE_OR_RESUMED, ended, rows

# Two actors, whose requests may share a batch.
SEED = [
    "train", "--config", "configs/seed_catch.yaml", "--actor.num-actors", 2, "--actor.num-environments", 16,
    "--inference.max-environments", 32, "--inference.timeout-seconds", 0.01,
]  # fmt: skip
RPC = ["--inference.transport", "rpc"]


@pytest.fixture(scope="module", params=WHOLE_OR_RESUMED)
def finished(request, tmp_path_factory):
    """A run that goes to its end at once, or over RPC until Ctrl-C first; the first one's last row; the last one, completed."""
    folder = tmp_path_factory.mktemp("runs") / "seed"
    return folder, *ended(request.param, folder, *SEED, "--record-chunks", 400, first=RPC)


def test_it_learns_catch_and_ends_by_itself(finished):
    folder, interrupted, result = finished
    last = rows(folder)[-1]
    assert float(last["return_mean"]) >= 0.9
    assert int(last["updates"]) > int(interrupted["updates"])
    assert (last["duplicate_chunks"], last["missing_chunks"], last["skipped_updates"]) == ("0", "0", "0")
    assert all(0 <= float(row["lag_mean"]) < 20 for row in rows(folder) if row["lag_mean"])


def test_actors_do_without_tensorflow(finished):
    folder, _, _ = finished
    assert float(rows(folder)[-1]["rss_actors_mb"]) < 300, "importing TensorFlow alone takes 420 MB"


def test_weights_change_within_an_unroll(finished):
    folder, _, _ = finished
    paths = sorted((folder / "chunks").glob("*.npz"))
    launches = [int(np.load(path)["origin"][3]) >> 42 for path in paths]
    versions = [np.load(path)["weights_version"] for path in paths]
    assert len(versions) == 400 and all(version.shape == (20,) for version in versions)
    assert all((np.diff(version) >= 0).all() for version in versions)
    first = {launch: min(v.min() for v, of in zip(versions, launches) if of == launch) for launch in launches}
    later = [version for version, launch in zip(versions, launches) if version[-1] > first[launch]]
    assert len(later) > 100 and np.mean([version[-1] > version[0] for version in later]) > 0.5


@pytest.mark.soak
def test_every_step_names_the_version_whose_logits_it_has(tmp_path, monkeypatch):
    """The learner's node stepped by hand, an update after every second decision."""
    import impala.launching  # noqa: F401, isort: skip
    import launchpad as lp

    monkeypatch.setattr(lp, "stop_event", threading.Event)
    config = config_lib.load("configs/seed_catch.yaml", {
        "learner.unroll_length": 4, "learner.batch_size": 8, "learner.learning_rate": 3e-3, "record_chunks": 100,
    })  # fmt: skip
    node = central_node.CentralNode(config, checking.check(config), Run(tmp_path, os.getpid(), time.monotonic(), 0))
    environment, lane = parts.make_environment(config, 16), LaneId(0, 0, new_life(0))
    weights, step = {0: node.learning.learner.weights()}, environment.reset(0)
    for number in range(60):
        environment.send(node.act(lane, number, *step)[0])
        step = environment.receive()
        if number >= 8 and number % 2:
            assert node.learning.step()
            weights[node.learning.learner.num_updates] = node.learning.learner.weights()
    chunks = [np.load(path) for path in sorted((tmp_path / "chunks").glob("*.npz"))]
    seen = set()
    network = actor_critic.make_network(config, checking.check(config))
    for chunk in chunks:
        for t, version in enumerate(chunk["weights_version"].tolist()):
            errors = {}
            for tried in {version, max(0, version - 1), version + 1} & set(weights):
                assign_weights(network.trainable_variables, weights[tried])
                logits = network(chunk["observation"][t][None, None], chunk["is_first"][t][None, None]).logits[0, 0]
                errors[tried] = np.abs(logits - chunk["logits_tm1"][t]).max()
            assert errors.pop(version) < 1e-5 < 1e-4 < min(errors.values()), (t, version, errors)
        seen.add(len(set(chunk["weights_version"].tolist())))
    assert len(chunks) >= 20 and max(seen) > 1, "an unroll of several versions"


def test_episodes_are_told_once_with_the_version_that_ended_them(finished):
    from impala.monitoring.logs import read_csv

    folder, _, _ = finished
    episodes, last = read_csv(folder / "episodes.csv"), rows(folder)[-1]
    assert len(episodes) >= int(last["episodes"]) > 100
    assert 0.7 < int(last["episodes"]) / (int(last["frames"]) / 9) < 1.4, "an episode of Catch is nine steps"
    versions = [int(episode["weights_version"]) for episode in episodes]
    assert versions[-1] > int(last["updates"]) / 2
    players = {(episode["actor"], episode["environment"]) for episode in episodes}
    assert players == {(actor, environment) for actor in "01" for environment in map(str, range(16))}
    batches = [float(row["inference_batch_mean"]) for row in rows(folder) if row["inference_batch_mean"]]
    assert 8 <= min(batches) and 10 < max(batches) <= 32, "a lane has 8"
    waits = [float(row["inference_seconds_max"]) for row in rows(folder)[1:] if row["inference_seconds_max"]]
    assert np.median(waits) < 0.5, "updates hold decisions back no longer than themselves and a time-out"


@pytest.mark.parametrize(
    "overrides, words",
    [
        ({"learner.num_learners": 4, "actor.num_actors": 1},
         "learner.num_learners=4: more than the 2 lanes that program=seed shares out among them; expected a larger actor.num_actors"),
        ({"learner.num_learners": 2, "actor.num_lanes": 3, "actor.num_environments": 24},
         "actor.num_lanes=3: an actor whose lanes cannot be shared out equally among learner.num_learners=2"),
        ({"replay.fraction": 0.5}, "replay.fraction=0.5: not with program=seed; expected 0.0"),
        ({"population.size": 2}, "population.size=2: not with program=seed; expected 1"),
        ({"inference.max_environments": 8}, "inference.max_environments=8: a lane asks for 16 environments at once"),
        ({"inference.max_environments": 0}, "inference.max_environments: got 0; input should be greater than or equal to 1"),
        ({"inference.timeout_seconds": 0.0}, "inference.timeout_seconds: got 0.0; input should be greater than or equal to 0.000001"),
    ],
)
def test_what_central_inference_cannot_do_is_refused(overrides, words):
    with pytest.raises(config_lib.ConfigError) as caught:
        config_lib.load("configs/seed_catch.yaml", overrides)
    assert words in str(caught.value)
