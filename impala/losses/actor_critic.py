"""The actor-critic loss of IMPALA (section 4.2 and appendix D), with any V-based correction."""

from collections.abc import Callable

import tensorflow as tf

from impala.corrections import Targets

Loss = Callable[..., tuple[tf.Tensor, dict[str, tf.Tensor]]]

REWARD_CLIPPING = {
    "none": lambda reward: reward,
    "abs_one": lambda reward: tf.clip_by_value(reward, -1.0, 1.0),
}


def actor_critic(
    correction: Callable[..., Targets], *, discount: float = 0.99, baseline_cost: float = 0.5,
    entropy_cost: float = 0.01, reward_clipping: str = "abs_one", reduction: str = "sum",
) -> Loss:  # fmt: skip
    """Makes the loss, summed over T and B (or averaged over the transitions that are some, with `reduction="mean"`).

    L = Σ_s [ −log π(a_s|x_s) A_s + baseline_cost · ½ (v_s − V(x_s))² − entropy_cost · H(π(·|x_s)) ]

    v_s and A_s come from `correction` and carry no gradient. Rows across a reset are masked out of every term.

    Args:
      correction: a V-based scheme of `impala.corrections`, its parameters bound.
      discount: γ.
      baseline_cost, entropy_cost: weights of the value loss and of the entropy bonus.
      reward_clipping: a name of `REWARD_CLIPPING`.
      reduction: "sum" as in the paper, whose learning rate, clip norm and RMSProp ε assume it, or "mean".

    Returns:
      (outputs, batch) → (loss, metrics): outputs are a network's [T+1, B], batch a time-major `Chunk`.
    """

    def loss(outputs, batch):
        logits, value = outputs
        tf.debugging.assert_shapes([(batch.r_t, "TB"), (batch.logits_tm1, "TBA"), (value, "UB"), (logits, "UBA")])
        mask_t = 1.0 - tf.cast(batch.is_first[1:], tf.float32)
        log_pi = tf.nn.log_softmax(logits[:-1])  # [T, B, A]
        log_pi_a = _gather(log_pi, batch.a_tm1)
        log_mu = tf.nn.log_softmax(batch.logits_tm1)
        log_rho_tm1 = tf.stop_gradient(log_pi_a) - _gather(log_mu, batch.a_tm1)
        targets = correction(
            v_tm1=value[:-1],
            v_t=value[1:],
            r_t=REWARD_CLIPPING[reward_clipping](batch.r_t),
            discount_t=discount * batch.discount_t,
            log_rho_tm1=log_rho_tm1,
            mask_t=mask_t,
        )
        policy_loss = -tf.reduce_sum(log_pi_a * targets.advantage_tm1)
        value_loss = 0.5 * tf.reduce_sum(mask_t * tf.square(targets.target_tm1 - value[:-1]))
        entropy = -tf.reduce_sum(mask_t * tf.reduce_sum(tf.exp(log_pi) * log_pi, axis=-1))
        num_transitions = tf.maximum(tf.reduce_sum(mask_t), 1.0)
        total = policy_loss + baseline_cost * value_loss - entropy_cost * entropy
        if reduction == "mean":
            total /= num_transitions

        def mean(x_tm1):
            return tf.reduce_sum(mask_t * x_tm1) / num_transitions

        rho_tm1 = tf.exp(tf.minimum(log_rho_tm1, 20.0))
        metrics = {
            "loss": total,
            "policy_loss": policy_loss / num_transitions,
            "value_loss": value_loss / num_transitions,
            "entropy": entropy / num_transitions,
            "value": mean(value[:-1]),
            "advantage": mean(tf.abs(targets.advantage_tm1)),
            "log_rho_mean": mean(log_rho_tm1),
            "log_rho_max": tf.reduce_max(mask_t * tf.abs(log_rho_tm1)),
            "rho_clipped_fraction": mean(tf.cast(log_rho_tm1 > 0.0, tf.float32)),
            "effective_sample_size": tf.square(mean(rho_tm1)) / tf.maximum(mean(tf.square(rho_tm1)), 1e-12),
            "kl_mu_pi": mean(tf.reduce_sum(tf.exp(log_mu) * (log_mu - log_pi), axis=-1)),
            "num_transitions": tf.reduce_sum(mask_t),
        }
        return total, {name: tf.stop_gradient(metric) for name, metric in metrics.items()}

    return loss


def _gather(log_probabilities: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
    """Returns log_probabilities[t, b, action[t, b]], [T, B]."""
    return tf.gather(log_probabilities, action, batch_dims=2)
