"""A network that sees observations by their running moments."""

import numpy as np
import pytest
import tensorflow as tf

from impala import networks
from impala.networks import running
from impala.types import ArraySpec, Continuous, EnvironmentSpec

SPEC = EnvironmentSpec("x", ArraySpec((3,), np.float32), Continuous(2))


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_it_is_the_network_on_normalised_observations(core):
    inner = networks.make(SPEC, torso="mlp", hidden_sizes=(8,), core=core, core_size=4)
    network = running.Normalised(inner, (3,))
    random = np.random.default_rng(0)
    mean, deviation = np.array([1.0, -2.0, 100.0]), np.array([0.5, 3.0, 20.0])
    observation = (mean + deviation * random.normal(size=(5, 2, 3))).astype(np.float32)
    observation[0, 0, 0] = 1e6  # at most ten deviations
    is_first = np.zeros((5, 2), bool)
    others = (np.zeros((5, 2, 2), np.float32), np.zeros((5, 2), np.float32), np.zeros((2, 2, 4), np.float32)) if core == "lstm" else ()
    raw = network(observation, is_first, *others)
    network.assign(mean, deviation)
    ours = network(observation, is_first, *others)
    expected = inner(np.clip((observation - mean) / deviation, -10, 10).astype(np.float32), is_first, *others)
    np.testing.assert_allclose(ours.logits, expected.logits, atol=1e-5)
    np.testing.assert_allclose(ours.value, expected.value, atol=1e-5)
    assert np.abs(raw.value - ours.value).max() > 1e-3
    assert network.core_state_shape == inner.core_state_shape and network.distribution is inner.distribution


def test_moments_travel_after_the_parameters_and_are_not_trained():
    network = running.Normalised(networks.make(SPEC, torso="mlp", hidden_sizes=(8,)), (3,))
    trained, all_ = list(network.trainable_variables), running.variables_of(network)
    assert [v.ref() for v in all_[:-2]] == [v.ref() for v in trained] and [tuple(v.shape) for v in all_[-2:]] == [(3,), (3,)]
    plain = networks.make(SPEC, torso="mlp", hidden_sizes=(8,))
    assert len(running.variables_of(plain)) == len(plain.trainable_variables) == len(trained)
    assert all(tf.reduce_all(one == other) for one, other in zip(trained, plain.trainable_variables))
