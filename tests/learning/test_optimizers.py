"""Optimizers against TensorFlow 1's own, golden numbers and transcriptions; schedules."""

import numpy as np
import pytest
import tensorflow as tf

from impala.learning import optimizers


def run(optimizer, variable, gradients, learning_rate):
    """Applies each gradient and returns the weights after each step."""
    optimizer.learning_rate = learning_rate
    path = []
    for gradient in gradients:
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
        path.append(variable.numpy())
    return np.array(path)


def random_gradients(num_steps=12, shape=(3, 2)):
    return np.random.default_rng(0).normal(size=(num_steps, *shape)).astype(np.float32)


def ones():
    return tf.Variable(np.ones((3, 2), np.float32))


def test_rmsprop_golden_numbers():
    """STACK.md, section C: three steps of decay .99, ε .1, learning rate 1e-2 on gradients of .5, 1 and 2."""
    weights = tf.Variable(np.zeros(3, np.float32))
    optimizer = optimizers.make("rmsprop", [weights], epsilon=0.1, rmsprop_decay=0.99)
    run(optimizer, weights, np.array([[0.5, 1.0, 2.0]] * 3, np.float32), 1e-2)
    np.testing.assert_allclose(weights, [-0.0144, -0.0286, -0.0557], atol=6e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay, epsilon", [(0.99, 0.1), (0.9, 1e-2), (0.95, 1e-5)])
def test_rmsprop_is_tensorflow_1s(momentum, decay, epsilon):
    ours, theirs = ones(), ones()
    optimizer = optimizers.make("rmsprop", [ours], epsilon=epsilon, rmsprop_decay=decay, rmsprop_momentum=momentum)
    path = run(optimizer, ours, random_gradients(), 3e-2)
    reference = tf.compat.v1.train.RMSPropOptimizer(3e-2, decay=decay, momentum=momentum, epsilon=epsilon)
    for step, gradient in enumerate(random_gradients()):
        reference.apply_gradients([(tf.constant(gradient), theirs)])
        np.testing.assert_allclose(path[step], theirs, rtol=1e-6)


def test_rmsprop_in_a_compiled_step_is_the_same():
    eager, compiled = ones(), ones()
    path = run(optimizers.make("rmsprop", [eager], epsilon=0.1), eager, random_gradients(), 1e-2)
    optimizer = optimizers.make("rmsprop", [compiled], epsilon=0.1)
    optimizer.learning_rate = 1e-2

    @tf.function
    def step(gradient):
        optimizer.apply_gradients([(gradient, compiled)])

    for gradient in random_gradients():
        step(tf.constant(gradient))
    np.testing.assert_allclose(compiled, path[-1], rtol=1e-6)


@pytest.mark.parametrize("beta1", [0.9, 0.0])
@pytest.mark.parametrize("epsilon", [1e-5, 0.1])
def test_adam_against_a_transcription(beta1, epsilon):
    """Kingma and Ba, algorithm 1 in the form of their section 2 (ε̂ outside the corrected root), as TensorFlow has it."""
    weights = ones()
    optimizer = optimizers.make("adam", [weights], epsilon=epsilon, adam_beta1=beta1)
    path = run(optimizer, weights, random_gradients(), 1e-2)
    expected, m, v = np.ones((3, 2)), 0.0, 0.0
    for t, gradient in enumerate(random_gradients().astype(np.float64), start=1):
        m, v = beta1 * m + (1 - beta1) * gradient, 0.999 * v + 0.001 * gradient**2
        rate = 1e-2 * np.sqrt(1 - 0.999**t) / (1 - beta1**t)
        expected = expected - rate * m / (np.sqrt(v) + epsilon)
        np.testing.assert_allclose(path[t - 1], expected, rtol=1e-5)


def test_adagrad_golden_numbers():
    """By hand, with s_0 = 0 and ε = 7 inside of the root: √(9 + 7) = 4, √(9 + 9 + 7) = 5, √(9 + 9 + 144 + 7) = 13."""
    weights = tf.Variable(np.zeros(2, np.float32))
    optimizer = optimizers.make("adagrad", [weights], epsilon=7.0)
    path = run(optimizer, weights, np.array([[3.0, -3.0], [3.0, -3.0], [12.0, -12.0]], np.float32), 0.5)
    expected = np.cumsum([-0.5 * 3 / 4, -0.5 * 3 / 5, -0.5 * 12 / 13])
    np.testing.assert_allclose(path, np.stack([expected, -expected], axis=1), rtol=1e-6)
    np.testing.assert_allclose(optimizer.get_slot(weights, "sum_of_squares"), [9 + 9 + 144] * 2, rtol=1e-6)


@pytest.mark.parametrize("epsilon", [1e-5, 0.1, 4.0])
def test_adagrad_against_a_transcription(epsilon):
    """Duchi et al. 2011, the diagonal form: s ← s + g², w ← w − lr g / √(s + ε)."""
    weights = ones()
    path = run(optimizers.make("adagrad", [weights], epsilon=epsilon), weights, random_gradients(), 3e-2)
    expected, total = np.ones((3, 2)), np.zeros((3, 2))
    for step, gradient in enumerate(random_gradients().astype(np.float64)):
        total += gradient**2
        expected = expected - 3e-2 * gradient / np.sqrt(total + epsilon)
        np.testing.assert_allclose(path[step], expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_the_learning_rate_that_is_assigned_is_the_one_used(name):
    def first_step(learning_rate):
        weights = ones()
        optimizer = optimizers.make(name, [weights], epsilon=0.01)
        return run(optimizer, weights, random_gradients(1), learning_rate)[0] - 1.0

    assert not first_step(0.0).any()
    np.testing.assert_allclose(first_step(2e-2), 2 * first_step(1e-2), rtol=1e-4)
    assert np.abs(first_step(1e-2)).min() > 1e-4


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_the_learning_rate_may_change_between_steps_of_one_trace(name):
    weights = ones()
    optimizer = optimizers.make(name, [weights], epsilon=0.01)
    traces = []

    @tf.function
    def step(gradient):
        traces.append(1)
        optimizer.apply_gradients([(gradient, weights)])

    steps = []
    for learning_rate in (1e-2, 0.0, 1e-2):
        before = weights.numpy()
        optimizer.learning_rate = learning_rate
        step(tf.ones([3, 2]))
        steps.append(np.abs(weights.numpy() - before).max())
    assert steps[1] == 0.0 and min(steps[0], steps[2]) > 1e-4
    assert len(traces) == 1


@pytest.mark.parametrize("name, num_slots", [("adam", 2), ("rmsprop", 2)])
def test_slots_exist_before_the_first_step(name, num_slots):
    """A step that is skipped, and a checkpoint that is restored, find them there."""
    weights = [ones(), tf.Variable(np.zeros(4, np.float32))]
    optimizer = optimizers.make(name, weights, epsilon=0.01)
    slots = [v for v in optimizer.variables() if v.shape in ((3, 2), (4,))]
    assert len(slots) == num_slots * len(weights)
    before = len(optimizer.variables())
    optimizer.apply_gradients([(tf.ones_like(w), w) for w in weights])
    assert len(optimizer.variables()) == before


def test_unknown_optimizers_are_refused():
    with pytest.raises(ValueError, match="'sgd' is unknown; expected adam, rmsprop, centered_rmsprop or adagrad"):
        optimizers.make("sgd", [ones()], epsilon=0.1)


def test_linear_schedule():
    rate = optimizers.SCHEDULES["linear"](4e-3, 1000)
    assert [rate(position) for position in (0, 250, 500, 1000, 5000)] == pytest.approx([4e-3, 3e-3, 2e-3, 0.0, 0.0])


def test_constant_schedule():
    rate = optimizers.SCHEDULES["constant"](4e-3, 1000)
    assert {rate(position) for position in (0, 500, 5000)} == {4e-3}


def test_late_linear_schedule():
    rate = optimizers.SCHEDULES["late_linear"](4e-3, 1000)
    assert [rate(position) for position in (0, 300, 500, 750, 1000, 2000)] == pytest.approx([4e-3] * 3 + [2e-3, 0, 0])
