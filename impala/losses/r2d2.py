"""R2D2's loss: Q-learning on sequences, with rescaled values (Kapturowski et al. 2019, openreview r1lyTjAqYX).

    h(x) = sign(x) (√(|x| + 1) − 1) + ε x                                        (Pohlen et al. 2018, arXiv:1805.11593)
    y_t  = h(r_t + γ r_{t+1} + … + γ^{n−1} r_{t+n−1} + γ^n h⁻¹(Q⁻(x_{t+n}, argmax Q(x_{t+n}, ·))))
    δ_t  = y_t − Q(x_t, a_t)

The loss of a sequence is ½ Σ_t δ_t², its priority η max |δ_t| + (1 − η) mean |δ_t|. Sums end at terminations. Where an
episode is cut off, or the sequence ends, before n steps, the last of its states bootstraps; there is nothing to learn
across a reset. With a Q-based correction instead of n steps, its targets, in units of reward, go through h.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from impala.losses.importance import MIN_PRIORITY, reduced
from impala.losses.q_learning import log_epsilon_greedy
from impala.losses.rewards import REWARD_CLIPPING
from impala.losses.telemetry import of_policies

_EPSILON = 1e-3  # ε of h


def rescaled(x, epsilon: float = _EPSILON):
    """Returns h(x) of a tensor or an array."""
    return x / ((abs(x) + 1.0) ** 0.5 + 1.0) + epsilon * x  # sign(x) (√(|x| + 1) − 1) without cancellation


def unscaled(y, epsilon: float = _EPSILON):
    """Returns h⁻¹(y) of a tensor or an array."""
    size = abs(y)  # u = √(|x| + 1) solves ε u² + u = |y| + 1 + ε; u − 1 in a form that does not cancel, x = u² − 1
    u_less_1 = 2.0 * size / ((1.0 + 4.0 * epsilon * (size + 1.0 + epsilon)) ** 0.5 + 1.0 + 2.0 * epsilon)
    return (tf.sign if tf.is_tensor(y) else np.sign)(y) * u_less_1 * (u_less_1 + 2.0)


def n_step_targets(r_t, discount_t, is_first, value, n: int):
    """Returns the sum of n rewards and the value after them, for each of T states; tensors, or NumPy arrays.

    Args:
      r_t, discount_t: [T, B], rewards, and γ, or 0 at a termination.
      is_first: [T+1, B], of the states; no transition leads to one where it is True.
      value: [T+1, B], of the states.
    """
    concat, where = (tf.concat, tf.where) if tf.is_tensor(value) else (np.concatenate, np.where)
    target = value  # of 0 steps
    for _ in range(n):
        # The transition after the next state may lead across a reset; after the last state there is none.
        goes_on = concat([where(is_first[2:], value[1:-1], target[1:-1]), value[-1:]], axis=0)
        target = concat([r_t + discount_t * goes_on, value[-1:]], axis=0)
    return target[:-1]


def r2d2(
    *, n_step: int, burn_in: int, max_share: float = 0.9, rescales: bool = True, correction: Callable | None = None,
    policy_epsilon: float = 0.0, discount: float = 0.997, reward_clipping: str = "none", reduction: str = "mean",
) -> Callable:  # fmt: skip
    """Makes the loss, summed over time, and summed or averaged over the sequences of a batch.

    Args:
      n_step: n.
      burn_in: transitions at the start of each sequence of which nothing is learned.
      max_share: η.
      rescales: whether values are in units of h.
      correction: one of `corrections.Q_SCHEMES`, with its parameters, instead of n steps. It values π, ε-greedy in the
        online network, and takes μ from the batch's `logits_tm1`, logarithms of its probabilities.
      policy_epsilon: ε of π.
      discount: γ.
      reward_clipping: a name of `losses.rewards.REWARD_CLIPPING`.
      reduction: "sum" or "mean".

    Returns:
      (outputs, batch) → (loss, metrics): outputs are `networks.q_sequences.Sequences`, batch a time-major `Chunk` of
      burn-in + T transitions; the rest as in `q_learning.q_learning`.
    """
    to_units, from_units = (rescaled, unscaled) if rescales else (tf.identity, tf.identity)

    def target_of(outputs, batch, is_first):
        r_t, discount_t = REWARD_CLIPPING[reward_clipping](batch.r_t[burn_in:]), discount * batch.discount_t[burn_in:]
        target_q = from_units(outputs.target_q)
        if correction is None:
            best = tf.argmax(outputs.q, axis=-1, output_type=tf.int32)
            return n_step_targets(r_t, discount_t, is_first, tf.gather(target_q, best, batch_dims=2), n_step)
        log_pi = log_epsilon_greedy(tf.stop_gradient(outputs.q), policy_epsilon)
        return correction(
            q_tm1=target_q[:-1], q_t=target_q[1:], a_tm1=batch.a_tm1[burn_in:], r_t=r_t, discount_t=discount_t,
            log_pi_tm1=log_pi[:-1], log_pi_t=log_pi[1:], log_mu_tm1=tf.math.log_softmax(batch.logits_tm1[burn_in:]),
            mask_t=1.0 - tf.cast(is_first[1:], tf.float32),
        ).target_tm1  # fmt: skip

    def loss(outputs, batch):
        is_first = batch.is_first[burn_in:]
        target = tf.stop_gradient(to_units(target_of(outputs, batch, is_first)))
        q_taken = tf.gather(outputs.q[:-1], batch.a_tm1[burn_in:], batch_dims=2)
        td_error = tf.where(is_first[1:], 0.0, target - q_taken)
        num_valid = tf.maximum(tf.reduce_sum(1.0 - tf.cast(is_first[1:], tf.float32)), 1.0)
        total, metrics = reduced(
            tf.reduce_sum(0.5 * tf.square(td_error), axis=0), td_error, batch, reduction,
            priority=mixed(tf.stop_gradient(tf.abs(td_error)), is_first, max_share),
        )  # fmt: skip
        metrics |= {
            "td_error": tf.reduce_sum(tf.abs(td_error)) / num_valid,
            "value_loss": tf.reduce_sum(0.5 * tf.square(td_error)) / num_valid,
            "value": tf.reduce_mean(from_units(tf.reduce_max(outputs.q, axis=-1))),
            **_telemetry(outputs, batch, burn_in, policy_epsilon),
        }
        return total, {name: tf.stop_gradient(metric) for name, metric in metrics.items()}

    return loss


def _telemetry(outputs, batch, burn_in: int, policy_epsilon: float) -> dict[str, tf.Tensor]:
    """Returns how many transitions are fresh and, where μ was kept, how far from it π is; see `losses.telemetry`."""
    valid = 1.0 - tf.cast(batch.is_first[burn_in + 1 :], tf.float32)
    is_replayed = 0.0 if isinstance(batch.is_replayed, tuple) else tf.cast(batch.is_replayed, tf.float32)
    metrics = {"num_transitions": tf.reduce_sum(valid * (1.0 - is_replayed))}
    if isinstance(batch.logits_tm1, tuple):
        return metrics
    log_pi, log_mu = log_epsilon_greedy(outputs.q[:-1], policy_epsilon), tf.math.log_softmax(batch.logits_tm1[burn_in:])
    return metrics | of_policies(log_pi, log_mu, batch.a_tm1[burn_in:], valid)


def mixed(size, is_first, max_share: float):
    """Returns η max |δ| + (1 − η) mean |δ| of sequences [B], of tensors or arrays.

    Args:
      size: |δ| [T, B], 0 where there is no transition.
      is_first: [T+1, B], of the states.
    """
    if tf.is_tensor(size):
        count = tf.reduce_sum(1.0 - tf.cast(is_first[1:], size.dtype), axis=0)
        largest, total = tf.reduce_max(size, axis=0), tf.reduce_sum(size, axis=0)
        return max_share * largest + (1.0 - max_share) * total / tf.maximum(count, 1.0)
    count = np.maximum(np.sum(~is_first[1:], axis=0), 1)
    return max_share * np.max(size, axis=0) + (1.0 - max_share) * np.sum(size, axis=0) / count


def first_priorities(
    r_t: np.ndarray, discount_t: np.ndarray, is_first: np.ndarray, q_taken: np.ndarray, q_best: np.ndarray,
    *, n_step: int, max_share: float = 0.9, rescales: bool = True, discount: float = 0.997,
    reward_clipping: str = "none",
) -> np.ndarray:  # fmt: skip
    """Returns the priorities of N sequences from the action values computed while acting: [N], in NumPy.

    There is no target network: the one that acted both chooses and values the last action, as in SEED RL.

    Args:
      r_t, discount_t: [T, N], after burn-in; the discount is 0 at a termination and 1 elsewhere.
      is_first: [T+1, N], of the states.
      q_taken, q_best: [T+1, N], of the action taken in each state, and of the best one.
      n_step, max_share, rescales, discount, reward_clipping: as in `r2d2`.
    """
    to_units, from_units = (rescaled, unscaled) if rescales else (np.asarray, np.asarray)
    rewards = np.asarray(REWARD_CLIPPING[reward_clipping](r_t))
    target = to_units(n_step_targets(rewards, discount * discount_t, is_first, from_units(q_best), n_step))
    size = np.where(is_first[1:], 0.0, np.abs(target - q_taken[:-1]))
    return np.maximum(mixed(size, is_first, max_share), MIN_PRIORITY)
