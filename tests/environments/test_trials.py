"""An environment that does not return what it announces is refused by its name and the field, before anything starts."""

import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from impala import config as config_lib
from impala import environments
from impala.environments import trials
from impala.nodes import checking
from impala.types import ArraySpec, Continuous, Discrete, EnvironmentSpec, MultiDiscrete, Step

ROOT = Path(__file__).parents[2]
GOOD = dict(first=np.zeros(3, np.float32), later=np.ones(3, np.float32), reward=1.0, terminated=False, truncated=False)


class Announced(gymnasium.Env):
    """Announces three float32 and returns what `returned` says."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(2)
    returned = GOOD

    def reset(self, *, seed=None, options=None):
        return self.returned["first"], {}

    def step(self, action):
        returned = self.returned
        return returned["later"], returned["reward"], returned["terminated"], returned["truncated"], {}


gymnasium.register("ImpalaTests/Announced-v0", Announced)


def line_of_check(**overrides):
    config = config_lib.build({}, {"environment.name": "ImpalaTests/Announced-v0", "network.torso": "mlp"} | overrides)
    with pytest.raises(config_lib.ConfigError) as caught:
        checking.check(config)
    (line,) = caught.value.lines
    return line


@pytest.mark.parametrize("returned, expected", [
    ({}, None),
    ({"reward": np.float64(2), "terminated": np.bool_(True)}, None),
    ({"first": [0.0, 0.0, 0.0], "later": np.ones(3), "terminated": 1}, None),  # float64 becomes float32
    ({"first": np.zeros(4, np.float32)}, "observation has shape (4,); expected (3,)"),
    ({"later": np.zeros((3, 1), np.float32)}, "observation has shape (3, 1); expected (3,)"),
    ({"later": np.zeros(3, complex)}, "observation has dtype complex128; expected float32"),
    ({"first": np.full(3, np.nan, np.float32)}, "observation holds NaN; expected finite numbers"),
    ({"later": np.array([0, np.inf, 0], np.float32)}, "observation holds infinity; expected finite numbers"),
    ({"later": [0.0, [1.0], 2.0]}, "observation is not an array"),
    ({"reward": np.zeros(2)}, "reward has shape (2,); expected ()"),
    ({"reward": float("nan")}, "reward holds NaN; expected finite numbers"),
    ({"reward": None}, "reward has dtype object; expected float32"),
    ({"terminated": np.zeros(2, bool)}, "terminated has shape (2,); expected ()"),
    ({"truncated": None}, "truncated has dtype object; expected"),
])  # fmt: skip
def test_what_gymnasium_would_hide_is_named(monkeypatch, recwarn, returned, expected):
    monkeypatch.setattr(Announced, "returned", GOOD | returned)
    if expected is None:
        environments.make("ImpalaTests/Announced-v0", num_environments=1)
        assert checking.check(config_lib.build({}, {"environment.name": "ImpalaTests/Announced-v0", "network.torso": "mlp"}))
        return
    prefix = "environment.name: 'ImpalaTests/Announced-v0' does not return what it announces: "
    assert line_of_check().startswith(prefix + expected)
    assert not recwarn.list  # gymnasium's own words about it


def test_what_it_raises_is_told_with_its_place(monkeypatch):
    monkeypatch.setattr(Announced, "returned", {})
    line = line_of_check()
    assert line.startswith("environment.name: 'ImpalaTests/Announced-v0' fails when it is played: KeyError: 'first' (")
    assert f"({__file__}:" in line


class Ours:
    """An `Environment` of two, with one field exchanged."""

    def __init__(self, actions, **wrong):
        self.spec, self.num_environments = EnvironmentSpec("ours", ArraySpec((2,), np.uint8), actions), 2
        self._wrong, self.sent = wrong, []

    def reset(self, seed):
        return self._step(is_first=np.ones(2, bool))

    def send(self, action):
        self.sent.append(action)

    def receive(self):
        return self._step(is_first=np.zeros(2, bool))

    def _step(self, is_first):
        step = Step(np.zeros((2, 2), np.uint8), np.zeros(2, np.float32), np.ones(2, np.float32), is_first, np.zeros(2, bool))
        return step._replace(**self._wrong)


@pytest.mark.parametrize("wrong, expected", [
    ({}, None),
    ({"observation": np.zeros((1, 2), np.uint8)}, "observation has shape (1, 2); expected (2, 2)"),
    ({"observation": np.zeros((2, 2), np.float32)}, "observation has dtype float32; expected uint8"),
    ({"observation": np.zeros((2, 2), int)}, "observation has dtype int64; expected uint8"),
    ({"reward": np.zeros(2)}, "reward has dtype float64; expected float32"),  # nobody casts it: SEED and DQN would fail
    ({"reward": np.zeros((2, 1), np.float32)}, "reward has shape (2, 1); expected (2,)"),
    ({"discount": 1.0}, "discount has shape (); expected (2,)"),
    ({"is_last": np.zeros(2, np.float32)}, "is_last has dtype float32; expected bool"),
    ({"is_first": np.zeros(2, bool)}, "is_first is [False False] after a reset; expected True everywhere"),
    ({"reward": np.array([0, 2], np.float32)}, "reward is [0. 2.] where is_first is [ True  True]; expected 0.0 there"),
    ({"discount": np.array([0, 1], np.float32)}, "discount is [0. 1.] where is_first is [ True  True]; expected 1.0 there"),
    ({"is_last": np.array([True, False])}, "is_last is [ True False] where is_first is [ True  True]; expected False there"),
])  # fmt: skip
def test_our_protocol_is_checked_field_by_field(wrong, expected):
    assert environments.fault(Ours(Discrete(3), **wrong)) == expected


@pytest.mark.parametrize("actions", [Discrete(3), MultiDiscrete((2, 5)), Continuous(2)])
def test_the_actions_of_a_trial_are_valid(actions):
    environment = Ours(actions)
    assert environments.fault(environment) is None and len(environment.sent) == trials.NUM_STEPS
    sent = np.stack(environment.sent)
    assert sent.shape[2:] == actions.array.shape and sent.dtype == actions.array.dtype
    if isinstance(actions, Continuous):
        assert (np.abs(sent) <= 1).all() and sent.std() > 0.1
    else:
        assert (0 <= sent).all() and (sent < np.asarray(actions.num_actions)).all() and sent.max() > 0


SLEEPER = """
import time, gymnasium
class Sleeper(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        time.sleep(600)
gymnasium.register("Sleeper-v0", Sleeper)
"""


def test_one_that_hangs_ends_the_command_with_status_75_and_a_line(tmp_path):
    (tmp_path / "sleepers.py").write_text(SLEEPER)
    options = ["--environment.name", "sleepers:Sleeper-v0", "--network.torso", "mlp", "--liveness-seconds", "10"]
    command = [sys.executable, "-m", "impala", "train", "--run", str(tmp_path / "run"), *options]
    started = time.monotonic()
    environ = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": "/usr/bin:/bin"}
    result = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (75, ""), result.stderr
    (line,) = result.stderr.splitlines()
    assert "'sleepers:Sleeper-v0' is silent for 10 s, liveness_seconds" in line
    assert time.monotonic() - started < 30 and not (tmp_path / "run").exists()
