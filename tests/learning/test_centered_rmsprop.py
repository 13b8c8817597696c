import numpy as np
import tensorflow as tf

from impala.learning import optimizers


def test_centered_rmsprop_is_the_formula():
    """m and s from 0, the root of s − m² + ε."""
    variable = tf.Variable([1.0, -2.0])
    optimizer = optimizers.make("centered_rmsprop", [variable], epsilon=0.01, rmsprop_decay=0.95)
    optimizer.learning_rate.assign(0.1)
    w, m, s = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
    for gradient in ([0.5, -1.0], [0.25, 3.0], [-1.0, 0.0]):
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
        g = np.array(gradient)
        m, s = 0.95 * m + 0.05 * g, 0.95 * s + 0.05 * g**2
        w = w - 0.1 * g / np.sqrt(s - m**2 + 0.01)
        np.testing.assert_allclose(variable.numpy(), w, rtol=1e-5)


def test_a_momentum_is_of_the_steps():
    variable = tf.Variable([1.0, -2.0])
    optimizer = optimizers.make("centered_rmsprop", [variable], epsilon=0.01, rmsprop_decay=0.95, rmsprop_momentum=0.9)
    optimizer.learning_rate.assign(0.1)
    w, v, m, s = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2), np.zeros(2)
    for gradient in ([0.5, -1.0], [0.25, 3.0], [-1.0, 0.0]):
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
        g = np.array(gradient)
        m, s = 0.95 * m + 0.05 * g, 0.95 * s + 0.05 * g**2
        v = 0.9 * v + 0.1 * g / np.sqrt(s - m**2 + 0.01)
        w = w - v
        np.testing.assert_allclose(variable.numpy(), w, rtol=1e-5)

