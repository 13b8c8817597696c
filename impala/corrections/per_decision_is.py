"""Per-decision importance sampling (Precup, Sutton, Singh 2000; with control variate Sutton et al. 2014).

    without:  G_s = ρ_s (r_s + γ G_{s+1}),   G_T = V_T                    ρ_s = π/μ, unclipped
    with:     G_s = ρ_s (r_s + γ G_{s+1}) + (1 − ρ_s) V_s
    A_s = ρ_s (r_s + γ G_{s+1} − V_s), the causal form: ratios of earlier actions are left out

Fixed point: V^π for both, which agree in expectation, not per sample; the control variate, which is V-trace without
clips, only lowers the variance. Ratios are unbounded, so is the variance. Parameters: control_variate.
"""

import math

import tensorflow as tf

from impala import returns
from impala.corrections.targets import Targets, checked, clipped_exp, corrected_targets


def per_decision_is(
    *, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t=None, control_variate=True
) -> Targets:  # fmt: skip
    """Returns per-decision importance sampled returns and advantages; arguments as in `vtrace`."""
    v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t = checked(v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t)
    rho_tm1 = clipped_exp(log_rho_tm1, math.inf)
    baseline_tm1 = rho_tm1 * v_tm1 if control_variate else v_tm1
    correction_tm1 = returns.discounted_sum(  # G_s − V_s
        x_t=mask_t * (rho_tm1 * (r_t + discount_t * v_t) - baseline_tm1),
        decay_t=mask_t * discount_t * rho_tm1,
        initial=tf.zeros_like(v_tm1[0]),
    )
    return corrected_targets(
        v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, log_rho_tm1=log_rho_tm1, mask_t=mask_t,
        correction_tm1=correction_tm1, trace_tm1=rho_tm1, pg_weight_tm1=rho_tm1,
    )  # fmt: skip
