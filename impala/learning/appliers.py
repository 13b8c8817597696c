"""The second half of an update: a gradient → new parameters, unless it is not finite."""

from collections.abc import Sequence

import tensorflow as tf


def apply(
    optimizer, variables: Sequence[tf.Variable], gradients: Sequence[tf.Tensor], *, loss: tf.Tensor,
    learning_rate: tf.Tensor, max_norm: float,
) -> tuple[tf.Tensor, tf.Tensor]:  # fmt: skip
    """Scales gradients down to a global norm and applies them, unless norm or loss is not finite; in a graph.

    Args:
      gradients: of all parameters, since they are scaled by their common norm.
      loss: [], what they are the gradients of.

    Returns:
      whether they were applied, and the norm before scaling.
    """
    optimizer.learning_rate.assign(learning_rate)
    norm = tf.linalg.global_norm(gradients)
    scale = max_norm / tf.maximum(norm, max_norm)

    def step():
        optimizer.apply_gradients([(gradient * scale, v) for gradient, v in zip(gradients, variables, strict=True)])
        return True

    return tf.cond(tf.math.is_finite(loss) & tf.math.is_finite(norm), step, lambda: False), norm
