"""Upgoing policy update (Vinyals et al. 2019, "Grandmaster level in StarCraft II", methods).

    G_s = r_s + γ (G_{s+1} if r_{s+1} + γ V_{s+2} ≥ V_{s+1} else V_{s+1}),   A_s = min(ρ̄_pg, π/μ) (G_s − V_s)

A λ-return whose λ in {0, 1} depends on the data: it follows the data where they beat expectation, is biased upwards on
purpose, and has no fixed point of its own. All better: the n-step return; all worse: one step. AlphaStar used it for
the policy in addition to V-trace, and TD(λ) for the values; here V is regressed on G too, and grows optimistic with it.
Range: ρ̄_pg ≥ 0.
"""

import tensorflow as tf

from impala.corrections.targets import Targets, checked, clipped_exp, weighted_td_targets


def upgo(*, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t=None, clip_pg=1.0) -> Targets:
    """Returns upgoing returns and their advantages; arguments as in `vtrace`."""
    v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t = checked(v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t)
    is_better_tm1 = tf.cast(r_t + discount_t * v_t >= v_tm1, v_tm1.dtype)
    next_is_better_tm1 = tf.concat([is_better_tm1[1:], tf.zeros_like(is_better_tm1[:1])], axis=0)
    return weighted_td_targets(
        v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, log_rho_tm1=log_rho_tm1, mask_t=mask_t,
        rho_tm1=1.0, c_tm1=next_is_better_tm1, pg_weight_tm1=clipped_exp(log_rho_tm1, clip_pg, "clip_pg"),
        pg_trace_tm1=next_is_better_tm1,
    )  # fmt: skip
