"""What every Q-based correction computes (Munos et al. 2016, arXiv:1606.02647, equation 3)."""

import math
from typing import NamedTuple

import tensorflow as tf

from impala import returns


class QTargets(NamedTuple):
    """Action-value targets, and an estimate of the policy gradient."""

    target_tm1: tf.Tensor  # [T, B], what Q(x_s, a_s) is regressed on; Q(x_s, a_s) itself where masked
    policy_weight_tm1: tf.Tensor  # [T, B, A], weight of ∇ log π(b|x_s) for every action b; 0 where masked


def q_targets(
    *, q_tm1, q_t, a_tm1, r_t, discount_t, log_pi_tm1, log_pi_t, log_mu_tm1, mask_t=None, trace
) -> QTargets:  # fmt: skip
    """Computes the template of the Q-based schemes, given how they cut traces.

    G_s = r_s + γ_s [E_π Q(x_{s+1}, ·) + c_{s+1} (G_{s+1} − Q(x_{s+1}, a_{s+1}))],   c_T = 0

    The trace weight of the action taken in x_s itself does not enter G_s. The policy weight is π/μ(a_s) (G_s − V_s) for
    the action taken, with V_s = E_π Q(x_s, ·), and 0 for the others: unclipped importance sampling.

    Args:
      q_tm1, q_t: [T, B, A], Q(x_s, ·) and Q(x_{s+1}, ·).
      a_tm1: [T, B], actions taken.
      r_t, discount_t: [T, B], rewards, and γ, or 0 at a termination.
      log_pi_tm1, log_pi_t, log_mu_tm1: [T, B, A], log-probabilities of the target policy in x_s and x_{s+1}, and of the
        behaviour policy in x_s.
      mask_t: [T, B], 0 where the transition is none; None means all ones.
      trace: (log π/μ, log π of the actions taken) → c, all [T, B].

    Returns:
      `QTargets` without gradient; NaN where an input is not finite.

    Raises:
      ValueError: naming the argument whose shape is not as above.
    """
    check_shapes(
        q_tm1, q_t=q_t, log_pi_tm1=log_pi_tm1, log_pi_t=log_pi_t, log_mu_tm1=log_mu_tm1, a_tm1=a_tm1, r_t=r_t,
        discount_t=discount_t, mask_t=r_t if mask_t is None else mask_t,
    )  # fmt: skip
    mask_t = tf.ones_like(r_t) if mask_t is None else tf.cast(mask_t, q_tm1.dtype)
    qa_tm1 = taken(q_tm1, a_tm1)
    v_tm1, v_t = expected(q_tm1, log_pi_tm1), expected(q_t, log_pi_t)
    log_rho_tm1 = taken(log_pi_tm1, a_tm1) - taken(log_mu_tm1, a_tm1)
    c_tm1 = trace(log_rho_tm1, taken(log_pi_tm1, a_tm1))
    next_c_tm1 = tf.concat([c_tm1[1:], tf.zeros_like(c_tm1[:1])], axis=0)
    correction_tm1 = returns.discounted_sum(  # G_s − Q(x_s, a_s)
        x_t=mask_t * (r_t + discount_t * v_t - qa_tm1),
        decay_t=mask_t * discount_t * next_c_tm1,
        initial=tf.zeros_like(qa_tm1[0]),
    )
    target_tm1 = tf.stop_gradient(qa_tm1 + correction_tm1 + poison(log_pi_tm1, log_pi_t, log_mu_tm1))
    weight_tm1 = mask_t * tf.exp(log_rho_tm1) * (target_tm1 - v_tm1)
    one_hot = tf.one_hot(a_tm1, q_tm1.shape[-1], dtype=q_tm1.dtype)
    return QTargets(target_tm1, tf.stop_gradient(weight_tm1[..., None] * one_hot))


def poison(*log_probabilities) -> tf.Tensor:
    """Returns NaN [T, B] where one of [T, B, A] is not finite, which clips and small traces would hide; 0 elsewhere."""
    finite_tm1 = tf.reduce_all([tf.reduce_all(tf.math.is_finite(x), axis=-1) for x in log_probabilities], axis=0)
    zero = tf.zeros_like(log_probabilities[0][..., 0])
    return tf.where(finite_tm1, zero, tf.constant(math.nan, zero.dtype))


def check_shapes(q_tm1, **arguments) -> None:
    """Raises ValueError naming the argument that is not [T, B, A] or [T, B] as `q_tm1` says."""
    shape = tf.TensorShape(q_tm1.shape)
    if shape.rank != 3:
        raise ValueError(f"q_tm1 has shape {tuple(shape)}; expected [T, B, A]")
    for name, x in arguments.items():
        expected_shape = shape if name.startswith(("q_", "log_")) else shape[:2]
        if not expected_shape.is_compatible_with(x.shape):
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {tuple(expected_shape)}")


def taken(x_tm1, a_tm1) -> tf.Tensor:
    """Returns x_tm1[t, b, a_tm1[t, b]], [T, B]."""
    return tf.gather(x_tm1, a_tm1, batch_dims=2)


def expected(q, log_pi) -> tf.Tensor:
    """Returns E_π Q [T, B]."""
    return tf.reduce_sum(tf.exp(log_pi) * q, axis=-1)
