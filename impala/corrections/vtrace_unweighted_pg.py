"""V-trace whose advantages are not weighted with the ratio, as in SEED RL's policy-gradient package.

    v_s as in V-trace,   A_s = r_s + γ [(1 − λ) V_{s+1} + λ v_{s+1}] − V_s

Fixed point: that of V-trace. In the policy gradient actions count as often as μ took them. Ranges: ρ̄ ≥ c̄ ≥ 0, λ in
[0, 1].
"""

from impala.corrections.checks import check_clips, check_lambda
from impala.corrections.targets import Targets, clipped_exp, weighted_td_targets


def vtrace_unweighted_pg(
    *, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t=None, clip_rho=1.0, clip_c=1.0, lambda_=1.0,
    allow_expansion=False,
) -> Targets:  # fmt: skip
    """Returns V-trace targets and unweighted advantages; arguments as in `vtrace`."""
    check_clips(clip_c, clip_rho, allow_expansion)
    check_lambda(lambda_)
    return weighted_td_targets(
        v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, log_rho_tm1=log_rho_tm1, mask_t=mask_t,
        rho_tm1=clipped_exp(log_rho_tm1, clip_rho), c_tm1=lambda_ * clipped_exp(log_rho_tm1, clip_c),
        pg_weight_tm1=1.0, pg_trace_tm1=lambda_,
    )  # fmt: skip
