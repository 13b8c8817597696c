"""V-trace (Espeholt et al. 2018, arXiv:1802.01561, equation 1 and section 4.2).

    v_s = V_s + Σ_{t≥s} γ^{t−s} (Π_{i=s}^{t−1} c_i) ρ_t (r_t + γ V_{t+1} − V_t)
    ρ_t = min(ρ̄, π/μ),   c_i = λ min(c̄, π/μ),   A_s = min(ρ̄_pg, π/μ) (r_s + γ v_{s+1} − V_s)

Fixed point: the value of π_ρ̄(a|x) ∝ min(ρ̄ μ(a|x), π(a|x)); V^π for ρ̄ → ∞, V^μ for ρ̄ ≤ min π/μ. c̄ and λ change the
speed of contraction only. Ranges: ρ̄ ≥ c̄ ≥ 0, ρ̄_pg ≥ 0, λ in [0, 1].
"""

from typing import Literal

from impala.corrections.checks import check_clips, check_lambda
from impala.corrections.targets import Targets, clipped_exp, weighted_td_targets


def vtrace(
    *, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t=None, clip_rho=1.0, clip_c=1.0, clip_pg=1.0, lambda_=1.0,
    pg_bootstrap: Literal["target", "mixed"] = "target", allow_expansion=False,
) -> Targets:  # fmt: skip
    """Computes V-trace targets and policy-gradient advantages.

    Args:
      v_tm1: [T, B], V(x_s) before each transition.
      v_t: [T, B], V(x_{s+1}) after it; at a truncation that is the value of the episode's last observation.
      r_t: [T, B], rewards, already clipped where the loss clips.
      discount_t: [T, B], γ, or 0 at a termination.
      log_rho_tm1: [T, B], log π(a_s|x_s) − log μ(a_s|x_s); exponentiated only after clipping.
      mask_t: [T, B], 0 where there is no transition (across a reset); None means all ones.
      clip_rho, clip_c, clip_pg: ρ̄, c̄ and ρ̄_pg; infinity means unclipped.
      lambda_: λ, multiplies the trace weights c.
      pg_bootstrap: what the advantage bootstraps from; the choices differ for λ < 1 only. "target": v_{s+1} (the paper,
        SEED RL); "mixed": (1 − λ) V_{s+1} + λ v_{s+1} (RLax).
      allow_expansion: accept c̄ > ρ̄.

    Returns:
      `Targets`, both [T, B]; no gradient flows out. NaN where an input is not finite.

    Raises:
      ValueError: c̄ > ρ̄, for which the operator is not a contraction (Theorem 1); a parameter out of range; an argument
        whose shape or dtype is not that of `v_tm1`.
    """
    check_clips(clip_c, clip_rho, allow_expansion)
    check_lambda(lambda_)
    if pg_bootstrap not in ("target", "mixed"):
        raise ValueError(f"pg_bootstrap={pg_bootstrap!r}; expected 'target' or 'mixed'")
    return weighted_td_targets(
        v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, log_rho_tm1=log_rho_tm1, mask_t=mask_t,
        rho_tm1=clipped_exp(log_rho_tm1, clip_rho),
        c_tm1=lambda_ * clipped_exp(log_rho_tm1, clip_c),
        pg_weight_tm1=clipped_exp(log_rho_tm1, clip_pg, "clip_pg"),
        pg_trace_tm1=lambda_ if pg_bootstrap == "mixed" else 1.0,
    )  # fmt: skip
