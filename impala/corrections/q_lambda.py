"""Q(λ) with off-policy corrections (Harutyunyan et al. 2016, arXiv:1602.04951).

    c_s = λ

Fixed point: Q^π, guaranteed only for λ < (1 − γ) / (γ ε) with ε = max_x ‖π − μ‖₁; beyond it may diverge. With a π that
becomes greedy λ < (1 − γ) / (2 γ) is needed: the default of 1 has no guarantee. Range: λ in [0, 1]; λ = 0 is one-step
expected Sarsa.
"""

import tensorflow as tf

from impala.corrections.checks import check_lambda
from impala.corrections.q_targets import QTargets, q_targets


def q_lambda(
    *, q_tm1, q_t, a_tm1, r_t, discount_t, log_pi_tm1, log_pi_t, log_mu_tm1, mask_t=None, lambda_=1.0
) -> QTargets:  # fmt: skip
    """Returns Q(λ) targets; arguments as in `q_targets`."""
    check_lambda(lambda_)
    return q_targets(
        q_tm1=q_tm1, q_t=q_t, a_tm1=a_tm1, r_t=r_t, discount_t=discount_t, mask_t=mask_t,
        log_pi_tm1=log_pi_tm1, log_pi_t=log_pi_t, log_mu_tm1=log_mu_tm1,
        trace=lambda log_rho, log_pi: lambda_ * tf.ones_like(log_rho),
    )  # fmt: skip
