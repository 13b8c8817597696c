"""Agents with several and with continuous actions learn, in lockstep, what a formula says is best."""

import numpy as np
import pytest

from impala import config as config_lib
from impala import lockstep
from impala.nodes import checking
from impala.types import ArraySpec, Continuous, EnvironmentSpec, MultiDiscrete, Step


class Follow:
    """Shows a cue for each of two dimensions, five times an episode; the better each is answered, the more reward.

    Discrete answers name the cue: 1 for both right, ½ for one. Continuous answers come near it: 1 − mean square error.
    """

    LENGTH = 5

    def __init__(self, actions, n):
        self.spec = EnvironmentSpec("follow", ArraySpec((6,), np.float32), actions)
        self.num_environments, self._is_continuous = n, isinstance(actions, Continuous)

    def reset(self, seed):
        self._random, n = np.random.default_rng(seed), self.num_environments
        self._time, self._over = np.zeros(n, int), np.zeros(n, bool)
        return Step(self._show(), np.zeros(n, "f4"), np.ones(n, "f4"), np.ones(n, bool), np.zeros(n, bool))

    def send(self, action):
        starts, self._time = self._over, np.where(self._over, 0, self._time + 1)
        self._over = self._time == self.LENGTH
        if self._is_continuous:
            reward = 1.0 - np.mean((np.clip(action, -1, 1) - (self._cue - 1.0) / 2) ** 2, axis=1)
        else:
            reward = np.mean(action == self._cue, axis=1)
        self._step = Step(
            self._show(), np.where(starts, 0.0, reward).astype("f4"), 1.0 - self._over.astype("f4"), starts, self._over
        )

    def receive(self):
        return self._step

    def close(self):
        pass

    def _show(self):
        self._cue = self._random.integers(3, size=(self.num_environments, 2))
        return np.eye(3, dtype="f4")[self._cue].reshape(-1, 6)


@pytest.mark.parametrize(
    "core, correction", [("lstm", "vtrace"), *(pytest.param("none", word, marks=pytest.mark.soak) for word in ("vtrace", "ppo_clip"))]
)
@pytest.mark.parametrize(
    "actions, at_first, target", [
        pytest.param(MultiDiscrete((3, 3)), 5 / 3, 4.8, id="several", marks=pytest.mark.soak),
        pytest.param(Continuous(2), 2.0, 4.6, id="continuous"),
    ],
)  # fmt: skip
def test_they_learn_to_follow(actions, at_first, target, core, correction):
    config = config_lib.build({}, {
        "environment.name": "catch", "network.torso": "mlp", "network.hidden_sizes": (32,), "network.core": core,
        "network.core_size": 16, "learner.unroll_length": 10, "learner.batch_size": 32, "learner.learning_rate": 3e-3,
        "loss.correction": correction, "loss.discount": 0.5, "loss.entropy_cost": 1e-3, "total_frames": 200_000,
    })  # fmt: skip
    run = lockstep.Lockstep(config, environments=[Follow(actions, 32)], lag=1)
    first = np.mean([e.score for u in run.updates(1_500) for e in u.episodes])
    assert first < at_first + 0.7, "it is not easy before"
    assert lockstep.mean_return(run.updates(200_000), target=target) >= target


@pytest.mark.parametrize("word", sorted(config_lib.OF_DISCRETE_ACTIONS))
def test_corrections_of_discrete_actions_refuse_others(word):
    config = config_lib.build({}, {"environment.name": "Pendulum-v1", "network.torso": "mlp", "loss.correction": word})
    with pytest.raises(config_lib.ConfigError, match=f"loss.correction: '{word}' is defined for discrete actions only"):
        checking.check(config)


def test_the_others_take_them():
    for word in ("none", "vtrace", "ppo_clip", "impact", "clear"):
        config = config_lib.build({}, {"environment.name": "Pendulum-v1", "network.torso": "mlp", "loss.correction": word})
        assert checking.check(config).actions == Continuous(1)
