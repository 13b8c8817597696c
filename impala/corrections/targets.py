"""What every V-based correction computes, and the checks and masking that all of them share."""

import math
from typing import NamedTuple

import tensorflow as tf

from impala import returns
from impala.corrections.checks import check_like


class Targets(NamedTuple):
    """Value targets and policy-gradient advantages."""

    target_tm1: tf.Tensor  # [T, B], what v_tm1 is regressed on; v_tm1 itself where masked
    advantage_tm1: tf.Tensor  # [T, B], weight of ∇ log π(a_tm1); 0 where masked


class TracedTargets(Targets):
    """Targets with c_s as an attribute, for telemetry; not as a third field, since targets unpack as a pair."""

    trace_tm1: tf.Tensor  # [T, B]


def weighted_td_targets(
    *, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t, rho_tm1, c_tm1, pg_weight_tm1, pg_trace_tm1=1.0
) -> TracedTargets:
    """Computes what all V-based schemes share, given the weights by which they differ.

    δ_s = ρ_s (r_s + γ_s V_{s+1} − V_s);   v_s = V_s + δ_s + γ_s c_s (v_{s+1} − V_{s+1}),   v_T = V_T
    A_s = w_s (r_s + γ_s [V_{s+1} + b_s (v_{s+1} − V_{s+1})] − V_s)

    V_{s+1} is `v_t`, so a truncated step can bootstrap from its own last observation. A masked transition leads into
    the first observation of another episode: its target is V_s, its advantage 0, and the trace through it is cut.

    Args:
      v_tm1, v_t, r_t, discount_t: [T, B], values before and after the transition, reward, γ or 0.
      log_rho_tm1: [T, B]; only searched for values that are not finite.
      mask_t: [T, B], 0 where there is no transition (across a reset); None means all ones.
      rho_tm1, c_tm1, pg_weight_tm1: weights ρ of the TD error, c of the trace, w of the advantage; [T, B] or numbers.
      pg_trace_tm1: b, how much of v_{s+1} the advantage bootstraps from; [T, B] or a number.

    Returns:
      `TracedTargets` without gradient; NaN where an input is not finite.

    Raises:
      ValueError: naming the argument whose shape or dtype is not that of `v_tm1`.
    """
    v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t = checked(v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t)
    rho_tm1, c_tm1, pg_weight_tm1 = (  # 0 where masked, even if a ratio overflowed
        tf.math.multiply_no_nan(w * tf.ones_like(v_tm1), mask_t) for w in (rho_tm1, c_tm1, pg_weight_tm1)
    )
    correction_tm1 = returns.discounted_sum(  # v_s − V_s
        x_t=rho_tm1 * (r_t + discount_t * v_t - v_tm1),
        decay_t=discount_t * c_tm1,
        initial=tf.zeros_like(v_tm1[0]),
    )
    return corrected_targets(
        v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, log_rho_tm1=log_rho_tm1, mask_t=mask_t,
        correction_tm1=correction_tm1, trace_tm1=c_tm1, pg_weight_tm1=pg_weight_tm1, pg_trace_tm1=pg_trace_tm1,
    )  # fmt: skip


def corrected_targets(
    *, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t, correction_tm1, trace_tm1, pg_weight_tm1, pg_trace_tm1=1.0
) -> TracedTargets:
    """Makes targets and advantages from `correction_tm1` = v_s − V_s [T, B], which is 0 where masked."""
    nan = tf.constant(math.nan, v_tm1.dtype)
    poison_tm1 = tf.where(tf.math.is_finite(log_rho_tm1), tf.zeros_like(v_tm1), nan)  # clipping would hide infinities
    # v_{s+1} − V_{s+1}; 0 if row s + 1 is masked.
    next_correction_t = tf.concat([correction_tm1[1:], tf.zeros_like(correction_tm1[:1])], axis=0)
    q_tm1 = r_t + discount_t * v_t + tf.math.multiply_no_nan(pg_trace_tm1 * next_correction_t, discount_t)
    targets = TracedTargets(
        tf.stop_gradient(v_tm1 + correction_tm1 + poison_tm1),
        tf.stop_gradient(mask_t * pg_weight_tm1 * (q_tm1 - v_tm1) + poison_tm1),
    )
    targets.trace_tm1 = tf.stop_gradient(trace_tm1)
    return targets


def checked(v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t) -> list[tf.Tensor]:
    """Returns the six arguments of a V-based scheme as tensors of one shape and dtype; a mask of None as ones.

    Where masked, log ρ is set to 0: the action across a reset is arbitrary; its ratio must not count, even if it
    overflows.
    """
    v_tm1 = tf.convert_to_tensor(v_tm1)
    if v_tm1.shape.rank != 2:
        raise ValueError(f"v_tm1 has shape {tuple(v_tm1.shape)}; expected [T, B]")
    tensors = [v_tm1]
    for name, x in (("v_t", v_t), ("r_t", r_t), ("discount_t", discount_t), ("log_rho_tm1", log_rho_tm1)):
        x = tf.convert_to_tensor(x)
        check_like(name, x, v_tm1)
        tensors.append(x)
    mask_t = tf.ones_like(v_tm1) if mask_t is None else tf.cast(mask_t, v_tm1.dtype)
    check_like("mask_t", mask_t, v_tm1)
    *others, log_rho_tm1 = tensors
    is_arbitrary = (mask_t == 0.0) & tf.math.is_finite(log_rho_tm1)
    return [*others, tf.where(is_arbitrary, tf.zeros_like(log_rho_tm1), log_rho_tm1), mask_t]


def clipped_exp(log_rho: tf.Tensor, clip: float, name: str = "clip") -> tf.Tensor:
    """Returns min(clip, exp(log_rho)), clipped before it is exponentiated so that no large ratio overflows.

    Raises:
      ValueError: the clip, called `name`, is negative.
    """
    log_rho = tf.convert_to_tensor(log_rho)
    if not clip >= 0.0:
        raise ValueError(f"{name}={clip} is negative; expected 0 or more")
    if clip == 0.0:
        return tf.zeros_like(log_rho)
    return tf.exp(tf.minimum(log_rho, math.log(clip)))
