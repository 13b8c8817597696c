"""A policy and a value that share nothing."""

import numpy as np
import pytest
import tensorflow as tf

from impala import agents, networks
from impala import config as config_lib
from impala.networks import running, separate
from impala.types import ArraySpec, Continuous, Discrete, EnvironmentSpec

SPEC = EnvironmentSpec("x", ArraySpec((3,), np.float32), Continuous(2))
OBSERVATION = np.random.default_rng(0).normal(size=(5, 4, 3)).astype(np.float32)
IS_FIRST = np.zeros((5, 4), bool)


def make(spec=SPEC):
    return separate.make(spec, torso="mlp", hidden_sizes=(8,), normalisation="median", bfloat16=False, seed=3)


@pytest.mark.parametrize("actions, num_of_policy", [(Continuous(2), 5), (Discrete(4), 4)])
def test_no_weight_of_the_value_is_the_policys(actions, num_of_policy):
    network = make(SPEC._replace(actions=actions))
    with tf.GradientTape(persistent=True) as tape:
        outputs = network(OBSERVATION, IS_FIRST)
        policy, value = tf.reduce_sum(tf.square(outputs.logits - 1.0)), tf.reduce_sum(outputs.value)
    variables = network.trainable_variables
    moves_policy, moves_value = (
        {variable.ref() for variable, g in zip(variables, tape.gradient(loss, variables)) if g is not None}
        for loss in (policy, value)
    )
    assert (len(moves_policy), len(moves_value)) == (num_of_policy, 4) and not moves_policy & moves_value
    assert len(variables) == num_of_policy + 4


def test_they_begin_as_those_of_one_torso_do_but_for_the_values():
    outputs = make()(OBSERVATION, IS_FIRST)
    shared = networks.make(SPEC, torso="mlp", hidden_sizes=(8,), seed=3)(OBSERVATION, IS_FIRST)
    assert outputs.logits.shape == shared.logits.shape and outputs.value.shape == shared.value.shape
    assert np.abs(outputs.value - shared.value).max() > 1e-3, "another torso"


def test_deviations_are_one_in_every_state_and_parameters():
    network = make()
    mean, log_scale = np.split(network.distribution.normalise(network(OBSERVATION, IS_FIRST).logits), 2, axis=-1)
    np.testing.assert_allclose(log_scale, 0.0, atol=2e-3)
    assert mean.std() > 0
    (deviation,) = [variable for variable in network.trainable_variables if variable.name.startswith("deviation")]
    deviation.assign([-1.0, 2.0])
    _, log_scale = np.split(network.distribution.normalise(network(OBSERVATION, IS_FIRST).logits), 2, axis=-1)
    assert (log_scale == log_scale[0, 0]).all() and log_scale[0, 0, 0] < 0 < log_scale[0, 0, 1]


def test_ppo_makes_it_where_it_is_asked_for():
    for wished in (True, False):
        config = config_lib.load("configs/dppo_pendulum.yaml", {"agent.separate_networks": wished})
        network = agents.of(config).make_network(config, SPEC)
        assert isinstance(network, running.Normalised) and isinstance(network._network, separate.Separate) is wished
