"""Silent and dormant units, of layers whose activations are written here."""

import numpy as np
import pytest
import tensorflow as tf

from impala import networks
from impala.learning import units
from impala.networks import q_values, separate
from impala.types import ArraySpec, Discrete, EnvironmentSpec

YES, NO = tf.constant(True), tf.constant(False)


def test_a_unit_is_silent_where_it_is_never_on_and_dormant_where_hardly_ever():
    dense = np.zeros((8, 5), np.float32)
    dense[:, 0], dense[3, 1], dense[:, 2] = 10.0, 0.2, 0.2  # means 10, 0.025, 0.2, 0, 0: their mean is 2.045
    convolution = np.zeros((8, 3, 3, 4), np.float32)
    convolution[5, 2, 1, 0] = 1e-3  # once anywhere on the screen: on
    shares = units.shares(dict(conv_1=tf.constant(convolution), dense=tf.constant(dense)), YES)
    assert {name: round(float(share), 6) for name, share in shares.items()} == {
        "silent_units/conv_1": 0.75, "dormant_units/conv_1": 0.75, "silent_units/dense": 0.4, "dormant_units/dense": 0.6,
    }  # fmt: skip


def test_a_layer_that_is_silent_as_a_whole_is_dormant_too():
    shares = units.shares(dict(dense=tf.zeros([4, 3])), YES)
    assert [float(share) for share in shares.values()] == [1.0, 1.0]


def test_when_it_is_not_due_all_are_unknown():
    shares = units.shares(dict(dense=tf.ones([4, 3])), NO)
    assert len(shares) == 2 and all(np.isnan(share) for share in shares.values())


@pytest.mark.parametrize("hidden", [(), {}])
def test_a_network_without_hidden_layers_has_none(hidden):
    assert units.shares(hidden, YES) == {}


@pytest.mark.parametrize("torso, layers, spec", [
    ("shallow", ["conv_1", "conv_2", "dense"], EnvironmentSpec("x", ArraySpec((84, 84), np.uint8), Discrete(4), 4)),
    ("nature", ["conv_1", "conv_2", "conv_3", "dense"], EnvironmentSpec("x", ArraySpec((84, 84), np.uint8), Discrete(4), 4)),
    ("resnet", ["section_1", "section_2", "section_3", "dense"], EnvironmentSpec("x", ArraySpec((84, 84), np.uint8), Discrete(4), 4)),
    ("minatar", ["conv_1", "dense"], EnvironmentSpec("x", ArraySpec((10, 10, 4), np.float32), Discrete(4))),
    ("mlp", [], EnvironmentSpec("x", ArraySpec((3,), np.float32), Discrete(4))),
])  # fmt: skip
def test_which_layers_a_torso_tells_of(torso, layers, spec):
    network = networks.make(spec, torso=torso)
    n, b, k = 2, 3, spec.num_stacked
    observation = tf.cast(tf.random.uniform([n + k - 1, b, *spec.observation.shape], 0, 255), spec.observation.dtype)
    hidden = network(observation, tf.zeros([n, b], tf.bool)).hidden
    assert list(hidden) == layers
    for name, activation in dict(hidden).items():
        assert activation.shape[0] == n * b and float(tf.reduce_min(activation)) >= 0.0, name


@pytest.mark.parametrize("torso, layers", [("shallow", ["conv_1", "conv_2", "dense"]), ("mlp", [])])
def test_the_streams_of_a_dueling_network_and_a_torso_of_the_values_own_are_told_of_too(torso, layers):
    shape = dict(shallow=ArraySpec((84, 84), np.uint8), mlp=ArraySpec((3,), np.float32))[torso]
    spec = EnvironmentSpec("x", shape, Discrete(4), 4 if torso == "shallow" else 1)
    how = dict(torso=torso, hidden_sizes=(16,), normalisation="plain", bfloat16=False, seed=0)
    inputs = tf.ones([spec.num_stacked, 3, *shape.shape], shape.dtype), tf.ones([1, 3], tf.bool)
    dueling = q_values.make(spec, is_dueling=True, **how)(*inputs)
    assert list(dueling.hidden) == [*layers, "advantage", "value"] and dueling.hidden["value"].shape == (3, 512)
    two = separate.make(spec, **how)(*inputs)
    assert list(two.hidden) == [*layers, *(f"value_{layer}" for layer in layers)]
    assert not list(q_values.make(spec, is_dueling=False, **how)(*inputs).hidden)[len(layers) :]
