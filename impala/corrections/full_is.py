"""Ordinary importance sampling: the return times the product of all its ratios (Precup, Sutton, Singh 2000).

    G_s = (Π_{t=s}^{e} π/μ) R_s,   R_s = Σ_{t=s}^{e} γ^{t−s} r_t + γ^{e+1−s} V_{e+1},   e: end of the episode or unroll
    A_s = ρ_s (r_s + γ G_{s+1} − V_s), the causal form

Fixed point: V^π; unbiased, with a variance exponential in the length. Parameters: none.
"""

import tensorflow as tf

from impala import returns
from impala.corrections.none import none
from impala.corrections.targets import Targets, checked, corrected_targets


def full_is(*, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t=None) -> Targets:
    """Returns ordinary importance sampled returns and advantages; arguments as in `vtrace`."""
    v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t = checked(v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t)
    return weighted_returns(
        v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, log_rho_tm1=log_rho_tm1, mask_t=mask_t,
        weight_tm1=tf.exp(log_product(discount_t, log_rho_tm1, mask_t)), pg_weight_tm1=tf.exp(log_rho_tm1),
    )  # fmt: skip


def log_product(discount_t, log_rho_tm1, mask_t) -> tf.Tensor:
    """Returns Σ_{t=s}^{e} log ρ_t [T, B], up to the end of the episode or of the unroll."""
    goes_on_t = tf.cast(discount_t != 0.0, mask_t.dtype)  # a masked row ends the sum as well
    return returns.discounted_sum(
        x_t=mask_t * log_rho_tm1, decay_t=mask_t * goes_on_t, initial=tf.zeros_like(log_rho_tm1[0])
    )


def weighted_returns(
    *, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t, weight_tm1, pg_weight_tm1
) -> Targets:  # fmt: skip
    """Returns targets weight_s · R_s and advantages w_s (r_s + γ weight_{s+1} R_{s+1} − V_s)."""
    arguments = dict(
        v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, log_rho_tm1=log_rho_tm1, mask_t=mask_t
    )  # fmt: skip
    return corrected_targets(
        **arguments,
        correction_tm1=mask_t * (weight_tm1 * none(**arguments).target_tm1 - v_tm1),
        trace_tm1=tf.ones_like(v_tm1),
        pg_weight_tm1=pg_weight_tm1,
    )
