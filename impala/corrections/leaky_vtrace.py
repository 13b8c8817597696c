"""Leaky V-trace (Zahavy et al. 2020, "A self-tuning actor-critic algorithm", arXiv:2002.12928, section 4).

    ρ_t = α_ρ min(ρ̄, π/μ) + (1 − α_ρ) π/μ,   c_t = λ [α_c min(c̄, π/μ) + (1 − α_c) π/μ]
    targets as in V-trace,   A_s = [α_ρ min(ρ̄_pg, π/μ) + (1 − α_ρ) π/μ] (r_s + γ v_{s+1} − V_s)

Fixed point: the value of the policy ∝ α_ρ min(ρ̄ μ, π) + (1 − α_ρ) π. α = 1 is V-trace, α = 0 per-decision importance
sampling. Ranges: α in [0, 1]; α_ρ ≤ α_c and c̄ ≤ ρ̄ are sufficient for a contraction. Ratios are unbounded for α < 1.
"""

import math

from impala.corrections.checks import check_clips, check_lambda
from impala.corrections.targets import Targets, checked, clipped_exp, weighted_td_targets


def leaky_vtrace(
    *, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t=None, clip_rho=1.0, clip_c=1.0, clip_pg=1.0, lambda_=1.0,
    alpha_rho=0.5, alpha_c=0.5, allow_expansion=False,
) -> Targets:  # fmt: skip
    """Returns leaky V-trace targets and advantages; arguments as in `vtrace`, and `alpha_rho`, `alpha_c` as above."""
    check_clips(clip_c, clip_rho, allow_expansion)
    check_lambda(lambda_)
    if not (0.0 <= alpha_rho <= 1.0 and 0.0 <= alpha_c <= 1.0):
        raise ValueError(f"alpha_rho={alpha_rho}, alpha_c={alpha_c}; expected both in [0, 1]")
    if alpha_rho > alpha_c and not allow_expansion:
        raise ValueError(f"alpha_rho={alpha_rho} > alpha_c={alpha_c} may expand; lower it, or allow_expansion")
    v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t = checked(v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t)

    def leaky(alpha: float, clip: float, name: str):
        clipped = clipped_exp(log_rho_tm1, clip, name)
        return clipped if alpha == 1.0 else alpha * clipped + (1.0 - alpha) * clipped_exp(log_rho_tm1, math.inf)

    return weighted_td_targets(
        v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, log_rho_tm1=log_rho_tm1, mask_t=mask_t,
        rho_tm1=leaky(alpha_rho, clip_rho, "clip_rho"), c_tm1=lambda_ * leaky(alpha_c, clip_c, "clip_c"),
        pg_weight_tm1=leaky(alpha_rho, clip_pg, "clip_pg"),
    )  # fmt: skip
