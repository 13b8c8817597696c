"""IMPACT: PPO's surrogate against a target network, which V-trace evaluates (Luo et al. 2020, arXiv:1912.00167).

    targets and advantages: V-trace between π_target and μ
    maximise min(R A, clip(R, 1 − ε, 1 + ε) A),   R = min(μ / π_target, ρ_max) · π / μ = π / max(π_target, μ / ρ_max)

π_target is a copy of π, renewed every so many updates. Fixed point of the value: V-trace's, with π_target for π.
Limits: π_target = μ is PPO if ρ_max ≥ 1; where μ / π_target ≤ ρ_max the ratio is π / π_target. Ranges: ε > 0,
ρ_max > 0. For λ < 1 the paper's form, V-trace as GAE, is `pg_bootstrap: mixed`. The paper's circular buffer, which uses
every batch several times, is not part of it; `replay.fraction` comes nearest.
"""

import math

import tensorflow as tf

from impala.losses.actor_critic import Rows, Terms
from impala.losses.ppo_clip import clipped_surrogate
from impala.losses.ratios import ratio


def impact(surrogate_clip: float = 0.2, ratio_max: float = 2.0) -> Terms:
    """Returns IMPACT's surrogate; the network must be a `networks.WithTarget`."""
    if not (surrogate_clip > 0.0 and ratio_max > 0.0):
        raise ValueError(f"surrogate_clip={surrogate_clip}, ratio_max={ratio_max}; expected both more than 0")

    def policy(rows: Rows, advantage_tm1):
        log_mu, log_target = rows.log_taken(rows.mu_tm1), tf.stop_gradient(rows.log_taken(rows.pi_target_tm1))
        log_ratio = tf.minimum(log_mu - log_target, math.log(ratio_max)) + rows.log_taken(rows.pi_tm1) - log_mu
        return clipped_surrogate(ratio(log_ratio), advantage_tm1, surrogate_clip)

    return Terms(policy=policy)
