"""The second half of an update: a gradient → new parameters, unless it is not finite."""

from collections.abc import Sequence

import tensorflow as tf


def scaled(gradients: Sequence[tf.Tensor], max_norm: float) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns the gradients, scaled down to a global norm of at most `max_norm`, and their norm before scaling."""
    norm = tf.linalg.global_norm(gradients)
    scale = max_norm / tf.maximum(norm, max_norm)
    return [gradient * scale for gradient in gradients], norm


def apply(
    optimizer, variables: Sequence[tf.Variable], gradients: Sequence[tf.Tensor], *, is_finite: tf.Tensor,
    learning_rate: tf.Tensor,
) -> tf.Tensor:  # fmt: skip
    """Applies gradients if `is_finite`, [] bool, and returns whether it did; for use in a graph."""
    optimizer.learning_rate.assign(learning_rate)

    def step():
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
        return True

    return tf.cond(is_finite, step, lambda: False)
