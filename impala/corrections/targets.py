"""What every V-based correction computes, and the masking and checks that all of them share."""

import math
from typing import NamedTuple

import tensorflow as tf

from impala import returns


class Targets(NamedTuple):
    """Value targets and policy-gradient advantages."""

    target_tm1: tf.Tensor  # [T, B], what v_tm1 is regressed on; v_tm1 itself where masked
    advantage_tm1: tf.Tensor  # [T, B], weight of ∇ log π(a_tm1); 0 where masked


def weighted_td_targets(*, v_tm1, v_t, r_t, discount_t, mask_t, rho_tm1, c_tm1, pg_weight_tm1) -> Targets:
    """Computes the template of all V-based schemes, given its three weights.

    δ_s = ρ_s (r_s + γ_s V_{s+1} − V_s);   v_s = V_s + δ_s + γ_s c_s (v_{s+1} − V_{s+1}),   v_T = V_T
    A_s = w_s (r_s + γ_s v_{s+1} − V_s)

    V_{s+1} is `v_t`, so a truncated step can bootstrap from its own last observation. A masked transition leads into
    the first observation of another episode: its target is V_s, its advantage 0, and the trace through it is cut.

    Args:
      v_tm1, v_t, r_t, discount_t: [T, B], values before and after the transition, reward, γ or 0.
      mask_t: [T, B], 0 where the transition is none; None means all ones.
      rho_tm1, c_tm1, pg_weight_tm1: [T, B], weights of the TD error, of the trace, of the advantage.

    Returns:
      `Targets` without gradient.
    """
    tf.debugging.assert_shapes([(x, "TB") for x in (v_tm1, v_t, r_t, discount_t, rho_tm1, c_tm1, pg_weight_tm1)])
    mask_t = tf.ones_like(v_tm1) if mask_t is None else tf.cast(mask_t, v_tm1.dtype)
    td_error_tm1 = mask_t * rho_tm1 * (r_t + discount_t * v_t - v_tm1)
    correction_tm1 = returns.discounted_sum(  # v_s − V_s
        x_t=td_error_tm1, decay_t=mask_t * discount_t * c_tm1, initial=tf.zeros_like(v_tm1[0])
    )
    # v_{s+1} = V_{s+1} + (v_{s+1} − V_{s+1}); across a mask the next row's correction is 0 by construction of the mask.
    next_correction_t = tf.concat([correction_tm1[1:], tf.zeros_like(correction_tm1[:1])], axis=0)
    advantage_tm1 = mask_t * pg_weight_tm1 * (r_t + discount_t * (v_t + next_correction_t) - v_tm1)
    return Targets(tf.stop_gradient(v_tm1 + correction_tm1), tf.stop_gradient(advantage_tm1))


def clipped_exp(log_rho: tf.Tensor, clip: float) -> tf.Tensor:
    """Returns min(clip, exp(log_rho)), clipped before it is exponentiated so that no large ratio overflows."""
    log_rho = tf.convert_to_tensor(log_rho)
    if clip <= 0.0:
        return tf.zeros_like(log_rho)
    return tf.exp(tf.minimum(log_rho, math.log(clip)))
