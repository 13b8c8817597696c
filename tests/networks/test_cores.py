"""The LSTM: against Keras, across resets, step by step, and on a task that needs it."""

import numpy as np
import pytest
import tensorflow as tf

from impala import config as config_lib
from impala import lockstep, networks
from impala.networks import cores
from impala.types import ArraySpec, Discrete, EnvironmentSpec, Step

N, B, F, A, UNITS = 7, 3, 5, 4, 6


def inputs(seed=0, is_first=None):
    random = np.random.default_rng(seed)
    is_first = np.zeros((N, B), bool) if is_first is None else is_first
    return dict(
        features=tf.constant(random.normal(size=(N * B, F)).astype("f4")), is_first=tf.constant(is_first),
        last_action=tf.constant(random.integers(A, size=(N, B)).astype("i4")),
        last_reward=tf.constant(random.normal(size=(N, B)).astype("f4") * 3),
        state=tf.constant(random.normal(size=(B, 2, UNITS)).astype("f4")),
    )  # fmt: skip


def make_core(**kwargs):
    core = cores.Lstm(UNITS, Discrete(A), seed=3, **kwargs)
    core(**inputs())
    return core


def from_time(given, t):
    rows = {name: given[name][t:] for name in ("is_first", "last_action", "last_reward")}
    return given | rows | {"features": given["features"][t * B :]}


def test_it_is_keras_lstm_cell():
    core, given = make_core(clip_reward=lambda r: tf.clip_by_value(r, -1.0, 1.0)), inputs()
    cell = tf.keras.layers.LSTMCell(UNITS)
    cell.build((B, F + A + 1))
    assert core._bias.numpy().tolist() == cell.bias.numpy().tolist(), "the forget gate starts open"
    core._bias.assign(np.random.default_rng(5).normal(size=4 * UNITS))
    cell.set_weights([v.numpy() for v in (core._kernel, core._recurrent_kernel, core._bias)])
    state = [given["state"][:, 0], given["state"][:, 1]]
    for t in range(N):
        action = np.eye(A)[given["last_action"][t]]
        reward = np.clip(given["last_reward"][t], -1, 1)[:, None]
        features = given["features"][t * B : (t + 1) * B]
        expected, state = cell(np.concatenate([features, action, reward], axis=1).astype("f4"), state)
        np.testing.assert_allclose(core(**given)[0][t * B : (t + 1) * B], expected, atol=1e-5)
    np.testing.assert_allclose(core(**given)[1], np.stack(state, axis=1), atol=1e-5)


def test_where_an_episode_starts_nothing_of_the_last_one_is_left():
    is_first = np.zeros((N, B), bool)
    is_first[4, 1] = True
    core, given = make_core(), inputs(is_first=is_first)
    whole, _ = core(**given)
    tail = from_time(given, 4)
    nothing = {
        "state": tf.zeros([B, 2, UNITS]), "last_action": tail["last_action"] * 0, "last_reward": tail["last_reward"] * 0,
    }  # fmt: skip
    later = {name: tf.concat([nothing[name][:1], tail[name][1:]], axis=0) for name in ("last_action", "last_reward")}
    fresh, _ = core(**tail | later | {"state": nothing["state"]})
    whole, fresh = (np.reshape(h, [-1, B, UNITS]) for h in (whole, fresh))
    np.testing.assert_allclose(whole[4:, 1], fresh[:, 1], atol=1e-6)
    assert np.abs(whole[4:, 0] - fresh[:, 0]).max() > 1e-2, "the others go on"


def test_one_step_at_a_time_is_the_unroll():
    is_first = np.random.default_rng(1).random((N, B)) < 0.3
    core, given = make_core(), inputs(is_first=is_first)
    whole, last = core(**given)
    state = given["state"]
    for t in range(N):
        one = {name: given[name][t : t + 1] for name in ("is_first", "last_action", "last_reward")}
        h, state = core(**one, features=given["features"][t * B : (t + 1) * B], state=state)
        np.testing.assert_allclose(h, whole[t * B : (t + 1) * B], atol=1e-6)
    np.testing.assert_allclose(state, last, atol=1e-6)


def test_every_parameter_of_the_network_gets_a_gradient():
    spec = EnvironmentSpec("flat", ArraySpec((4,), np.float32), actions=Discrete(A))
    network, given = networks.make(spec, torso="mlp", core="lstm", core_size=UNITS), inputs()
    assert network.core_state_shape == (2, UNITS) and networks.make(spec, torso="mlp").core_state_shape is None
    with tf.GradientTape() as tape:
        outputs = network(
            tf.random.stateless_normal([N, B, 4], [1, 2]), given["is_first"], given["last_action"],
            given["last_reward"], given["state"],
        )  # fmt: skip
        total = tf.reduce_sum(outputs.logits * tf.random.stateless_normal(outputs.logits.shape, [1, 2]))
        total += tf.reduce_sum(outputs.value)
    for variable, gradient in zip(network.trainable_variables, tape.gradient(total, network.trainable_variables)):
        assert gradient is not None and np.abs(gradient).sum() > 0, variable.name


def test_same_seed_same_weights_and_no_two_gates_start_alike():
    one, same, other = (cores.Lstm(UNITS, Discrete(A), seed=seed) for seed in (3, 3, 4))
    for core in (one, same, other):
        core(**inputs())
    for a, b, c in zip(one.trainable_variables, same.trainable_variables, other.trainable_variables):
        np.testing.assert_array_equal(a, b)
        assert "bias" in a.name or (a.numpy() != c.numpy()).any()
    gates = np.split(one._recurrent_kernel.numpy(), 4, axis=1)
    assert all((gates[i] != gates[j]).any() for i in range(4) for j in range(i))


class Recall:
    """Shows a bit at the start of an episode of `LENGTH` steps; +1 for the action of that bit at the end, else −1."""

    LENGTH = 8

    def __init__(self, n):
        self.spec, self.num_environments = EnvironmentSpec("recall", ArraySpec((3,), np.float32), actions=Discrete(2)), n

    def reset(self, seed):
        self._random, n = np.random.default_rng(seed), self.num_environments
        self._time, self._bit, self._over = np.zeros(n, int), self._random.integers(2, size=n), np.zeros(n, bool)
        return Step(self._observe(), np.zeros(n, "f4"), np.ones(n, "f4"), np.ones(n, bool), np.zeros(n, bool))

    def send(self, action):
        starts, self._time = self._over, np.where(self._over, 0, self._time + 1)
        self._bit = np.where(starts, self._random.integers(2, size=len(starts)), self._bit)
        self._over = self._time == self.LENGTH
        reward = np.where(self._over, np.where(action == self._bit, 1.0, -1.0), 0.0).astype("f4")
        self._step = Step(self._observe(), reward, 1.0 - self._over.astype("f4"), starts, self._over)

    def receive(self):
        return self._step

    def close(self):
        pass

    def _observe(self):
        cue = (self._time == 0)[:, None] * np.eye(2)[self._bit]
        return np.concatenate([cue, (self._time == self.LENGTH - 1)[:, None]], axis=1).astype("f4")


@pytest.mark.parametrize("core, reached", [("lstm", True), ("none", False)])
def test_only_a_network_with_a_memory_learns_to_recall(core, reached):
    """Unrolls are shorter than episodes, so the bit must cross them in the chunk's core state; one update of lag."""
    config = config_lib.build({}, {
        "environment.name": "catch", "network.torso": "mlp", "network.hidden_sizes": (16,), "network.core": core,
        "network.core_size": 16, "learner.unroll_length": 6, "learner.batch_size": 32, "learner.learning_rate": 1e-2,
        "total_frames": 120_000 if reached else 40_000,
    })  # fmt: skip
    run = lockstep.Lockstep(config, environments=[Recall(32)], lag=1)
    mean = lockstep.mean_return(run.updates(), target=0.95)
    assert (mean >= 0.95) == reached, mean
    if not reached:
        assert abs(mean) < 0.5, "a coin's"
