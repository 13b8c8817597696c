"""Peng's Q(λ) (Peng, Williams 1994; Kozuno et al. 2021, arXiv:2103.00107): no trace is ever cut.

    G_s = r_s + γ_s [(1 − λ) E_π Q(x_{s+1}, ·) + λ G_{s+1}],   G_{T−1} = r_{T−1} + γ_{T−1} E_π Q(x_T, ·)

λ = 1 is the uncorrected n-step return. Fixed point of long windows: Q of the policy (1 − λ) π + λ μ, biased towards μ;
it contracts for every λ, the faster the larger λ is. Range: λ in [0, 1].
"""

import tensorflow as tf

from impala import returns
from impala.corrections.checks import check_lambda
from impala.corrections.q_targets import QTargets, checked, expected, poison, taken


def peng_q_lambda(
    *, q_tm1, q_t, a_tm1, r_t, discount_t, log_pi_tm1, log_pi_t, log_mu_tm1, mask_t=None, lambda_=1.0
) -> QTargets:  # fmt: skip
    """Returns Peng's Q(λ) targets; arguments as in `q_targets`."""
    check_lambda(lambda_)
    q_tm1, q_t, a_tm1, r_t, discount_t, log_pi_tm1, log_pi_t, log_mu_tm1, mask_t = checked(
        q_tm1, q_t, a_tm1, r_t, discount_t, log_pi_tm1, log_pi_t, log_mu_tm1, mask_t
    )
    qa_tm1, v_tm1, v_t = taken(q_tm1, a_tm1), expected(q_tm1, log_pi_tm1), expected(q_t, log_pi_t)
    goes_on_t = lambda_ * tf.concat([mask_t[1:], tf.zeros_like(mask_t[:1])], axis=0)  # no return follows a reset
    unmasked = returns.discounted_sum(
        x_t=mask_t * (r_t + tf.math.multiply_no_nan(v_t, discount_t * (1.0 - goes_on_t))),
        decay_t=mask_t * discount_t * goes_on_t,
        initial=tf.zeros_like(qa_tm1[0]),
    )
    bad = poison(log_pi_tm1, log_pi_t, log_mu_tm1) + 0.0 * (qa_tm1 + v_t)  # keeps NaNs that λ or a termination drops
    target_tm1 = tf.stop_gradient(tf.where(mask_t > 0.0, unmasked, qa_tm1) + bad)
    log_rho_tm1 = taken(log_pi_tm1, a_tm1) - taken(log_mu_tm1, a_tm1)
    weight_tm1 = mask_t * tf.exp(log_rho_tm1) * (target_tm1 - v_tm1)
    one_hot = tf.one_hot(a_tm1, q_tm1.shape[-1], dtype=q_tm1.dtype)
    return QTargets(target_tm1, tf.stop_gradient(weight_tm1[..., None] * one_hot))
