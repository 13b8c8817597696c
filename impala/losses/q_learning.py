"""The loss of Q-learning: a function of the TD error over n steps.

    y = r_1 + γ r_2 + … + γ^{n−1} r_n + γ^n Q⁻(x_n, b),   δ = y − Q(x_0, a_0)

Q⁻ is the target network. b is its best action (Mnih et al. 2015, doi:10.1038/nature14236), or with `double` the online
network's (van Hasselt et al. 2016, arXiv:1509.06461). A termination ends the sum; where an episode is cut off before n
steps, the last of its states bootstraps. No gradient flows into y.
"""

from collections.abc import Callable

import tensorflow as tf

from impala.losses.rewards import REWARD_CLIPPING


def huber(error: tf.Tensor, threshold: float = 1.0) -> tf.Tensor:
    """Returns ½ δ² up to the threshold κ and κ (|δ| − ½ κ) beyond: its gradient is δ clipped to ±κ, as DQN's is."""
    size = tf.abs(error)
    inside = tf.minimum(size, threshold)
    return inside * (size - 0.5 * inside)


def squared(error: tf.Tensor) -> tf.Tensor:
    """Returns ½ δ² (Ape-X, Horgan et al. 2018, arXiv:1803.00933, section 3)."""
    return 0.5 * tf.square(error)


def q_learning(
    *, error: Callable[[tf.Tensor], tf.Tensor] = huber, double: bool = False, discount: float = 0.99,
    reward_clipping: str = "abs_one", reduction: str = "sum",
) -> Callable:  # fmt: skip
    """Makes the loss, summed over the windows of a batch, or their mean.

    Args:
      error: of the TD errors [B].
      double: see above.
      discount: γ.
      reward_clipping: a name of `losses.rewards.REWARD_CLIPPING`.
      reduction: "sum", which DQN's learning rate and RMSProp ε assume, or "mean".

    Returns:
      (outputs, batch) → (loss, metrics): outputs are `networks.q_values.Windows`, batch a time-major `Chunk` of n
      transitions.
    """

    def loss(outputs, batch):
        best = tf.argmax(outputs.q_t if double else outputs.target_q_t, axis=-1, output_type=tf.int32)
        bootstrap = tf.gather(outputs.target_q_t, best, batch_dims=1)
        rewards, discounts = n_step(
            REWARD_CLIPPING[reward_clipping](batch.r_t), discount * batch.discount_t, outputs.num_valid
        )
        target = tf.stop_gradient(rewards + discounts * bootstrap)
        q_taken = tf.gather(outputs.q_tm1, batch.a_tm1[0], batch_dims=1)
        td_error = target - q_taken
        reduce = {"sum": tf.reduce_sum, "mean": tf.reduce_mean}[reduction]
        total = reduce(error(td_error))
        metrics = {
            "loss": total,
            "value_loss": tf.reduce_mean(error(td_error)),
            "value": tf.reduce_mean(tf.reduce_max(outputs.q_tm1, axis=-1)),
            "td_error": tf.reduce_mean(tf.abs(td_error)),
        }
        return total, {name: tf.stop_gradient(metric) for name, metric in metrics.items()}

    return loss


def n_step(r_t: tf.Tensor, discount_t: tf.Tensor, num_valid: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the discounted sum of the first `num_valid` [B] rewards, and the discount of the state after them.

    Args:
      r_t, discount_t: [T, B]; the discount is 0 at a termination, and γ elsewhere.
    """
    is_valid = tf.sequence_mask(num_valid, r_t.shape[0], r_t.dtype)  # [B, T]
    is_valid = tf.transpose(is_valid)
    kept = tf.where(is_valid > 0.0, discount_t, tf.ones_like(discount_t))
    before = tf.math.cumprod(kept, axis=0, exclusive=True)
    return tf.reduce_sum(is_valid * before * r_t, axis=0), tf.reduce_prod(kept, axis=0)
