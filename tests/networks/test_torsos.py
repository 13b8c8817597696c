"""Torsos and heads: shapes, seeds, arithmetic, and a torso of one's own."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from impala import networks
from impala.agents import shared
from impala.config import ConfigError
from impala.networks import atari_torso, features, frames
from impala.types import ArraySpec, Discrete, EnvironmentSpec

ATARI = EnvironmentSpec("atari:x", ArraySpec((84, 84), np.uint8), actions=Discrete(6), num_stacked=4)
FLAT = EnvironmentSpec("flat", ArraySpec((10, 5), np.float32), actions=Discrete(3))
NETWORKS = {"mlp": FLAT, "shallow": ATARI, "nature": ATARI, "resnet": ATARI}


def random_input(spec, n=3, b=2, seed=0):
    random = np.random.default_rng(seed)
    shape, dtype = spec.observation
    size = (n + spec.num_stacked - 1, b, *shape)
    observation = random.integers(256, size=size, dtype=np.uint8) if dtype == np.uint8 else random.normal(size=size)
    return tf.constant(observation.astype(dtype)), tf.constant(random.random((n, b)) < 0.3)


@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("n", [1, 3, 12])
@pytest.mark.parametrize("size, block", [(8, 4), (4, 4), (4, 2)])
def test_block_conv_and_its_gradient_equal_an_ordinary_convolutions(size, block, n, is_static):
    """The same kernel on stacked planes: Keras' Conv2D with stride `block`."""
    build = features.Builder(itertools.count(5), "float32")
    layer = atari_torso.BlockConv(16, size, block, 4, 1 / 255, build)
    layer.bias.assign(np.random.default_rng(2).normal(size=16))
    keras = tf.keras.layers.Conv2D(16, size, block, activation="relu")
    observation, is_first = random_input(ATARI, n)
    planes = frames.stack_planes(observation, is_first, 4)
    planes = tf.cast(tf.reshape(planes, [-1, 84, 84, 4]), tf.float32) / 255
    keras.build(planes.shape)
    keras.set_weights([layer.kernel.numpy(), layer.bias.numpy()])
    blocks = frames.stack_blocks(observation, is_first, 4, block)
    blocks = tf.reshape(blocks, [-1, *blocks.shape[2:]])
    direction = tf.random.stateless_normal(keras(planes).shape, [1, 2])
    signature = [tf.TensorSpec(blocks.shape if is_static else [None, *blocks.shape[1:]], tf.uint8)]

    @tf.function(autograph=False, input_signature=signature)
    def ours(x):
        with tf.GradientTape() as tape:
            y = layer(x)
            total = tf.reduce_sum(y * direction)
        return y, tape.gradient(total, [layer.kernel, layer.bias])

    with tf.GradientTape() as tape:
        expected = keras(planes)
        total = tf.reduce_sum(expected * direction)
    y, gradients = ours(blocks)
    assert (expected.numpy() > 0).mean() > 0.2
    np.testing.assert_allclose(y, expected, atol=1e-4)
    for mine, theirs in zip(gradients, tape.gradient(total, keras.trainable_variables), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("torso", NETWORKS)
def test_shapes_and_dtypes(torso):
    spec = NETWORKS[torso]
    network = networks.make(spec, torso=torso)
    for n, b in ((1, 5), (4, 2)):
        outputs = network(*random_input(spec, n, b))
        assert outputs.logits.shape == (n, b, spec.actions.num_actions) and outputs.value.shape == (n, b)
        assert outputs.logits.dtype == outputs.value.dtype == tf.float32
        assert np.isfinite(outputs.logits).all() and np.isfinite(outputs.value).all()


@pytest.mark.parametrize(
    "torso, num_parameters",
    [
        # (in · out + out) of each layer, then the policy head of 6 actions and the value head.
        ("shallow", (8 * 8 * 4 * 16 + 16) + (4 * 4 * 16 * 32 + 32) + (9 * 9 * 32 * 256 + 256) + 257 * 7),
        ("nature", (8 * 8 * 4 * 32 + 32) + (16 * 32 * 64 + 64) + (9 * 64 * 64 + 64) + (7 * 7 * 64 * 512 + 512) + 513 * 7),
        (
            "resnet",
            (9 * 4 * 16 + 16) + 4 * (9 * 16 * 16 + 16)
            + (9 * 16 * 32 + 32) + 4 * (9 * 32 * 32 + 32)
            + 5 * (9 * 32 * 32 + 32)
            + (11 * 11 * 32 * 256 + 256) + 257 * 7,
        ),
    ],
)  # fmt: skip
def test_the_papers_layers(torso, num_parameters):
    network = networks.make(ATARI, torso=torso)
    assert sum(int(tf.size(v)) for v in network.trainable_variables) == num_parameters


@pytest.mark.parametrize("torso", NETWORKS)
def test_every_parameter_gets_a_gradient(torso):
    spec = NETWORKS[torso]
    network = networks.make(spec, torso=torso)
    with tf.GradientTape() as tape:
        outputs = network(*random_input(spec))
        total = tf.reduce_sum(outputs.logits * tf.random.stateless_normal(outputs.logits.shape, [1, 2]))
        total += tf.reduce_sum(outputs.value)
    for variable, gradient in zip(network.trainable_variables, tape.gradient(total, network.trainable_variables)):
        assert gradient is not None and np.abs(gradient).sum() > 0, variable.name


@pytest.mark.parametrize("torso", NETWORKS)
def test_same_seed_same_weights_other_seed_others(torso):
    spec = NETWORKS[torso]
    one, same, other = (networks.make(spec, torso=torso, seed=seed).trainable_variables for seed in (3, 3, 4))
    for a, b, c in zip(one, same, other):
        np.testing.assert_array_equal(a, b)
        assert "bias" in a.name or (a.numpy() != c.numpy()).any(), a.name


@pytest.mark.parametrize("torso", NETWORKS)
def test_no_two_layers_of_one_network_start_alike(torso):
    """Consecutive seeds: layers of one shape must differ."""
    kernels = [
        v.numpy() for v in networks.make(NETWORKS[torso], torso=torso, hidden_sizes=(50, 50)).trainable_variables
    ]
    for one, other in itertools.combinations([k for k in kernels if k.ndim > 1], 2):
        assert one.shape != other.shape or (one != other).any()


def test_the_first_policy_is_nearly_uniform():
    """On pictures, a twentieth of whose pixels are not background."""
    for torso, spec in NETWORKS.items():
        observation, is_first = random_input(spec)
        if spec.num_stacked > 1:
            is_thing = np.random.default_rng(0).random(observation.shape) < 0.05
            observation = tf.where(is_thing, observation, tf.cast(87, observation.dtype))
        logits = networks.make(spec, torso=torso)(observation, is_first).logits
        bound = 0.15 if torso != "resnet" else 1.0  # its residual blocks add up
        assert np.abs(tf.nn.softmax(logits) * spec.actions.num_actions - 1).max() < bound, torso


@pytest.mark.parametrize("torso", ["mlp", "shallow", "resnet"])
def test_bfloat16_is_close_to_float32(torso):
    spec = NETWORKS[torso]
    inputs = random_input(spec, n=1, b=2)
    wide, narrow = (networks.make(spec, torso=torso, bfloat16=b) for b in (False, True))
    for a, b in zip(wide.trainable_variables, narrow.trainable_variables):
        assert b.dtype == tf.float32, "parameters and their gradients stay wide"
        np.testing.assert_array_equal(a, b)
    one, other = wide(*inputs), narrow(*inputs)
    assert other.logits.dtype == other.value.dtype == tf.float32
    for a, b in zip(one[:2], other[:2]):
        np.testing.assert_allclose(b, a, atol=0.05 * np.abs(a).max())
    assert (one.value.numpy() != other.value.numpy()).any(), "nothing was rounded, so nothing ran in bfloat16"


# Less a level more ReLUs are near 0; at 1/16 what is rounded is larger.
@pytest.mark.parametrize("normalisation, bound", [("plain", 0.05), ("mean", 0.08), ("median", 0.08), ("raw", 0.08)])
def test_gradients_in_bfloat16_are_close_to_float32(normalisation, bound):
    inputs, gradients = random_input(ATARI, n=21, b=2), []
    for bfloat16 in (False, True):
        network = networks.make(ATARI, torso="shallow", normalisation=normalisation, bfloat16=bfloat16)
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(network(*inputs).value)
        (first_kernel,) = (v for v in network.trainable_variables if v.shape == (8, 8, 4, 16))
        gradients.append(tape.gradient(total, first_kernel).numpy())
    wide, narrow = gradients
    assert wide.dtype == narrow.dtype == np.float32
    assert np.linalg.norm(narrow - wide) < bound * np.linalg.norm(wide)


@pytest.mark.parametrize("torso", ["shallow", "nature", "resnet"])
@pytest.mark.parametrize("normalisation", ["mean", "median"])
def test_frames_are_each_less_their_own_level_and_what_is_older_than_the_episode_is_zero(torso, normalisation):
    """A brighter frame makes no difference, and neither does what an episode before left in the window."""
    centred, plain = (networks.make(ATARI, torso=torso, normalisation=n) for n in (normalisation, "plain"))
    random, is_first = np.random.default_rng(3), tf.constant([[False], [True], [False]])
    observation = random.integers(100, size=(6, 1, 84, 84), dtype=np.uint8)
    brighter = observation + np.array([0, 20, 50, 100, 30, 10], np.uint8)[:, None, None, None]
    older = brighter.copy()
    older[:4] = 0
    for network, is_same in ((centred, True), (plain, False)):
        one, other = (network(tf.constant(x), is_first).logits for x in (observation, brighter))
        assert np.allclose(one, other, atol=1e-4) == is_same
    one, other = (centred(tf.constant(x), is_first).logits for x in (observation, older))
    np.testing.assert_allclose(one[1:], other[1:], atol=1e-4)


@pytest.mark.parametrize("normalisation", features.NORMALISATIONS)
def test_the_first_layer_is_a_convolution_of_what_the_normalisation_says(normalisation):
    """By `Conv2D` on planes that NumPy normalised, the plane that is older than its episode zero."""
    level, scale = features.NORMALISATIONS[normalisation]
    observation, is_first = random_input(ATARI, n=3, b=2)
    network = networks.make(ATARI, torso="shallow", normalisation=normalisation)
    (kernel,) = (v for v in network.trainable_variables if v.shape == (8, 8, 4, 16))
    (bias,) = (v for v in network.trainable_variables if v.shape == (16,))
    bias.assign(tf.linspace(-1.0, 1.0, 16))
    planes = frames.stack_planes(observation, is_first, 4).numpy().astype(np.float64)
    numbers = 0.0 if level is None else frames.stack_levels(level(observation), is_first, 4).numpy()
    x = tf.constant((planes - numbers) * scale, tf.float32)
    expected = tf.nn.relu(tf.nn.conv2d(tf.reshape(x, [-1, 84, 84, 4]), kernel, 4, "VALID") + bias)
    found = network(observation, is_first).hidden["conv_1"]
    np.testing.assert_allclose(found, expected, atol=1e-4 * float(tf.reduce_max(expected)))


def test_a_frames_median_is_of_every_fourth_pixel_of_every_fourth_row():
    random = np.random.default_rng(0)
    observation = random.integers(256, size=(5, 3, 84, 84)).astype(np.uint8)
    observation[0, 0], observation[1, 1], observation[2] = 0, 255, np.where(random.random((3, 84, 84)) < 0.7, 87, observation[2])
    sampled = observation[:, :, 2::4, 2::4].reshape(5, 3, -1)  # an odd number of them
    np.testing.assert_array_equal(frames.medians(tf.constant(observation)), np.median(sampled, axis=-1))
    assert (frames.medians(tf.constant(observation)).numpy()[2] == 87).all()


def test_batches_and_times_do_not_mix():
    network = networks.make(ATARI, torso="shallow")
    observation, is_first = random_input(ATARI, n=4, b=3)
    together = network(observation, is_first)
    for j in range(3):
        alone = network(observation[:, j : j + 1], is_first[:, j : j + 1])
        np.testing.assert_allclose(alone.logits[:, 0], together.logits[:, j], atol=1e-5)
        np.testing.assert_allclose(alone.value[:, 0], together.value[:, j], atol=1e-5)
    for i in range(4):  # the actor's view: one time and its k frames, zeroed where it has seen an episode begin
        window = frames.stack_planes(observation, is_first, 4)[i]
        at_once = network(tf.transpose(window, [3, 0, 1, 2]), is_first[i : i + 1] & False)
        np.testing.assert_allclose(at_once.logits[0], together.logits[i], atol=1e-5)


def test_unknown_torsos_are_refused():
    with pytest.raises(ValueError, match="'shalow' is unknown; expected mlp, minatar, shallow, nature or resnet"):
        networks.make(ATARI, torso="shalow")
    with pytest.raises(ValueError, match="network.core: 'LSTM' is unknown; expected none or lstm"):
        networks.make(ATARI, core="LSTM")


class Attention(tf.Module):
    """A torso of one's own: any callable (observation [n+k−1, B, …], is_first [n, B]) → features [n·B, F]."""

    def __init__(self, units):
        super().__init__()
        self._query, self._units = tf.keras.layers.Dense(1), tf.keras.layers.Dense(units)

    def __call__(self, observation, is_first):
        x = tf.reshape(observation, [-1, *observation.shape[2:]])  # [n·B, rows, columns]
        weights = tf.nn.softmax(self._query(x), axis=1)
        return self._units(tf.reduce_sum(weights * x, axis=1))


def test_a_torso_of_ones_own_learns():
    tf.keras.utils.set_random_seed(0)
    network = networks.ActorCritic(Attention(8), FLAT.actions, seed=1)
    inputs = random_input(FLAT, n=4, b=8)
    target = tf.reduce_mean(inputs[0], axis=(2, 3))
    network(*inputs)
    assert len(network.trainable_variables) == 8  # two layers and two heads
    optimizer = tf.keras.optimizers.legacy.Adam(0.02)
    losses = []
    for _ in range(50):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(network(*inputs).value - target))
        losses.append(float(loss))
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply_gradients([(g, v) for g, v in zip(gradients, network.trainable_variables) if g is not None])
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize("torso", ["shallow", "nature", "resnet"])
def test_frames_of_a_size_that_a_torso_cannot_take_are_refused_before_a_run(torso):
    sizes = {
        size: EnvironmentSpec("own", ArraySpec(size, np.uint8), Discrete(2), num_stacked=4) for size in ((84, 84), (42, 42), (44, 46))
    }
    shared.check_torso(torso, sizes[84, 84])
    for size in ((42, 42), (44, 46)):
        with pytest.raises(ConfigError, match="multiples of 4, and own has"):
            shared.check_torso(torso, sizes[size])
