"""A SavedModel that plays without this package."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from impala import agents, cli, export
from impala import config as config_lib
from impala.agents import actor_critic, ppo, shared
from impala.learning import checkpoints
from impala.losses.r2d2 import unscaled
from impala.nodes import checking

WITHOUT_US = """
import sys
sys.modules["impala"] = None
import numpy as np, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
given = np.load(sys.argv[2])
outputs = model.act(*(given[name] for name in sorted(given.files)))
np.savez(sys.argv[3], **{name: value.numpy() for name, value in outputs.items()})
"""


def make_run(folder, **overrides):
    """A run folder with a checkpoint of weights that are not those of the start."""
    defaults = {"environment.name": "catch", "network.torso": "mlp", "learner.batch_size": 4, "network.core_size": 8}
    config = config_lib.build({}, defaults | {key.replace("__", "."): value for key, value in overrides.items()})
    network, random = agents.of(config).make_network(config, checking.check(config)), np.random.default_rng(0)
    for variable in network.trainable_variables:
        variable.assign_add(random.normal(0.0, 0.02, variable.shape))
    folder.mkdir()
    (folder / "config.yaml").write_text(config_lib.dump(config))
    optimizer = shared.make_optimizer(config, network.trainable_variables)
    checkpoints.Checkpoints(folder / "checkpoints", network=network, optimizer=optimizer).save(3, {"frames": 500})
    return network


@pytest.mark.parametrize(
    "overrides",
    [
        *(pytest.param(keys, marks=pytest.mark.soak) for keys in ({}, {"network__core": "lstm"})),
        pytest.param(
            {"network__core": "lstm", "agent__name": "q_unrolls", "loss__correction": "retrace"}, marks=pytest.mark.soak,
        ),
        {"agent__name": "q_unrolls", "loss__correction": "retrace", "agent__value_rescaling": True},
        {"environment__name": "atari:pong", "network__torso": "shallow", "learner__unroll_length": 2},
    ],
)
def test_it_says_what_the_network_says(tmp_path, capsys, overrides):
    network = make_run(tmp_path / "run", **overrides)
    assert cli.main(["export", str(tmp_path / "run")]) == 0
    about = json.loads((tmp_path / "run/export/impala.json").read_text())
    assert about["updates"] == 3 and about["environment"] == overrides.get("environment__name", "catch")
    random, n = np.random.default_rng(0), 5
    shape = (about["num_stacked"], n, *((84, 84) if about["num_stacked"] > 1 else (10, 5)))
    frames = random.integers(255, size=shape).astype(np.uint8 if about["num_stacked"] > 1 else np.float32)
    inputs = [frames, random.random((1, n)) < 0.3]
    if overrides.get("network__core"):
        inputs += [
            random.integers(3, size=(1, n)).astype(np.int32), random.normal(size=(1, n)).astype(np.float32),
            random.normal(size=(n, 2, 8)).astype(np.float32),
        ]  # fmt: skip
    np.savez(tmp_path / "inputs.npz", **{str(i): array for i, array in enumerate(inputs)})
    paths = [tmp_path / "run/export", tmp_path / "inputs.npz", tmp_path / "outputs.npz"]
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_US, *map(str, paths)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    outputs, expected = np.load(tmp_path / "outputs.npz"), network(*map(tf.constant, inputs))
    names = ["q"] if "agent__name" in overrides else ["logits", "value"]
    assert set(outputs) == {*names, *(["core_state"] if "network__core" in overrides else [])}
    for name in names:
        said = getattr(expected, name)[0]
        said = unscaled(said) if "agent__value_rescaling" in overrides else said  # h learns √Q, about
        np.testing.assert_allclose(outputs[name], said, atol=1e-5)
    if overrides.get("network__core"):
        np.testing.assert_allclose(outputs["core_state"], expected.core_state, atol=1e-5)


def test_what_is_exported_of_dppo_normalises_observations_by_the_moments_of_the_run(tmp_path):
    """Moments of 500 observations go from the workers' statistics into the network and with it into the checkpoint."""
    config = config_lib.load("configs/dppo_catch.yaml", {"agent.normalise_observations": True})
    spec = checking.check(config)
    network, statistics = ppo.make_network(config, spec), ppo.make_statistics(config, spec)
    random = np.random.default_rng(0)
    center, width = random.normal(3.0, 2.0, size=(10, 5)), random.uniform(0.1, 5.0, size=(10, 5))
    seen = random.normal(center, width, size=(500, 10, 5)).astype(np.float32)
    state = statistics.merge(statistics.initial(), statistics.of_observations(seen))
    ppo.use_statistics(network, statistics, state)
    plain = actor_critic.make_network(config, spec)
    for variable, other in zip(network.trainable_variables, plain.trainable_variables, strict=True):
        variable.assign_add(random.normal(0.0, 0.1, size=variable.shape))
        other.assign(variable)
    optimizer = shared.make_optimizer(config, network.trainable_variables)
    (tmp_path / "config.yaml").write_text(config_lib.dump(config))
    saved = checkpoints.Checkpoints(tmp_path / "checkpoints", network=network, optimizer=optimizer, statistics=tf.Variable(state))
    saved.save(3, {"frames": 500})
    model = tf.saved_model.load(str(export.export(tmp_path, tmp_path / "export")))

    observation = random.normal(center, width, size=(1, 6, 10, 5)).astype(np.float32)
    observation[0, 0, 0, 0] = 1e6  # at most ten deviations
    is_first = np.zeros((1, 6), bool)
    outputs = model.act(observation, is_first)
    normalised = np.clip((observation - seen.mean(axis=0)) / seen.std(axis=0), -10, 10).astype(np.float32)
    expected = plain(normalised, is_first)
    for name in ("logits", "value"):
        np.testing.assert_allclose(outputs[name], getattr(expected, name)[0], rtol=1e-4, atol=1e-5)
        assert np.abs(outputs[name] - getattr(plain(observation, is_first), name)[0]).max() > 0.01, "moments matter"


@pytest.mark.parametrize("command", ["export", "evaluate"])
def test_a_damaged_checkpoint_is_named_and_left_alone(tmp_path, capsys, command):
    make_run(tmp_path / "run")
    (state,) = (tmp_path / "run").glob("checkpoints/*/state.json")
    state.write_text("{")
    assert cli.main([command, str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"no sound checkpoint in {tmp_path}/run/checkpoints: ")
    assert state.read_text() == "{"


def test_wrong_usage(tmp_path, capsys):
    make_run(tmp_path / "run")
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    for arguments, expected in (
        ([], "impala export: the following arguments are required: RUN; expected impala export RUN [--output DIR]"),
        ([tmp_path / "no"], f"{tmp_path}/no: holds no config.yaml; expected a run folder"),
        ([tmp_path / "run", "--output", tmp_path / "there"], f"--output {tmp_path}/there: exists already; expected a new folder"),
        ([tmp_path / "run", "--output", tmp_path / "file/x"], f"--output {tmp_path}/file/x: Not a directory; expected a folder that can be made and written"),
        ([tmp_path / "run", "--outptu", "x"], "impala export --outptu: unknown; did you mean --output?"),
    ):
        assert cli.main(["export", *map(str, arguments)]) == 2
        assert capsys.readouterr().err.splitlines() == [expected]
