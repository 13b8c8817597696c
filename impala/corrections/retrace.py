"""Retrace(λ) (Munos et al. 2016, arXiv:1606.02647).

    c_s = λ min(1, π/μ)

Fixed point: Q^π for any μ and λ in [0, 1], a γ-contraction. On policy Retrace(1) is not the n-step return: it keeps the
terms E_π Q − Q(a), of mean zero. Range: λ in [0, 1].
"""

from impala.corrections.checks import check_lambda
from impala.corrections.q_targets import QTargets, q_targets
from impala.corrections.targets import clipped_exp


def retrace(
    *, q_tm1, q_t, a_tm1, r_t, discount_t, log_pi_tm1, log_pi_t, log_mu_tm1, mask_t=None, lambda_=1.0
) -> QTargets:  # fmt: skip
    """Returns Retrace targets; arguments as in `q_targets`."""
    check_lambda(lambda_)
    return q_targets(
        q_tm1=q_tm1, q_t=q_t, a_tm1=a_tm1, r_t=r_t, discount_t=discount_t, mask_t=mask_t,
        log_pi_tm1=log_pi_tm1, log_pi_t=log_pi_t, log_mu_tm1=log_mu_tm1,
        trace=lambda log_rho, log_pi: lambda_ * clipped_exp(log_rho, 1.0),
    )  # fmt: skip
