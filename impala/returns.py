"""The one backward recursion under every correction and loss.

Pure functions of time-major tensors [T, B]. No network, no variable, no gradient decision: callers stop gradients.
"""

import tensorflow as tf

_MOST_UNROLLED = 1000  # steps; each takes about a millisecond to trace


def discounted_sum(*, x_t: tf.Tensor, decay_t: tf.Tensor, initial: tf.Tensor) -> tf.Tensor:
    """Computes y_t = x_t + decay_t · y_{t+1} backwards in time, from y_T = `initial`.

    n-step returns, λ-returns, GAE, V-trace, Retrace and their relatives are choices of the two sequences. A decay of 0
    cuts off everything later in time, even values that are not finite.

    Args:
      x_t: [T, B].
      decay_t: [T, B], what y_{t+1} is multiplied by.
      initial: [B], y_T.

    Returns:
      y [T, B]. For a static T up to 1,000 the recursion is unrolled into the graph, which is faster than a loop for the
      unroll lengths of actor-learners; otherwise it is a `tf.while_loop` through `tf.scan`.
    """
    length = x_t.shape[0]
    if length is None or length > _MOST_UNROLLED:
        return tf.scan(lambda y, xd: _step(*xd, y), (x_t, decay_t), initializer=initial, reverse=True)
    y, ys = initial, []
    for x, decay in zip(reversed(tf.unstack(x_t, length)), reversed(tf.unstack(decay_t, length))):
        y = _step(x, decay, y)
        ys.append(y)
    return tf.stack(ys[::-1])


def _step(x: tf.Tensor, decay: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return x + tf.math.multiply_no_nan(y, decay)
