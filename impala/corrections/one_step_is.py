"""One-step importance sampling: only the policy gradient is corrected (IMPALA, section 5.2.2).

    v_s as with no correction,   A_s = min(ρ̄_pg, π/μ) (r_s + γ v_{s+1} − V_s)

Fixed point: V^μ, the values are not corrected. For π = μ and ρ̄_pg ≥ 1 it is no correction. Range: ρ̄_pg ≥ 0.
"""

from impala.corrections.targets import Targets, clipped_exp, weighted_td_targets


def one_step_is(*, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t=None, clip_pg=1.0) -> Targets:
    """Returns n-step targets, and advantages weighted with the clipped ratio; arguments as in `vtrace`."""
    return weighted_td_targets(
        v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, log_rho_tm1=log_rho_tm1, mask_t=mask_t,
        rho_tm1=1.0, c_tm1=1.0, pg_weight_tm1=clipped_exp(log_rho_tm1, clip_pg, "clip_pg"),
    )  # fmt: skip
