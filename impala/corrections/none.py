"""No correction: the n-step return of stale data (IMPALA, section 5.2.2).

    v_s = V_s + Σ_{t≥s} γ^{t−s} δ_t,   A_s = r_s + γ v_{s+1} − V_s

Fixed point: V^μ, the value of the behaviour policy. Exact when π = μ. Parameters: none.
"""

from impala.corrections.targets import Targets, weighted_td_targets


def none(*, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t=None) -> Targets:
    """Returns n-step targets and advantages, ignoring `log_rho_tm1`; arguments as in `vtrace`."""
    return weighted_td_targets(
        v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, log_rho_tm1=log_rho_tm1, mask_t=mask_t,
        rho_tm1=1.0, c_tm1=1.0, pg_weight_tm1=1.0,
    )  # fmt: skip
