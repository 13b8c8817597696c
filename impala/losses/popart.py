"""PopArt in the actor-critic loss: targets are in units of reward, errors and advantages are normalised by task.

    v_s, A_s from the correction on V = σ_k n + μ_k;   value loss ½ ((v_s − μ_k) / σ_k − n(x_s))²;   advantage A_s / σ_k

(Hessel et al. 2018, arXiv:1809.04474, equations 6 and 7.) With σ = 1 and μ = 0 it is the loss without PopArt. The
metrics `value`, `value_loss`, `value_correction` and those of the advantages are normalised. The moments move once a
batch, after the update; `networks.PopArt` says how its β compares with rlax's.
"""

from collections.abc import Callable

import tensorflow as tf

from impala.corrections import Targets
from impala.types import Origin

COLUMNS = ("num_targets", "target_sum", "target_square_sum")  # [B], what `networks.PopArt.update` takes


def popart(make_loss: Callable[..., Callable], correction: Callable[..., Targets]) -> Callable:
    """Makes the loss for a network with PopArt.

    Args:
      make_loss: a V-based scheme → loss, e.g. `actor_critic` with its parameters bound.
      correction: a V-based scheme.

    Returns:
      (outputs, batch, …) → (loss, metrics), with `COLUMNS` among the metrics.
    """

    def loss(outputs, batch, **scheduled):
        task = batch.origin[:, Origin._fields.index("task")]  # [B]
        mean, scale = (tf.gather(moment, task) for moment in outputs.moments)  # [B]
        value = tf.reduce_sum(outputs.value * tf.one_hot(task, outputs.value.shape[-1]), axis=-1)  # [T+1, B]
        columns = {}

        def normalised(*, v_tm1, v_t, mask_t, **inputs):
            targets = correction(v_tm1=scale * v_tm1 + mean, v_t=scale * v_t + mean, mask_t=mask_t, **inputs)
            kept = [mask_t, mask_t * targets.target_tm1, mask_t * tf.square(targets.target_tm1)]
            columns.update(zip(COLUMNS, (tf.reduce_sum(x, axis=0) for x in kept)))
            result = type(targets)((targets.target_tm1 - mean) / scale, targets.advantage_tm1 / scale)
            if hasattr(targets, "trace_tm1"):
                result.trace_tm1 = targets.trace_tm1
            return result

        total, metrics = make_loss(normalised)(outputs._replace(value=value), batch, **scheduled)
        return total, metrics | columns

    return loss
