"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347; Heess et al. 2017, arXiv:1707.02286).

    clip:     maximise min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)
    penalty:  maximise ρ A − β KL(μ‖π)
    hinge:    − ξ max(0, mean KL − 2 KL_target)², added to either; with the penalty in Heess et al.
    value:    ½ (V − v)², or with `value_clip` the larger of that and ½ (clip(V, V_old ± ε) − v)²

ρ = π/μ, where μ is the policy that acted: the weights as they were when the iteration began. A and v come with the
batch, computed once for an iteration from the values of that time, and so do β and whether a pass trains the policy,
the values, or both.
"""

from collections.abc import Callable

import tensorflow as tf

from impala.corrections import Targets
from impala.distributions import Distribution
from impala.losses import telemetry
from impala.losses.actor_critic import Rows
from impala.losses.ppo_clip import clipped_surrogate
from impala.losses.ratios import ratio


def ppo(
    surrogate: str = "clip", *, distribution: Distribution, surrogate_clip: float = 0.2, value_clip: bool = False,
    kl_target: float = 0.01, kl_hinge: float = 0.0, baseline_cost: float = 0.5, entropy_cost: float = 0.01,
    reduction: str = "mean", clip_rho: float = 1.0, clip_c: float = 1.0,
) -> Callable:  # fmt: skip
    """Makes the loss, the mean over the valid transitions or, with `reduction="sum"`, their sum.

    Args:
      surrogate: a word of `SURROGATES`.
      distribution: over the actions; the network's.
      surrogate_clip: ε; may be given anew with every call, as `entropy_cost` may.
      kl_target, kl_hinge: see above; ξ = 0 leaves the hinge out.
      baseline_cost, entropy_cost: weights of the value loss and of the entropy bonus.
      clip_rho, clip_c: ρ̄ and c̄ that telemetry counts ratios against.

    Returns:
      (outputs, batch) → (loss, metrics): outputs are a network's [n, B], batch is a
      `learning.epochs.Batch`.
    """
    objective = SURROGATES[surrogate]

    def loss(outputs, batch, surrogate_clip=surrogate_clip, entropy_cost=entropy_cost):
        rows, mask_t = _rows(outputs, batch, distribution), batch.valid_t
        num_valid = tf.maximum(tf.reduce_sum(mask_t), 1.0)
        log_rho_tm1 = rows.log_taken(rows.pi_tm1) - rows.log_taken(rows.mu_tm1)
        kl_tm1 = distribution.kl(rows.mu_tm1, rows.pi_tm1)
        objective_tm1, is_clipped_tm1 = objective(log_rho_tm1, batch.advantage_tm1, kl_tm1, surrogate_clip, batch.beta)
        errors_tm1 = _errors(rows, batch, surrogate_clip if value_clip else None)
        excess = tf.maximum(0.0, tf.reduce_sum(mask_t * kl_tm1) / num_valid - 2.0 * kl_target)
        means = {
            "policy_loss": -tf.reduce_sum(mask_t * objective_tm1) / num_valid + kl_hinge * tf.square(excess),
            "value_loss": tf.reduce_sum(mask_t * errors_tm1) / num_valid,
            "entropy_bonus": tf.reduce_sum(mask_t * distribution.entropy(rows.pi_tm1)) / num_valid,
        }
        trains_policy, trains_values = batch.trains[0], batch.trains[1]
        total = trains_policy * (means["policy_loss"] - entropy_cost * means["entropy_bonus"])
        total += trains_values * baseline_cost * means["value_loss"]
        if reduction == "sum":
            total *= num_valid
        targets = Targets(batch.target_tm1, batch.advantage_tm1)
        metrics = {"loss": total, **means, "extra_loss": tf.zeros_like(total)} | telemetry.metrics(
            targets, rows, log_rho_tm1=log_rho_tm1, discount_t=mask_t, valid_t=mask_t, mask_t=mask_t,
            is_clipped_tm1=is_clipped_tm1, clip_rho=clip_rho, clip_c=clip_c,
        )  # fmt: skip
        return total, {name: tf.stop_gradient(metric) for name, metric in metrics.items()}

    return loss


def _clip(log_rho_tm1, advantage_tm1, kl_tm1, clip, beta):
    return clipped_surrogate(ratio(log_rho_tm1), advantage_tm1, clip)


def _penalty(log_rho_tm1, advantage_tm1, kl_tm1, clip, beta):
    objective_tm1 = ratio(log_rho_tm1) * advantage_tm1 - beta * kl_tm1
    return objective_tm1, tf.zeros_like(objective_tm1)


SURROGATES = {"clip": _clip, "penalty": _penalty}


def _errors(rows: Rows, batch, clip) -> tf.Tensor:
    """Returns the value loss of each transition, [T, B]; with `clip`, moving V further than that gains nothing."""
    errors = tf.square(batch.target_tm1 - rows.v_tm1)
    if clip is not None:
        moved = rows.v_tm1 - batch.v_behaviour_tm1
        near = batch.v_behaviour_tm1 + tf.clip_by_value(moved, -clip, clip)
        errors = tf.maximum(errors, tf.square(batch.target_tm1 - near))
    return 0.5 * errors


def _rows(outputs, batch, distribution: Distribution) -> Rows:
    length = batch.a_tm1.shape[0]
    pi_tm1 = distribution.normalise(outputs.logits[:length])
    return Rows(
        pi_tm1=pi_tm1, mu_tm1=distribution.normalise(batch.logits_tm1), pi_target_tm1=pi_tm1, a_tm1=batch.a_tm1,
        v_tm1=outputs.value[:length], v_behaviour_tm1=batch.v_behaviour_tm1, is_replayed=batch.is_replayed,
        distribution=distribution,
    )  # fmt: skip
