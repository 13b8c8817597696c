"""TD(λ) targets and generalised advantages, without correction (Sutton 1988; Schulman et al. 2016, arXiv:1506.02438).

    A_s = Σ_{t≥s} (γλ)^{t−s} δ_t,   v_s = V_s + A_s

Fixed point: V^μ. λ = 1 is the n-step return, λ = 0 one step. Range: λ in [0, 1].
"""

from impala.corrections.checks import check_lambda
from impala.corrections.targets import Targets, weighted_td_targets


def td_lambda(*, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t=None, lambda_=1.0) -> Targets:
    """Returns λ-returns and A = v − V, ignoring `log_rho_tm1`; arguments as in `vtrace`."""
    check_lambda(lambda_)
    return weighted_td_targets(
        v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, log_rho_tm1=log_rho_tm1, mask_t=mask_t,
        rho_tm1=1.0, c_tm1=lambda_, pg_weight_tm1=1.0, pg_trace_tm1=lambda_,
    )  # fmt: skip
