"""PPO's clipped surrogate as an off-policy correction (Schulman et al. 2017, arXiv:1707.06347, equation 7).

    maximise min(ρ A, clip(ρ, 1 − ε, 1 + ε) A),   ρ = π/μ: the old policy is the one that acted

No gradient where an action with A > 0 is already more than 1 + ε times as likely as under μ, or one with A < 0 less
than 1 − ε times. Targets and advantages are those of `td_lambda`: GAE with `loss.lambda`, n-step returns with its
default of 1 (PPO's is 0.95). Fixed point of the value: V^μ. Limits: on policy its gradient is the policy gradient;
ε → ∞ is importance sampling without clips. Range: ε > 0.

`appo` is the same on V-trace's targets, as RLlib and Sample Factory have PPO on old data (Petrenko et al. 2020,
arXiv:2006.11751). Its advantages are V-trace's without the ratio, since the surrogate has it. Fixed point of the value:
V-trace's. Limits: on policy `ppo_clip`; ε → ∞ is V-trace with ρ̄_pg = ∞.
"""

import tensorflow as tf

from impala.losses.actor_critic import Rows, Terms
from impala.losses.ratios import ratio

_LEAST_BETA, _MOST_BETA = 1e-10, 1e10


def ppo_clip(surrogate_clip: float = 0.2) -> Terms:
    """Returns the clipped surrogate between π and μ."""
    if not surrogate_clip > 0.0:
        raise ValueError(f"surrogate_clip={surrogate_clip}; expected more than 0")

    def policy(rows: Rows, advantage_tm1):
        log_rho_tm1 = rows.log_taken(rows.pi_tm1) - tf.stop_gradient(rows.log_taken(rows.mu_tm1))
        return clipped_surrogate(ratio(log_rho_tm1), advantage_tm1, surrogate_clip)

    return Terms(policy=policy)


def clipped_surrogate(ratio_tm1, advantage_tm1, clip: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns min(ρ A, clip(ρ, 1 − ε, 1 + ε) A), and 1 where the clip cuts the gradient off."""
    free = ratio_tm1 * advantage_tm1
    clipped = tf.clip_by_value(ratio_tm1, 1.0 - clip, 1.0 + clip) * advantage_tm1
    return tf.minimum(free, clipped), tf.cast(clipped < free, free.dtype)


def adapted_penalty(beta: float, kl: float, target: float, *, tolerance: float = 1.5, factor: float = 2.0) -> float:
    """Returns the next coefficient of the penalty β KL(μ‖π), PPO's other surrogate (section 4), after a policy update.

    Doubled if the update moved the policy by a KL above 1.5 times the target, halved if by less than the target divided
    by 1.5; or with the tolerance and factor given. It stays between 1e-10 and 1e10: halved a thousand times, as with a
    learning rate that falls to 0, it would be 0 for good.
    """
    if not (beta > 0.0 and kl >= 0.0 and target > 0.0):
        raise ValueError(f"beta={beta}, kl={kl}, target={target}; expected more than 0, 0 or more, more than 0")
    changed = beta * factor if kl > tolerance * target else beta / factor if kl < target / tolerance else beta
    return min(max(changed, _LEAST_BETA), _MOST_BETA)
