"""LASER's trust region: transitions whose behaviour policy is too far from π are left out (Schmitt et al. 2020,
arXiv:1909.11583, section 4).

    trusted iff KL(π(·|x_s) ‖ π_ρ̄(·|x_s)) < b,   π_ρ̄ ∝ min(ρ̄ μ, π), the policy that V-trace evaluates

The trace is cut at an untrusted state, which bootstraps, and its transition enters no loss. The test depends on the
state only: rejecting by action would bias. The entropy bonus counts on fresh data only. Fixed point of the value:
V-trace's for the trusted states, given the values of the others, which nothing changes. Limits: b = ∞ is V-trace with
the entropy bonus on fresh data only; on policy everything is trusted. Range: b > 0; the paper does not publish its own.
"""

import math

import tensorflow as tf

from impala.losses.actor_critic import Rows, Terms, entropy


def laser(trust_threshold: float = 0.1, clip_rho: float = 1.0) -> Terms:
    """Returns IMPALA's terms under the trust region b = `trust_threshold`."""
    if not (trust_threshold > 0.0 and clip_rho > 0.0):
        raise ValueError(f"trust_threshold={trust_threshold}, clip_rho={clip_rho}; expected both more than 0")

    def is_trusted(rows: Rows):
        return tf.cast(relevance(rows.pi_tm1, rows.mu_tm1, clip_rho) < trust_threshold, rows.v_tm1.dtype)

    def fresh_entropy(rows: Rows):
        return (1.0 - rows.is_replayed) * entropy(rows)

    return Terms(entropy=fresh_entropy, is_trusted=is_trusted)


def relevance(log_pi: tf.Tensor, log_mu: tf.Tensor, clip_rho: float) -> tf.Tensor:
    """Returns KL(π ‖ π_ρ̄) of distributions [..., A]."""
    implied = tf.nn.log_softmax(tf.minimum(log_mu + math.log(clip_rho), log_pi))
    return tf.reduce_sum(tf.exp(log_pi) * (log_pi - implied), axis=-1)
