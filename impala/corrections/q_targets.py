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
    """Computes what all Q-based schemes share, given the trace weights c by which they differ.

    G_s = r_s + γ_s [E_π Q(x_{s+1}, ·) + c_{s+1} (G_{s+1} − Q(x_{s+1}, a_{s+1}))],   c_T = 0

    The trace weight of the action taken in x_s itself does not enter G_s. The policy weight is π/μ(a_s) (G_s − V_s) for
    the action taken, with V_s = E_π Q(x_s, ·), and 0 for the others: unclipped importance sampling.

    Args:
      q_tm1, q_t: [T, B, A], Q(x_s, ·) and Q(x_{s+1}, ·).
      a_tm1: [T, B], actions taken.
      r_t, discount_t: [T, B], rewards, and γ, or 0 at a termination.
      log_pi_tm1, log_pi_t, log_mu_tm1: [T, B, A], log-probabilities of the target policy in x_s and x_{s+1}, and of the
        behaviour policy in x_s.
      mask_t: [T, B], 0 where there is no transition (across a reset); None means all ones.
      trace: (log π/μ, log π of the actions taken) → c, all [T, B].

    Returns:
      `QTargets` without gradient; NaN where an input is not finite.

    Raises:
      ValueError: naming the argument whose shape or dtype is not as above.
    """
    q_tm1, q_t, a_tm1, r_t, discount_t, log_pi_tm1, log_pi_t, log_mu_tm1, mask_t = checked(
        q_tm1, q_t, a_tm1, r_t, discount_t, log_pi_tm1, log_pi_t, log_mu_tm1, mask_t
    )
    qa_tm1 = taken(q_tm1, a_tm1)
    v_tm1, v_t = expected(q_tm1, log_pi_tm1), expected(q_t, log_pi_t)
    log_rho_tm1 = taken(log_pi_tm1, a_tm1) - taken(log_mu_tm1, a_tm1)
    c_tm1 = trace(log_rho_tm1, taken(log_pi_tm1, a_tm1))
    next_c_tm1 = tf.concat([c_tm1[1:], tf.zeros_like(c_tm1[:1])], axis=0)
    correction_tm1 = returns.discounted_sum(  # G_s − Q(x_s, a_s)
        x_t=mask_t * (r_t + discount_t * v_t - qa_tm1),
        # After a termination the next episode's ratio must not count, even if it overflows.
        decay_t=tf.math.multiply_no_nan(next_c_tm1, mask_t * discount_t),
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


def checked(q_tm1, q_t, a_tm1, r_t, discount_t, log_pi_tm1, log_pi_t, log_mu_tm1, mask_t) -> list[tf.Tensor]:
    """Returns the nine arguments of a Q-based scheme as tensors that agree; a mask of None as ones.

    Where masked, μ is set to π: the action across a reset is arbitrary; its ratio must not count, even if it overflows.
    """
    q_tm1 = tf.convert_to_tensor(q_tm1)
    if q_tm1.shape.rank != 3:
        raise ValueError(f"q_tm1 has shape {tuple(q_tm1.shape)}; expected [T, B, A]")
    tensors = {name: tf.convert_to_tensor(x) for name, x in (
        ("q_t", q_t), ("a_tm1", a_tm1), ("r_t", r_t), ("discount_t", discount_t), ("log_pi_tm1", log_pi_tm1),
        ("log_pi_t", log_pi_t), ("log_mu_tm1", log_mu_tm1),
    )}  # fmt: skip
    tensors["mask_t"] = tf.ones_like(q_tm1[..., 0]) if mask_t is None else tf.cast(mask_t, q_tm1.dtype)
    for name, x in tensors.items():
        shape = q_tm1.shape if name.startswith(("q_", "log_")) else q_tm1.shape[:2]
        if not shape.is_compatible_with(x.shape):
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {tuple(shape)}")
        if name == "a_tm1" and not x.dtype.is_integer:
            raise ValueError(f"a_tm1 is {x.dtype.name}; expected integers")
        if name != "a_tm1" and x.dtype != q_tm1.dtype:
            raise ValueError(f"{name} is {x.dtype.name}; expected {q_tm1.dtype.name}, the dtype of q_tm1")
    log_mu_tm1, is_masked = tensors["log_mu_tm1"], tensors["mask_t"][..., None] == 0.0
    is_arbitrary = is_masked & tf.math.is_finite(log_mu_tm1)
    tensors["log_mu_tm1"] = tf.where(is_arbitrary, tensors["log_pi_tm1"], log_mu_tm1)
    return [q_tm1, *tensors.values()]


def taken(x_tm1, a_tm1) -> tf.Tensor:
    """Returns x_tm1[t, b, a_tm1[t, b]], [T, B]."""
    return tf.gather(x_tm1, a_tm1, batch_dims=2)


def expected(q, log_pi) -> tf.Tensor:
    """Returns E_π Q [T, B]."""
    return tf.reduce_sum(tf.exp(log_pi) * q, axis=-1)
