"""What losses over replayed windows share: importance weights, and TD errors as priorities."""

import tensorflow as tf

MIN_PRIORITY = 1e-6  # a table draws nothing with a priority of 0 (Schaul et al. 2016: ε)


def reduced(
    rows: tf.Tensor, td_error: tf.Tensor, batch, reduction: str, *, priority: tf.Tensor | None = None
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:  # fmt: skip
    """Sums or averages the losses of windows, each times importance / largest importance, if they have one.

    Args:
      rows: [B], the windows' losses.
      td_error: [B] or, of sequences, [T, B]: δ.
      batch: a `Chunk`, whose `importance` [B] is () where windows are drawn uniformly.
      reduction: "sum" or "mean".
      priority: [B], |δ| unless given.

    Returns:
      the loss, and the metrics `loss`, `td_error`, `num_rows` and, with an importance, `importance_max`, which a group
      of learners needs, and the column `priority` [B]
    """
    metrics = {"td_error": tf.reduce_mean(tf.abs(td_error)), "num_rows": tf.cast(tf.shape(rows)[0], tf.float32)}
    if not isinstance(batch.importance, tuple):
        largest = tf.reduce_max(batch.importance)
        rows = rows * batch.importance / largest
        priority = tf.abs(td_error) if priority is None else priority
        metrics |= {"importance_max": largest, "priority": tf.maximum(priority, MIN_PRIORITY)}
    total = {"sum": tf.reduce_sum, "mean": tf.reduce_mean}[reduction](rows)
    return total, metrics | {"loss": total}
