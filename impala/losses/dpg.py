"""The loss of deterministic policy gradients (Silver et al. 2014; Lillicrap et al. 2016, arXiv:1509.02971).

    y = r_1 + γ r_2 + … + γ^{n−1} r_n + γ^n Q⁻(x_n, π⁻(x_n)),   δ = y − Q(x_0, a_0)
    loss = ½ δ² − g · π(x_0),   g = clip(∂Q(x_0, a) / ∂a at a = π(x_0))

Q⁻ and π⁻ are the target networks. No gradient flows into y or g, so the value learns from the first term alone and the
policy from the second: it ascends g · ∂π/∂φ, with g clipped element by element (Ape-X, Horgan et al. 2018,
arXiv:1803.00933, appendix D). Episodes end in windows as in `losses.q_learning`.
"""

from collections.abc import Callable

import tensorflow as tf

from impala.losses.importance import reduced
from impala.losses.q_learning import n_step, squared
from impala.losses.rewards import REWARD_CLIPPING


def dpg(
    *, discount: float = 0.99, action_gradient_clip: float = 1.0, reward_clipping: str = "none", reduction: str = "sum",
) -> Callable:  # fmt: skip
    """Makes the loss, summed over the windows of a batch, or their mean.

    Where windows have an `importance`, both terms of each are weighted with it, divided by the largest of the batch.

    Args:
      discount: γ.
      action_gradient_clip: largest absolute value of an element of g.
      reward_clipping: a name of `losses.rewards.REWARD_CLIPPING`.
      reduction: "sum" or "mean".

    Returns:
      (outputs, batch) → (loss, metrics): outputs are `networks.dpg.Windows`, batch a time-major `Chunk` of n
      transitions. The metrics have a column `priority` [B], |δ|, where windows have an importance.
    """

    def loss(outputs, batch):
        online, target = outputs.online, outputs.target
        bootstrap = target.value(outputs.last, target.policy(outputs.last))
        rewards, discounts = n_step(
            REWARD_CLIPPING[reward_clipping](batch.r_t), discount * batch.discount_t, outputs.num_valid
        )
        taken = tf.clip_by_value(batch.a_tm1[0], -1.0, 1.0)  # as the environment does
        td_error = tf.stop_gradient(rewards + discounts * bootstrap) - online.value(outputs.first, taken)
        action = online.policy(outputs.first)
        at = tf.stop_gradient(action)
        with tf.GradientTape() as tape:
            tape.watch(at)
            value = online.value(outputs.first, at)
        gradient = tf.clip_by_value(tape.gradient(value, at), -action_gradient_clip, action_gradient_clip)
        of_policy = -tf.reduce_sum(tf.stop_gradient(gradient) * action, axis=-1)
        total, metrics = reduced(squared(td_error) + of_policy, td_error, batch, reduction)
        metrics |= {
            "value_loss": tf.reduce_mean(squared(td_error)),
            "policy_loss": -tf.reduce_mean(value),
            "value": tf.reduce_mean(value),
        }
        return total, {name: tf.stop_gradient(metric) for name, metric in metrics.items()}

    return loss
