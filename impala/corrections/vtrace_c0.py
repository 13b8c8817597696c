"""V-trace without traces: one step, with a clipped ratio (c̄ = 0 of IMPALA's equation 1).

    v_s = V_s + min(ρ̄, π/μ) (r_s + γ V_{s+1} − V_s),   A_s = min(ρ̄_pg, π/μ) (r_s + γ v_{s+1} − V_s)

Fixed point: that of V-trace, the value of π_ρ̄, reached more slowly. Ranges: ρ̄, ρ̄_pg ≥ 0.
"""

from impala.corrections.targets import Targets
from impala.corrections.vtrace import vtrace


def vtrace_c0(
    *, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t=None, clip_rho=1.0, clip_pg=1.0
) -> Targets:  # fmt: skip
    """Returns `vtrace` with c̄ = 0; arguments as there."""
    return vtrace(
        v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, log_rho_tm1=log_rho_tm1, mask_t=mask_t,
        clip_rho=clip_rho, clip_c=0.0, clip_pg=clip_pg,
    )  # fmt: skip
