"""Weighted importance sampling: products of ratios divided by their mean in the batch (Precup, Sutton, Singh 2000).

    G_s = P_s / mean_b(P_s) · R_s,   P_s = Π_{t=s}^{e} π/μ and R_s as in full_is, the mean over the batch at each time
    A_s = ρ_s / mean_b(ρ_s) (r_s + γ G_{s+1} − V_s)

Fixed point: V^π in the limit of large batches; biased (a batch of one is not corrected at all), consistent, and of a
smaller variance than ordinary importance sampling: no weight exceeds the batch size. Parameters: none.
"""

import tensorflow as tf

from impala.corrections.full_is import log_product, weighted_returns
from impala.corrections.targets import Targets, checked


def weighted_is(*, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t=None) -> Targets:
    """Returns weighted importance sampled returns and advantages; arguments as in `vtrace`."""
    v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t = checked(v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t)
    return weighted_returns(
        v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, log_rho_tm1=log_rho_tm1, mask_t=mask_t,
        weight_tm1=over_batch_mean(log_product(discount_t, log_rho_tm1, mask_t), mask_t),
        pg_weight_tm1=over_batch_mean(log_rho_tm1, mask_t),
    )  # fmt: skip


def over_batch_mean(log_weight_tm1: tf.Tensor, mask_t: tf.Tensor) -> tf.Tensor:
    """Returns exp(log_weight) / mean_b exp(log_weight) [T, B] over what is not masked, without an overflow."""
    masked = tf.constant(-1e30, log_weight_tm1.dtype)
    shares = tf.nn.softmax(tf.where(mask_t != 0.0, log_weight_tm1, masked), axis=1)
    return tf.reduce_sum(mask_t, axis=1, keepdims=True) * shares
