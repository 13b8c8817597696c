"""The first half of an update: a batch → the gradient of its loss, with metrics."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from impala.learning import units
from impala.types import Chunk, Origin


class Computed(NamedTuple):
    """The results of one batch; `learning.appliers` does the rest, here or in another process."""

    loss: tf.Tensor  # []
    gradients: list[tf.Tensor]  # one for each variable
    metrics: dict[str, tf.Tensor]  # [] each
    columns: dict[str, tf.Tensor]  # [B] each, about the chunks: see `learners.Result`


def compute(
    forward: Callable, variables: Sequence[tf.Variable], loss: Callable[..., tuple], batch: Chunk,
    scheduled: Mapping[str, Any], is_due: tf.Tensor,
) -> Computed:  # fmt: skip
    """Computes the gradient of `loss` on a batch; in the graph of an update.

    Args:
      forward: `network_inputs` of the batch → outputs.
      variables: what the gradient is taken of.
      loss: (outputs, batch, **scheduled) → (loss, metrics).
      is_due: [] bool, whether to look at the hidden layers; see `units`.
    """
    with tf.GradientTape() as tape:
        outputs = forward(*network_inputs(batch))
        value, metrics = loss(outputs, batch, **scheduled)
    # Of a variable that the loss does not reach, as a torso of one's own may have, the gradient is 0.
    gradients = tape.gradient(value, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    metrics = metrics | units.shares(getattr(outputs, "hidden", ()), is_due)
    columns = {name: metric for name, metric in metrics.items() if metric.shape.rank}
    return Computed(value, gradients, {n: m for n, m in metrics.items() if n not in columns}, _facts(batch) | columns)


def network_inputs(batch: Chunk) -> tuple:
    """Returns a network's inputs from a batch: observation and is_first.

    For a recurrent one also last_action [T+1, B, …] and last_reward [T+1, B], which led to each observation, and the
    core state before the first observation.
    """
    if isinstance(batch.core_state, tuple):
        return batch.observation, batch.is_first
    last_action = tf.concat([batch.previous_action[None], batch.a_tm1], axis=0)
    last_reward = tf.concat([batch.previous_reward[None], batch.r_t], axis=0)
    return batch.observation, batch.is_first, last_action, last_reward, batch.core_state


def _facts(batch: Chunk) -> dict[str, tf.Tensor]:
    """Returns columns [B] that describe the chunks; of versions that change within a chunk, the mean and the oldest."""
    valid_t = getattr(batch, "valid_t", 1.0 - tf.cast(batch.is_first[1:], tf.float32))
    version = oldest = tf.cast(batch.weights_version, tf.float64)
    if version.shape.rank == 2:
        version, oldest = tf.reduce_mean(version, axis=0), tf.reduce_min(version, axis=0)
    return dict(
        weights_version=version,
        oldest_version=oldest,
        is_replayed=tf.zeros_like(version) if isinstance(batch.is_replayed, tuple) else batch.is_replayed,
        task=batch.origin[:, Origin._fields.index("task")],
        num_valid=tf.reduce_sum(valid_t, axis=0),
    )
