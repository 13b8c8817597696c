"""The actor-critic loss of IMPALA (section 4.2 and appendix D), with any V-based correction and policy term."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from impala.corrections import Targets
from impala.distributions import CATEGORICAL, Distribution
from impala.losses import telemetry
from impala.losses.rewards import REWARD_CLIPPING

Loss = Callable[..., tuple[tf.Tensor, dict[str, tf.Tensor]]]


class Rows(NamedTuple):
    """What a term of the loss may look at: every transition's distributions and values.

    A policy is given by its normalised parameters (`impala.distributions`): log-probabilities of all actions where
    these are discrete.
    """

    pi_tm1: tf.Tensor  # [T, B, A], the policy that learns
    mu_tm1: tf.Tensor  # [T, B, A], the behaviour policy
    pi_target_tm1: tf.Tensor  # [T, B, A], the policy that is evaluated: the target network's if there is one, else π
    a_tm1: tf.Tensor  # [T, B, …]
    v_tm1: tf.Tensor  # [T, B], V(x_s)
    v_behaviour_tm1: tf.Tensor  # [T, B], V(x_s) by the weights that acted; () if chunks do not keep it
    is_replayed: tf.Tensor  # [B] float, 1 if the chunk was drawn from replay
    distribution: Distribution = CATEGORICAL

    def log_taken(self, policy_tm1: tf.Tensor) -> tf.Tensor:
        """Returns the log-probability of the action taken under a policy, [T, B]."""
        return self.distribution.log_probability(policy_tm1, self.a_tm1)


def policy_gradient(rows: Rows, advantage_tm1: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns log π(a_s|x_s) A_s, to be maximised, and zeros, as no row is clipped; both [T, B]."""
    return rows.log_taken(rows.pi_tm1) * advantage_tm1, tf.zeros_like(advantage_tm1)


def entropy(rows: Rows) -> tf.Tensor:
    """Returns H(π(·|x_s)), [T, B]."""
    return rows.distribution.entropy(rows.pi_tm1)


class Terms(NamedTuple):
    """The terms of the loss that a scheme may replace; the defaults are IMPALA's."""

    policy: Callable = policy_gradient  # (rows, advantage_tm1) → (objective, is_clipped), both [T, B]
    entropy: Callable = entropy  # (rows) → [T, B]
    is_trusted: Callable | None = None  # (rows) → [T, B], 0 where the transition is left out and the trace cut
    extra: Callable | None = None  # (rows) → [T, B], added to the loss


IMPALA = Terms()


def actor_critic(
    correction: Callable[..., Targets], terms: Terms = IMPALA, *, distribution: Distribution = CATEGORICAL,
    discount: float = 0.99, baseline_cost: float = 0.5, entropy_cost: float = 0.01, reward_clipping: str = "abs_one",
    reduction: str = "sum", clip_rho: float = 1.0, clip_c: float = 1.0,
) -> Loss:  # fmt: skip
    """Makes the loss, summed over T and B (or averaged over the valid transitions, with `reduction="mean"`).

    L = Σ_s [ −log π(a_s|x_s) A_s + baseline_cost · ½ (v_s − V(x_s))² − entropy_cost · H(π(·|x_s)) ]

    v_s and A_s come from `correction` and carry no gradient. Rows across a reset are masked out of every term.

    Args:
      correction: a V-based scheme of `impala.corrections`, its parameters bound.
      terms: replace single terms of L; the other files of this folder make them.
      distribution: over the actions; the network's.
      discount: γ.
      baseline_cost, entropy_cost: weights of the value loss and of the entropy bonus.
      reward_clipping: a name of `rewards.REWARD_CLIPPING`.
      reduction: "sum" as in the paper, whose learning rate, clip norm and RMSProp ε assume it, or "mean".
      clip_rho, clip_c: ρ̄ and c̄ that telemetry counts ratios against.

    Returns:
      (outputs, batch) → (loss, metrics): outputs are a network's [T+1, B], batch a time-major `Chunk`; `entropy_cost`
      may be given anew with every call, as a tensor. The metric `loss` is the loss itself; its terms are given as means
      over the valid transitions.

    Raises:
      ValueError: `reduction` is another word.
    """
    if reduction not in ("sum", "mean"):
        raise ValueError(f"reduction={reduction!r}; expected 'sum' or 'mean'")

    def loss(outputs, batch, entropy_cost=entropy_cost):
        rows, value = make_rows(outputs, batch, distribution), outputs[1]
        valid_t = 1.0 - tf.cast(batch.is_first[1:], tf.float32)
        mask_t = valid_t if terms.is_trusted is None else valid_t * tf.stop_gradient(terms.is_trusted(rows))
        log_rho_tm1 = tf.stop_gradient(rows.log_taken(rows.pi_target_tm1)) - rows.log_taken(rows.mu_tm1)
        targets = correction(
            v_tm1=tf.stop_gradient(rows.v_tm1),  # here too, not in each correction alone: it may be a user's
            v_t=tf.stop_gradient(value[1:]),
            r_t=REWARD_CLIPPING[reward_clipping](batch.r_t),
            discount_t=discount * batch.discount_t,
            log_rho_tm1=log_rho_tm1,
            mask_t=mask_t,
        )
        objective_tm1, is_clipped_tm1 = terms.policy(rows, targets.advantage_tm1)
        parts = {
            "policy_loss": -mask_t * objective_tm1,
            "value_loss": 0.5 * mask_t * tf.square(targets.target_tm1 - rows.v_tm1),
            "entropy_bonus": mask_t * terms.entropy(rows),
            "extra_loss": mask_t * terms.extra(rows) if terms.extra else tf.zeros_like(mask_t),
        }
        sums = {name: tf.reduce_sum(part) for name, part in parts.items()}
        total = sums["policy_loss"] + baseline_cost * sums["value_loss"] - entropy_cost * sums["entropy_bonus"]
        total += sums["extra_loss"]
        num_valid = tf.maximum(tf.reduce_sum(valid_t), 1.0)
        if reduction == "mean":
            total /= num_valid
        metrics = {"loss": total} | {name: part / num_valid for name, part in sums.items()}
        metrics |= telemetry.metrics(
            targets, rows, log_rho_tm1=log_rho_tm1, discount_t=batch.discount_t, valid_t=valid_t, mask_t=mask_t,
            is_clipped_tm1=is_clipped_tm1, clip_rho=clip_rho, clip_c=clip_c,
        )  # fmt: skip
        return total, {name: tf.stop_gradient(metric) for name, metric in metrics.items()}

    return loss


def make_rows(outputs, batch, distribution: Distribution) -> Rows:
    """Returns the `Rows` of a network's outputs and a time-major `Chunk`."""
    logits, value = outputs[:2]
    target_logits = getattr(outputs, "target_logits", None)
    _check_shapes(logits, value, target_logits, batch)
    pi_tm1 = distribution.normalise(logits[:-1])
    fresh = tf.zeros_like(value[0])  # [B]
    return Rows(
        pi_tm1=pi_tm1,
        mu_tm1=distribution.normalise(batch.logits_tm1),
        pi_target_tm1=pi_tm1 if target_logits is None else distribution.normalise(target_logits[:-1]),
        a_tm1=batch.a_tm1,
        v_tm1=value[:-1],
        v_behaviour_tm1=batch.v_behaviour_tm1,
        is_replayed=fresh if isinstance(batch.is_replayed, tuple) else tf.cast(batch.is_replayed, fresh.dtype),
        distribution=distribution,
    )


def _check_shapes(logits, value, target_logits, batch) -> None:
    """Raises ValueError naming the array that does not fit the rewards [T, B] and the logits [T+1, B, A]."""
    rewards, num_parameters = tf.TensorShape(batch.r_t.shape), logits.shape[-1:]
    if rewards.rank != 2:
        raise ValueError(f"r_t has shape {tuple(rewards)}; expected [T, B], time-major")
    length, width = rewards
    observations = tf.TensorShape([None if length is None else length + 1, width])
    for name, x, leading, rest in (
        ("logits", logits, observations, num_parameters), ("value", value, observations, []),
        ("target_logits", target_logits, observations, num_parameters), ("is_first", batch.is_first, observations, []),
        ("discount_t", batch.discount_t, rewards, []), ("logits_tm1", batch.logits_tm1, rewards, num_parameters),
        ("v_behaviour_tm1", batch.v_behaviour_tm1, rewards, []), ("a_tm1", batch.a_tm1, rewards, None),
    ):  # fmt: skip
        if x is None or isinstance(x, tuple):  # this network or chunk does not have it
            continue
        shape = x.shape[:2] if rest is None else x.shape
        if not leading.concatenate(rest or []).is_compatible_with(shape):
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {tuple(leading.concatenate(rest or []))}")
