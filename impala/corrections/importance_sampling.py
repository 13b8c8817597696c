"""Importance sampling of action values, per decision, with Q as control variate (Munos et al. 2016, equation 3; the
doubly robust recursion of Jiang, Li 2016, arXiv:1511.03722). Precup, Sutton, Singh 2000 have it without Q.

    c_s = π/μ

Fixed point: Q^π, which one application over a long window reaches in expectation; unbounded variance. Parameters: none.
"""

import tensorflow as tf

from impala.corrections.q_targets import QTargets, q_targets


def importance_sampling(
    *, q_tm1, q_t, a_tm1, r_t, discount_t, log_pi_tm1, log_pi_t, log_mu_tm1, mask_t=None
) -> QTargets:  # fmt: skip
    """Returns importance sampled targets; arguments as in `q_targets`."""
    return q_targets(
        q_tm1=q_tm1, q_t=q_t, a_tm1=a_tm1, r_t=r_t, discount_t=discount_t, mask_t=mask_t,
        log_pi_tm1=log_pi_tm1, log_pi_t=log_pi_t, log_mu_tm1=log_mu_tm1,
        trace=lambda log_rho, log_pi: tf.exp(log_rho),
    )  # fmt: skip
