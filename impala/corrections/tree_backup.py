"""Tree-backup(λ) (Precup, Sutton, Singh 2000).

    c_s = λ π(a_s|x_s)

Fixed point: Q^π for any μ, which need not be known; it cuts traces even on policy. Range: λ in [0, 1].
"""

import tensorflow as tf

from impala.corrections.checks import check_lambda
from impala.corrections.q_targets import QTargets, q_targets


def tree_backup(
    *, q_tm1, q_t, a_tm1, r_t, discount_t, log_pi_tm1, log_pi_t, log_mu_tm1, mask_t=None, lambda_=1.0
) -> QTargets:  # fmt: skip
    """Returns tree-backup targets; arguments as in `q_targets`."""
    check_lambda(lambda_)
    return q_targets(
        q_tm1=q_tm1, q_t=q_t, a_tm1=a_tm1, r_t=r_t, discount_t=discount_t, mask_t=mask_t,
        log_pi_tm1=log_pi_tm1, log_pi_t=log_pi_t, log_mu_tm1=log_mu_tm1,
        trace=lambda log_rho, log_pi: lambda_ * tf.exp(log_pi),
    )  # fmt: skip
