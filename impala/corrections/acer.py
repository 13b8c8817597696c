"""ACER: Retrace targets, and importance weights truncated with a bias correction (Wang et al. 2017, arXiv:1611.01224).

    target G_s: Retrace(1);   V_s = E_π Q(x_s, ·)
    Σ_b weight_b ∇ log π(b) = min(c, ρ(a_s)) (G_s − V_s) ∇ log π(a_s)
                              + E_{b~π} [(1 − c/ρ(b))₊ (Q(x_s, b) − V_s) ∇ log π(b)]

Fixed point: Q^π. With the exact Q the gradient is unbiased for every c. c = ∞: plain importance sampling; c = 0: the
expectation over all actions, by Q alone. Range: c ≥ 0; ACER uses 10.
"""

import math

import tensorflow as tf

from impala.corrections.q_targets import QTargets, checked, expected, taken
from impala.corrections.retrace import retrace
from impala.corrections.targets import clipped_exp


def acer(
    *, q_tm1, q_t, a_tm1, r_t, discount_t, log_pi_tm1, log_pi_t, log_mu_tm1, mask_t=None, truncation=10.0
) -> QTargets:  # fmt: skip
    """Returns Retrace(1) targets and ACER's policy weights; arguments as in `q_targets`, and c as `truncation`."""
    if not truncation >= 0.0:
        raise ValueError(f"truncation={truncation} is negative; expected 0 or more")
    q_tm1, q_t, a_tm1, r_t, discount_t, log_pi_tm1, log_pi_t, log_mu_tm1, mask_t = checked(
        q_tm1, q_t, a_tm1, r_t, discount_t, log_pi_tm1, log_pi_t, log_mu_tm1, mask_t
    )
    target_tm1 = retrace(
        q_tm1=q_tm1, q_t=q_t, a_tm1=a_tm1, r_t=r_t, discount_t=discount_t, mask_t=mask_t,
        log_pi_tm1=log_pi_tm1, log_pi_t=log_pi_t, log_mu_tm1=log_mu_tm1,
    ).target_tm1  # fmt: skip
    v_tm1 = expected(q_tm1, log_pi_tm1)
    log_rho_tm1 = taken(log_pi_tm1, a_tm1) - taken(log_mu_tm1, a_tm1)
    sampled_tm1 = clipped_exp(log_rho_tm1, truncation) * (target_tm1 - v_tm1)  # [T, B]
    # π(b) (1 − c/ρ(b))₊ = π(b) − min(π(b), c μ(b)), [T, B, A]
    log_truncation = math.log(truncation) if truncation else -math.inf
    left_over = tf.exp(log_pi_tm1) - tf.exp(tf.minimum(log_pi_tm1, log_mu_tm1 + log_truncation))
    one_hot = tf.one_hot(a_tm1, q_tm1.shape[-1], dtype=q_tm1.dtype)
    weight_tm1 = one_hot * sampled_tm1[..., None] + left_over * (q_tm1 - v_tm1[..., None])
    return QTargets(target_tm1, tf.stop_gradient(mask_t[..., None] * weight_tm1))


def trust_region(gradient, kl_gradient, delta: float = 1.0) -> tf.Tensor:
    """Projects a gradient onto the half-space kl_gradient · z ≤ δ (equation 12 of the paper).

    z* = g − max(0, (k·g − δ) / ‖k‖²) k,   k = ∇ KL(π_average ‖ π)

    Args:
      gradient, kl_gradient: [..., A], with respect to the statistics of the policy's distribution.
      delta: δ; infinity means no trust region.

    Returns:
      z* [..., A].
    """
    excess = tf.reduce_sum(kl_gradient * gradient, axis=-1, keepdims=True) - delta
    square = tf.reduce_sum(tf.square(kl_gradient), axis=-1, keepdims=True)
    return gradient - tf.math.divide_no_nan(tf.maximum(0.0, excess), square) * kl_gradient
