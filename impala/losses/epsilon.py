"""ε-correction of the policy gradient, which keeps log π bounded where π rarely takes μ's actions (GA3C; IMPALA 5.2.2).

Targets and advantages are those of `none`. Fixed point of the value: V^μ. Limits: ε → 0 is no correction; in the
papers' form the gradient's factor is ½ at π = ε and falls to 0 below, in the code's form it drops to 0 at once.
Range: ε > 0; GA3C and IMPALA use 10⁻⁶.
"""

import tensorflow as tf

from impala.losses.actor_critic import Rows, Terms


def epsilon_add(epsilon: float = 1e-6) -> Terms:
    """Returns the papers' form, log(π + ε): ∇ log π is multiplied with π / (π + ε). The entropy takes it as well."""
    return _terms(lambda log_pi: tf.math.log(tf.exp(log_pi) + epsilon), epsilon)


def epsilon_max(epsilon: float = 1e-6) -> Terms:
    """Returns the form of GA3C's code, log max(π, ε): no gradient where π < ε. The entropy takes it as well."""
    return _terms(lambda log_pi: tf.maximum(log_pi, tf.math.log(epsilon)), epsilon)


def _terms(safe_log, epsilon: float) -> Terms:
    if not epsilon > 0.0:
        raise ValueError(f"epsilon={epsilon}; expected more than 0")

    def policy(rows: Rows, advantage_tm1):
        log_pi_tm1 = rows.log_taken(rows.pi_tm1)
        is_clipped = tf.cast(log_pi_tm1 < tf.math.log(epsilon), advantage_tm1.dtype)
        return safe_log(log_pi_tm1) * advantage_tm1, is_clipped

    def entropy(rows: Rows):
        return -tf.reduce_sum(tf.exp(rows.pi_tm1) * safe_log(rows.pi_tm1), axis=-1)

    return Terms(policy=policy, entropy=entropy)
